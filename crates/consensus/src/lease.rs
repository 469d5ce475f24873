//! This node's own lease: whether it may route now.
//!
//! Cost of [`Lease::is_held`], asked for every publish: one atomic load and one reading of the clock.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use warren_model::planted;

/// This node's lease.
#[derive(Debug)]
pub(crate) struct Lease {
    /// What [`Self::until`] counts from.
    base: Instant,
    /// Nanoseconds after `base` up to which this node may route; 0 if it may not.
    until: AtomicU64,
    terms: Mutex<Terms>,
    /// Moves whenever something changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Terms {
    asked: Option<Instant>,
    until: Instant,
    must_apply: u64,
    applied: u64,
    in_service: bool,
    released: bool,
}

impl Lease {
    pub(crate) fn new() -> Self {
        let base = Instant::now();
        let terms = Mutex::new(Terms {
            asked: None,
            until: base,
            must_apply: 0,
            applied: 0,
            in_service: false,
            released: false,
        });
        Self {
            base,
            until: AtomicU64::new(0),
            terms,
            changes: watch::Sender::new(0),
        }
    }

    /// Whether this node may route now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        if planted!(RouteWithoutLease) {
            return true;
        }
        let until = self.until.load(Ordering::Acquire);
        until != 0 && nanos(self.base, Instant::now()) < until
    }

    /// A lease was granted: asked for at `asked`, it lasts until `until` for a table that has applied `must_apply`.
    /// A grant older than the newest one known is ignored: its `must_apply` may be outdated.
    pub(crate) fn grant(&self, asked: Instant, until: Instant, must_apply: u64) {
        let mut terms = self.terms.lock();
        if terms.asked.is_some_and(|newest| asked < newest) {
            return;
        }
        (terms.asked, terms.until, terms.must_apply) = (Some(asked), until, must_apply);
        self.publish(&terms);
    }

    /// The table has applied `index`, and counts this node as in service or not.
    pub(crate) fn applied(&self, index: u64, in_service: bool) {
        let mut terms = self.terms.lock();
        (terms.applied, terms.in_service) = (index, in_service);
        self.publish(&terms);
    }

    /// Gives the lease up for good.
    pub(crate) fn release(&self) {
        let mut terms = self.terms.lock();
        terms.released = true;
        self.publish(&terms);
    }

    /// Wakes at every change of the lease or the applied index.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn publish(&self, terms: &Terms) {
        let holds = terms.in_service
            && (terms.applied >= terms.must_apply || planted!(LeaseWithoutTable))
            && !terms.released;
        let until = if holds {
            nanos(self.base, terms.until)
        } else {
            0
        };
        self.until.store(until, Ordering::Release);
        self.changes.send_modify(|change| *change += 1);
    }
}

fn nanos(base: Instant, at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(base).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_by_itself() {
        let lease = Lease::new();
        lease.applied(5, true);
        assert!(!lease.is_held());
        tokio::time::advance(Duration::from_millis(10)).await;
        let now = Instant::now();
        lease.grant(now, now + Duration::from_millis(100), 5);
        assert!(lease.is_held());
        tokio::time::advance(Duration::from_millis(99)).await;
        assert!(lease.is_held());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!lease.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_holds_only_for_what_is_applied() {
        let lease = Lease::new();
        lease.applied(5, true);
        let now = Instant::now();
        lease.grant(now, now + Duration::from_secs(1), 7);
        assert!(!lease.is_held());
        lease.applied(6, true);
        assert!(!lease.is_held());
        lease.applied(7, false);
        assert!(!lease.is_held());
        lease.applied(7, true);
        assert!(lease.is_held());
        lease.release();
        assert!(!lease.is_held());
        lease.grant(now, now + Duration::from_secs(1), 7);
        assert!(!lease.is_held(), "released for good");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outdated_grant_changes_nothing() {
        let lease = Lease::new();
        lease.applied(5, true);
        let first = Instant::now();
        tokio::time::advance(Duration::from_millis(10)).await;
        let second = Instant::now();
        lease.grant(second, second + Duration::from_secs(1), 9);
        lease.grant(first, first + Duration::from_secs(1), 5);
        assert!(!lease.is_held());
    }
}
