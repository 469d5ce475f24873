//! How the metadata group is set up, and what can go wrong with it.

use std::time::Duration;

use warren_model::{Command, Incarnation, Level, NodeId};
use warren_storage::StorageError;
use warren_transport::PeerAddress;

use crate::entry::Malformed;

/// Everything that a node's part in the metadata group needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's identity.
    pub node: NodeId,
    /// This start of its process: greater than any before, renewed ones included.
    pub incarnation: Incarnation,
    /// Its name, unique in the cluster.
    pub name: String,
    /// `host:port` of its transport, as others reach it.
    pub address: String,
    /// `host:port` of AMQP, to show to people.
    pub amqp: String,
    /// `host:port` of HTTP, to show to people.
    pub http: String,
    /// The configured nodes, this one among them or not. Used to find the cluster, and to found it where there is none.
    pub seeds: Vec<PeerAddress>,
    /// This node has belonged to a cluster and lost its data: it joins one again, under a new identity, and founds none.
    pub rejoins: bool,
    /// Shards of a cluster that this node founds.
    pub shards: u16,
    /// The newest level that this node knows. Less than [`Level::NEWEST`] only where an older release is to be played.
    pub knows: Level,
    /// Period of the leader's heartbeats.
    pub heartbeat: Duration,
    /// Least and greatest time without a leader after which a node stands for election.
    pub election_timeout: (Duration, Duration),
    /// How long a node may route after the leader last confirmed it. Declares wait so long for a node that is silent.
    pub lease: Duration,
    /// How long a node's lease must have been gone before the node is marked down.
    pub node_down_after: Duration,
    /// Entries after which a snapshot is taken and the log before it is purged.
    pub snapshot_every: u64,
    /// Entries before a snapshot that are kept, for nodes that are a little behind.
    pub log_kept: u64,
    /// Where all randomness comes from. In production: drawn at random at each start.
    pub seed: u64,
    /// Proposed together with the founding of the cluster, by its founder.
    pub first_commands: Vec<Command>,
}

impl Config {
    /// A configuration with the usual periods, for a node that knows only itself.
    #[must_use]
    pub fn new(
        node: NodeId,
        incarnation: Incarnation,
        name: impl Into<String>,
        address: impl Into<String>,
        seed: u64,
    ) -> Self {
        let (name, address) = (name.into(), address.into());
        Self {
            node,
            incarnation,
            seeds: vec![PeerAddress {
                name: name.clone(),
                address: address.clone(),
            }],
            name,
            address,
            amqp: String::new(),
            http: String::new(),
            rejoins: false,
            shards: 12,
            knows: Level::NEWEST,
            heartbeat: Duration::from_millis(100),
            election_timeout: (Duration::from_millis(400), Duration::from_millis(800)),
            lease: Duration::from_millis(1500),
            node_down_after: Duration::from_millis(1500),
            snapshot_every: 50_000,
            log_kept: 5_000,
            seed,
            first_commands: Vec::new(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), OpenError> {
        let bad = |why: String| Err(OpenError::Config(why));
        let (least, greatest) = self.election_timeout;
        if self.name.is_empty() {
            return bad("a node must have a name".into());
        }
        if self.shards == 0 {
            return bad("a cluster has at least one shard".into());
        }
        if self.heartbeat < Duration::from_millis(10)
            || least < self.heartbeat * 3
            || greatest <= least
        {
            return bad(format!(
                "heartbeat {:?} and election timeout {least:?} to {greatest:?}: three heartbeats must fit in the least timeout, and the greatest must be longer",
                self.heartbeat
            ));
        }
        if self.lease < self.heartbeat * 4 {
            return bad(format!(
                "a lease of {:?} is shorter than four heartbeats of {:?}",
                self.lease, self.heartbeat
            ));
        }
        Ok(())
    }

    /// The configured names, this node's among them, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .seeds
            .iter()
            .map(|peer| peer.name.clone())
            .chain([self.name.clone()])
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Why the metadata group could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration contradicts itself.
    #[error("the metadata group's configuration is unusable: {0}")]
    Config(String),
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Stored bytes are not what they should be.
    #[error(
        "stored metadata cannot be read: {0}; restore this node from its peers: wipe its data folder and let it join again"
    )]
    Malformed(String),
    /// The stored routing table is inconsistent.
    #[error(
        "the stored routing table cannot be read: {0}; restore this node from its peers: wipe its data folder and let it join again"
    )]
    Table(String),
    /// openraft refused to start.
    #[error("the metadata group did not start: {0}")]
    Raft(String),
}

impl From<Malformed> for OpenError {
    fn from(error: Malformed) -> Self {
        OpenError::Malformed(error.to_string())
    }
}

/// Why a proposal was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// No leader could be reached in time: no majority of the cluster is there, or this node is cut off from it.
    #[error(
        "no majority of the cluster could be reached within {waited:?}; the change may still be made"
    )]
    NoQuorum {
        /// How long was waited.
        waited: Duration,
    },
    /// A leader was there and gave no answer in time. The change may be made or not.
    #[error("the cluster did not confirm within {waited:?}; the change may or may not be made")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
    },
    /// The change can never be made: it does not fit in an entry, or another process runs under this node's identity.
    #[error("the change was refused: {why}")]
    Refused {
        /// Why, for people.
        why: String,
    },
    /// Not all nodes of the cluster can read the change: nothing was proposed.
    #[error(
        "the cluster has come to level {level}, and this takes level {needed}: some of its nodes run an older release; upgrade them all"
    )]
    Level {
        /// The command's.
        needed: Level,
        /// The cluster's, as this node's table has it.
        level: Level,
    },
    /// This node's part in the group has stopped.
    #[error("this node is shutting down")]
    Stopped,
}

impl ProposeError {
    /// Whether it is certain that nothing has changed, and nothing will.
    #[must_use]
    pub fn changed_nothing(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Level { .. } => true,
            Self::NoQuorum { .. } | Self::TimedOut { .. } | Self::Stopped => false,
        }
    }
}
