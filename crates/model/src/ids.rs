//! Ids: small copyable newtypes, so that a node's number is never taken for a queue's.

use rkyv::{Archive, Deserialize, Serialize};
use std::fmt;

/// Identity of a node: drawn at random when its data folder is created, so that a node whose data is lost comes back as another one.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
)]
#[rkyv(derive(Debug, PartialEq, Eq))]
pub struct NodeId(pub u64);

/// Counts the starts of one node's process: first start 1. Stored in the node's data folder before anything else is done.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
)]
#[rkyv(derive(Debug, PartialEq, Eq))]
pub struct Incarnation(pub u64);

/// Identity of one life of a queue, never used again: a queue that is deleted and declared anew has another id, so that
/// publishes, acknowledgements and clean-ups meant for the old one never touch the new one.
/// Value: the log index of the entry that created it, shifted left by 16, plus the number of the command within that entry.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
)]
#[rkyv(derive(Debug, PartialEq, Eq))]
pub struct QueueId(pub u64);

impl QueueId {
    /// The id of the queue that command number `position` of log entry `index` creates.
    pub fn new(index: u64, position: u16) -> Self {
        Self(index << 16 | u64::from(position))
    }

    /// The log index at which this queue was created: a table applied to less cannot know it.
    pub fn created_at(self) -> u64 {
        self.0 >> 16
    }
}

/// Number of a shard, from 0 up to the cluster's number of shards.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
)]
#[rkyv(derive(Debug, PartialEq, Eq))]
pub struct ShardId(pub u16);

/// One client connection: the node that serves it, that node's incarnation, and a number counted within the incarnation.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
)]
#[rkyv(derive(Debug, PartialEq, Eq))]
pub struct SessionId {
    /// The node that the client is connected to.
    pub node: NodeId,
    /// The incarnation of that node in which the connection was opened.
    pub incarnation: Incarnation,
    /// Counted from 1 within the incarnation; 0 stands for the node itself (HTTP API, housekeeping).
    pub number: u64,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.node, self.incarnation.0, self.number)
    }
}
