//! The open engine: what its parts share, and how it is opened and closed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use warren_storage::{LogStore, StateStore, Storage, StorageError, StorageStats};
use warren_storage_log::LogFiles;

use crate::Settings;
use crate::database::Database;

/// The folder of the Raft logs, within the engine's.
const LOG_FOLDER: &str = "raft-log";

/// A node's storage in one folder. Keep it as long as its logs and state are in use: dropping it closes it.
pub struct RocksStorage {
    shared: Arc<Shared>,
}

/// What callers and scans share.
pub(crate) struct Shared {
    /// None once closed.
    database: RwLock<Option<Arc<Database>>>,
    pub(crate) log: LogFiles,
    pub(crate) state_writes: AtomicU64,
}

impl RocksStorage {
    /// Opens the folder, and creates it if it is not there. Only one process can have it open.
    pub fn open(path: &Path, settings: &Settings) -> Result<RocksStorage, StorageError> {
        let database = Database::open(path, settings)?;
        let log = LogFiles::open(&path.join(LOG_FOLDER), &settings.log)?;
        Ok(RocksStorage {
            shared: Arc::new(Shared {
                database: RwLock::new(Some(Arc::new(database))),
                log,
                state_writes: AtomicU64::new(0),
            }),
        })
    }
}

impl Shared {
    pub(crate) fn database(&self) -> Result<Arc<Database>, StorageError> {
        self.database.read().clone().ok_or(StorageError::Closed)
    }

    /// The database, unless a write has failed, be it of the log or of the state.
    pub(crate) fn writable(&self) -> Result<Arc<Database>, StorageError> {
        let database = self.database()?;
        match self.log.stopped() {
            Some(cause) => Err(cause.stopping()),
            None => Ok(database),
        }
    }
}

impl Storage for RocksStorage {
    fn log(&self) -> Arc<dyn LogStore> {
        self.shared.log.log()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.shared.clone()
    }

    fn stats(&self) -> StorageStats {
        StorageStats {
            state_writes: self.shared.state_writes.load(Ordering::Relaxed),
            ..self.shared.log.stats()
        }
    }

    fn failure(&self) -> Option<StorageError> {
        self.shared.log.stopped()
    }

    fn damage(&self) -> Option<StorageError> {
        let of_the_state = || self.shared.database.read().as_ref()?.damage();
        self.shared.log.damage().or_else(of_the_state)
    }

    fn close(&self) -> Result<(), StorageError> {
        let log = self.shared.log.close();
        let Some(database) = self.shared.database.write().take() else {
            return Ok(());
        };
        log.and_then(|()| database.sync("sync before closing"))
    }
}

impl Drop for RocksStorage {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "the storage did not close cleanly");
        }
    }
}
