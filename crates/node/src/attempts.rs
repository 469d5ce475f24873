//! Failed logins by source address, so that passwords cannot be tried out at leisure.
//!
//! Each address may fail so many times a minute: failures drain as time goes by. While an address has none left, its logins are refused unseen, right
//! ones too, or else the answer would tell. Memory is bounded: addresses beyond [`ADDRESSES_MAX`] push out those that failed least.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use tokio::time::Instant;

const ADDRESSES_MAX: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);

/// Failures of one address: how many as of when.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: f64,
    at: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<IpAddr, Failures>>);

impl Attempts {
    /// Whether the address may try; no limit if `a_minute` is 0.
    pub(crate) fn may_try(&self, from: IpAddr, a_minute: u32, now: Instant) -> bool {
        if a_minute == 0 {
            return true;
        }
        let failures = self.0.lock().get(&from).copied();
        failures.is_none_or(|f| f.left(a_minute, now) + 1.0 <= f64::from(a_minute))
    }

    /// The address has failed.
    pub(crate) fn failed(&self, from: IpAddr, a_minute: u32, now: Instant) {
        if a_minute == 0 {
            return;
        }
        let mut all = self.0.lock();
        if all.len() >= ADDRESSES_MAX && !all.contains_key(&from) {
            all.retain(|_, f| f.left(a_minute, now) > 0.0);
            let least = all
                .iter()
                .min_by(|(_, a), (_, b)| a.left(a_minute, now).total_cmp(&b.left(a_minute, now)))
                .map(|(address, _)| *address);
            if let Some(least) = least.filter(|_| all.len() >= ADDRESSES_MAX) {
                all.remove(&least);
            }
        }
        let failures = all.entry(from).or_insert(Failures {
            count: 0.0,
            at: now,
        });
        *failures = Failures {
            count: failures.left(a_minute, now) + 1.0,
            at: now,
        };
    }
}

impl Failures {
    /// Failures that have not drained.
    fn left(&self, a_minute: u32, now: Instant) -> f64 {
        let minutes = now.saturating_duration_since(self.at).as_secs_f64() / MINUTE.as_secs_f64();
        (self.count - minutes * f64::from(a_minute)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_address_may_fail_so_often_and_again_later() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let [one, other] = [1, 2].map(|n| IpAddr::V4(Ipv4Addr::new(192, 0, 2, n)));
        for _ in 0..3 {
            assert!(attempts.may_try(one, 3, now));
            attempts.failed(one, 3, now);
        }
        assert!(!attempts.may_try(one, 3, now));
        assert!(attempts.may_try(other, 3, now), "others are not concerned");
        assert!(attempts.may_try(one, 0, now), "without a limit");
        assert!(!attempts.may_try(one, 3, now + Duration::from_secs(19)));
        assert!(attempts.may_try(one, 3, now + Duration::from_secs(21)));
    }

    #[test]
    fn memory_is_bounded() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        let address = |n: u32| IpAddr::V4(Ipv4Addr::from(n));
        for _ in 0..5 {
            attempts.failed(address(0), 5, now);
        }
        for n in 1..=ADDRESSES_MAX as u32 + 10 {
            attempts.failed(address(n), 5, now);
        }
        assert_eq!(attempts.0.lock().len(), ADDRESSES_MAX);
        assert!(
            !attempts.may_try(address(0), 5, now),
            "who failed most stays"
        );
    }
}
