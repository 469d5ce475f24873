//! The trait of the Raft logs of one node.

use bytes::Bytes;

use crate::StorageError;

/// Called once, from any thread, when a log call is durable or has failed. It must not block: other calls wait behind it.
/// Dropped without being called only when the (simulated) process dies.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// One entry of a Raft log. Indexes start at 1, so that 0 can mean "nothing yet" in [`LogBounds`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The entry's index, 1 or more.
    pub index: u64,
    /// The entry's contents. The engine may keep them in its tail cache: give it bytes that do not pin a larger buffer.
    pub bytes: Bytes,
}

/// Where a group's log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogBounds {
    /// The last index that was purged, 0 if none was.
    pub purged_through: u64,
    /// The last index that is there, `purged_through` if none is.
    pub last: u64,
}

impl LogBounds {
    /// The first index that is there, or would be.
    #[must_use]
    pub fn first(self) -> u64 {
        self.purged_through + 1
    }

    /// The index that the next append must start with.
    #[must_use]
    pub fn next(self) -> u64 {
        self.last + 1
    }

    /// Whether no entry is there.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.last == self.purged_through
    }
}

/// The Raft logs of all groups of one node (group 0 is the metadata group, shards follow).
///
/// Writing calls return at once and are seen by reads at once; their `done` comes when they are durable. Calls of one group
/// take effect, and their `done`s come, in call order. Calls that wait at the same time, of whatever groups, share one sync.
/// Nothing bounds what may be queued: the caller bounds what it has in flight.
pub trait LogStore: Send + Sync + 'static {
    /// Appends entries with consecutive indexes that continue the group's log; otherwise `done` gets
    /// [`StorageError::OutOfOrder`] and nothing is written. No entries at all is allowed: `done` then marks a place in the order.
    fn append(&self, group: u64, entries: Vec<LogEntry>, done: Done);

    /// Removes all entries with an index above `last_kept` (an index below the purged ones removes all that are left).
    fn truncate_after(&self, group: u64, last_kept: u64, done: Done);

    /// Removes all entries with an index up to `through` and remembers it. It may lie beyond the last entry: after a
    /// snapshot from the leader the log goes on from there. Purging less than before does nothing.
    fn purge(&self, group: u64, through: u64, done: Done);

    /// Entries `from <= index < until`, in order and without gaps, as many as fit into `bytes_max` but at least one where
    /// one is there. What is purged or not yet written is absent at the beginning or the end. Sees an append as soon as
    /// `append` has returned, before it is durable.
    fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StorageError>;

    /// Where the group's log begins and ends, with all calls that have returned. A group that is new has an empty log.
    fn bounds(&self, group: u64) -> Result<LogBounds, StorageError>;

    /// Replaces a small durable record of the group (vote, membership, last purged log id), in order with its other calls.
    fn put_record(&self, group: u64, name: &'static str, value: Bytes, done: Done);

    /// A record's newest value, seen as soon as `put_record` has returned.
    fn get_record(&self, group: u64, name: &'static str) -> Result<Option<Bytes>, StorageError>;
}
