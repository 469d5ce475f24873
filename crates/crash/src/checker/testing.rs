//! Histories in a few words, for the checker's tests. Times are in milliseconds.

use super::{Findings, Limits, SECOND, Verdict, check};
use crate::history::{
    Closed, ConsumerLog, Delivery, End, Fate, FaultKind, FaultLog, History, Link, Micros, Outcome,
    Published, PublisherLog,
};

pub(super) const LIMITS: Limits = Limits {
    hang: 30 * SECOND,
    grace: 5 * SECOND,
    notice: 2 * SECOND,
};

/// A history of two queues, a publisher at node1, and a consumer at each of node1 and node2, that lasts 200 s.
pub(super) struct Story(pub(super) History);

impl Story {
    pub(super) fn new() -> Self {
        let link = Link {
            opened: 0,
            closed: Some(Closed {
                at: ms(200_000),
                end: End::Ours,
            }),
        };
        let consumer = |node| ConsumerLog {
            node,
            links: vec![link.clone()],
            ..ConsumerLog::default()
        };
        Self(History {
            queues: vec!["q1".to_owned(), "q2".to_owned()],
            publishers: vec![PublisherLog {
                links: vec![link.clone()],
                ..PublisherLog::default()
            }],
            consumers: vec![consumer(0), consumer(1)],
            end: ms(200_000),
            ..History::default()
        })
    }

    /// Publishes one to q1, with this outcome.
    pub(super) fn publish(mut self, at: u64, outcome: Outcome) -> Self {
        let link = self.0.publishers[0].links.len() as u32 - 1;
        self.0.publishers[0].messages.push(Published {
            queue: 0,
            link,
            sent: ms(at),
            outcome,
        });
        self
    }

    /// Publishes one that is confirmed after a millisecond.
    pub(super) fn confirmed(self, at: u64) -> Self {
        self.publish(at, Outcome::Confirmed(ms(at + 1)))
    }

    /// Delivers a message to the consumer's latest connection, for the first time, and acknowledges it after a millisecond.
    pub(super) fn acked(self, consumer: usize, seq: u64, at: u64) -> Self {
        self.deliver(consumer, seq, at, false, Fate::Acked(ms(at + 1)))
    }

    /// Delivers a message to the consumer's latest connection.
    pub(super) fn deliver(
        mut self,
        consumer: usize,
        seq: u64,
        at: u64,
        redelivered: bool,
        fate: Fate,
    ) -> Self {
        let consumer = &mut self.0.consumers[consumer];
        consumer.deliveries.push(Delivery {
            link: consumer.links.len() as u32 - 1,
            publisher: 0,
            queue: 0,
            seq,
            at: ms(at),
            redelivered,
            fate,
        });
        self
    }

    /// The consumer's connection ends, and it connects again.
    pub(super) fn reconnect(mut self, consumer: usize, at: u64, again: u64) -> Self {
        relink(&mut self.0.consumers[consumer].links, at, again);
        self
    }

    /// The publisher's connection ends, and it connects again.
    pub(super) fn publisher_reconnects(mut self, at: u64, again: u64) -> Self {
        relink(&mut self.0.publishers[0].links, at, again);
        self
    }

    /// A fault of a node.
    pub(super) fn fault(
        mut self,
        kind: FaultKind,
        node: usize,
        begin: u64,
        recovered: u64,
    ) -> Self {
        self.0.faults.push(FaultLog {
            kind,
            node,
            begin: ms(begin),
            healed: Some(ms(recovered)),
            recovered: Some(ms(recovered)),
            hasty: false,
        });
        self
    }

    pub(super) fn verdict(&self) -> Verdict {
        check(&self.0, &LIMITS)
    }

    pub(super) fn findings(&self) -> Findings {
        self.verdict().findings
    }
}

fn relink(links: &mut Vec<Link>, at: u64, again: u64) {
    let last = links.len() - 1;
    links[last].closed = Some(Closed {
        at: ms(at),
        end: End::Lost("reset".to_owned()),
    });
    links.push(Link {
        opened: ms(again),
        closed: Some(Closed {
            at: ms(200_000),
            end: End::Ours,
        }),
    });
}

pub(super) const fn ms(at: u64) -> Micros {
    at * 1000
}
