//! What a node keeps on disk: the storage traits, the record and key formats, and an in-memory engine for simulation.
//!
//! Two kinds of data, with opposite needs:
//! - [`LogStore`]: the Raft logs of all groups of a node. Every call is made durable, and calls that wait share one sync.
//! - [`StateStore`]: applied state as sorted keys. Not synced at each write: it can be replayed from the synced log.
//!
//! Two engines implement them: `warren-storage-rocksdb`, which ships, and [`memory`], whose [`memory::Disk`] outlives
//! simulated processes and forgets unsynced writes in a simulated crash. The suite in `conformance` (feature
//! `conformance`) runs on both.
//!
//! What survives a crash, for every engine:
//! - each log call whose `done` said `Ok`, and each state write before a [`StateStore::sync`] that returned `Ok`;
//! - of the log calls after those, a prefix in call order, and of the first one beyond it at most a prefix of its entries;
//! - of the state writes after those, a prefix in call order, each whole. Nothing orders state against the log: either may
//!   be ahead of the other, so state carries the index that it has applied, and the log is purged only behind a synced state;
//! - whatever a freshly opened storage serves is durable.
//!
//! What happens after a failure: the first write or sync that fails stops the engine, and every later one reports
//! [`StorageError::Stopped`] until the folder is opened again. A failed sync may have lost any unsynced page, so going on
//! could acknowledge what is not there. Reads go on.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "conformance")]
pub mod conformance;
mod damage;
mod engine;
mod error;
pub mod key;
mod log;
pub mod memory;
pub mod record;
mod state;

pub use damage::Damage;
pub use engine::{Storage, StorageStats};
pub use error::{Place, StorageError};
pub use log::{Done, LogBounds, LogEntry, LogStore};
pub use state::{Scan, Space, StateStore, Write};
