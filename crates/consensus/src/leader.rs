//! What the leader does with proposals: one entry for all that wait, and answers when every lease holder has applied it.
//!
//! Flow: [`Desk::submit`] takes batches of proposals in the order of their arrival. A few entries are under way at once; what
//! arrives meanwhile becomes one entry when one of them is done, so that a burst costs one sync. When an entry is applied
//! here, its answers go into the ledger, which holds them until nobody can route by a table that lacks the entry.
//! All of this happens within the calls that cause it: no task stands between a proposal and openraft.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::entry::{Batch, Proposal, Settled};
use crate::ledger::Ledger;
use crate::raft::{LeaderId, Payload, Then, WriteResult};

/// Entries under way at once. More would make smaller ones: what waits meanwhile goes into the next.
const ENTRIES_MAX: usize = 3;
/// Proposals in one entry at most: their positions are numbered with 16 bits.
const PROPOSALS_MAX: usize = 8192;

/// Gives the answer to a batch, or says that this node does not lead.
pub(crate) type Respond = Box<dyn FnOnce(Option<Vec<Settled>>) + Send>;

/// A batch of one proposing node.
struct Job {
    proposals: Vec<Proposal>,
    respond: Respond,
}

/// An entry's answers, on hold.
pub(crate) struct Held(Vec<(Respond, Vec<Settled>)>);

impl Held {
    /// The entry is applied wherever it must be.
    pub(crate) fn release(self) {
        for (respond, results) in self.0 {
            respond(Some(results));
        }
    }

    /// This node leads no more: the proposers must ask its successor.
    pub(crate) fn disown(self) {
        for (respond, _) in self.0 {
            respond(None);
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} answers", self.0.len())
    }
}

/// The ledger with what waits for its leases to run out.
#[derive(Debug)]
pub(crate) struct SharedLedger {
    ledger: Mutex<Ledger<Held>>,
    /// Woken when the next expiry may have moved.
    wake: Notify,
}

impl SharedLedger {
    pub(crate) fn new(ledger: Ledger<Held>) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            wake: Notify::new(),
        }
    }

    /// Uses the ledger, and releases the answers that `act` returns after unlocking it.
    pub(crate) fn settle(&self, act: impl FnOnce(&mut Ledger<Held>) -> Vec<Held>) {
        let settled = act(&mut self.ledger.lock());
        for held in settled {
            held.release();
        }
    }

    /// Uses the ledger, and disowns the answers that `act` returns after unlocking it.
    pub(crate) fn disown(&self, act: impl FnOnce(&mut Ledger<Held>) -> Vec<Held>) {
        let disowned = act(&mut self.ledger.lock());
        for held in disowned {
            held.disown();
        }
    }

    /// Uses the ledger.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Ledger<Held>) -> R) -> R {
        act(&mut self.ledger.lock())
    }

    /// Holds an entry's answers.
    fn hold(&self, leader: LeaderId, index: u64, held: Held) {
        let result = self.ledger.lock().wait(leader, index, held, Instant::now());
        match result {
            Ok(settled) => {
                // Something may be left waiting for a silent node.
                self.wake.notify_one();
                for held in settled {
                    held.release();
                }
            }
            Err(held) => held.disown(),
        }
    }

    /// Releases answers as leases run out. Never ends.
    pub(crate) async fn run(&self) {
        loop {
            self.settle(|ledger| ledger.expire(Instant::now()));
            let next = self.with(|ledger| ledger.next_expiry(Instant::now()));
            match next {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = self.wake.notified() => {}
                },
                None => self.wake.notified().await,
            }
        }
    }
}

/// Where proposals arrive at the leader.
pub(crate) struct Desk {
    ledger: Arc<SharedLedger>,
    /// The same desk, for the entries under way.
    this: Weak<Desk>,
    line: Mutex<Line>,
    /// Held by whoever gives entries to openraft.
    writing: Mutex<()>,
    /// Set once openraft is built.
    writer: OnceLock<Writer>,
}

/// How an entry is given to openraft.
type Writer = Box<dyn Fn(Payload, LeaderId, Then<WriteResult>) + Send + Sync>;

