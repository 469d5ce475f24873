//! How long a fault holds up the clients of the other nodes.
//!
//! Two figures a fault, both over all queues and over the publishers at nodes that are not at fault (which they are until all nodes route
//! again; there is no grace here): *flow*, from the fault's begin until
//! in every queue a message that was published after it is confirmed; and *slowest*, the longest that a message published from then until
//! the next fault waited for its confirm. The second also sees what the way back costs: the node's return, and leaders that move to it.

use super::messages::{node, seconds};
use super::{Class, Faults, Findings, Limits, SECOND};
use crate::history::{FaultKind, History, Micros, Outcome, Published};

/// How long after a fault's end messages are counted to it, if no fault comes before.
const AFTERMATH: Micros = 15 * SECOND;

/// What one fault cost the clients of the other nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// The kind of fault.
    pub kind: FaultKind,
    /// Whether it or the next one was hasty: there may have been no majority for a while.
    pub overlapping: bool,
    /// Until confirmed publishes flowed in every queue; `None` if they never did, or nobody was there to publish.
    pub flow: Option<Micros>,
    /// The slowest confirm until the next fault.
    pub slowest: Option<Micros>,
}

/// Measures every fault; one after which nothing flows within the hang limit is a finding.
pub(super) fn measure(
    history: &History,
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) -> Vec<Stall> {
    let faults = &Faults {
        grace: 0,
        ..*faults
    };
    let mut stalls = Vec::new();
    for (number, fault) in history.faults.iter().enumerate() {
        let next = history.faults.get(number + 1);
        let over = fault.recovered.unwrap_or(history.end) + AFTERMATH;
        let until = next.map_or(over, |next| next.begin.min(over));
        let mut queues: Vec<Queue> = history.queues.iter().map(|_| Queue::default()).collect();
        let mut slowest = None;
        for publisher in &history.publishers {
            if faults.touch(publisher.node, fault.begin, fault.begin) {
                continue;
            }
            let first = publisher
                .messages
                .partition_point(|message| message.sent < fault.begin);
            for message in &publisher.messages[first..] {
                // Once its own node is at fault, it tells nothing about this one.
                if faults.touch(publisher.node, message.sent, message.sent) {
                    continue;
                }
                queues[usize::from(message.queue)].note(message);
                if let Outcome::Confirmed(at) = message.outcome
                    && message.sent <= until
                {
                    slowest = slowest.max(Some(at - message.sent));
                }
            }
        }
        let measured = queues.iter().any(|queue| queue.attempt.is_some());
        let mut flow = measured.then_some(0);
        for (queue, name) in queues.iter().zip(&history.queues) {
            let Some(attempt) = queue.attempt else {
                continue;
            };
            let took = queue.confirmed.map(|at| at - fault.begin);
            if took.unwrap_or(history.end.saturating_sub(attempt)) > limits.hang {
                findings.add(Class::Hung, false, fault.begin, || {
                    format!(
                        "after {} of {} at {}, nothing published to {name} at another node was confirmed within {}",
                        fault.kind.name(),
                        node(fault.node),
                        seconds(fault.begin),
                        seconds(limits.hang)
                    )
                });
            }
            flow = flow.zip(took).map(|(flow, took)| flow.max(took));
        }
        stalls.push(Stall {
            kind: fault.kind,
            overlapping: fault.hasty || next.is_some_and(|next| next.hasty),
            flow,
            slowest,
        });
    }
    stalls
}

/// What came of the messages that were published to a queue since the fault.
#[derive(Default)]
struct Queue {
    attempt: Option<Micros>,
    confirmed: Option<Micros>,
}

impl Queue {
    fn note(&mut self, message: &Published) {
        let earlier = |one: Option<Micros>, other| Some(one.map_or(other, |one| one.min(other)));
        self.attempt = earlier(self.attempt, message.sent);
        if let Outcome::Confirmed(at) = message.outcome {
            self.confirmed = earlier(self.confirmed, at);
        }
    }
}

/// The value that `percent` of all do not exceed.
pub fn percentile(values: &mut [Micros], percent: usize) -> Option<Micros> {
    values.sort_unstable();
    let rank = (values.len() * percent).div_ceil(100).max(1);
    values.get(rank - 1).copied()
}
