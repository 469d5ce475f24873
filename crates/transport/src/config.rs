//! How a transport is set up.

use crate::{Hello, Tls};
use std::{net::SocketAddr, time::Duration};

/// Another node, as this one is told about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerAddress {
    /// The name that the node must call itself.
    pub name: String,
    /// `host:port`, resolved anew at each dial.
    pub address: String,
}

/// Everything a transport needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Local UDP address, for dialling and accepting.
    pub bind: SocketAddr,
    /// What this node says of itself.
    pub hello: Hello,
    /// This node's certificate and the cluster's CA.
    pub tls: Tls,
    /// Nodes to be linked with; this node itself may be among them and is skipped.
    pub peers: Vec<PeerAddress>,
    /// Period of QUIC keep-alives on an otherwise silent link.
    pub heartbeat: Duration,
    /// A link is down when nothing was heard for so long: a killed process says nothing.
    pub idle_timeout: Duration,
    /// Seed of QUIC's own randomness; for simulation. None: the system's.
    pub rng_seed: Option<[u8; 32]>,
    /// Bounds on what is kept and accepted.
    pub limits: Limits,
}

impl Config {
    /// A configuration with the usual periods and limits.
    pub fn new(bind: SocketAddr, hello: Hello, tls: Tls, peers: Vec<PeerAddress>) -> Self {
        Self {
            bind,
            hello,
            tls,
            peers,
            heartbeat: Duration::from_millis(200),
            idle_timeout: Duration::from_millis(1_500),
            rng_seed: None,
            limits: Limits::default(),
        }
    }

    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.heartbeat.is_zero() || self.heartbeat * 2 > self.idle_timeout {
            return Err(format!(
                "heartbeat {:?} must be above zero and at most half of idle timeout {:?}",
                self.heartbeat, self.idle_timeout
            ));
        }
        if self.idle_timeout > Duration::from_secs(3_600) {
            return Err(format!(
                "idle timeout {:?} is longer than an hour",
                self.idle_timeout
            ));
        }
        self.limits.validate()
    }
}

/// Bounds on what is kept and accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest frame, head and bulk together with 17 bytes before them. Must be equal on all nodes.
    pub frame_bytes_max: usize,
    /// When so much waits on one lane of one link, the peer is stuck and the link closed.
    pub queued_bytes_max: usize,
    /// Bytes of one lane that may be on their way to a receiver that has not read them yet. Divided by the round trip it bounds a
    /// lane's throughput; and as what is on its way stands in the receiver's socket before an urgent packet, it bounds that one's delay.
    pub lane_window_bytes: u32,
    /// Connections of peers not yet admitted that are looked at at once; more are turned away.
    pub handshakes_max: usize,
    /// First pause before a failed dial is repeated; doubled each time.
    pub redial_min: Duration,
    /// Longest pause before a failed dial is repeated.
    pub redial_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes_max: 768 << 20,
            queued_bytes_max: 512 << 20,
            lane_window_bytes: 2 << 20,
            handshakes_max: 64,
            redial_min: Duration::from_millis(50),
            redial_max: Duration::from_secs(1),
        }
    }
}

impl Limits {
    fn validate(&self) -> Result<(), String> {
        if self.frame_bytes_max > u32::MAX as usize || self.frame_bytes_max < 1_024 {
            return Err(format!(
                "frames of at most {} bytes: between 1 KiB and 4 GiB is possible",
                self.frame_bytes_max
            ));
        }
        if !(64 << 10..=128 << 20).contains(&self.lane_window_bytes) {
            return Err(format!(
                "a lane's window of {} bytes: between 64 KiB and 128 MiB is possible",
                self.lane_window_bytes
            ));
        }
        if self.redial_min.is_zero() || self.redial_min > self.redial_max {
            return Err(format!(
                "pauses of {:?} to {:?} between dials",
                self.redial_min, self.redial_max
            ));
        }
        Ok(())
    }
}
