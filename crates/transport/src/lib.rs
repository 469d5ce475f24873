//! Links between the nodes of a cluster: QUIC with mutual TLS, one connection a pair of nodes, one stream a lane.
//!
//! # Flow
//! [`Transport::start`] binds one UDP socket that both dials and accepts. Of two nodes the one with the greater name dials
//! (`peers`); the lesser one, when it has no link, knocks: a short connection that says "dial me at this address", so that a
//! link comes up even if only one of the two was told about the other. Both sides say [`Hello`] and judge the other's
//! (`opening`), then the dialler opens one bidirectional stream a [`Lane`], and the [`Handler`] is told `link_up`. From then on
//! frames go both ways on the lanes (`link`) until either side closes or nothing is heard for the idle timeout.
//!
//! # Invariants
//! - For one peer, calls of the handler are ordered: `link_up`, then messages and requests, then `link_down`; a newer link's
//!   `link_up` comes after the older one's `link_down`, and never are two links of one node up at once.
//! - On one lane of one link frames arrive in the order they were sent, or the link is down. Nothing is ever sent again on
//!   another link: what was queued when a link broke is lost, and `link_down` is how the sender learns of it.
//! - A request ends: with a reply, with the peer's refusal, with its link or at its deadline, whichever comes first.
//! - Bulk lanes cannot hold up the urgent ones: streams have strict priorities, and the connection's windows are the sum of
//!   the lanes' windows, so a lane that fills its own window leaves the others' untouched.
//! - A peer's announced lengths allocate nothing: buffers grow with the bytes that have come.
//!
//! # Cost
//! A frame of up to 16 KiB is copied once when sent (into a piece of up to 64 KiB, written to QUIC whole) and once when received
//! (into a read buffer that frames are sliced from); larger bulk is not copied when sent. What is sliced from one read buffer keeps
//! that buffer alive: a receiver that stores small frames for long copies them.
//!
//! # Runtime
//! All tasks of a transport run on the tokio runtime that [`Transport::start`] was called on, whoever calls its other methods:
//! start it on a runtime of its own and links stay alive while other runtimes are busy.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod close;
mod config;
mod error;
mod frame;
mod handler;
mod hello;
mod link;
mod loopback;
mod network;
mod opening;
mod peers;
mod queue;
mod restart;
#[cfg(feature = "turmoil")]
mod sim;
mod tls;
mod transport;

pub use config::{Config, Limits, PeerAddress};
pub use error::{RequestError, StartError, Unreachable};
pub use frame::{Frame, Lane};
pub use handler::{Handler, ReplyTo};
pub use hello::Hello;
pub use link::{LinkId, LinkInfo};
pub use network::{Network, TokioNetwork};
#[cfg(feature = "turmoil")]
pub use sim::SimNetwork;
pub use tls::{SERVER_NAME, Tls, TlsError};
pub use transport::Transport;
pub use warren_model::{Incarnation, NodeId};
