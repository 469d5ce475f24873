//! How many messages and consumers queues have, asked of their owners wherever they are: for listings.

use crate::meter::{MessageStats, rated};
use crate::node::Node;
use crate::worker::LaneMessage;
use bytes::Bytes;
use futures::future::join_all;
use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use warren_model::command::Place;
use warren_model::{NodeId, QueueId};
use warren_queue::Counts;
use warren_routing::Table;
use warren_transport::{Frame, ReplyTo};

/// What a lane says of one of its queues.
pub(crate) type Counted = (QueueId, Counts, QueueStats);

/// How many messages went through a queue.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) publish: u64,
    /// To consumers and to gets.
    pub(crate) deliver_get: u64,
    pub(crate) redeliver: u64,
    pub(crate) ack: u64,
}

impl std::ops::Sub for Flow {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            publish: self.publish - earlier.publish,
            deliver_get: self.deliver_get - earlier.deliver_get,
            redeliver: self.redeliver - earlier.redeliver,
            ack: self.ack - earlier.ack,
        }
    }
}

/// How many messages went through a queue at its present owner, and how many lately.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueStats {
    pub(crate) total: Flow,
    pub(crate) recent: Flow,
    pub(crate) over_ms: u64,
}

impl QueueStats {
    /// By RabbitMQ's names.
    pub fn messages(&self) -> MessageStats {
        let (total, recent) = (&self.total, &self.recent);
        let over = Duration::from_millis(self.over_ms);
        [
            ("publish", total.publish, recent.publish),
            ("deliver_get", total.deliver_get, recent.deliver_get),
            ("redeliver", total.redeliver, recent.redeliver),
            ("ack", total.ack, recent.ack),
        ]
        .into_iter()
        .filter(|(_, total, _)| *total > 0)
        .map(|(name, total, recent)| (name.to_owned(), rated(total, recent, over)))
        .collect()
    }
}

/// A queue's numbers as they cross between nodes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy)]
struct Row {
    queue: u64,
    ready: u64,
    unacked: u64,
    bytes: u64,
    consumers: u32,
    stats: QueueStats,
}

impl Row {
    fn of((id, counts, stats): Counted) -> Self {
        Self {
            queue: id.0,
            ready: counts.ready,
            unacked: counts.unacked,
            bytes: counts.bytes,
            consumers: counts.consumers,
            stats,
        }
    }

    fn read(self) -> (QueueId, (Counts, QueueStats)) {
        let counts = Counts {
            ready: self.ready,
            unacked: self.unacked,
            bytes: self.bytes,
            consumers: self.consumers,
        };
        (QueueId(self.queue), (counts, self.stats))
    }
}

impl Node {
    /// Counts of these queues that are with this node; of all its queues that are in use if none are named.
    async fn counts_here(&self, ids: Option<Vec<QueueId>>) -> Vec<Counted> {
        let mut replies = Vec::new();
        self.to_all_lanes(|| {
            let (sender, receiver) = oneshot::channel();
            replies.push(receiver);
            LaneMessage::Counts(ids.clone(), sender)
        });
        join_all(replies)
            .await
            .into_iter()
            .flatten()
            .flatten()
            .collect()
    }

    /// Numbers of this node's own queues that are in use.
    pub async fn own_queue_counts(&self) -> BTreeMap<QueueId, (Counts, QueueStats)> {
        let counted = self.counts_here(None).await.into_iter();
        counted
            .map(|(id, counts, stats)| (id, (counts, stats)))
            .collect()
    }

    /// Counts of these queues from their owners, or of all from every node, as far as they answer before the deadline; a queue that nobody counts has no
    /// messages and consumers, or its owner did not answer: the second result names those nodes.
    pub async fn queue_counts(
        self: &Arc<Self>,
        ids: Option<Vec<QueueId>>,
        deadline: Duration,
    ) -> (BTreeMap<QueueId, (Counts, QueueStats)>, Vec<NodeId>) {
        let mut questions = {
            let table = self.metadata().table().read();
            questions(
                &table,
                |place| self.serving(&self.owners(&table), place),
                ids.as_deref(),
            )
        };
        let own = questions.remove(&self.id());
        let here = async {
            match own {
                Some(wanted) => {
                    self.counts_here(wanted.map(|ids| ids.into_iter().map(QueueId).collect()))
                        .await
                }
                None => Vec::new(),
            }
        };
        let asked = questions
            .values()
            .zip(questions.keys())
            .map(|(wanted, &peer)| async move {
                let head = Bytes::copy_from_slice(&rkyv::to_bytes::<rancor::Error>(wanted).ok()?);
                let frame = Frame {
                    head,
                    bulk: Bytes::new(),
                };
                let reply = self.ask_peer(peer, frame, deadline).await?;
                rkyv::from_bytes::<Vec<Row>, rancor::Error>(&reply.bulk).ok()
            });
        let (here, there) = tokio::join!(here, join_all(asked));
        let here = here
            .into_iter()
            .map(|(id, counts, stats)| (id, (counts, stats)));
        let mut all: BTreeMap<QueueId, (Counts, QueueStats)> = here.collect();
        let mut silent = Vec::new();
        for (&peer, rows) in questions.keys().zip(there) {
            match rows {
                Some(rows) => all.extend(rows.into_iter().map(Row::read)),
                None => silent.push(peer),
            }
        }
        (all, silent)
    }
}

