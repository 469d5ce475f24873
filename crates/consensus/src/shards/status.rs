//! What can be told of a shard's group, for people and for whoever places replicas.

use warren_model::{NodeId, ShardId};

/// A shard's group as this node sees it now. Indexes are None while there is no such entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// Who leads, as this node knows.
    pub leader: Option<NodeId>,
    /// The term in which this node leads and takes proposals.
    pub leading: Option<u64>,
    /// The newest term that this node knows of.
    pub term: u64,
    /// The last entry of this node's log.
    pub last_log: Option<u64>,
    /// The last entry that is known here to be committed.
    pub committed: Option<u64>,
    /// The last entry that this node's replica was given.
    pub applied: Option<u64>,
    /// The last entry that a durable checkpoint of this node covers.
    pub checkpointed: Option<u64>,
    /// The last entry that is no longer in this node's log.
    pub purged: Option<u64>,
    /// Replicas that vote, in the newest membership that this node knows of.
    pub voters: Vec<NodeId>,
    /// Replicas that do not vote.
    pub learners: Vec<NodeId>,
    /// Whether a change of the replicas is under way: two sets of voters must agree, or the newest set is not committed yet.
    pub changing: bool,
    /// When leading: how far each replica's log is known to match.
    pub replicas: Vec<ReplicaStatus>,
    /// Why the group has stopped on this node, if it has.
    pub failure: Option<String>,
}

/// A replica as its leader sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// The replica's node.
    pub node: NodeId,
    /// The last entry that is known to be durable there.
    pub matched: Option<u64>,
}
