//! What sessions and queue owners say to each other, on one node and between nodes.
//!
//! Between nodes a message is an rkyv archive in a frame's head; records lie in its bulk, untouched. Both are checked when received: a peer's
//! bytes cannot make a node panic or take memory beyond what arrived.

use bytes::Bytes;
use rkyv::rancor;
use rkyv::with::Skip;
use rkyv::{Archive, Deserialize, Serialize};
use warren_model::{
    ConsumerId, Incarnation, QueueId, SessionId, Settlement, ShardId, Subscription,
};
use warren_transport::Frame;

/// From a session to a queue owner's lane. Everything a session sends to one lane arrives in order.
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) enum ToOwner {
    Publish(Batch),
    Shard(ShardBatch),
    Settle(Settlements),
    Consumer(ConsumerCall),
    Ask(Question),
    /// The session is over.
    SessionGone(SessionId),
}

/// Publishes of one session for queues of one lane that are not replicated.
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) session: SessionId,
    /// Number of the batch within the session; its outcome names it.
    pub(crate) number: u64,
    pub(crate) items: Vec<Item>,
    /// The records.
    #[rkyv(with = Skip)]
    pub(crate) block: Bytes,
}

/// What a session publishes to and settles in queues of one shard.
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct ShardBatch {
    pub(crate) shard: ShardId,
    pub(crate) session: SessionId,
    /// Counts the session's batches for this shard, from 1 on, without gaps: so a leader knows what it has, and what it lacks.
    pub(crate) number: u64,
    pub(crate) items: Vec<Item>,
    pub(crate) settled: Vec<Settled>,
    /// The records.
    #[rkyv(with = Skip)]
    pub(crate) block: Bytes,
}

/// From node to node, of no session.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToNode {
    /// The sending node leads a shard.
    Leads { shard: ShardId, term: u64 },
    /// All of the sending node's sessions have attached their consumers to the leader of this term.
    Reattached { shard: ShardId, term: u64 },
    /// What the sending node is low on.
    Low { memory: bool, disk: bool },
    /// The sending node should lead a shard, and is ready to: it is linked with every node that is up.
    Wants { shard: ShardId },
    /// The sending node has a replica of a shard that is not placed there, and asks the leader whether it is still a member.
    Holds { shard: ShardId, last_log: LastLog },
    /// The leader's answer to that: it is not, and its replica may go, if its log has not grown since.
    Released { shard: ShardId, last_log: LastLog },
    /// How many connections and channels the sending node has, of those whose number is limited.
    Usage(Usage),
}

/// Connections and channels of one node, as far as they are limited.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Connections by virtual host, in order.
    pub(crate) vhosts: Vec<(String, u64)>,
    /// Connections and channels by user, in order.
    pub(crate) users: Vec<(String, u64, u64)>,
}

/// The index of the last entry of a replica's log, if it has any.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastLog(pub(crate) Option<u64>);

/// One message for one queue.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) queue: QueueId,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Settlements {
    pub(crate) session: SessionId,
    pub(crate) items: Vec<Settled>,
}

#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) queue: QueueId,
    pub(crate) consumer: u32,
    pub(crate) position: u64,
    pub(crate) settlement: Settlement,
}

/// Something about a consumer that needs no answer.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct ConsumerCall {
    pub(crate) consumer: ConsumerId,
    pub(crate) queue: QueueId,
    pub(crate) call: Call,
}

#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Credit(u32),
    Grant(u32),
    ByLeave(bool),
    Release,
}

/// A request that is answered with [`ToSession::Answer`].
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Question {
    pub(crate) session: SessionId,
    pub(crate) id: u64,
    pub(crate) queue: QueueId,
    pub(crate) ask: Ask,
}

#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Count,
    Consume {
        consumer: u32,
        subscription: Subscription,
        tag: Vec<u8>,
    },
    /// A consumer (or, without subscription, what stands for a channel's gets) that another leader or link has served comes back, with what it holds.
    Reattach {
        consumer: u32,
        subscription: Option<Subscription>,
        holds: Vec<u64>,
    },
    Cancel {
        consumer: u32,
    },
    Get {
        consumer: u32,
        no_ack: bool,
    },
    Purge,
    /// Before a deletion: checks the conditions and seals the queue, so that nothing slips in before the command is applied.
    Seal {
        if_unused: bool,
        if_empty: bool,
    },
    /// The deletion did not happen.
    Unseal,
    /// Answered when all that the session sent before is dealt with, and the deletions that it led to are done. Of no queue.
    Fence,
}

impl Ask {
    /// Whether the answer depends on who consumes from the queue and holds its messages.
    pub(crate) fn depends_on_consumers(&self, auto_delete: bool) -> bool {
        match self {
            Ask::Count | Ask::Consume { .. } | Ask::Get { .. } | Ask::Purge => true,
            Ask::Seal {
                if_unused,
                if_empty,
            } => *if_unused || *if_empty,
            Ask::Cancel { .. } => auto_delete,
            Ask::Reattach { .. } | Ask::Unseal | Ask::Fence => false,
        }
    }

