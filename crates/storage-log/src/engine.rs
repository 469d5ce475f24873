//! The open log: what its parts share, and how it is opened and closed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use warren_storage::{Damage, LogStore, Place, StorageError, StorageStats};

use crate::Settings;
use crate::disk::Disk;
use crate::front::Front;
use crate::mark::Mark;
use crate::recover::recover;
use crate::segments::Segments;
use crate::writer::Writer;

/// The Raft logs of a node in one folder. Keep it as long as its logs are in use: dropping it closes it.
pub struct LogFiles {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What callers and the writer thread share.
pub(crate) struct Shared {
    pub(crate) front: Mutex<Front>,
    /// Wakes the writer: work has come, or the end.
    pub(crate) work: Condvar,
    pub(crate) counters: Counters,
    pub(crate) disk: Disk,
    /// What a read has found damaged first.
    pub(crate) damage: Damage,
    pub(crate) batch_bytes: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) spare_segments: usize,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) log_calls: AtomicU64,
    pub(crate) log_syncs: AtomicU64,
    pub(crate) log_entries: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_reads_from_disk: AtomicU64,
    /// Entries written again to free the segments that they were in.
    pub(crate) entries_moved: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl LogFiles {
    /// Opens the folder, and creates it if it is not there. Only one process can have it open.
    pub fn open(path: &Path, settings: &Settings) -> Result<LogFiles, StorageError> {
        let disk = Disk::open(path)?;
        let mark = Mark::open(&disk)?;
        let mut recovered = recover(&disk, mark.get(&disk)?)?;
        // Now all of it is synced. It also gives the file its room before the disk may be full.
        mark.set(&disk, recovered.last_number)?;
        let index = std::mem::take(&mut recovered.index);
        let segments = Segments::new(settings.open_segments);
        let shared = Arc::new(Shared {
            front: Mutex::new(Front::new(index, segments, settings.tail_cache_bytes)),
            work: Condvar::new(),
            counters: Counters::default(),
            disk,
            damage: Damage::default(),
            batch_bytes: settings.batch_bytes,
            segment_bytes: settings.segment_bytes,
            spare_segments: settings.spare_segments,
        });
        let writer = Writer::new(shared.clone(), mark, recovered).start();
        let writer = writer.map_err(|error| StorageError::Io {
            path: path.to_owned(),
            doing: "start the thread of the log writer",
            detail: error.to_string(),
            advice: "raise the limit on threads (ulimit -u)",
        })?;
        Ok(LogFiles {
            shared,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// The logs.
    #[must_use]
    pub fn log(&self) -> Arc<dyn LogStore> {
        self.shared.clone()
    }

    /// What the log has done since it was opened. It counts no writes of state.
    #[must_use]
    pub fn stats(&self) -> StorageStats {
        let counters = &self.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StorageStats {
            log_calls: load(&counters.log_calls),
            log_syncs: load(&counters.log_syncs),
            log_entries: load(&counters.log_entries),
            log_bytes: load(&counters.log_bytes),
            log_reads_from_disk: load(&counters.log_reads_from_disk),
            state_writes: 0,
        }
    }

    /// Entries that were written again, to free the segments that they were in, since the log was opened.
    #[must_use]
    pub fn entries_moved(&self) -> u64 {
        self.shared.counters.entries_moved.load(Ordering::Relaxed)
    }

    /// What fails from now on.
    #[cfg(test)]
    pub(crate) fn set_faults(&self, faults: crate::disk::Faults) {
        *self.shared.disk.faults.lock() = faults;
    }

    /// Refuses all writes from now on, because what the log is kept with has failed.
    pub fn stop(&self, error: &StorageError) {
        self.shared.stop(error);
    }

    /// The failure that has stopped the log, if one has.
    #[must_use]
    pub fn stopped(&self) -> Option<StorageError> {
        let front = self.shared.front.lock();
        front.stopped.clone()
    }

    /// The first damage that a read has found, if there was some.
    #[must_use]
    pub fn damage(&self) -> Option<StorageError> {
        self.shared.damage.first()
    }

    /// Waits until all calls are answered and releases the log; later calls report [`StorageError::Closed`]. Closing twice is
    /// allowed. Must not be called from a `done`.
    pub fn close(&self) -> Result<(), StorageError> {
        let mut writer = self.writer.lock();
        let Some(thread) = writer.take() else {
            return Ok(());
        };
        self.shared.front.lock().closing = true;
        self.shared.work.notify_all();
        thread.join().map_err(|_| StorageError::Corrupt {
            what: "the log writer panicked, see its message".to_owned(),
            place: Place::Files {
                path: self.shared.disk.folder().to_owned(),
            },
        })?;
        self.shared.disk.unlock();
        self.stopped().map_or(Ok(()), |cause| Err(cause.stopping()))
    }
}

impl Shared {
    /// Remembers the first failure, which refuses all later writes.
    pub(crate) fn stop(&self, error: &StorageError) {
        let mut front = self.front.lock();
        if front.stopped.is_none() {
            tracing::error!(%error, "the log takes no more writes");
            front.stopped = Some(error.root().clone());
        }
    }
}

impl Drop for LogFiles {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "the log did not close cleanly");
        }
    }
}
