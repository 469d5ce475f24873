//! The Raft logs of all groups of a node, in preallocated segment files that the groups share.
//!
//! Flow of a log call: under one lock it changes the group's bounds and the tail cache, which reads look at first, and joins the
//! queue. The thread `warren-log-writer` turns what has queued up into one frame, syncs it, then calls the `done`s in order.
//! While it syncs, the next frame gathers: that is the whole group commit. Large contents are written from where they are.
//!
//! Segments are written one after the other. Each begins with the bounds of all groups and all small records, so that neither
//! keeps an old segment alive; what little is still alive in old segments moves into new ones, an eighth of a segment at most
//! each time. A segment in which nothing is alive is written over or removed. The format is in `frame`, opening in `recover`.
//!
//! Invariants: nothing is answered before it is synced; frame n + 1 is written only once n is synced; an entry leaves the tail
//! cache only once its place is in the index; a segment is freed only after a synced frame that no longer needs it. After a
//! failed write, also for want of room, nothing is written until the folder is opened again.
//!
//! Memory: the tail cache of [`Settings`], the batch that is being written, and 16 bytes an entry that is on disk.
//!
//! # Measured
//! `examples/log_append.rs`, whole process with the load generator, on the machine below under other load. In memory: entries of
//! 1 KiB, one group, batches of 1 / 32 / 256 / 1024: 57k / 551k / 1.03 M / 1.12 M entries/s at half a core; 64 groups, one entry an
//! append: 302k. On the disk: 64 groups, batches of 32: 300-406k/s at 0.3 core (through RocksDB: 129-192k/s); entries of
//! 256 KiB: 380 MiB/s at 0.46 core. Opening 2 GiB, file cache warm: entries of 1 KiB 44-73 ms, of 256 KiB 1-30 ms.
//! Segments filled with zeros beforehand sync no faster than reserved ones.
//!
//! # Why not a library
//! TiKV's `raft-engine` 0.4.2 was measured beside a plain preallocated file (`fallocate`, `pwritev`, `fdatasync`; two shared
//! cores, a busy disk with syncs of 0.5 to 2 ms), entries of 1 KiB, one sync a batch, entries/s:
//!
//! | batch | 1 | 32 | 256 | 1024 |
//! |---|---|---|---|---|
//! | raft-engine | 0.5-1.2k | 8-18k | 61-173k | 266-583k |
//! | plain file | 0.5-1.4k | 16-62k | 92-267k | 266-705k |
//! | raft-engine in memory | 328-346k | 0.8-1.3 M | 1.2-1.6 M | 1.4-1.7 M |
//! | plain file in memory | 585-609k | 0.8 M | 0.8 M | 0.9-1.0 M |
//!
//! It opens 2 GiB of entries of 1 KiB in 0.3 to 1.3 s and of 256 KiB in 15 to 32 ms, and would be fast enough. It is not used
//! because it panics when a sync fails, where this node must refuse writes and say why; cuts a synced frame that has rotted at
//! the end off in silence; takes entries as protobuf messages, copied twice on the way in and once on the way out; cannot
//! truncate without appending; and gives nothing to readers before it is synced.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod disk;
mod engine;
mod frame;
mod front;
mod index;
mod mark;
mod outline;
mod recover;
mod segments;
mod settings;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

pub use engine::LogFiles;
pub use settings::Settings;
