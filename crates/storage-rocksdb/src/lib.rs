//! The storage engine that ships: the applied state in RocksDB, the Raft logs in [`warren_storage_log`]'s files beside it.
//!
//! State writes go to RocksDB from the calling thread without a sync; `sync` is one sync of its write-ahead log. Nothing of it
//! waits for the logs, which have files, thread and syncs of their own.
//!
//! Layout: the logs in the folder `log`; column families `state` (what is small and long-lived), `queue` and `message`, with keys as
//! in [`warren_storage::key`]. Applied state has no checksum of ours: RocksDB checks each block and each write-ahead record.
//!
//! Invariants: after the first failed write, of the logs or of the state, nothing is written until the folder is opened again.
//!
//! Cost: memory is the write buffers and the block cache of [`Settings`] and what its `log` says, whatever is stored.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod database;
mod engine;
mod failure;
mod scan;
mod settings;
mod state;

pub use engine::RocksStorage;
pub use settings::Settings;
