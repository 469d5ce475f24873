//! What can go wrong when a transport is started or used.

use std::{io, net::SocketAddr};
use warren_model::NodeId;

/// Why a transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node's own greeting cannot be sent.
    #[error("this node cannot introduce itself to others: {0}")]
    Hello(String),
    /// The UDP socket could not be had.
    #[error("cannot listen for other nodes on UDP {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A limit or period is out of range.
    #[error("the transport's configuration is out of range: {0}")]
    Config(String),
}

/// Why a frame was not queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// There is no link to the node now; one is sought if it is a peer.
    #[error("there is no link to node {node}")]
    NoLink {
        /// The node addressed.
        node: NodeId,
    },
    /// The frame is longer than the peers accept.
    #[error("a frame of {bytes} bytes for node {node} is over the limit of {limit}")]
    TooLarge {
        /// The node addressed.
        node: NodeId,
        /// Bytes of the frame on the wire.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// More is waiting on the lane than allowed: the peer takes nothing in. The link is being closed.
    #[error("node {node} takes nothing in: {queued} bytes wait for it; its link is closed")]
    Stuck {
        /// The node addressed.
        node: NodeId,
        /// Bytes waiting on the lane.
        queued: usize,
    },
}

/// Why a request got no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There was no link to the node, or the frame could not be queued; the request was not sent.
    #[error("the node cannot be reached")]
    Unreachable,
    /// The link went down after the request was queued; whether the peer has seen it is unknown.
    #[error("the link was lost before a reply came")]
    LinkLost,
    /// No reply came within the deadline; whether the peer has seen the request is unknown.
    #[error("no reply came within the deadline")]
    TimedOut,
    /// The peer got the request and gave no reply.
    #[error("the node gave no answer to the request")]
    Refused,
}
