//! Counts with a rate: messages since ever, and how many came lately.
//!
//! A meter is told the time whenever something happens anyway, and keeps its counts of two earlier moments at least [`PERIOD`] apart; the rate is what has
//! come since the earlier one. So nothing ticks for what is idle, and a rate covers 5 to 10 seconds while somebody looks or messages flow.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Duration;
use tokio::time::Instant;
use warren_session::MessageCounts;

/// Between two moments that are remembered.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);

/// A number of messages, and how many a second lately.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Rated {
    /// Since its object came into being.
    pub total: u64,
    /// A second.
    pub rate: f64,
}

/// Messages by the names of RabbitMQ's `message_stats`, without what never happened.
pub type MessageStats = BTreeMap<String, Rated>;

/// Adds what another object did.
pub fn add_stats(to: &mut MessageStats, more: &MessageStats) {
    for (name, rated) in more {
        let sum = to.entry(name.clone()).or_default();
        sum.total += rated.total;
        sum.rate += rated.rate;
    }
}

/// Totals and rates of counts, of which `recent` came in the time `over`.
pub(crate) fn stats(
    counts: &MessageCounts,
    recent: &MessageCounts,
    over: Duration,
) -> MessageStats {
    let names = counts.fields().into_iter().zip(recent.fields());
    names
        .filter(|((_, total), _)| *total > 0)
        .map(|((name, total), (_, recent))| (name.to_owned(), rated(total, recent, over)))
        .collect()
}

pub(crate) fn rated(total: u64, recent: u64, over: Duration) -> Rated {
    let seconds = over.as_secs_f64();
    let rate = if seconds > 0.0 {
        recent as f64 / seconds
    } else {
        0.0
    };
    Rated { total, rate }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter<T> {
    pub(crate) now: T,
    last: (Instant, T),
    before: (Instant, T),
}

impl<T: Copy + Default + Sub<Output = T>> Default for Meter<T> {
    /// Counts from now on.
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl<T: Copy + Default + Sub<Output = T>> Meter<T> {
    pub(crate) fn new(at: Instant) -> Self {
        let start = (at, T::default());
        Self {
            now: T::default(),
            last: start,
            before: start,
        }
    }

    /// Time has come: remembers the counts if the last time is long enough ago. Before anything is counted.
    #[inline]
    pub(crate) fn tick(&mut self, at: Instant) -> bool {
        let due = at.saturating_duration_since(self.last.0) >= PERIOD;
        if due {
            self.before = std::mem::replace(&mut self.last, (at, self.now));
        }
        due
    }

    /// What came lately, and in how long.
    pub(crate) fn recent(&mut self, at: Instant) -> (T, Duration) {
        self.tick(at);
        let (since, counts) = self.before;
        (self.now - counts, at.saturating_duration_since(since))
    }
}

impl Meter<MessageCounts> {
    pub(crate) fn stats(&mut self, at: Instant) -> MessageStats {
        let (recent, over) = self.recent(at);
        stats(&self.now, &recent, over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(n: u64) -> MessageCounts {
        MessageCounts {
            publish: n,
            ..MessageCounts::default()
        }
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        let at = |seconds| start + Duration::from_secs(seconds);
        // 100 a second for a minute.
        for second in 1..=60 {
            meter.tick(at(second));
            meter.now += published(100);
        }
        let stats = meter.stats(at(60));
        assert_eq!(stats["publish"].total, 6000);
        assert!((90.0..=120.0).contains(&stats["publish"].rate), "{stats:?}");
        assert!(!stats.contains_key("ack"), "{stats:?}");
        // Nobody looks and nothing happens, then somebody looks twice.
        assert!(meter.stats(at(660))["publish"].rate < 2.0);
        let idle = Rated {
            total: 6000,
            rate: 0.0,
        };
        assert_eq!(meter.stats(at(665))["publish"], idle);
    }

    #[test]
    fn stats_of_several_objects_add_up() {
        let of = |total, rate| MessageStats::from([("ack".to_owned(), Rated { total, rate })]);
        let mut sum = of(1, 0.5);
        add_stats(&mut sum, &of(2, 1.0));
        assert_eq!(sum, of(3, 1.5));
    }
}
