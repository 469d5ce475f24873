//! The handle of a node's shards: which groups run here, and what is asked of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use warren_model::{NodeId, ShardId};
use warren_storage::{Storage, StorageError};
use warren_transport::{Frame, Lane, ReplyTo, Transport};

use super::config::{ChangeError, ShardOpenError, ShardsConfig};
use super::replica::Replica;
use super::status::ShardStatus;

/// The groups of shards that run on this node. Clones are handles of one set.
#[derive(Clone)]
pub struct Shards {
    config: Arc<ShardsConfig>,
    storage: Arc<dyn Storage>,
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shards({})", self.config.node)
    }
}

impl Shards {
    /// Groups on this storage; none runs yet. Must be called on the tokio runtime that their tasks are to run on.
    #[must_use]
    pub fn new(config: ShardsConfig, storage: Arc<dyn Storage>) -> Self {
        Self {
            config: Arc::new(config),
            storage,
        }
    }

    /// Sends over this transport from now on. Groups may be opened before, but take part in nothing until then.
    pub fn start(&self, transport: Transport) {
        drop(transport);
    }

    /// Runs a shard's group on this node; one that runs stays as it is. `found`: if nothing was ever stored for the group on
    /// this node and it is among these nodes, the group is founded with exactly them; all founders must be given the same ones.
    /// Otherwise the group goes on from what is stored, or waits until its leader sends something.
    ///
    /// # Errors
    /// When what is stored cannot be read, or the node is shutting down.
    pub async fn open(
        &self,
        shard: ShardId,
        replica: Arc<dyn Replica>,
        found: Option<Vec<NodeId>>,
    ) -> Result<(), ShardOpenError> {
        let _ = (shard, replica, found);
        Err(ShardOpenError::Stopped)
    }

    /// Whether the shard's group runs here.
    #[must_use]
    pub fn is_open(&self, shard: ShardId) -> bool {
        let _ = shard;
        false
    }

    /// The shards whose groups run here, in order.
    #[must_use]
    pub fn shards(&self) -> Vec<ShardId> {
        Vec::new()
    }

    /// Proposes an entry in a term that the replica heard [`super::Leadership::Leading`] of, and returns at once. Entries of one
    /// term that are applied are applied in the order of the calls.
    ///
    /// True: it will be applied, or the replica hears [`super::Leadership::Following`]. False: it will not be applied; this node
    /// does not lead in that term any more.
    #[must_use]
    pub fn propose(&self, shard: ShardId, term: u64, payload: Bytes) -> bool {
        let _ = (shard, term, payload);
        false
    }

    /// The payload of an entry of the shard's log; None if it is not there (any more). Blocks on the disk when it is not cached.
    ///
    /// # Errors
    /// When the storage cannot be read.
    pub fn read(&self, shard: ShardId, index: u64) -> Result<Option<Bytes>, StorageError> {
        let _ = (shard, index, &self.storage);
        Ok(None)
    }

    /// The replica's state, as it is now, needs no entry up to `through` any more. Takes a checkpoint of it, then purges them.
    pub fn release(&self, shard: ShardId, through: u64) {
        let _ = (shard, through);
    }

    /// Whether this node leads the shard and a majority has confirmed so within the last `lease`. As long as `lease` is no longer
    /// than the least election timeout, nobody else can have been elected.
    #[must_use]
    pub fn confirmed_within(&self, shard: ShardId, lease: Duration) -> bool {
        let _ = (shard, lease);
        false
    }

    /// What can be told of a shard's group now; None if it does not run here.
    #[must_use]
    pub fn status(&self, shard: ShardId) -> Option<ShardStatus> {
        let _ = shard;
        None
    }

    /// When leading: makes these nodes the replicas. New ones are added as learners, caught up, and made voters by joint
    /// consensus; the others are removed. Each must have, or get, the group open (without founding). A leader that is not among
    /// them hands over. May be repeated after an error, with the same or other nodes.
    ///
    /// # Errors
    /// When this node does not lead, or the change does not complete.
    pub async fn set_replicas(
        &self,
        shard: ShardId,
        replicas: Vec<NodeId>,
    ) -> Result<(), ChangeError> {
        let _ = replicas;
        Err(ChangeError::NotOpen { shard })
    }

    /// When leading: hands leadership to a replica. The own replica hears [`super::Leadership::Following`] first. Returns when the
    /// other one leads.
    ///
    /// # Errors
    /// When this node does not lead, that node does not vote, or another one leads in the end.
    pub async fn transfer(&self, shard: ShardId, to: NodeId) -> Result<(), ChangeError> {
        let _ = to;
        Err(ChangeError::NotOpen { shard })
    }

    /// Stops all groups. Does not hand over leadership.
    pub async fn shutdown(&self) {}

    /// Stops a shard's group on this node and removes its log: the node is no replica any more. Removing the state is up to the
    /// replica's owner.
    pub async fn close(&self, shard: ShardId) {
        let _ = shard;
    }

    /// A one-way message on one of the shards' lanes. There are none in this version.
    pub fn on_message(&self, from: NodeId, lane: Lane, frame: Frame) {
        tracing::warn!(%from, ?lane, ?frame, "an unknown message for a shard came");
    }

    /// A request on one of the shards' lanes ([`Lane::Shard`], [`Lane::ShardPulse`]).
    pub fn on_request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        let _ = (from, lane, frame, reply);
    }

    /// A link to a node is up: what waits to be sent to it again is sent now.
    pub fn on_link_up(&self, node: NodeId) {
        let _ = node;
    }

    /// The link to a node is down.
    pub fn on_link_down(&self, node: NodeId) {
        let _ = node;
    }
}
