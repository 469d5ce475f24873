//! How the groups of shards are set up, and what can go wrong with them.

use std::time::Duration;

use warren_model::{NodeId, ShardId};
use warren_storage::StorageError;

/// What the groups of all shards of a node have in common.
#[derive(Clone, Debug)]
pub struct ShardsConfig {
    /// This node's identity.
    pub node: NodeId,
    /// Period of the leaders' heartbeats.
    pub heartbeat: Duration,
    /// For so long after a leader was heard of, nobody votes for another. A replica stands for election when it has heard of
    /// none for one and a half to two times as long.
    pub lease: Duration,
    /// How long an append may take before it is sent again. A leader's death is noticed by its heartbeats, not by this.
    pub append_deadline: Duration,
    /// How long replicas that are added may take to catch up.
    pub catch_up_deadline: Duration,
    /// Where all randomness comes from. In production: drawn at random at each start.
    pub seed: u64,
}

impl ShardsConfig {
    /// A configuration with the usual periods.
    #[must_use]
    pub fn new(node: NodeId, seed: u64) -> Self {
        Self {
            node,
            heartbeat: Duration::from_millis(60),
            lease: Duration::from_millis(200),
            append_deadline: Duration::from_secs(5),
            catch_up_deadline: Duration::from_secs(600),
            seed,
        }
    }

    /// openraft's parameters.
    pub(super) fn raft(&self, shard: ShardId) -> Result<openraft::Config, ShardOpenError> {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let bad = |why: String| ShardOpenError::Raft { shard, why };
        if self.heartbeat < Duration::from_millis(10) || self.lease < self.heartbeat * 3 {
            return Err(bad(format!(
                "heartbeat {:?} and lease {:?}: a heartbeat takes at least 10 ms, and three must fit in the lease",
                self.heartbeat, self.lease
            )));
        }
        let raft = openraft::Config {
            cluster_name: format!("shard {}", shard.0),
            // Heartbeats of all groups go together, see `super::pulse`. openraft looks at its election timers every fifth of this, which is most of
            // what a cluster costs that does nothing; with that fifth it must be shorter than the least election timeout.
            enable_heartbeat: false,
            heartbeat_interval: millis(self.lease * 2 / 5),
            // Counted from the end of the lease, which is as long as the greater one.
            election_timeout_min: millis(self.lease / 2),
            election_timeout_max: millis(self.lease),
            enable_pre_vote: Some(true),
            // What goes into one append is bounded by the bytes that the log reads at once.
            max_payload_entries: 1024,
            broadcast_submitted_on_append: Some(true),
            // A replica is told that it leads when it was given its own first entry of the term.
            enable_leader_restore: Some(false),
            // Checkpoints and purges are the replica's to ask for.
            snapshot_policy: openraft::SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            replication_lag_threshold: u64::MAX,
            // A leader that is removed hands over as any other (see `leadership`).
            removed_leader_step_down: openraft::StepDownPolicy::Never,
            backoff: "20ms 50ms 100ms ...200ms".into(),
            ..openraft::Config::default()
        };
        raft.validate().map_err(|error| bad(error.to_string()))
    }
}

/// Why a shard's group could not be opened on this node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ShardOpenError {
    /// The storage failed.
    #[error("shard {shard}: {source}", shard = shard.0)]
    Storage {
        /// The shard.
        shard: ShardId,
        /// What failed.
        source: StorageError,
    },
    /// Stored bytes are not what they should be, or state and log do not fit together.
    #[error(
        "shard {shard}: {why}; restore this node from its peers: wipe its data folder and let it join again",
        shard = shard.0
    )]
    Malformed {
        /// The shard.
        shard: ShardId,
        /// What is wrong.
        why: String,
    },
    /// The configuration contradicts itself, or openraft refused to start.
    #[error("the group of shard {shard} did not start: {why}", shard = shard.0)]
    Raft {
        /// The shard.
        shard: ShardId,
        /// Why, for people.
        why: String,
    },
    /// The groups of this node are shut down.
    #[error("this node is shutting down")]
    Stopped,
}

/// Why replicas or the leader of a shard were not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The group does not run on this node.
    #[error("shard {shard} does not run on this node", shard = shard.0)]
    NotOpen {
        /// The shard.
        shard: ShardId,
    },
    /// Only the leader can change the group; ask the one that leads.
    #[error("this node does not lead shard {shard}", shard = shard.0)]
    NotLeading {
        /// The shard.
        shard: ShardId,
        /// Who leads, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// A group has at least one replica.
    #[error("shard {shard} must keep at least one replica", shard = shard.0)]
    NoReplicas {
        /// The shard.
        shard: ShardId,
    },
    /// Leadership can only be handed to a replica that votes.
    #[error("node {to} is no voting replica of shard {shard}", shard = shard.0)]
    NotAReplica {
        /// The shard.
        shard: ShardId,
        /// The node.
        to: NodeId,
    },
    /// It did not happen in time. It may still happen: look at the status.
    #[error("shard {shard}: {what} did not complete within {waited:?}", shard = shard.0)]
    TimedOut {
        /// The shard.
        shard: ShardId,
        /// What did not complete.
        what: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The change was given up for another one.
    #[error("the change of shard {shard} was given up", shard = shard.0)]
    GivenUp {
        /// The shard.
        shard: ShardId,
    },
    /// The group refused, or stopped meanwhile.
    #[error("shard {shard}: {why}", shard = shard.0)]
    Refused {
        /// The shard.
        shard: ShardId,
        /// Why, for people.
        why: String,
    },
}
