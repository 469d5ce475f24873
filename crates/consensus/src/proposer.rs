//! This node's proposals on their way to the leader: in order, retried until answered, applied once.
//!
//! Flow: [`Proposer::propose`] numbers a command and puts it at the end of the line. One task sends the line to the leader in
//! batches, several under way at once, and starts over from the first unanswered one whenever something goes wrong (no link,
//! another leader, an answer that says an earlier one is missing). Numbers let the group apply each once and in order (see
//! `dedup`), so starting over is always harmless.
//! Invariants: what is proposed later is never applied earlier; a proposal leaves the line when answered or at its deadline.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use warren_model::{Command, Incarnation, NodeId, Outcome};

use crate::config::ProposeError;
use crate::dedup::WINDOW;
use crate::entry::{Proposal, Settled};

/// Proposals in one batch at most: a batch becomes part of one entry, whose commands are numbered with 16 bits.
const BATCH_MAX: usize = 512;
/// Batches under way at once.
const FLIGHTS_MAX: usize = 16;
/// Pauses before starting over: first and longest.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often deadlines are looked at.
const DEADLINE_STEP: Duration = Duration::from_millis(20);

/// A command that was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    /// The log index at which it was applied.
    pub index: u64,
    /// What applying it answered.
    pub outcome: Outcome,
}

/// What a proposal's caller waits for.
pub(crate) type Answer = oneshot::Receiver<Result<Proposed, ProposeError>>;

/// How a batch ended: what became of each proposal, or why there is no answer.
pub(crate) type Flight = BoxFuture<'static, Result<Vec<Settled>, &'static str>>;

/// The line of proposals.
#[derive(Debug)]
pub(crate) struct Proposer {
    node: NodeId,
    incarnation: Incarnation,
    line: Mutex<Line>,
    wake: Notify,
}

#[derive(Debug)]
struct Line {
    next: u64,
    open: VecDeque<Open>,
    /// All below this have been sent since the last start over.
    sent: u64,
    stopped: bool,
}

#[derive(Debug)]
struct Open {
    sequence: u64,
    command: Command,
    proposed: Instant,
    deadline: Instant,
    /// None once answered.
    answer: Option<oneshot::Sender<Result<Proposed, ProposeError>>>,
}

