//! The platter of a simulated disk: what is written, what is synced, and who waits for a sync.
//!
//! Flow of a log call: it changes `logs` (what reads see) and joins `waiting`. A sync takes all that wait when it begins;
//! when it ends, their changes move to `logs_synced` and their `done`s are called in call order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::logs::{Change, Logs};
use super::spaces::{Batch, Spaces};
use super::{Completion, MemoryStorage};
use crate::{Done, StorageError, StorageStats};

/// A simulated disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk {
    pub(super) platter: Arc<Mutex<Platter>>,
}

#[derive(Default)]
pub(super) struct Platter {
    /// Counts processes: handles of an earlier one are dead.
    pub(super) epoch: u64,
    pub(super) closed: bool,
    /// What reads see.
    pub(super) logs: Logs,
    /// What survives a power loss.
    pub(super) logs_synced: Logs,
    /// Log calls in order that no sync has covered yet.
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) state: Spaces,
    pub(super) state_synced: Spaces,
    pub(super) state_unsynced: VecDeque<Batch>,
    pub(super) stats: StorageStats,
    /// Set by the first failed write or sync of this process.
    pub(super) stopped: Option<StorageError>,

    pub(super) completion: Completion,
    pub(super) sync_delay: Duration,
    /// Whether a spawned sync is under way.
    pub(super) syncing: bool,
    /// How many syncs fail from now on.
    pub(super) syncs_to_fail: u64,
    pub(super) capacity_bytes: Option<u64>,
}

/// A log call that waits for its answer.
pub(super) struct Waiting {
    /// None if the call changes nothing or was refused.
    pub(super) change: Option<Change>,
    /// The answer unless the sync fails.
    pub(super) answer: Result<(), StorageError>,
    pub(super) done: Done,
}

/// `done`s with their answers, to be called once no lock is held.
#[must_use]
pub(super) struct Answers(Vec<(Done, Result<(), StorageError>)>);

impl Answers {
    pub(super) fn give(self) -> usize {
        let answered = self.0.len();
        self.0.into_iter().for_each(|(done, answer)| done(answer));
        answered
    }
}

impl Disk {
    /// An empty disk that syncs within each call, holds any amount and never fails.
    #[must_use]
    pub fn new() -> Disk {
        Disk::default()
    }

    /// Opens the disk for a new process. A process that still has it open is dead from now on: what it wrote stays, since
    /// the operating system has it, but its `done`s are dropped. What the opened storage serves is durable.
    #[must_use]
    pub fn open(&self) -> MemoryStorage {
        let (epoch, dropped) = {
            let mut platter = self.platter.lock();
            let dropped = platter.die();
            platter.closed = false;
            platter.logs.drop_torn_tails();
            platter.logs_synced = platter.logs.clone();
            platter.state_synced = platter.state.clone();
            (platter.epoch, dropped)
        };
        // A dropped `done` may wake whoever waits for it: not under the lock.
        drop(dropped);
        MemoryStorage::new(self.clone(), epoch)
    }

    /// Syncs everything that waits, calls the `done`s in order, and returns how many. For [`Completion::Queued`].
    pub fn pump(&self) -> usize {
        let answers = {
            let mut platter = self.platter.lock();
            let waiting = platter.waiting.len();
            platter.sync_log(waiting)
        };
        answers.give()
    }

    /// How many log calls wait for a sync.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.platter.lock().waiting.len()
    }

    /// Starts a sync on the simulator's clock unless one is under way or nothing waits.
    pub(super) fn spawn_sync(&self) {
        let (spawner, delay, job): (_, _, super::Job) = {
            let mut platter = self.platter.lock();
            let Completion::Spawned(spawner) = platter.completion.clone() else {
                return;
            };
            if platter.syncing || platter.waiting.is_empty() {
                return;
            }
            platter.syncing = true;
            let (disk, epoch, count) = (self.clone(), platter.epoch, platter.waiting.len());
            (
                spawner,
                platter.sync_delay,
                Box::new(move || disk.end_sync(epoch, count)),
            )
        };
        spawner(delay, job);
    }

    fn end_sync(&self, epoch: u64, count: usize) {
        let answers = {
            let mut platter = self.platter.lock();
            if platter.epoch != epoch || !platter.syncing {
                return;
            }
            platter.syncing = false;
            platter.sync_log(count)
        };
        // The next sync begins when this one ends, whatever the `done`s do.
        self.spawn_sync();
        answers.give();
    }
}

impl Platter {
    /// Ends the process that has the disk open and returns the calls that will never be answered.
    pub(super) fn die(&mut self) -> VecDeque<Waiting> {
        self.epoch += 1;
        self.closed = true;
        self.syncing = false;
        self.stopped = None;
        self.stats = StorageStats::default();
        self.state_unsynced.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Refuses a write of so many bytes once the engine has stopped, or where no space is left, which stops it.
    pub(super) fn admit(&mut self, bytes: u64) -> Result<(), StorageError> {
        if let Some(cause) = &self.stopped {
            return Err(cause.stopping());
        }
        let used = self.logs.bytes + self.state.bytes;
        if self
            .capacity_bytes
            .is_some_and(|capacity| used + bytes > capacity)
        {
            return Err(self.stop(StorageError::Full { path: path() }));
        }
        Ok(())
    }

    /// One sync of the first so many log calls that wait.
    pub(super) fn sync_log(&mut self, count: usize) -> Answers {
        let changes = self
            .waiting
            .iter()
            .take(count)
            .any(|waiting| waiting.change.is_some());
        let synced = if changes {
            self.sync("sync the log")
        } else {
            Ok(())
        };
        let count = count.min(self.waiting.len());
        let answers = self.waiting.drain(..count).map(|waiting| {
            self.stats.log_calls += 1;
            let Some(change) = waiting.change else {
                return (waiting.done, waiting.answer);
            };
            if synced.is_ok() {
                self.logs_synced.apply(&change);
            }
            (waiting.done, synced.clone().and(waiting.answer))
        });
        Answers(answers.collect())
    }

    pub(super) fn sync_state(&mut self) -> Result<(), StorageError> {
        self.sync("sync the state")?;
        for batch in std::mem::take(&mut self.state_unsynced) {
            self.state_synced.apply(&batch);
        }
        Ok(())
    }

    fn sync(&mut self, doing: &'static str) -> Result<(), StorageError> {
        if let Some(cause) = &self.stopped {
            return Err(cause.stopping());
        }
        self.stats.log_syncs += u64::from(doing == "sync the log");
        if self.syncs_to_fail > 0 {
            self.syncs_to_fail -= 1;
            let detail = "the simulated disk fails this sync".to_owned();
            let advice = "check the disk, then restart the node";
            return Err(self.stop(StorageError::Io {
                path: path(),
                doing,
                detail,
                advice,
            }));
        }
        Ok(())
    }

    fn stop(&mut self, cause: StorageError) -> StorageError {
        self.stopped = Some(cause.clone());
        cause
    }
}

fn path() -> std::path::PathBuf {
    "memory".into()
}
