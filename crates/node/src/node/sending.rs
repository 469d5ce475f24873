//! Messages between a node's parts, here or on other nodes: to lanes, to sessions, to nodes as such.

use super::Node;
use crate::alarms::Low;
use crate::connection::Inbox;
use crate::hosted::ShardMessage;
use crate::leaders::Leader;
use crate::owners::{Address, lane_of_shard};
use crate::wire::{ToNode, ToOwner, ToSession, encode_to_node, encode_to_owner, encode_to_session};
use crate::worker::LaneMessage;
use std::sync::Arc;
use warren_model::{NodeId, SessionId, ShardId};
use warren_transport::Lane;

/// The node that a lane is on cannot be reached now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unreachable;

impl Node {
    /// Sends a message to the lane of a shard that this node has a replica of.
    pub(crate) fn to_shard(&self, shard: ShardId, message: ShardMessage) {
        // Lanes live as long as the node.
        let _ = self.send_here(lane_of_shard(shard), LaneMessage::Shard(shard, message));
    }

    pub(crate) fn send_to_node(self: &Arc<Self>, to: NodeId, message: ToNode) {
        if to == self.id {
            return self.from_node(to, message);
        }
        match encode_to_node(&message) {
            Ok(frame) => {
                if let Some(transport) = self.transport.get() {
                    // If the link is lost, what matters is said again when it is up.
                    let _ = transport.send(to, Lane::Publish, frame);
                }
            }
            Err(error) => tracing::error!(%error, "a message to a node could not be encoded"),
        }
    }

    pub(super) fn from_node(self: &Arc<Self>, from: NodeId, message: ToNode) {
        match message {
            ToNode::Leads { shard, term } => {
                self.leader_announced(shard, Leader { term, node: from });
            }
            ToNode::Reattached { shard, term } => {
                self.to_shard(shard, ShardMessage::Reattached { node: from, term });
            }
            ToNode::Low { memory, disk } => self.peer_is_low(from, Some(Low { memory, disk })),
            ToNode::Wants { shard } => {
                let now = tokio::time::Instant::now();
                self.wants.lock().insert(shard, (from, now));
                self.keeper_kick.notify_one();
            }
            ToNode::Holds { shard, last_log } => {
                if self.has_removed(shard, from) {
                    self.send_to_node(from, ToNode::Released { shard, last_log });
                }
            }
            ToNode::Released { shard, last_log } => {
                self.released.lock().insert(shard, last_log);
                self.keeper_kick.notify_one();
            }
            ToNode::Usage(usage) => self.in_use.heard(from, Some(usage)),
        }
    }

    /// Sends a message to a lane, here or on another node. Fails at once if that node is not linked.
    pub(crate) fn send_to_lane(
        &self,
        address: Address,
        message: ToOwner,
    ) -> Result<(), Unreachable> {
        if address.node == self.id {
            return self.send_here(address.lane, LaneMessage::Owner(message));
        }
        let frame = encode_to_owner(address.lane, &message).map_err(|error| {
            tracing::error!(%error, "a message to a queue's owner could not be encoded");
            Unreachable
        })?;
        self.transport
            .get()
            .ok_or(Unreachable)?
            .send(address.node, Lane::Publish, frame)
            .map_err(|_| Unreachable)
    }

    pub(crate) fn send_here(&self, lane: u8, message: LaneMessage) -> Result<(), Unreachable> {
        self.lanes
            .get(usize::from(lane))
            .ok_or(Unreachable)?
            .send(message)
            .map_err(|_| Unreachable)
    }

    /// Sends a lane's events to a session, here or on another node. A session that is gone has told the lane so, or its node has.
    pub(crate) fn send_to_session(&self, session: SessionId, events: Vec<ToSession>) {
        if session.node == self.id {
            if session.incarnation == self.incarnation() {
                self.to_inbox(session.number, events);
            }
            return;
        }
        match encode_to_session(session, events) {
            Ok(frame) => {
                if let Some(transport) = self.transport.get() {
                    let _ = transport.send(session.node, Lane::Delivery, frame);
                }
            }
            Err(error) => {
                tracing::error!(%error, %session, "events for a session could not be encoded")
            }
        }
    }

    pub(super) fn to_inbox(&self, session: u64, events: Vec<ToSession>) {
        if let Some(inbox) = self.sessions.read().get(&session) {
            for event in events {
                // The receiver goes when the session does.
                let _ = inbox.send(Inbox::Owner(event));
            }
        }
    }

    pub(crate) fn broadcast(&self, message: impl Fn() -> Inbox) {
        for inbox in self.sessions.read().values() {
            let _ = inbox.send(message());
        }
    }

    /// Sends each lane of this node a message.
    pub(crate) fn to_all_lanes(&self, mut message: impl FnMut() -> LaneMessage) {
        for lane in &self.lanes {
            let _ = lane.send(message());
        }
    }
}
