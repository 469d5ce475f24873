//! What the metadata group and the links tell a node.

use super::Node;
use crate::audit;
use crate::churn::Churned;
use crate::connection::Inbox;
use crate::wire::{FromPeer, ToNode, decode_from_peer, decode_to_session};
use crate::worker::LaneMessage;
use std::sync::Weak;
use warren_consensus::Hooks;
use warren_model::{NodeId, QueueId};
use warren_routing::Event;
use warren_transport::{Frame, Handler, Hello, Lane, LinkId, ReplyTo};

/// What the metadata group and the links call. Holds the node weakly: the node holds them.
pub(super) struct Wiring(pub(super) Weak<Node>);

impl Hooks for Wiring {
    fn applied(&self, _: u64, events: &[Event]) {
        let Some(node) = self.0.upgrade() else { return };
        // Before the node is put together, there is nobody to tell.
        if node.metadata.get().is_none() {
            return;
        }
        let mut deleted: Vec<QueueId> = Vec::new();
        let mut members = false;
        let mut created = 0;
        for event in events {
            match event {
                Event::QueueDeleted { id, .. } => deleted.push(*id),
                Event::ExchangeDeleted { vhost, name } => node.traffic.deleted(vhost, name),
                Event::VhostDeleted { name } => {
                    node.broadcast(|| Inbox::VhostDeleted(name.clone()))
                }
                Event::MembersChanged { .. } => members = true,
                Event::LimitsChanged => node.in_use.kick(),
                Event::ShardMoved { .. } | Event::ShardsPlaced => node.keeper_kick.notify_one(),
                Event::QueueCreated { .. } => created += 1,
                // What a session remembers of its user is asked anew at each use.
                Event::UserChanged { .. } => {}
            }
        }
        if created + deleted.len() > 0 && node.metadata().leader() == Some(node.id) {
            node.churn.count(Churned::QueueCreated, created as u64);
            let gone = deleted.len() as u64;
            node.churn.count(Churned::QueueDeleted, gone);
        }
        if !deleted.is_empty() {
            node.to_all_lanes(|| LaneMessage::Deleted(deleted.clone()));
        }
        if members {
            node.members_changed();
        }
    }

    fn replaced(&self, _: u64) {
        let Some(node) = self.0.upgrade() else { return };
        if node.metadata.get().is_some() {
            {
                let table = node.metadata().table().read();
                let is_there = |vhost: &str, name: &str| table.exchange(vhost, name).is_some();
                node.traffic.retain(is_there);
            }
            node.in_use.kick();
            node.to_all_lanes(|| LaneMessage::Revise);
            node.members_changed();
        }
    }
}

impl Handler for Wiring {
    fn admit(&self, peer: &Hello) -> Result<(), String> {
        match self
            .0
            .upgrade()
            .as_ref()
            .and_then(|n| n.metadata.get().cloned())
        {
            Some(metadata) => metadata.admit(peer),
            None => Err("the node is stopping".into()),
        }
    }

    fn turned_away(&self, who: &str, address: &str, reason: &str) {
        audit::member_refused(who, address, reason);
    }

    fn link_up(&self, peer: &Hello, _: LinkId) {
        if let Some(node) = self.0.upgrade() {
            node.metadata().on_link_up(peer);
            node.shards.on_link_up(peer.node);
            node.linked.write().insert(peer.node);
            // What was lost with an earlier link is said again: who leads what here, and to the peer's shards, what sessions are waiting for.
            for (shard, term) in node.leaders.of(node.id) {
                node.send_to_node(peer.node, ToNode::Leads { shard, term });
            }
            node.tell_alarms(peer.node);
            node.tell_usage(peer.node);
            node.keeper_kick.notify_one();
        }
    }

    fn link_down(&self, peer: &Hello, _: LinkId) {
        let Some(node) = self.0.upgrade() else { return };
        node.metadata().on_link_down(peer);
        node.shards.on_link_down(peer.node);
        node.linked.write().remove(&peer.node);
        node.peer_is_low(peer.node, None);
        node.in_use.heard(peer.node, None);
        // Nothing that was under way will be answered, and what the peer's sessions hold here goes back.
        node.broadcast(|| Inbox::NodeLost(peer.node));
        node.to_all_lanes(|| LaneMessage::PeerGone(peer.node, None));
    }

    fn message(&self, from: NodeId, lane: Lane, frame: Frame) {
        let Some(node) = self.0.upgrade() else { return };
        let result = match lane {
            Lane::Raft | Lane::Control => {
                node.metadata().on_message(from, lane, frame);
                Ok(())
            }
            Lane::Shard | Lane::ShardPulse => {
                node.shards.on_message(from, lane, frame);
                Ok(())
            }
            Lane::Publish => decode_from_peer(frame).map(|message| match message {
                FromPeer::Owner(lane, message) => {
                    let _ = node.send_here(lane, LaneMessage::Owner(message));
                }
                FromPeer::Node(message) => node.from_node(from, message),
            }),
            Lane::Delivery => decode_to_session(frame).map(|envelope| {
                if envelope.incarnation == node.incarnation() {
                    node.to_inbox(envelope.session, envelope.events);
                }
            }),
        };
        if let Err(error) = result {
            tracing::warn!(%from, ?lane, %error, "a message of a peer was dropped");
        }
    }

    fn request(&self, from: NodeId, lane: Lane, frame: Frame, reply: ReplyTo) {
        let Some(node) = self.0.upgrade() else { return };
        match lane {
            Lane::Raft | Lane::Control => node.metadata().on_request(from, lane, frame, reply),
            Lane::Shard | Lane::ShardPulse => node.shards.on_request(from, lane, frame, reply),
            Lane::Publish => tracing::warn!(%from, "a peer asked where there is nothing to ask"),
            Lane::Delivery if frame.head.is_empty() => crate::observe::answer(&node, frame, reply),
            Lane::Delivery => crate::counts::answer(&node, frame, reply),
        }
    }

    fn refused(&self, peer_address: &str, reason: String) {
        tracing::debug!(peer = peer_address, reason, "a peer refuses to be linked");
    }
}
