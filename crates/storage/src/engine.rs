//! The trait of a whole engine: one node's folder, with its logs and its state.

use std::sync::Arc;

use crate::{LogStore, StateStore, StorageError};

/// One node's storage.
pub trait Storage: Send + Sync + 'static {
    /// The Raft logs.
    fn log(&self) -> Arc<dyn LogStore>;

    /// The applied state.
    fn state(&self) -> Arc<dyn StateStore>;

    /// What the engine has done since it was opened.
    fn stats(&self) -> StorageStats;

    /// The failure since which the engine takes no more writes, if there was one.
    fn failure(&self) -> Option<StorageError> {
        None
    }

    /// The first damage that a read has found since the engine was opened, if there was some. What is not damaged is still served and written.
    fn damage(&self) -> Option<StorageError> {
        None
    }

    /// Waits until all calls are answered, syncs, and releases the folder; later calls report [`StorageError::Closed`].
    /// Closing twice is allowed. Must not be called from a `done`.
    fn close(&self) -> Result<(), StorageError>;
}

/// Counters of an engine since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageStats {
    /// Writing calls of the log that were answered, well or badly.
    pub log_calls: u64,
    /// Syncs that they took. Far fewer than calls where many wait at once.
    pub log_syncs: u64,
    /// Entries appended.
    pub log_entries: u64,
    /// Bytes of their contents.
    pub log_bytes: u64,
    /// Reads of the log that had to go to the disk, because the tail cache did not hold their beginning.
    pub log_reads_from_disk: u64,
    /// Atomic writes of the state.
    pub state_writes: u64,
}
