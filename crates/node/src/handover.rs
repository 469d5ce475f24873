//! A queue's contents go to its new owner: after a node has come back, or before one leaves.
//!
//! Flow: the lane takes the queue out and starts a task that sends its messages in pieces, each asked for until the owner of the time has it. Messages of a piece
//! whose answer was lost may be there already: they are sent again, marked as redelivered.
//! Invariant: a message is in a lane, or in a task here, until the owner has answered for it; only the end of this process loses it.

use crate::node::Node;
use crate::owners::lane_of;
use crate::wire::{Adopted, Adoption, ToOwner, decode_to_owner, encode_to_owner};
use crate::worker::LaneMessage;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use warren_model::QueueRef;
use warren_transport::{Frame, Lane, ReplyTo};

/// Bytes of a piece.
const PIECE: usize = 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Hands `contents` over to whoever owns the queue.
pub(crate) fn start(node: Arc<Node>, queue: QueueRef, index: u64, contents: Vec<(Bytes, bool)>) {
    let moving = node.moving();
    tokio::spawn(async move {
        let mut rest = contents.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut block, mut items) = (Vec::new(), Vec::new());
            while let Some((record, redelivered)) =
                rest.next_if(|(record, _)| block.is_empty() || block.len() + record.len() <= PIECE)
            {
                items.push(Adopted {
                    offset: block.len() as u32,
                    len: record.len() as u32,
                    redelivered,
                });
                block.extend_from_slice(&record);
            }
            deliver(
                &node,
                queue,
                Adoption {
                    queue: queue.id,
                    index,
                    items,
                    block: block.into(),
                },
            )
            .await;
        }
        drop(moving);
    });
}

async fn deliver(node: &Arc<Node>, queue: QueueRef, mut adoption: Adoption) {
    loop {
        if node
            .metadata()
            .table()
            .read()
            .queue_by_id(queue.id)
            .is_none()
        {
            return;
        }
        let lane = lane_of(queue.id);
        match node.owner_of(queue) {
            Some(owner) if owner.node == node.id() => {
                // It has come back meanwhile.
                let (done, adopted) = oneshot::channel();
                if node
                    .send_here(lane, LaneMessage::Adopt(adoption.clone(), done))
                    .is_err()
                    || adopted.await == Ok(true)
                {
                    return;
                }
            }
            Some(owner) => {
                let Ok(frame) = encode_to_owner(lane, &ToOwner::Adopt(adoption.clone())) else {
                    return;
                };
                if let Some(transport) = node.transport() {
                    match transport
                        .request(owner.node, Lane::Publish, frame, DEADLINE)
                        .await
                    {
                        Ok(reply) if reply.head.first() == Some(&1) => return,
                        Ok(_) => {}
                        Err(error) => {
                            tracing::debug!(%error, "a queue's contents could not be handed over yet");
                            adoption.items.iter_mut().for_each(|i| i.redelivered = true);
                        }
                    }
                }
            }
            None => {}
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Another node hands contents over to this one.
pub(crate) fn receive(node: &Arc<Node>, frame: Frame, reply: ReplyTo) {
    let (lane, adoption) = match decode_to_owner(frame) {
        Ok((lane, ToOwner::Adopt(adoption))) => (lane, adoption),
        Ok(_) => return tracing::warn!("a peer asked for something that is not a hand-over"),
        Err(error) => return tracing::warn!(%error, "a peer's hand-over was dropped"),
    };
    let (done, adopted) = oneshot::channel();
    if node
        .send_here(lane, LaneMessage::Adopt(adoption, done))
        .is_err()
    {
        return;
    }
    tokio::spawn(async move {
        if let Ok(adopted) = adopted.await {
            reply.send(Frame {
                head: Bytes::from_static(if adopted { &[1] } else { &[0] }),
                bulk: Bytes::new(),
            });
        }
    });
}
