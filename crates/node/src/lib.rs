//! A whole node as a library: the server binary and the simulator run the same code.
//!
//! Flow: [`Node::start`] opens the storage's identity, the metadata group and the links; [`Node::serve`] runs one client connection. A publish goes from
//! its session ([`client`]) to the lane of its queue's owner ([`worker`]) and from there to the consumer's session ([`connection`]).
//! Seams: the storage, the UDP network and the byte stream of a client are given by the caller; time is tokio's, randomness comes from one seed.
//! Invariants: a node routes only while it holds its lease; a session's traffic to one queue is never reordered; memory a connection is bounded.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod alarms;
mod attempts;
pub mod audit;
mod churn;
mod client;
mod config;
mod connection;
mod counts;
mod credentials;
mod denials;
mod hosted;
mod keep;
mod latency;
mod leaders;
mod limits;
mod logins;
mod meter;
mod node;
mod observe;
mod outbox;
mod owners;
mod permissions;
mod registry;
mod replicas;
mod roster;
mod routes;
pub mod spans;
mod table_diff;
mod traffic;
mod vhosts;
mod view;
mod wire;
mod worker;

pub use alarms::{FreeDisk, Low};
pub use config::{Config, Settings, ShardLogs};
pub use counts::QueueStats;
pub use credentials::check_argon2id;
pub use latency::Latency;
pub use meter::{MessageStats, Rated, add_stats};
pub use node::{Node, NodeError};
pub use observe::{LinkStatus, LinkTraffic, NodeInfo, Observed};
pub use registry::{
    Certificate, ChannelInfo, ConnectionInfo, ConsumerInfo, Detail, Live, Origin, TlsPeer,
};
pub use table_diff::{Described, Difference, TableDiff, TableDigest};
pub use vhosts::VhostTotals;
pub use view::Ownership;
pub use warren_consensus::ShardStatus;
pub use warren_model::command::PasswordHashing;
pub use warren_queue::Counts;
pub use warren_session::Limits;
