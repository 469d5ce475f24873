//! The checker: a round's history in, what the broker did wrong out. Pure.
//!
//! Flow: [`check`] sorts all deliveries by message, judges every message by itself ([`messages`]), every consumer's order ([`order`]),
//! every connection ([`links`]), and measures how long each fault held up the clients of the other nodes ([`stalls`]).
//!
//! What counts where:
//! - *Lost*, *phantom*, *refused but applied* and *returned* count always.
//! - *Duplicated*, *reordered* and *dropped* are promised to clients whose own node works. Where a client that is concerned was connected
//!   to a node under fault at that time, the finding is *excused*: counted apart, and no violation. A node is under fault from the
//!   fault's begin until [`Limits::grace`] after all nodes routed again.
//!
//! Cost: a sort of the deliveries; memory for a reference a delivery.

mod finding;
mod links;
mod messages;
mod order;
mod stalls;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use finding::{Class, Findings};
pub use stalls::{Stall, percentile};

use crate::history::{FaultLog, History, IncidentKind, Micros, Outcome};

/// A second.
pub const SECOND: Micros = 1_000_000;

/// What the checker goes by.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// What takes longer is a hang.
    pub hang: Micros,
    /// How long after all nodes routed again a node still counts as under fault: links and leases settle after that.
    pub grace: Micros,
    /// How much later than the broker a client may notice that its connection is gone.
    pub notice: Micros,
}

/// What a round came to.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What is wrong.
    pub findings: Findings,
    /// What was counted.
    pub counts: Counts,
    /// How long each fault held up clients of the other nodes.
    pub stalls: Vec<Stall>,
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages published.
    pub published: u64,
    /// Of them confirmed.
    pub confirmed: u64,
    /// Of them refused (`basic.nack`).
    pub refused: u64,
    /// Of them without an answer, since the connection ended.
    pub unknown: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Of them with the redelivered flag.
    pub redelivered: u64,
    /// Deliveries that consumers returned to their queue.
    pub requeued: u64,
    /// Connections that clients opened.
    pub connections: u64,
}

/// Judges a round.
pub fn check(history: &History, limits: &Limits) -> Verdict {
    let faults = Faults {
        faults: &history.faults,
        grace: limits.grace,
        end: history.end,
    };
    let mut findings = Findings::default();
    messages::check(history, limits, &faults, &mut findings);
    order::check(history, &faults, &mut findings);
    links::check(history, limits, &faults, &mut findings);
    let stalls = stalls::measure(history, limits, &faults, &mut findings);
    for incident in &history.incidents {
        let class = match incident.kind {
            IncidentKind::Died => Class::Died,
            IncidentKind::Hung => Class::Hung,
        };
        findings.add(class, false, incident.at, || incident.text.clone());
    }
    Verdict {
        findings,
        counts: count(history),
        stalls,
    }
}

fn count(history: &History) -> Counts {
    let mut counts = Counts::default();
    for publisher in &history.publishers {
        counts.connections += publisher.links.len() as u64;
        counts.published += publisher.messages.len() as u64;
        for message in &publisher.messages {
            match message.outcome {
                Outcome::Confirmed(_) => counts.confirmed += 1,
                Outcome::Refused(_) => counts.refused += 1,
                Outcome::Unknown => counts.unknown += 1,
                Outcome::Returned(_) => {}
            }
        }
    }
    for consumer in &history.consumers {
        counts.connections += consumer.links.len() as u64;
        counts.delivered += (consumer.deliveries.len() + consumer.strangers.len()) as u64;
        for delivery in &consumer.deliveries {
            counts.redelivered += u64::from(delivery.redelivered);
            counts.requeued +=
                u64::from(matches!(delivery.fate, crate::history::Fate::Requeued(_)));
        }
    }
    counts
}

/// When which node was under fault.
struct Faults<'a> {
    faults: &'a [FaultLog],
    grace: Micros,
    end: Micros,
}

impl Faults<'_> {
    /// Whether the node was under fault at any time from `from` to `until`.
    fn touch(&self, node: usize, from: Micros, until: Micros) -> bool {
        self.of(node)
            .any(|(begin, over)| begin <= until && over >= from)
    }

    /// How much of the time from `from` to `until` no fault of the node explains.
    fn unexplained(&self, node: usize, from: Micros, until: Micros) -> Micros {
        let (mut at, mut sum) = (from, 0);
        for (begin, over) in self.of(node) {
            sum += begin.min(until).saturating_sub(at);
            at = at.max(over);
        }
        sum + until.saturating_sub(at)
    }

    /// The node's faults as intervals, by when they began.
    fn of(&self, node: usize) -> impl Iterator<Item = (Micros, Micros)> {
        self.faults
            .iter()
            .filter(move |fault| fault.node == node)
            .map(|fault| {
                (
                    fault.begin,
                    fault.recovered.unwrap_or(self.end) + self.grace,
                )
            })
    }
}
