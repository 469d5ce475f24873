//! The open engine: what its parts share, and how it is opened and closed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, RwLock};
use warren_storage::{LogStore, Place, StateStore, Storage, StorageError, StorageStats};

use crate::Settings;
use crate::database::Database;
use crate::log::Front;
use crate::mark::Mark;
use crate::writer;

/// A node's storage in one RocksDB folder. Keep it as long as its logs and state are in use: dropping it closes it.
pub struct RocksStorage {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What callers, the writer thread and scans share.
pub(crate) struct Shared {
    /// None once closed.
    database: RwLock<Option<Arc<Database>>>,
    pub(crate) front: Mutex<Front>,
    /// Wakes the writer: work has come, or the end.
    pub(crate) work: Condvar,
    pub(crate) counters: Counters,
    pub(crate) batch_bytes: usize,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) log_calls: AtomicU64,
    pub(crate) log_syncs: AtomicU64,
    pub(crate) log_entries: AtomicU64,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_reads_from_disk: AtomicU64,
    pub(crate) state_writes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl RocksStorage {
    /// Opens the folder, and creates it if it is not there. Only one process can have it open.
    pub fn open(path: &Path, settings: &Settings) -> Result<RocksStorage, StorageError> {
        let database = Database::open(path, settings)?;
        let mark = Mark::open(path, database.batch_number()?)?;
        let shared = Arc::new(Shared {
            database: RwLock::new(Some(Arc::new(database))),
            front: Mutex::new(Front::new(settings.tail_cache_bytes)),
            work: Condvar::new(),
            counters: Counters::default(),
            batch_bytes: settings.batch_bytes,
        });
        let writer = writer::start(shared.clone(), mark).map_err(|error| StorageError::Io {
            path: path.to_owned(),
            doing: "start the thread of the log writer",
            detail: error.to_string(),
            advice: "raise the limit on threads (ulimit -u)",
        })?;
        Ok(RocksStorage {
            shared,
            writer: Mutex::new(Some(writer)),
        })
    }
}

impl Shared {
    pub(crate) fn database(&self) -> Result<Arc<Database>, StorageError> {
        self.database.read().clone().ok_or(StorageError::Closed)
    }

    /// Remembers the first failure, which refuses all later writes.
    pub(crate) fn stop(&self, error: &StorageError) {
        let mut front = self.front.lock();
        if front.stopped.is_none() {
            tracing::error!(%error, "the storage takes no more writes");
            front.stopped = Some(error.root().clone());
        }
    }
}

impl Storage for RocksStorage {
    fn log(&self) -> Arc<dyn LogStore> {
        self.shared.clone()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.shared.clone()
    }

    fn stats(&self) -> StorageStats {
        let counters = &self.shared.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StorageStats {
            log_calls: load(&counters.log_calls),
            log_syncs: load(&counters.log_syncs),
            log_entries: load(&counters.log_entries),
            log_bytes: load(&counters.log_bytes),
            log_reads_from_disk: load(&counters.log_reads_from_disk),
            state_writes: load(&counters.state_writes),
        }
    }

    fn close(&self) -> Result<(), StorageError> {
        let mut writer = self.writer.lock();
        let Some(thread) = writer.take() else {
            return Ok(());
        };
        self.shared.front.lock().closing = true;
        self.shared.work.notify_all();
        let ended = thread.join();
        let Some(database) = self.shared.database.write().take() else {
            return Ok(());
        };
        ended.map_err(|_| StorageError::Corrupt {
            what: "the log writer panicked, see its message".to_owned(),
            place: Place::Files {
                path: database.path().to_owned(),
            },
        })?;
        let stopped = self.shared.front.lock().stopped.clone();
        match stopped {
            Some(cause) => Err(cause.stopping()),
            None => database.sync("sync before closing"),
        }
    }
}

impl Drop for RocksStorage {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "the storage did not close cleanly");
        }
    }
}
