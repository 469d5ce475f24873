//! The groups of the shards: any number of Raft groups on a node, each keeping one shard's state the same on its replicas.
//!
//! # Flow
//! [`Shards::open`] runs a group on this node over the node's log, with the [`Replica`] that keeps the shard's state. The
//! replica hears [`Leadership::Leading`] on one node; its owner proposes entries there ([`Shards::propose`]), openraft
//! replicates them on the transport's Shard lane, and every replica is given them when they are committed (`machine`).
//!
//! # Invariants
//! - All replicas of a shard are given the same entries in the same order, each once, or a view that stands for them.
//! - A replica hears of leadership in order with its entries: it leads when all entries of earlier terms were given to it.
//! - What was checkpointed and released is all that is purged from the log; openraft purges and takes snapshots only when told.
//! - A group whose storage fails stops, alone, and says so in its status.
//!
//! # Cost
//! An entry wakes no task of this module: it is handed to openraft within the call and to the replica within `apply`. It is
//! copied once when it is encoded for the log, and once for each follower where several are packed into one append.

mod change;
mod config;
mod group;
mod handle;
mod incoming;
mod leadership;
mod machine;
mod pulse;
mod replica;
mod serve;
mod status;
#[cfg(test)]
mod tests;
mod voice;

pub use config::{ChangeError, ShardOpenError, ShardsConfig};
pub use handle::Shards;
pub use replica::{Committed, Leadership, Replica};
pub use status::{ReplicaStatus, ShardStatus};
