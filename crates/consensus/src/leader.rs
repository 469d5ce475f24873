//! What the leader does with proposals: one entry for all that wait, and answers when every lease holder has applied it.
//!
//! Flow: [`Desk::submit`] takes batches of proposals in the order of their arrival. One task ([`Desk::run`]) turns everything
//! that waits into one entry, so that a burst costs one sync, and has a few entries under way at once. When an entry is
//! applied here, its answers go into the ledger, which holds them until nobody can route by a table that lacks the entry.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;

use crate::entry::{Batch, Proposal, Settled};
use crate::ledger::Ledger;
use crate::raft::{LeaderId, Raft, Then, WriteResult};

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
        Self { ledger: Mutex::new(ledger), wake: Notify::new() }
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
    jobs: mpsc::UnboundedSender<Job>,
}

/// The other end of a [`Desk`].
pub(crate) struct Queue(mpsc::UnboundedReceiver<Job>);

impl Desk {
    pub(crate) fn new(ledger: Arc<SharedLedger>) -> (Self, Queue) {
        // Not bounded here: every proposer bounds what it has open.
        let (jobs, queue) = mpsc::unbounded_channel();
        (Self { ledger, jobs }, Queue(queue))
    }

    /// Takes a batch in.
    pub(crate) fn submit(&self, proposals: Vec<Proposal>, respond: Respond) {
        if self.ledger.with(|ledger| ledger.leading()).is_none() {
            return respond(None);
        }
        if let Err(mpsc::error::SendError(job)) = self.jobs.send(Job { proposals, respond }) {
            (job.respond)(None);
        }
    }

    /// Turns what waits into entries. Ends with the desk.
    pub(crate) async fn run(ledger: Arc<SharedLedger>, mut queue: Queue, raft: Raft) {
        let entries = Arc::new(Semaphore::new(ENTRIES_MAX));
        while let Some(first) = queue.0.recv().await {
            // The semaphore is never closed.
            let Ok(permit) = Arc::clone(&entries).acquire_owned().await else { return };
            let mut batch = Batch { proposals: Vec::new() };
            let mut responds = Vec::new();
            let mut next = Some(first);
            while let Some(Job { proposals, respond }) = next {
                responds.push((respond, proposals.len()));
                batch.proposals.extend(proposals);
                next = if batch.proposals.len() < PROPOSALS_MAX { queue.0.try_recv().ok() } else { None };
            }
            let Some(leader) = ledger.with(|ledger| ledger.leading()) else {
                responds.into_iter().for_each(|(respond, _)| respond(None));
                continue;
            };
            let payload = match batch.encode() {
                Ok(payload) => payload,
                Err(error) => {
                    tracing::error!(%error, "proposals cannot be encoded");
                    responds.into_iter().for_each(|(respond, _)| respond(None));
                    continue;
                }
            };
            let ledger = Arc::clone(&ledger);
            let then = Then::new(move |result: WriteResult| {
                drop(permit);
                answer(&ledger, leader, responds, result);
            });
            if let Err(error) = raft.write(payload).with_leader(leader).responder(then).await {
                tracing::warn!(%error, "the metadata group takes no more entries");
            }
        }
    }
}

/// An entry was applied, or was not appended at all.
fn answer(ledger: &SharedLedger, leader: LeaderId, responds: Vec<(Respond, usize)>, result: WriteResult) {
    let response = match result {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, "proposals were not appended; their proposers will ask again");
            return responds.into_iter().for_each(|(respond, _)| respond(None));
        }
    };
    let index = response.log_id.index;
    let mut results = response.data.results.into_iter();
    let held = responds.into_iter().map(|(respond, count)| (respond, results.by_ref().take(count).collect())).collect();
    ledger.hold(leader, index, Held(held));
}