    /// Whether the session refuses it when nobody answers in time. Who consumes or ends that waits for as long as the queue is there.
    pub(crate) fn must_be_answered(&self) -> bool {
        match self {
            Ask::Count | Ask::Get { .. } | Ask::Purge => true,
            Ask::Seal {
                if_unused,
                if_empty,
            } => *if_unused || *if_empty,
            Ask::Consume { .. }
            | Ask::Reattach { .. }
            | Ask::Cancel { .. }
            | Ask::Unseal
            | Ask::Fence => false,
        }
    }
}

/// From a lane to a session.
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) enum ToSession {
    Deliveries(Deliveries),
    /// A batch is dealt with; the numbered items were refused.
    Published {
        /// Of the batches for this shard; `None`: of those for lanes.
        shard: Option<ShardId>,
        number: u64,
        refused: Vec<u32>,
    },
    Answer {
        id: u64,
        answer: Answer,
    },
    /// A consumer that needs leave has messages.
    AskLeave {
        consumer: u32,
    },
    GiveBack {
        consumer: u32,
        unused: u32,
    },
    Cancelled {
        consumer: u32,
    },
}

#[derive(Archive, Serialize, Deserialize, Clone, Default, Debug)]
pub(crate) struct Deliveries {
    /// Term in which the shard's leader sends them; 0 from queues that are not replicated.
    pub(crate) term: u64,
    pub(crate) items: Vec<DeliveryItem>,
    /// What the items' block numbers stand for.
    #[rkyv(with = Skip)]
    pub(crate) blocks: Vec<Bytes>,
}

#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct DeliveryItem {
    pub(crate) position: u64,
    pub(crate) consumer: u32,
    pub(crate) block: u32,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) redelivered: bool,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) enum Answer {
    Done,
    Counts {
        messages: u64,
        consumers: u32,
    },
    Counted(u64),
    Empty,
    Got {
        remaining: u64,
        deliveries: Deliveries,
    },
    Refused {
        code: u16,
        text: String,
    },
    /// The queue is not with this node (any more): resolve its owner anew.
    NotHere,
    /// A consumer is attached again, and does not hold these positions, though it says so.
    Attached {
        lost: Vec<u64>,
    },
}

/// Everything that one turn of a lane has for one session of another node.
#[derive(Archive, Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Envelope {
    pub(crate) incarnation: Incarnation,
    pub(crate) session: u64,
    pub(crate) events: Vec<ToSession>,
}

/// A frame that does not decode.
#[derive(Debug, thiserror::Error)]
#[error("malformed message between nodes: {0}")]
pub(crate) struct Malformed(String);

impl From<rancor::Error> for Malformed {
    fn from(error: rancor::Error) -> Self {
        Self(error.to_string())
    }
}

/// Where another byte would be the lane: a message to the node itself.
const TO_NODE: u8 = u8::MAX;

/// What comes from another node on the publish lane.
#[derive(Debug)]
pub(crate) enum FromPeer {
    /// For a lane of this node.
    Owner(u8, ToOwner),
    Node(ToNode),
}

/// Puts a message to an owner's lane into a frame; the lane is its first byte.
pub(crate) fn encode_to_owner(lane: u8, message: &ToOwner) -> Result<Frame, Malformed> {
    let mut head = vec![lane];
    head.extend_from_slice(&rkyv::to_bytes::<rancor::Error>(message)?);
    let bulk = match message {
        ToOwner::Publish(batch) => batch.block.clone(),
        ToOwner::Shard(batch) => batch.block.clone(),
        ToOwner::Settle(_) | ToOwner::Consumer(_) | ToOwner::Ask(_) | ToOwner::SessionGone(_) => {
            Bytes::new()
        }
    };
    Ok(Frame {
        head: head.into(),
        bulk,
    })
}

pub(crate) fn encode_to_node(message: &ToNode) -> Result<Frame, Malformed> {
    let mut head = vec![TO_NODE];
    head.extend_from_slice(&rkyv::to_bytes::<rancor::Error>(message)?);
    Ok(Frame {
        head: head.into(),
        bulk: Bytes::new(),
    })
}

pub(crate) fn decode_from_peer(frame: Frame) -> Result<FromPeer, Malformed> {
    let (&lane, head) = frame
        .head
        .split_first()
        .ok_or_else(|| Malformed("empty head".into()))?;
    if lane == TO_NODE {
        return Ok(FromPeer::Node(rkyv::from_bytes::<ToNode, rancor::Error>(
            head,
        )?));
    }
    let mut message = rkyv::from_bytes::<ToOwner, rancor::Error>(head)?;
    let (items, block) = match &mut message {
        ToOwner::Publish(batch) => (&batch.items, &mut batch.block),
        ToOwner::Shard(batch) => (&batch.items, &mut batch.block),
        ToOwner::Settle(_) | ToOwner::Consumer(_) | ToOwner::Ask(_) | ToOwner::SessionGone(_) => {
            return Ok(FromPeer::Owner(lane, message));
        }
    };
    *block = frame.bulk;
    if let Some(bad) = items
        .iter()
        .find(|i| i.offset as usize + i.len as usize > block.len())
    {
        return Err(Malformed(format!(
            "item {bad:?} lies outside of its block of {} bytes",
            block.len()
        )));
    }
    Ok(FromPeer::Owner(lane, message))
}