impl Proposer {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation) -> Self {
        let line = Mutex::new(Line { next: 1, open: VecDeque::new(), sent: 1, stopped: false });
        Self { node, incarnation, line, wake: Notify::new() }
    }

    /// Puts commands at the end of the line, next to each other.
    pub(crate) fn propose(&self, commands: impl IntoIterator<Item = Command>, deadline: Duration) -> Vec<Answer> {
        let now = Instant::now();
        let mut line = self.line.lock();
        let mut answers = Vec::new();
        for command in commands {
            let (answer, receiver) = oneshot::channel();
            answers.push(receiver);
            if line.stopped {
                // Nobody can have given up waiting yet.
                drop(answer.send(Err(ProposeError::Stopped)));
                continue;
            }
            let sequence = line.next;
            line.next += 1;
            line.open.push_back(Open { sequence, command, proposed: now, deadline: now + deadline, answer: Some(answer) });
        }
        drop(line);
        self.wake.notify_one();
        answers
    }

    /// Answers everything in line, and everything that comes, with [`ProposeError::Stopped`].
    pub(crate) fn stop(&self) {
        let mut line = self.line.lock();
        line.stopped = true;
        for open in line.open.drain(..) {
            if let Some(answer) = open.answer {
                drop(answer.send(Err(ProposeError::Stopped)));
            }
        }
        drop(line);
        self.wake.notify_one();
    }

    /// Sends the line to whoever leads, until [`Self::stop`]. Batches that `send` is given for one leader must arrive in
    /// order, as far as they arrive.
    pub(crate) async fn run(&self, mut leaders: watch::Receiver<Option<NodeId>>, send: impl Fn(NodeId, Vec<Proposal>) -> Flight) {
        let mut flights: FuturesUnordered<BoxFuture<'static, Landed>> = FuturesUnordered::new();
        let (mut round, mut pause) = (0u64, PAUSE_MIN);
        let (mut leader, mut resume): (Option<NodeId>, Option<Instant>) = (None, None);
        let mut look_at_deadlines = Instant::now();
        loop {
            let now = Instant::now();
            if look_at_deadlines <= now {
                self.expire(now, leader.is_some());
                look_at_deadlines = now + DEADLINE_STEP;
            }
            let current = *leaders.borrow_and_update();
            if current != leader {
                (leader, resume) = (current, None);
                round += 1;
                self.line.lock().sent = 0;
            }
            if resume.is_some_and(|at| at <= now) {
                resume = None;
            }
            if let (Some(to), None) = (leader, resume) {
                while flights.len() < FLIGHTS_MAX
                    && let Some(batch) = self.next_batch()
                {
                    let sequences = batch.iter().map(|proposal| proposal.sequence).collect();
                    let of_round = round;
                    flights.push(send(to, batch).map(move |result| Landed { of_round, sequences, result }).boxed());
                }
            }
            let (idle, stopped) = {
                let line = self.line.lock();
                (line.open.is_empty(), line.stopped)
            };
            if stopped {
                return;
            }
            tokio::select! {
                biased;
                Some(landed) = flights.next(), if !flights.is_empty() => {
                    let Landed { of_round, sequences, result } = landed;
                    if self.settle(&sequences, result) {
                        pause = PAUSE_MIN;
                    } else if of_round == round {
                        round += 1;
                        self.line.lock().sent = 0;
                        resume = Some(Instant::now() + pause);
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
                () = self.wake.notified() => {}
                Ok(()) = leaders.changed() => {}
                () = tokio::time::sleep_until(resume.unwrap_or(look_at_deadlines).min(look_at_deadlines)), if !idle => {}
            }
        }
    }

    /// Answers those whose time is over.
    fn expire(&self, now: Instant, has_leader: bool) {
        let mut line = self.line.lock();
        line.open.retain_mut(|open| {
            if open.deadline > now {
                return true;
            }
            let waited = open.deadline - open.proposed;
            let error = if has_leader { ProposeError::TimedOut { waited } } else { ProposeError::NoQuorum { waited } };
            if let Some(answer) = open.answer.take() {
                drop(answer.send(Err(error)));
            }
            false
        });
        line.trim();
    }

    /// The next proposals to send, if any may be.
    fn next_batch(&self) -> Option<Vec<Proposal>> {
        let mut line = self.line.lock();
        line.trim();
        let settled_below = line.open.front()?.sequence;
        let from = line.open.partition_point(|open| open.sequence < line.sent);
        let batch: Vec<Proposal> = line
            .open
            .iter()
            .skip(from)
            .take_while(|open| open.sequence < settled_below + WINDOW)
            .filter(|open| open.answer.is_some())
            .take(BATCH_MAX)
            .map(|open| Proposal {
                node: self.node,
                incarnation: self.incarnation,
                sequence: open.sequence,
                settled_below,
                command: open.command.clone(),
            })
            .collect();
        line.sent = batch.last()?.sequence + 1;
        Some(batch)
    }

    /// Gives the answers of a batch out; false if the line must be sent again from its first unanswered proposal.
    fn settle(&self, sequences: &[u64], result: Result<Vec<Settled>, &'static str>) -> bool {
        let results = match result {
            Ok(results) if results.len() == sequences.len() => results,
            Ok(_) | Err(_) => return false,
        };
        let mut complete = true;
        let mut line = self.line.lock();
        for (sequence, settled) in sequences.iter().zip(results) {
            let at = line.open.partition_point(|open| open.sequence < *sequence);
            let Some(open) = line.open.get_mut(at).filter(|open| open.sequence == *sequence) else { continue };
            let answer = match settled {
                Settled::Done { index, outcome } => Ok(Proposed { index, outcome }),
                Settled::Early => {
                    complete = false;
                    continue;
                }
                Settled::Late => Err(ProposeError::Refused { why: "a later start of this node proposes under its identity".into() }),
            };
            if let Some(waiting) = open.answer.take() {
                // The caller may have gone; what it proposed is done all the same.
                drop(waiting.send(answer));
            }
        }
        line.trim();
        complete
    }
}

impl Line {
    /// Forgets answered proposals at the front.
    fn trim(&mut self) {
        while self.open.front().is_some_and(|open| open.answer.is_none()) {
            self.open.pop_front();
        }
    }
}

/// A batch that has ended.
struct Landed {
    of_round: u64,
    sequences: Vec<u64>,
    result: Result<Vec<Settled>, &'static str>,
}
