//! This node's proposals on their way to the leader: in order, retried until answered, applied once.
//!
//! Flow: [`Proposer::propose`] numbers a command, puts it at the end of the line, and sends what the line holds to the leader
//! if not too much is under way; what is not sent then goes in one batch when an answer comes. When something goes wrong (no
//! link, another leader, an answer that says an earlier one is missing) the line is sent again from its first unanswered
//! proposal. Numbers let the group apply each once and in order (see `dedup`), so sending again is always harmless.
//! One task looks after deadlines, pauses and changes of the leader; it is no part of the way of a proposal.
//! Invariants: what is proposed later is never applied earlier; a proposal leaves the line when answered or at its deadline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

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
/// Pauses before the line is sent again: first and longest.
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

/// What became of each proposal of a batch, or why there is no answer.
pub(crate) type Landing = Result<Vec<Settled>, &'static str>;

/// Sends a batch to a leader within the call, so that batches arrive in order as far as they arrive, and calls back once.
pub(crate) type Send = Box<
    dyn Fn(NodeId, Vec<Proposal>, Box<dyn FnOnce(Landing) + std::marker::Send>)
        + std::marker::Send
        + Sync,
>;

/// The line of proposals.
pub(crate) struct Proposer {
    node: NodeId,
    incarnation: Incarnation,
    line: Mutex<Line>,
    /// Held while batches are taken from the line and sent, so that they are sent in order.
    sending: Mutex<()>,
    /// Wakes the task.
    wake: Notify,
}

