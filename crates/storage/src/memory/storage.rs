//! A simulated disk as one process has it open: the storage traits.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::disk::{Platter, Waiting};
use super::logs::Change;
use super::{Completion, Disk, spaces};
use crate::record::{self, Address};
use crate::{
    Damage, Done, LogBounds, LogEntry, LogStore, Scan, Space, StateStore, Storage, StorageError,
    StorageStats, Write,
};

/// A [`Disk`] that a process has open. Clones are the same process. Dropping it closes nothing: a process ends by `close`, by a
/// crash of the disk, or by the next process that opens it.
#[derive(Clone)]
pub struct MemoryStorage {
    process: Arc<Process>,
}

struct Process {
    disk: Disk,
    epoch: u64,
    damage: Damage,
}

impl MemoryStorage {
    pub(super) fn new(disk: Disk, epoch: u64) -> MemoryStorage {
        MemoryStorage {
            process: Arc::new(Process {
                disk,
                epoch,
                damage: Damage::default(),
            }),
        }
    }
}

impl Storage for MemoryStorage {
    fn log(&self) -> Arc<dyn LogStore> {
        self.process.clone()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.process.clone()
    }

    fn stats(&self) -> StorageStats {
        self.process
            .platter()
            .map_or_else(|_| StorageStats::default(), |platter| platter.stats)
    }

    fn damage(&self) -> Option<StorageError> {
        self.process.damage.first()
    }

    fn close(&self) -> Result<(), StorageError> {
        let Ok(mut platter) = self.process.platter() else {
            return Ok(());
        };
        let waiting = platter.waiting.len();
        let answers = platter.sync_log(waiting);
        let synced = platter.sync_state();
        platter.closed = true;
        drop(platter);
        answers.give();
        synced
    }
}

impl Process {
    /// The platter, while this process lives.
    fn platter(&self) -> Result<MutexGuard<'_, Platter>, StorageError> {
        let platter = self.disk.platter.lock();
        if platter.epoch != self.epoch || platter.closed {
            return Err(StorageError::Closed);
        }
        Ok(platter)
    }

    /// Takes a log call whose change `make` decides on: none changes nothing, an error refuses it. Either way it is
    /// answered in its turn.
    fn call(
        &self,
        done: Done,
        make: impl FnOnce(&mut Platter) -> Result<Option<Change>, StorageError>,
    ) {
        let mut platter = match self.platter() {
            Ok(platter) => platter,
            Err(closed) => return done(Err(closed)),
        };
        let made = make(&mut platter).and_then(|change| {
            platter.admit(change.as_ref().map_or(0, Change::bytes))?;
            Ok(change)
        });
        let (change, answer) = match made {
            Ok(change) => (change, Ok(())),
            Err(refused) => (None, Err(refused)),
        };
        if let Some(change) = &change {
            platter.logs.apply(change);
        }
        platter.waiting.push_back(Waiting {
            change,
            answer,
            done,
        });
        match platter.completion {
            Completion::Inline => {
                let waiting = platter.waiting.len();
                let answers = platter.sync_log(waiting);
                drop(platter);
                answers.give();
            }
            Completion::Queued => {}
            Completion::Spawned(_) => {
                drop(platter);
                self.disk.spawn_sync();
            }
        }
    }
}

impl LogStore for Process {
    fn append(&self, group: u64, entries: Vec<LogEntry>, done: Done) {
        self.call(done, |platter| {
            let first = platter.logs.bounds(group).next();
            let mut stored = Vec::with_capacity(entries.len());
            for (expected, entry) in (first..).zip(&entries) {
                if entry.index != expected {
                    return Err(StorageError::OutOfOrder {
                        group,
                        expected,
                        got: entry.index,
                    });
                }
                let address = Address::Entry {
                    group,
                    index: entry.index,
                };
                record::check_size(address, &entry.bytes)?;
                stored.push(record::encode(address, &entry.bytes));
            }
            if stored.is_empty() {
                return Ok(None);
            }
            platter.stats.log_entries += entries.len() as u64;
            platter.stats.log_bytes += entries
                .iter()
                .map(|entry| entry.bytes.len() as u64)
                .sum::<u64>();
            Ok(Some(Change::Append {
                group,
                first,
                stored,
            }))
        });
    }

    fn truncate_after(&self, group: u64, last_kept: u64, done: Done) {
        self.call(done, |_| Ok(Some(Change::Truncate { group, last_kept })));
    }

    fn purge(&self, group: u64, through: u64, done: Done) {
        self.call(done, |_| Ok(Some(Change::Purge { group, through })));
    }

    fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StorageError> {
        self.platter()?
            .logs
            .read(group, from, until, bytes_max)
            .inspect_err(|error| self.damage.note(error))
    }

    fn bounds(&self, group: u64) -> Result<LogBounds, StorageError> {
        Ok(self.platter()?.logs.bounds(group))
    }

    fn put_record(&self, group: u64, name: &'static str, value: Bytes, done: Done) {
        self.call(done, |_| {
            let address = Address::Record { group, name };
            record::check_size(address, &value)?;
            Ok(Some(Change::Record {
                group,
                name,
                stored: record::encode(address, &value),
            }))
        });
    }

    fn get_record(&self, group: u64, name: &'static str) -> Result<Option<Bytes>, StorageError> {
        self.platter()?
            .logs
            .record(group, name)
            .inspect_err(|error| self.damage.note(error))
    }
}

impl StateStore for Process {
    fn write_spaces(&self, batches: Vec<(Space, Vec<Write>)>) -> Result<(), StorageError> {
        let mut platter = self.platter()?;
        platter.admit(spaces::bytes_of(&batches))?;
        platter.state.apply(&batches);
        platter.state_unsynced.push_back(batches);
        platter.stats.state_writes += 1;
        Ok(())
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.platter()?.state.get(space, key))
    }

    fn scan_range(
        &self,
        space: Space,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<Scan, StorageError> {
        Ok(self.platter()?.state.scan(space, from, until))
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.platter()?.sync_state()
    }
}
