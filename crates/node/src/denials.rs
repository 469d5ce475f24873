//! Queues that messages do not go to, because their publisher may not write to them: a count, and a bounded number of lines in the audit log.
//!
//! Each publisher, exchange and queue is told once in [`AGAIN_AFTER`], and [`KNOWN_MAX`] of them at most in that time, however many a client makes up.
//! Cost: a publish whose route is remembered adds to a counter, if anything was left out; a route that is looked for takes a lock for each queue left out,
//! if there is an audit log.

use crate::audit::{self, Who};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// What was told is not told again within this time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// So many are told in that time.
const KNOWN_MAX: usize = 1024;

/// User, virtual host, exchange, queue.
type Denied = (String, String, String, String);

/// What a node keeps of them.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    total: AtomicU64,
    told: Mutex<BTreeMap<Denied, Instant>>,
}

impl Denials {
    /// A message did not go to so many queues.
    #[inline]
    pub(crate) fn count(&self, queues: u32) {
        if queues > 0 {
            self.total.fetch_add(u64::from(queues), Ordering::Relaxed);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Writes to the audit log that a queue is left out, unless that was said of late.
    pub(crate) fn tell(&self, who: &dyn Fn() -> Who, vhost: &str, exchange: &str, queue: &str) {
        if !audit::is_on() {
            return;
        }
        let who = who();
        if self.is_news(&who.user, [vhost, exchange, queue], Instant::now()) {
            audit::queue_write_denied(&who, vhost, exchange, queue);
        }
    }

    fn is_news(&self, user: &str, names: [&str; 3], now: Instant) -> bool {
        let [vhost, exchange, queue] = names.map(str::to_owned);
        let denied = (user.to_owned(), vhost, exchange, queue);
        let mut told = self.told.lock();
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= AGAIN_AFTER;
        if told.get(&denied).is_some_and(|at| !is_old(at)) {
            return false;
        }
        if told.len() >= KNOWN_MAX {
            told.retain(|_, at| !is_old(at));
        }
        let has_room = told.len() < KNOWN_MAX;
        if has_room {
            told.insert(denied, now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_in_a_while_and_not_too_many_of_them() {
        let denials = Denials::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(denials.is_news("u", ["/", "x", "q"], at(0)));
        assert!(!denials.is_news("u", ["/", "x", "q"], at(59)));
        assert!(denials.is_news("v", ["/", "x", "q"], at(59)));
        assert!(denials.is_news("u", ["/", "x", "q"], at(60)));
        let told =
            (0..2 * KNOWN_MAX).filter(|n| denials.is_news("u", ["/", "x", &n.to_string()], at(61)));
        assert_eq!(told.count(), KNOWN_MAX - 2);
        assert!(
            denials.is_news("u", ["/", "y", "q"], at(200)),
            "the old ones make room"
        );
        denials.count(0);
        denials.count(3);
        assert_eq!(denials.total(), 3);
    }
}
