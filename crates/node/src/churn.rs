//! How many connections, channels and queues have come and gone, and how fast lately: RabbitMQ's `churn_rates`.
//!
//! Connections, channels and declarations are counted where their clients are. Queues are created and deleted on all nodes at once, so that the metadata
//! group's leader alone counts them: the sum over the cluster is right, whichever node leads.
//! Cost: a lock for each of these; nothing a message.

use crate::meter::{MessageStats, Meter, rated};
use parking_lot::Mutex;
use std::ops::Sub;
use tokio::time::Instant;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Churned {
    ConnectionOpened,
    ConnectionClosed,
    ChannelOpened,
    ChannelClosed,
    /// Somebody asked for a queue who may, whether it was there or not.
    QueueDeclared,
    QueueCreated,
    QueueDeleted,
}

/// RabbitMQ's names, in the order of [`Churned`].
const NAMES: [&str; 7] = [
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
];

#[derive(Clone, Copy, Debug, Default)]
struct Counts([u64; NAMES.len()]);

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] - before.0[at]))
    }
}

/// A node's counts since it was started.
#[derive(Debug)]
pub(crate) struct Churn(Mutex<Meter<Counts>>);

impl Churn {
    pub(crate) fn new(now: Instant) -> Self {
        Self(Mutex::new(Meter::new(now)))
    }

    pub(crate) fn count(&self, what: Churned, many: u64) {
        if many > 0 {
            let mut meter = self.0.lock();
            meter.tick(Instant::now());
            meter.now.0[what as usize] += many;
        }
    }

    /// By RabbitMQ's names, also of what never happened.
    pub(crate) fn stats(&self) -> MessageStats {
        let mut meter = self.0.lock();
        let (recent, over) = meter.recent(Instant::now());
        let all = NAMES.iter().zip(meter.now.0).zip(recent.0);
        all.map(|((name, total), recent)| ((*name).to_owned(), rated(total, recent, over)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_under_its_name() {
        let churn = Churn::new(Instant::now());
        let all = [
            Churned::ConnectionOpened,
            Churned::ConnectionClosed,
            Churned::ChannelOpened,
            Churned::ChannelClosed,
            Churned::QueueDeclared,
            Churned::QueueCreated,
            Churned::QueueDeleted,
        ];
        for (what, many) in all.into_iter().zip(0..) {
            churn.count(what, many);
        }
        let stats = churn.stats();
        for (name, many) in NAMES.iter().zip(0..) {
            assert_eq!(stats[*name].total, many, "{name}");
        }
        assert_eq!(stats.len(), NAMES.len());
    }
}
