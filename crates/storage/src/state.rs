//! The trait of the applied state of one node.

use bytes::Bytes;

use crate::StorageError;

/// Which part of the applied state a key belongs to. The number is the first byte of the stored key, so it never changes
/// and is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// The routing table and what was applied to it. Key: chosen by `routing`'s encoding.
    Table = 1,
    /// What the node knows of itself: its id, incarnation, cluster.
    Node = 2,
    /// The queues' indexes. Key: shard, queue, then the index's own order.
    Queue = 3,
    /// Messages that outlive their log segment. Key: shard, queue, message.
    Message = 4,
}

impl Space {
    /// All spaces, in key order.
    pub const ALL: [Space; 4] = [Space::Table, Space::Node, Space::Queue, Space::Message];

    /// The first byte of the space's stored keys.
    #[must_use]
    pub fn byte(self) -> u8 {
        self as u8
    }
}

/// One change of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets a key's value.
    Put(Bytes, Bytes),
    /// Removes a key, if it is there.
    Delete(Bytes),
    /// Removes all keys from the first one up to, but not including, the second one.
    DeleteRange(Bytes, Bytes),
    /// Removes all keys of the space.
    DeleteAll,
}

/// Keys and values in key order, from a view that later writes do not change. It keeps its engine's files open: drop it
/// before the storage is to be opened again.
pub type Scan = Box<dyn Iterator<Item = Result<(Bytes, Bytes), StorageError>> + Send>;

/// The applied state of one node as sorted keys. Writes are seen at once but durable only after [`StateStore::sync`]: after
/// a crash a prefix of the later ones may be there, each whole, and the rest is replayed from the log.
pub trait StateStore: Send + Sync + 'static {
    /// Applies the writes in order, all or none.
    fn write(&self, space: Space, batch: Vec<Write>) -> Result<(), StorageError> {
        self.write_spaces(vec![(space, batch)])
    }

    /// Applies the writes of several spaces in order, all or none.
    fn write_spaces(&self, batches: Vec<(Space, Vec<Write>)>) -> Result<(), StorageError>;

    /// A key's value.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// All keys of a space, as of this call.
    fn scan(&self, space: Space) -> Result<Scan, StorageError> {
        self.scan_range(space, &[], None)
    }

    /// The keys of a space from `from` up to, but not including, `until` (to the end without one), as of this call.
    fn scan_range(
        &self,
        space: Space,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<Scan, StorageError>;

    /// Makes everything written before durable; blocks until it is.
    fn sync(&self) -> Result<(), StorageError>;
}
