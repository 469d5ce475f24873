//! Names, ids, commands and records that the state machines and the wire share; no behaviour beyond encoding.
//!
//! Flow: a session turns a client's request into a [`Command`]; the metadata group orders commands; every node applies them to its
//! routing table and gets the same [`Outcome`]. Published messages travel as [`message`] records in batches, unchanged from the
//! session that decoded them to the queue that keeps them and the session that delivers them.
//! Invariant: nothing here reads a clock, draws randomness or iterates a randomly ordered map.

// rkyv's derive makes public archived twins that cannot be given docs.
#![allow(missing_docs)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
pub mod consumer;
pub mod definition;
pub mod ids;
pub mod level;
pub mod message;
pub mod outcome;
pub mod planted;

pub use command::Command;
pub use consumer::{ConsumerId, Credit, QueueRef, Settlement, Subscription};
pub use definition::Definition;
pub use ids::{Incarnation, NodeId, QueueId, SessionId, ShardId};
pub use level::Level;
pub use outcome::{Outcome, Refusal};
