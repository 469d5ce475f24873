//! The storage engine that ships: one RocksDB a node folder, with a group-committing log writer.
//!
//! Flow of a log call: under one lock it changes the group's bounds and the tail cache, which reads look at first, and joins the
//! queue. The thread `warren-log-writer` turns what has queued up into one `WriteBatch`, syncs it, then calls the `done`s in
//! order. While it syncs, the next batch gathers: that is the whole group commit.
//!
//! State writes go to RocksDB from the calling thread without a sync. They share the write-ahead log, so that `sync` is one
//! sync of that log. The log writer writes first and syncs then, as two steps: in a single synced write, RocksDB would let
//! state writes wait behind the sync (measured: median 16 µs instead of milliseconds on a busy disk, entries/s alike).
//!
//! Layout: column families `log`, `records` and `state`; keys as in [`warren_storage::key`], records as in
//! [`warren_storage::record`]. Applied state has no checksum of ours: RocksDB checks each block and each write-ahead record.
//!
//! Invariants: nothing is answered before it is synced; an entry leaves the tail cache only once RocksDB has it; after the first
//! failed write nothing is written until the folder is opened again.
//!
//! Cost: one sync a batch (100-200 µs on a good disk). Memory: the write buffers, the block cache and the tail cache of
//! [`Settings`], under 100 MB with the defaults, whatever is stored.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod database;
mod engine;
mod failure;
mod log;
mod mark;
mod scan;
mod settings;
mod state;
mod tail;
mod writer;

pub use engine::RocksStorage;
pub use settings::Settings;
