//! The metadata group: one Raft log for everything that routing depends on, and leases that keep stale tables from routing.
//!
//! # Flow
//! A command goes from [`Metadata::propose`] (`proposer`) to the leader's desk (`leader`), which turns all that wait into one
//! entry. openraft replicates it over the transport (`network`, `serve`) into the node's log (`log`); every node applies it to its
//! table (`machine`) and reports so. The leader answers when every node that may route has applied it (`ledger`), so whoever
//! sees the answer may count on every node.
//!
//! # Invariants
//! - At equal applied index the tables of all nodes are equal, [`warren_routing::Table::digest`] included.
//! - When a proposal is answered, every node whose [`Metadata::may_route`] is true has applied it. The argument stands in `ledger`.
//! - A proposal is applied at most once, and proposals of one node in the order of the calls (`dedup`).
//! - A cluster is founded once: by the node with the least name, and only when all configured nodes are there and have never
//!   belonged to one (`bootstrap`). A node whose data is lost comes back under another identity and joins as a new member.
//!
//! # Time and randomness
//! Time is tokio's, randomness comes from [`Config::seed`], nothing blocks but the sync of a snapshot: in simulation the code runs as it is.
// rkyv's derive makes archived twins that cannot be given docs.
#![allow(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bootstrap;
mod config;
mod continuity;
mod dedup;
mod duties;
mod entry;
mod leader;
mod leadership;
mod lease;
mod ledger;
mod log;
mod machine;
mod metadata;
mod network;
mod presence;
mod proposer;
mod raft;
mod serve;
mod serve_raft;
mod shards;
mod shared;
mod snapshots;
mod status;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{Config, OpenError, ProposeError};
pub use metadata::Metadata;
pub use proposer::Proposed;
pub use shards::{
    ChangeError, Committed, Leadership, Replica, ReplicaStatus, ShardOpenError, ShardStatus,
    Shards, ShardsConfig,
};
pub use shared::SharedTable;
pub use status::{MemberStatus, Status};

/// What the metadata group tells its node. Calls come in the order of the log, from the task that applies it: they must not block.
pub trait Hooks: Send + Sync + 'static {
    /// An entry was applied: the table shows it, and nobody has been told yet.
    fn applied(&self, index: u64, events: &[warren_routing::Event]);

    /// The whole table was replaced by a newer one, whose entries this node has not seen one by one: all that was derived
    /// from the table must be derived anew.
    fn replaced(&self, index: u64) {
        self.applied(index, &[]);
    }
}