struct Line {
    next: u64,
    open: VecDeque<Open>,
    /// All below this have been sent in this round.
    sent: u64,
    /// Counts how often the line was sent from its beginning.
    round: u64,
    /// Whom to send to; none before the start, after the end, and while no leader is known.
    leader: Option<NodeId>,
    send: Option<Arc<Send>>,
    /// Nothing is sent before this.
    resume: Option<Instant>,
    pause: Duration,
    flights: usize,
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
    pub(crate) fn new(node: NodeId, incarnation: Incarnation) -> Arc<Self> {
        let line = Line {
            next: 1,
            open: VecDeque::new(),
            sent: 0,
            round: 0,
            leader: None,
            send: None,
            resume: None,
            pause: PAUSE_MIN,
            flights: 0,
            stopped: false,
        };
        Arc::new(Self {
            node,
            incarnation,
            line: Mutex::new(line),
            sending: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Puts commands at the end of the line, next to each other.
    pub(crate) fn propose(
        self: &Arc<Self>,
        commands: impl IntoIterator<Item = Command>,
        deadline: Duration,
    ) -> Vec<Answer> {
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
            line.open.push_back(Open {
                sequence,
                command,
                proposed: now,
                deadline: now + deadline,
                answer: Some(answer),
            });
        }
        let is_first = line.open.len() == answers.len();
        drop(line);
        self.send_waiting();
        if is_first {
            // The task sleeps while the line is empty.
            self.wake.notify_one();
        }
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

    /// Looks after the line until [`Self::stop`].
    pub(crate) async fn run(
        self: Arc<Self>,
        mut leaders: watch::Receiver<Option<NodeId>>,
        send: Send,
    ) {
        self.line.lock().send = Some(Arc::new(send));
        loop {
            let now = Instant::now();
            let leader = *leaders.borrow_and_update();
            self.expire(now, leader.is_some());
            let next = {
                let mut line = self.line.lock();
                if line.stopped {
                    return;
                }
                if line.leader != leader {
                    line.leader = leader;
                    line.start_over(None);
                }
                if line.resume.is_some_and(|at| at <= now) {
                    line.resume = None;
                }
                let deadlines = now + DEADLINE_STEP;
                (!line.open.is_empty())
                    .then(|| line.resume.map_or(deadlines, |at| at.min(deadlines)))
            };
            self.send_waiting();
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                Ok(()) = leaders.changed() => {}
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
        }
    }

    /// Sends what waits, as far as it may be under way.
    fn send_waiting(self: &Arc<Self>) {
        let _in_order = self.sending.lock();
        loop {
            let (send, leader, round, batch) = {
                let mut line = self.line.lock();
                let (Some(send), Some(leader), None) =
                    (line.send.clone(), line.leader, line.resume)
                else {
                    return;
                };
                if line.flights >= FLIGHTS_MAX {
                    return;
                }
                let Some(batch) = line.next_batch(self.node, self.incarnation) else {
                    return;
                };
                line.flights += 1;
                (send, leader, line.round, batch)
            };
            let sequences: Vec<u64> = batch.iter().map(|proposal| proposal.sequence).collect();
            let flight = Flight {
                proposer: Arc::clone(self),
                round,
                landed: false,
            };
            send(
                leader,
                batch,
                Box::new(move |landing| flight.land(&sequences, landing)),
            );
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
            let error = if has_leader {
                ProposeError::TimedOut { waited }
            } else {
                ProposeError::NoQuorum { waited }
            };
            if let Some(answer) = open.answer.take() {
                drop(answer.send(Err(error)));
            }
            false
        });
        line.trim();
    }
}

impl Line {
    /// Everything is to be sent again, after a pause or at once.
    fn start_over(&mut self, resume: Option<Instant>) {
        self.round += 1;
        self.sent = 0;
        self.resume = resume;
    }

    /// The next proposals to send, if any may be.
    fn next_batch(&mut self, node: NodeId, incarnation: Incarnation) -> Option<Vec<Proposal>> {
        self.trim();
        let settled_below = self.open.front()?.sequence;
        let from = self.open.partition_point(|open| open.sequence < self.sent);
        let batch: Vec<Proposal> = self
            .open
            .iter()
            .skip(from)
            .take_while(|open| open.sequence < settled_below + WINDOW)
            .filter(|open| open.answer.is_some())
            .take(BATCH_MAX)
            .map(|open| Proposal {
                node,
                incarnation,
                sequence: open.sequence,
                settled_below,
                command: open.command.clone(),
            })
            .collect();
        self.sent = batch.last()?.sequence + 1;
        Some(batch)
    }

    /// Gives the answers of a batch out; false if the line must be sent again from its first unanswered proposal.
    fn settle(&mut self, sequences: &[u64], result: Landing) -> bool {
        let results = match result {
            Ok(results) if results.len() == sequences.len() => results,
            Ok(_) | Err(_) => return false,
        };
        let mut complete = true;
        for (sequence, settled) in sequences.iter().zip(results) {
            let at = self.open.partition_point(|open| open.sequence < *sequence);
            let Some(open) = self
                .open
                .get_mut(at)
                .filter(|open| open.sequence == *sequence)
            else {
                continue;
            };
            let answer = match settled {
                Settled::Done { index, outcome } => Ok(Proposed { index, outcome }),
                Settled::Early => {
                    complete = false;
                    continue;
                }
                Settled::Late => Err(ProposeError::Refused {
                    why: "a later start of this node proposes under its identity".into(),
                }),
            };
            if let Some(waiting) = open.answer.take() {
                // The caller may have gone; what it proposed is done all the same.
                drop(waiting.send(answer));
            }
        }
        self.trim();
        complete
    }
    /// Forgets answered proposals at the front.
    fn trim(&mut self) {
        while self.open.front().is_some_and(|open| open.answer.is_none()) {
            self.open.pop_front();
        }
    }
}

/// A batch under way. One that is dropped has failed.
struct Flight {
    proposer: Arc<Proposer>,
    round: u64,
    landed: bool,
}

impl Flight {
    fn land(mut self, sequences: &[u64], landing: Landing) {
        self.landed = true;
        self.end(sequences, landing);
    }

    fn end(&self, sequences: &[u64], landing: Landing) {
        let proposer = &self.proposer;
        let mut line = proposer.line.lock();
        line.flights -= 1;
        let settled = line.settle(sequences, landing);
        let (waits, again) = (
            line.open
                .back()
                .is_some_and(|open| open.sequence >= line.sent),
            !settled && self.round == line.round,
        );
        if settled {
            line.pause = PAUSE_MIN;
        } else if again {
            let pause = line.pause;
            line.pause = (pause * 2).min(PAUSE_MAX);
            line.start_over(Some(Instant::now() + pause));
        }
        drop(line);
        // Sending from here could turn one failure into the next within one call: that is left to the task.
        if waits || again {
            proposer.wake.notify_one();
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.landed {
            self.end(&[], Err("dropped"));
        }
    }
}
