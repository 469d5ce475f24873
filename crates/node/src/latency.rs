//! How long something takes, as a histogram that is cheap to add to and never locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets, in microseconds.
const BOUNDS: [u64; 13] = [
    250, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// Counts by how long it took.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// The last one is for what took longer than all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_micros: AtomicU64,
}

/// What a histogram shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// Upper bounds in seconds, and how many took at most as long.
    pub buckets: Vec<(f64, u64)>,
    /// How many there were.
    pub count: u64,
    /// How long they took in all, in seconds.
    pub sum: f64,
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < micros);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Latency {
        let sum = self.sum_micros.load(Ordering::Relaxed);
        let mut count = 0;
        let mut buckets = Vec::with_capacity(BOUNDS.len());
        for (at, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            if let Some(bound) = BOUNDS.get(at) {
                buckets.push((*bound as f64 / 1e6, count));
            }
        }
        let sum = sum as f64 / 1e6;
        Latency {
            buckets,
            count,
            sum,
        }
    }
}

/// How long it takes until what was proposed is committed, and applied where that is waited for.
#[derive(Debug, Default)]
pub(crate) struct CommitLatency {
    /// Changes that clients ask for, until every node that may route has made them.
    pub(crate) metadata: Histogram,
    /// Entries of the shards that this node leads, until it applies them.
    pub(crate) shards: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_took_at_most_as_long() {
        let histogram = Histogram::default();
        for micros in [0, 250, 251, 1_999, 2_000, 9_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let shown = histogram.read();
        let at = |seconds: f64| {
            shown
                .buckets
                .iter()
                .find(|(bound, _)| *bound == seconds)
                .unwrap()
                .1
        };
        assert_eq!(
            [at(0.00025), at(0.0005), at(0.001), at(0.002), at(5.0)],
            [2, 3, 3, 5, 5]
        );
        assert_eq!(shown.count, 6);
        assert!((shown.sum - 9.0045).abs() < 1e-9, "{}", shown.sum);
    }
}