/// Puts a turn's events for one session into a frame: the records that they refer to are laid side by side in its bulk.
pub(crate) fn encode_to_session(
    session: SessionId,
    mut events: Vec<ToSession>,
) -> Result<Frame, Malformed> {
    let mut bulk = Vec::new();
    for event in &mut events {
        if let Some(deliveries) = deliveries_of(event) {
            for item in &mut deliveries.items {
                let block = deliveries
                    .blocks
                    .get(item.block as usize)
                    .ok_or_else(|| Malformed("delivery without its block".into()))?;
                let start = item.offset as usize;
                item.offset = u32::try_from(bulk.len())
                    .map_err(|_| Malformed("more than 4 GiB of deliveries in one turn".into()))?;
                item.block = 0;
                bulk.extend_from_slice(&block[start..start + item.len as usize]);
            }
        }
    }
    let envelope = Envelope {
        incarnation: session.incarnation,
        session: session.number,
        events,
    };
    let head = rkyv::to_bytes::<rancor::Error>(&envelope)?;
    Ok(Frame {
        head: Bytes::copy_from_slice(&head),
        bulk: bulk.into(),
    })
}

pub(crate) fn decode_to_session(frame: Frame) -> Result<Envelope, Malformed> {
    let mut envelope = rkyv::from_bytes::<Envelope, rancor::Error>(&frame.head)?;
    for event in &mut envelope.events {
        if let Some(deliveries) = deliveries_of(event) {
            deliveries.blocks = vec![frame.bulk.clone()];
            if let Some(bad) = deliveries
                .items
                .iter()
                .find(|i| i.block != 0 || i.offset as usize + i.len as usize > frame.bulk.len())
            {
                return Err(Malformed(format!(
                    "delivery {bad:?} lies outside of its block of {} bytes",
                    frame.bulk.len()
                )));
            }
        }
    }
    Ok(envelope)
}

fn deliveries_of(event: &mut ToSession) -> Option<&mut Deliveries> {
    match event {
        ToSession::Deliveries(deliveries)
        | ToSession::Answer {
            answer: Answer::Got { deliveries, .. },
            ..
        } => Some(deliveries),
        ToSession::Published { .. }
        | ToSession::Answer { .. }
        | ToSession::AskLeave { .. }
        | ToSession::GiveBack { .. }
        | ToSession::Cancelled { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_model::NodeId;

    fn session() -> SessionId {
        SessionId {
            node: NodeId(7),
            incarnation: Incarnation(2),
            number: 9,
        }
    }

    #[test]
    fn batches_cross_with_their_block_and_items_outside_of_it_are_refused() {
        let batch = Batch {
            session: session(),
            number: 3,
            items: vec![Item {
                queue: QueueId(1),
                offset: 1,
                len: 4,
            }],
            block: Bytes::from_static(b"hello"),
        };
        let frame = encode_to_owner(2, &ToOwner::Publish(batch)).unwrap();
        let FromPeer::Owner(lane, ToOwner::Publish(back)) =
            decode_from_peer(frame.clone()).unwrap()
        else {
            panic!()
        };
        assert_eq!(
            (lane, back.number, &back.block[..], back.items[0].len),
            (2, 3, &b"hello"[..], 4)
        );
        let short = Frame {
            bulk: frame.bulk.slice(..4),
            ..frame.clone()
        };
        assert!(decode_from_peer(short).is_err());
        for end in 0..frame.head.len() {
            let _ = decode_from_peer(Frame {
                head: frame.head.slice(..end),
                bulk: frame.bulk.clone(),
            });
        }
    }

    #[test]
    fn deliveries_cross_with_their_records_alone() {
        let blocks = vec![
            Bytes::from_static(b"0123456789"),
            Bytes::from_static(b"abcdef"),
        ];
        let item = |block, offset, len| DeliveryItem {
            position: 5,
            consumer: 1,
            block,
            offset,
            len,
            redelivered: true,
        };
        let deliveries = Deliveries {
            term: 0,
            items: vec![item(1, 2, 3), item(0, 7, 2)],
            blocks,
        };
        let frame = encode_to_session(
            session(),
            vec![
                ToSession::Deliveries(deliveries),
                ToSession::Cancelled { consumer: 4 },
            ],
        )
        .unwrap();
        assert_eq!(&frame.bulk[..], b"cde78");
        let envelope = decode_to_session(frame).unwrap();
        assert_eq!(
            (envelope.session, envelope.incarnation),
            (9, Incarnation(2))
        );
        let ToSession::Deliveries(d) = &envelope.events[0] else {
            panic!()
        };
        let record = |i: usize| {
            &d.blocks[d.items[i].block as usize][d.items[i].offset as usize..]
                [..d.items[i].len as usize]
        };
        assert_eq!(
            (record(0), record(1), d.items[0].redelivered),
            (&b"cde"[..], &b"78"[..], true)
        );
    }
}