#[derive(Default)]
struct Line {
    jobs: VecDeque<Job>,
    /// Entries that are not applied yet.
    under_way: usize,
}

impl Desk {
    pub(crate) fn new(ledger: Arc<SharedLedger>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            ledger,
            this: Weak::clone(this),
            line: Mutex::default(),
            writing: Mutex::default(),
            writer: OnceLock::new(),
        })
    }

    /// Says how entries are given to openraft: within the call, so that they keep their order.
    pub(crate) fn write_with(&self, writer: Writer) {
        // Called once, when the part is built.
        drop(self.writer.set(writer));
    }

    /// Takes a batch in. It becomes an entry at once, or part of the next one if enough are under way.
    pub(crate) fn submit(&self, proposals: Vec<Proposal>, respond: Respond) {
        if self.ledger.with(|ledger| ledger.leading()).is_none() {
            return respond(None);
        }
        // Not bounded here: every proposer bounds what it has open.
        self.line.lock().jobs.push_back(Job { proposals, respond });
        self.write_waiting();
    }

    /// Turns what waits into entries as far as they may be under way. One caller at a time writes, so that entries are given
    /// to openraft in the order of the line; what others bring meanwhile, and entries that fail at once, that one sees to.
    fn write_waiting(&self) {
        loop {
            let Some(writing) = self.writing.try_lock() else {
                return;
            };
            loop {
                // The line must not be locked while writing: an entry that fails at once counts itself out.
                let next = self.line.lock().next_entry();
                let Some((batch, responds)) = next else { break };
                self.write(batch, responds);
            }
            drop(writing);
            // Whoever came in vain before this lock was given back has left its work in the line.
            if !self.line.lock().has_work() {
                return;
            }
        }
    }

    fn write(&self, batch: Batch, responds: Vec<(Respond, usize)>) {
        let under_way = UnderWay(Weak::clone(&self.this));
        let (leader, payload, writer) = (
            self.ledger.with(|ledger| ledger.leading()),
            batch.encode(),
            self.writer.get(),
        );
        let (Some(leader), Ok(payload), Some(writer)) = (leader, payload, writer) else {
            return responds.into_iter().for_each(|(respond, _)| respond(None));
        };
        let ledger = Arc::clone(&self.ledger);
        let then = Then::new(move |result: WriteResult| {
            drop(under_way);
            answer(&ledger, leader, responds, result);
        });
        writer(payload, leader, then);
    }
}

impl Line {
    fn has_work(&self) -> bool {
        self.under_way < ENTRIES_MAX && !self.jobs.is_empty()
    }

    /// Takes everything that waits, as far as it fits in an entry, and counts the entry as under way.
    fn next_entry(&mut self) -> Option<(Batch, Vec<(Respond, usize)>)> {
        if !self.has_work() {
            return None;
        }
        self.under_way += 1;
        let mut batch = Batch {
            proposals: Vec::new(),
        };
        let mut responds = Vec::new();
        while batch.proposals.len() < PROPOSALS_MAX
            && let Some(Job { proposals, respond }) = self.jobs.pop_front()
        {
            responds.push((respond, proposals.len()));
            batch.proposals.extend(proposals);
        }
        Some((batch, responds))
    }
}

/// An entry under way; dropped when it is applied or has failed.
struct UnderWay(Weak<Desk>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(desk) = self.0.upgrade() {
            desk.line.lock().under_way -= 1;
            desk.write_waiting();
        }
    }
}

/// An entry was applied, or was not appended at all.
fn answer(
    ledger: &SharedLedger,
    leader: LeaderId,
    responds: Vec<(Respond, usize)>,
    result: WriteResult,
) {
    let response = match result {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, "proposals were not appended; their proposers will ask again");
            return responds.into_iter().for_each(|(respond, _)| respond(None));
        }
    };
    let index = response.log_id.index;
    let mut results = response.data.results.into_iter();
    let held = responds
        .into_iter()
        .map(|(respond, count)| (respond, results.by_ref().take(count).collect()))
        .collect();
    ledger.hold(leader, index, Held(held));
}
