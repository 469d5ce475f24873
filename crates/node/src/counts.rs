//! How many messages and consumers queues have, asked of their owners wherever they are: for listings.

use crate::node::Node;
use crate::worker::LaneMessage;
use bytes::Bytes;
use futures::future::join_all;
use rkyv::rancor;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use warren_model::{NodeId, QueueId};
use warren_queue::Counts;
use warren_transport::{Frame, Lane, ReplyTo};

/// `(queue, ready, unacked, bytes, consumers)` as it crosses between nodes.
type Row = (u64, u64, u64, u64, u32);

impl Node {
    /// Counts of these queues that are with this node; of all its queues that are in use if none are named.
    async fn counts_here(&self, ids: Option<Vec<QueueId>>) -> Vec<(QueueId, Counts)> {
        let mut replies = Vec::new();
        self.to_all_lanes(|| {
            let (sender, receiver) = oneshot::channel();
            replies.push(receiver);
            LaneMessage::Counts(ids.clone(), sender)
        });
        join_all(replies).await.into_iter().flatten().flatten().collect()
    }

    /// Counts of these queues, or of all, from every node that answers before the deadline; a queue that nobody counts has no messages and consumers, or its
    /// owner did not answer: the second result names those nodes.
    pub async fn queue_counts(self: &Arc<Self>, ids: Option<Vec<QueueId>>, deadline: Duration) -> (BTreeMap<QueueId, Counts>, Vec<NodeId>) {
        let peers: Vec<NodeId> = self.metadata().table().read().nodes().filter(|n| n.up && n.id != self.id()).map(|n| n.id).collect();
        let wanted: Option<Vec<u64>> = ids.as_ref().map(|ids| ids.iter().map(|q| q.0).collect());
        let head = match rkyv::to_bytes::<rancor::Error>(&wanted) {
            Ok(head) => Bytes::copy_from_slice(&head),
            Err(_) => return (BTreeMap::new(), peers),
        };
        let asked = peers.iter().map(|&peer| {
            let frame = Frame { head: head.clone(), bulk: Bytes::new() };
            async move {
                let reply = self.transport()?.request(peer, Lane::Delivery, frame, deadline).await.ok()?;
                rkyv::from_bytes::<Vec<Row>, rancor::Error>(&reply.bulk).ok()
            }
        });
        let (here, there) = tokio::join!(self.counts_here(ids), join_all(asked));
        let mut all: BTreeMap<QueueId, Counts> = here.into_iter().collect();
        let mut silent = Vec::new();
        for (peer, rows) in peers.into_iter().zip(there) {
            match rows {
                Some(rows) => all.extend(rows.into_iter().map(|(id, ready, unacked, bytes, consumers)| (QueueId(id), Counts { ready, unacked, bytes, consumers }))),
                None => silent.push(peer),
            }
        }
        (all, silent)
    }
}

/// Answers another node's question.
pub(crate) fn answer(node: &Arc<Node>, frame: Frame, reply: ReplyTo) {
    let ids = match rkyv::from_bytes::<Option<Vec<u64>>, rancor::Error>(&frame.head) {
        Ok(ids) => ids.map(|ids| ids.into_iter().map(QueueId).collect()),
        Err(error) => {
            tracing::warn!(%error, "a peer's question for counts was dropped");
            return;
        }
    };
    let node = node.clone();
    tokio::spawn(async move {
        let rows: Vec<Row> = node.counts_here(ids).await.into_iter().map(|(id, c)| (id.0, c.ready, c.unacked, c.bytes, c.consumers)).collect();
        if let Ok(bulk) = rkyv::to_bytes::<rancor::Error>(&rows) {
            reply.send(Frame { head: Bytes::new(), bulk: Bytes::copy_from_slice(&bulk) });
        }
    });
}