/// Whom to ask for what: of named queues each owner for its own, so that nobody waits for a node that has none of them.
fn questions(
    table: &Table,
    serving: impl Fn(Place) -> Option<NodeId>,
    ids: Option<&[QueueId]>,
) -> BTreeMap<NodeId, Option<Vec<u64>>> {
    let Some(ids) = ids else {
        return table
            .nodes()
            .filter(|n| n.up)
            .map(|n| (n.id, None))
            .collect();
    };
    let mut questions: BTreeMap<NodeId, Option<Vec<u64>>> = BTreeMap::new();
    for &id in ids {
        if let Some(owner) = table.queue_by_id(id).and_then(|queue| serving(queue.place)) {
            questions
                .entry(owner)
                .or_default()
                .get_or_insert_default()
                .push(id.0);
        }
    }
    questions
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
        let rows: Vec<Row> = node
            .counts_here(ids)
            .await
            .into_iter()
            .map(Row::of)
            .collect();
        if let Ok(bulk) = rkyv::to_bytes::<rancor::Error>(&rows) {
            reply.send(Frame {
                head: Bytes::new(),
                bulk: Bytes::copy_from_slice(&bulk),
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owners::Owners;
    use warren_model::command::{DeclareQueue, NodeUp};
    use warren_model::{Command, Incarnation, Outcome, SessionId};
    use warren_routing::Applied;

    fn up(node: u64) -> Command {
        let text = |what: &str| format!("{what}{node}");
        Command::NodeUp(NodeUp {
            node: NodeId(node),
            name: text("n"),
            address: text("a"),
            amqp: text("q"),
            http: text("h"),
            incarnation: Incarnation(1),
        })
    }

    fn declare(name: &str, node: u64) -> Command {
        let session = SessionId {
            node: NodeId(node),
            incarnation: Incarnation(1),
            number: 1,
        };
        Command::DeclareQueue(DeclareQueue {
            vhost: "/".into(),
            name: name.into(),
            durable: false,
            exclusive: false,
            auto_delete: false,
            server_named: false,
            arguments: vec![],
            session,
            place: Place::Node(NodeId(node), Incarnation(1)),
        })
    }

    #[test]
    fn only_owners_are_asked() {
        let mut table = Table::new();
        let commands = [
            Command::FoundCluster {
                cluster: 1,
                shards: 1,
            },
            Command::PutVhost { name: "/".into() },
            up(1),
            up(2),
            up(3),
            declare("a", 1),
            declare("b", 3),
            declare("c", 3),
        ];
        let outcomes = table.apply(1, &commands, &mut Applied::default());
        let ids: Vec<QueueId> = outcomes
            .iter()
            .filter_map(|o| {
                if let Outcome::Queue { id, .. } = o {
                    Some(*id)
                } else {
                    None
                }
            })
            .collect();
        let [a, b, c] = ids[..] else {
            panic!("{outcomes:?}")
        };
        let owners = Owners::of(&table);
        let serving = |place| match place {
            Place::Node(node, incarnation) => owners.of_incarnation(node, incarnation),
            Place::Shard(_) => None,
        };
        let gone = QueueId(u64::MAX);
        assert_eq!(
            questions(&table, serving, Some(&[a, b, c, gone])),
            BTreeMap::from([
                (NodeId(1), Some(vec![a.0])),
                (NodeId(3), Some(vec![b.0, c.0]))
            ])
        );
        assert_eq!(
            questions(&table, serving, Some(&[c])),
            BTreeMap::from([(NodeId(3), Some(vec![c.0]))])
        );
        assert!(questions(&table, serving, Some(&[])).is_empty());
        assert_eq!(
            questions(&table, serving, None),
            [1, 2, 3].map(|n| (NodeId(n), None)).into()
        );
        table.apply(
            2,
            &[Command::NodeDown {
                node: NodeId(3),
                incarnation: Incarnation(1),
            }],
            &mut Applied::default(),
        );
        assert_eq!(
            questions(&table, serving, None),
            [1, 2].map(|n| (NodeId(n), None)).into()
        );
    }
}
