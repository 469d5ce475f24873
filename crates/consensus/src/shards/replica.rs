//! What a shard's group needs from whoever keeps the shard's state, and what it tells it.

use bytes::Bytes;
use futures::future::BoxFuture;
use warren_model::NodeId;
use warren_storage::{Scan, StorageError};

/// Keeps one shard's state on this node.
///
/// Calls return at once: they put messages into a channel of whoever keeps the state. All calls for one shard come in order, also
/// those whose futures are awaited; a call's effect is that of its place in this order, not of when its future is polled.
pub trait Replica: Send + Sync + 'static {
    /// The position that the durable state is of: the bytes that the last [`Self::checkpoint`] or [`Self::install`] handed over.
    /// None: there is no state. Asked once, when the group is opened, from the task that opens it.
    fn position(&self) -> Result<Option<Bytes>, StorageError>;

    /// Committed entries in order, each once, following what was given before, or the position that the group was opened at.
    fn apply(&self, entries: Vec<Committed>);

    /// Makes the state durable as of all entries given so far, together with this position. Resolves when it is durable.
    fn checkpoint(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>>;

    /// A consistent view of the state as of all entries given so far, as keys and values to be sent to another node.
    fn view(&self) -> BoxFuture<'static, Result<Scan, StorageError>>;

    /// Records of another node's view have come; `first`: forget what was staged before. They are written to storage as they
    /// come and need not be durable before [`Self::install`]. The state itself stays as it is.
    fn stage(
        &self,
        records: Vec<(Bytes, Bytes)>,
        first: bool,
    ) -> BoxFuture<'static, Result<(), StorageError>>;

    /// What was staged replaces the state, atomically and durably, with this position. Entries given next follow it.
    fn install(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>>;

    /// Who leads, as this node sees it; in order with [`Self::apply`].
    fn leadership(&self, leadership: Leadership);
}

/// A committed entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Its place in the group's log. Indexes grow by one.
    pub index: u64,
    /// The term of the leader that wrote it.
    pub term: u64,
    /// What was proposed; shares memory with the log's cache. Empty for entries of the group itself.
    pub payload: Bytes,
}

/// Who leads, as this node sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Leadership {
    /// This node leads in this term and was given all entries of earlier terms: it may propose, and nobody else has since.
    Leading {
        /// The term to propose in.
        term: u64,
    },
    /// Another node leads, or none that this node knows of. What was proposed here and not applied may still be applied, or be lost.
    Following {
        /// The newest term that this node knows of.
        term: u64,
        /// Who leads in it.
        leader: Option<NodeId>,
    },
}
