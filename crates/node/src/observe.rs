//! What nodes ask each other for operators: connections, the process, messages by exchange, the closing of a connection.
//!
//! Questions and answers are JSON in which everything has a default, so that nodes of neighbouring releases understand what both know. A question has an
//! empty head, by which it is told from one for counts on the same lane; it lies in the bulk. Nodes that do not answer in time are named, and nobody
//! waits longer than the deadline for them, nor for one from which nothing has come for some heartbeats.

use crate::alarms::FreeDisk;
use crate::meter::{MessageStats, add_stats};
use crate::node::Node;
use crate::registry::{ConnectionInfo, Detail};
use crate::table_diff;
use bytes::Bytes;
use futures::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use warren_model::NodeId;
use warren_routing::Table;
use warren_transport::{Frame, Lane, ReplyTo, Transport};

/// Connections in one answer.
const PAGE: usize = 1000;
/// Exchanges in one answer.
const EXCHANGES: usize = 10_000;
/// How long a node's own connections may take to tell how they are.
pub(crate) const LIVE_DEADLINE: Duration = Duration::from_millis(500);
/// A node whose link brings nothing for so many looks at it, three heartbeats long, is dead or stands still.
const SILENT_LOOKS: u32 = 12;
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// A closed connection that is still there after this is cut off. A little more than its client has to answer.
const KILL_AFTER: Duration = Duration::from_secs(6);

#[derive(Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    Connections {
        #[serde(default)]
        after: u64,
        #[serde(default)]
        detail: Detail,
    },
    Node,
    /// What was published to exchanges: to all that come after one, in order, or to one.
    Exchanges {
        #[serde(default)]
        after: Option<(String, String)>,
        #[serde(default)]
        only: Option<(String, String)>,
    },
    Close {
        number: u64,
        name: String,
        reason: String,
    },
    /// What is in virtual hosts.
    Vhosts,
    /// The routing table's digest.
    Digest,
    /// Sums over the parts of the routing table.
    Sums,
    /// Hashes of the records of some parts.
    Hashes {
        buckets: BTreeSet<u16>,
    },
    /// What records say, by their hashes.
    Describe {
        hashes: BTreeSet<u64>,
    },
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Connections {
    items: Vec<ConnectionInfo>,
    /// Ask again after this number.
    more: Option<u64>,
}

/// Messages of an exchange: virtual host, name, counts.
type OfExchange = (String, String, MessageStats);

/// A node's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// Milliseconds since the node was started.
    pub uptime_ms: u64,
    /// The process's id.
    pub os_pid: u32,
    /// Processors that it may use.
    pub processors: u64,
    /// Resident memory in bytes.
    pub memory_used: u64,
    /// File descriptors in use.
    pub fd_used: u64,
    /// File descriptors that it may use.
    pub fd_total: u64,
    /// Publishers are blocked.
    pub alarm: bool,
    /// Too little disk space is free.
    pub low_on_disk: bool,
    /// Record bytes in its queues.
    pub queued_bytes: u64,
    /// So many raise the alarm.
    pub queued_bytes_limit: u64,
    /// Open client connections.
    pub connections: u64,
    /// What has come and gone since its start, by RabbitMQ's names.
    pub churn: MessageStats,
    /// Bytes from its clients.
    pub received_bytes: u64,
    /// Bytes to its clients.
    pub sent_bytes: u64,
    /// Messages of its clients.
    pub stats: MessageStats,
    /// Listeners beside those that the table shows: protocol and address.
    pub listeners: Vec<(String, String)>,
    /// Whether it may route, so that it serves clients.
    pub serves: bool,
    /// Shards of which it holds a replica now; none until it knows what it has from before its start.
    pub shards_held: Option<u64>,
    /// Shards that it leads now.
    pub shards_led: u64,
    /// Its release.
    pub version: String,
    /// Threads.
    pub threads: u64,
    /// Threads that its user may have; none if there is no limit.
    pub threads_total: Option<u64>,
    /// Tasks that wait for a thread of those that serve clients and queues.
    pub run_queue: u64,
    /// Bytes that are free where its data lies, if that can be told.
    pub disk_free: Option<u64>,
    /// Fewer than so many raise the alarm.
    pub disk_free_limit: u64,
    /// Its links to other nodes.
    pub links: Vec<LinkTraffic>,
}

/// What went over a node's link to another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkTraffic {
    /// The other node's name.
    pub peer: String,
    /// Bytes that came over it.
    pub received_bytes: u64,
    /// Bytes that went over it.
    pub sent_bytes: u64,
}

/// A link to another node.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The other node's name.
    pub peer: String,
    /// Round trip.
    pub rtt: Duration,
    /// How long it is up.
    pub age: Duration,
    /// Bytes that wait to be written.
    pub queued_bytes: usize,
}

/// What nodes have said, and those that did not answer.
#[derive(Clone, Debug)]
pub struct Observed<T> {
    /// By node.
    pub answers: Vec<(NodeId, T)>,
    /// They are up by the table, and did not answer in time.
    pub silent: Vec<NodeId>,
}

impl<T> Observed<T> {
    /// What a node has said, if it has answered.
    pub fn of(&self, node: NodeId) -> Option<&T> {
        let mut all = self.answers.iter();
        all.find(|(id, _)| *id == node).map(|(_, said)| said)
    }

    /// Whether a node has answered.
    pub fn has_answered(&self, node: NodeId) -> bool {
        self.of(node).is_some()
    }
}

impl Node {
    /// The client connections of all nodes that answer before the deadline.
    pub async fn connections(
        self: &Arc<Self>,
        detail: Detail,
        deadline: Duration,
    ) -> Observed<Vec<ConnectionInfo>> {
        let until = Instant::now() + deadline;
        self.of_all(|node| async move {
            let (mut all, mut after) = (Vec::new(), 0);
            loop {
                let question = Question::Connections { after, detail };
                let page: Connections = self.ask(node, &question, until).await?;
                all.extend(page.items);
                match page.more {
                    Some(more) if more > after => after = more,
                    Some(_) | None => return Some(all),
                }
            }
        })
        .await
    }

    /// The processes of all nodes that answer before the deadline.
    pub async fn processes(self: &Arc<Self>, deadline: Duration) -> Observed<NodeInfo> {
        let until = Instant::now() + deadline;
        self.of_all(|node| async move { self.ask(node, &Question::Node, until).await })
            .await
    }

    /// What was published to exchanges through all nodes that answer before the deadline, by virtual host and name; to all, or to one. Those that were never published to are left out.
    pub async fn exchange_stats(
        self: &Arc<Self>,
        only: Option<(String, String)>,
        deadline: Duration,
    ) -> (BTreeMap<(String, String), MessageStats>, Vec<NodeId>) {
        let until = Instant::now() + deadline;
        let only = &only;
        let observed = self
            .of_all(|node| async move {
                let (mut all, mut after) = (Vec::new(), None);
                loop {
                    let only = only.clone();
                    let question = Question::Exchanges { after, only };
                    let page: Vec<OfExchange> = self.ask(node, &question, until).await?;
                    let more = page.last().filter(|_| page.len() == EXCHANGES);
                    after = more.map(|(vhost, name, _)| (vhost.clone(), name.clone()));
                    all.extend(page);
                    if after.is_none() {
                        return Some(all);
                    }
                }
            })
            .await;
        let mut sums: BTreeMap<(String, String), MessageStats> = BTreeMap::new();
        for (vhost, name, stats) in observed.answers.into_iter().flat_map(|(_, all)| all) {
            add_stats(sums.entry((vhost, name)).or_default(), &stats);
        }
        (sums, observed.silent)
    }

    /// Closes a connection of a node. False if there is none of that number and name (any more); `None` if the node does not answer in time.
    pub async fn close_connection(
        self: &Arc<Self>,
        node: NodeId,
        connection: &ConnectionInfo,
        reason: &str,
        deadline: Duration,
    ) -> Option<bool> {
        let close = Question::Close {
            number: connection.number,
            name: connection.name.clone(),
            reason: reason.to_owned(),
        };
        self.ask(node, &close, Instant::now() + deadline).await
    }

    /// Asks all nodes that are up at once.
    pub(crate) async fn of_all<T, F: Future<Output = Option<T>>>(
        &self,
        ask: impl Fn(NodeId) -> F,
    ) -> Observed<T> {
        let up: Vec<NodeId> = {
            let table = self.metadata().table().read();
            let others = table.nodes().filter(|n| n.up && n.id != self.id());
            // A node knows of itself whatever the table says.
            std::iter::once(self.id())
                .chain(others.map(|n| n.id))
                .collect()
        };
        let answers = join_all(up.iter().map(|&node| ask(node))).await;
        let mut observed = Observed {
            answers: Vec::new(),
            silent: Vec::new(),
        };
        for (node, answer) in up.into_iter().zip(answers) {
            match answer {
                Some(answer) => observed.answers.push((node, answer)),
                None => observed.silent.push(node),
            }
        }
        observed
    }

    pub(crate) async fn ask<T: DeserializeOwned>(
        self: &Arc<Self>,
        node: NodeId,
        question: &Question,
        until: Instant,
    ) -> Option<T> {
        let bytes = if node == self.id() {
            answer_to(self, serde_json::to_value(question).ok()?).await?
        } else {
            let frame = Frame::new(Bytes::new(), serde_json::to_vec(question).ok()?);
            let left = until.saturating_duration_since(Instant::now());
            self.ask_peer(node, frame, left).await?.bulk.to_vec()
        };
        serde_json::from_slice(&bytes)
            .inspect_err(|error| tracing::warn!(%node, %error, "a node's answer for operators cannot be read"))
            .ok()
    }

    /// Asks another node, and waits as long as it lives: one that was killed or stands still is given up long before its link is.
    pub(crate) async fn ask_peer(
        &self,
        node: NodeId,
        frame: Frame,
        deadline: Duration,
    ) -> Option<Frame> {
        let transport = self.transport()?;
        let silent = async {
            // Looks are counted, not time, so that it is not the other's silence if this process stood still.
            let (mut heard, mut looks) = (transport.heard(node), 0);
            while looks < SILENT_LOOKS {
                tokio::time::sleep(LOOK_AFTER).await;
                let now = transport.heard(node);
                looks = if now == heard { looks + 1 } else { 0 };
                heard = now;
            }
        };
        tokio::select! {
            biased;
            reply = transport.request(node, Lane::Delivery, frame, deadline) => reply.ok(),
            () = silent => None,
        }
    }

    /// This node's own client connections.
    pub async fn own_connections(&self, detail: Detail) -> Vec<ConnectionInfo> {
        let registry = self.registry();
        registry
            .describe(0, usize::MAX, detail, LIVE_DEADLINE)
            .await
    }

    /// The links to other nodes.
    pub fn links(&self) -> Vec<LinkStatus> {
        let links = self.transport().map_or_else(Vec::new, Transport::links);
        links
            .into_iter()
            .map(|link| LinkStatus {
                peer: link.hello.name,
                rtt: link.rtt,
                age: link.since.elapsed(),
                queued_bytes: link.queued_bytes,
            })
            .collect()
    }

    fn link_traffic(&self) -> Vec<LinkTraffic> {
        let links = self.transport().map_or_else(Vec::new, Transport::links);
        let told = links.into_iter().map(|link| LinkTraffic {
            peer: link.hello.name,
            received_bytes: link.received_bytes,
            sent_bytes: link.sent_bytes,
        });
        told.collect()
    }

    /// This node's own process.
    pub fn process(&self) -> NodeInfo {
        let (received_bytes, sent_bytes) = self.registry().traffic();
        NodeInfo {
            uptime_ms: u64::try_from(self.started().elapsed().as_millis()).unwrap_or(u64::MAX),
            os_pid: std::process::id(),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
            memory_used: memory_used().unwrap_or(0),
            fd_used: std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
            fd_total: limit("Max open files").unwrap_or(0),
            alarm: self.low().memory,
            low_on_disk: self.low().disk,
            queued_bytes: self.queued_bytes(),
            queued_bytes_limit: self.settings().memory_limit_bytes,
            connections: self.registry().len() as u64,
            churn: self.churn().stats(),
            received_bytes,
            sent_bytes,
            stats: self.message_stats(),
            listeners: self.config().listeners.clone(),
            serves: self.metadata().may_route() && !self.is_stopping(),
            shards_held: self.held(),
            shards_led: self.leaders().of(self.id()).len() as u64,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            threads: threads().unwrap_or(0),
            threads_total: limit("Max processes"),
            run_queue: self.waiting_tasks() as u64,
            disk_free: self.config().free_disk.as_ref().and_then(FreeDisk::ask),
            disk_free_limit: self.settings().disk_free_limit_bytes,
            links: self.link_traffic(),
        }
    }
}

/// Answers another node's question.
pub(crate) fn answer(node: &Arc<Node>, frame: Frame, reply: ReplyTo) {
    let question = match serde_json::from_slice(&frame.bulk) {
        Ok(question) => question,
        Err(error) => {
            tracing::warn!(%error, "a peer's question for operators was dropped");
            return;
        }
    };
    let node = node.clone();
    tokio::spawn(async move {
        if let Some(answer) = answer_to(&node, question).await {
            reply.send(Frame::new(Bytes::new(), answer));
        }
    });
}

/// The answer to a question; none to one that a later release asks.
async fn answer_to(node: &Arc<Node>, question: serde_json::Value) -> Option<Vec<u8>> {
    match serde_json::from_value(question).ok()? {
        Question::Connections { after, detail } => {
            let items = node
                .registry()
                .describe(after, PAGE, detail, LIVE_DEADLINE)
                .await;
            let more = (items.len() == PAGE)
                .then(|| items.last().map(|c| c.number))
                .flatten();
            serde_json::to_vec(&Connections { items, more }).ok()
        }
        Question::Node => serde_json::to_vec(&node.process()).ok(),
        Question::Exchanges { after, only } => {
            let traffic = node.traffic();
            let all = match only {
                Some((vhost, name)) => {
                    let stats = traffic.stats_of(&vhost, &name);
                    let is_used = !stats.is_empty();
                    is_used
                        .then_some((vhost, name, stats))
                        .into_iter()
                        .collect()
                }
                None => traffic.stats_after(after, EXCHANGES),
            };
            serde_json::to_vec::<Vec<OfExchange>>(&all).ok()
        }
        Question::Close {
            number,
            name,
            reason,
        } => {
            let known = node.registry().get(number).filter(|k| k.info.name == name);
            if let Some(known) = &known {
                tracing::info!(
                    connection = name,
                    reason,
                    "closing a connection for an operator"
                );
                known.close(&reason);
                let kill = known.kill.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(KILL_AFTER).await;
                    kill.notify_one();
                });
            }
            serde_json::to_vec(&known.is_some()).ok()
        }
        Question::Vhosts => serde_json::to_vec(&node.own_vhosts().await).ok(),
        Question::Digest => {
            let said = table_diff::digest(&node.metadata().table().read());
            serde_json::to_vec(&said).ok()
        }
        Question::Sums => serde_json::to_vec(&node.look_through(table_diff::sums).await?).ok(),
        Question::Hashes { buckets } => {
            let look = move |table: &Table| table_diff::hashes(table, &buckets);
            serde_json::to_vec(&node.look_through(look).await?).ok()
        }
        Question::Describe { hashes } => {
            let look = move |table: &Table| table_diff::describe(table, &hashes);
            serde_json::to_vec(&node.look_through(look).await?).ok()
        }
    }
}

/// Resident memory of this process.
fn memory_used() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Threads of this process.
fn threads() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("Threads:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// What this process may have of something; none if there is no limit.
fn limit(of: &str) -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(of))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_read_from_the_system() {
        assert!(memory_used().unwrap() > 1 << 20);
        assert!(limit("Max open files").unwrap() >= 64);
        assert!(threads().unwrap() >= 1);
        assert_eq!(limit("Max moons"), None);
    }

    #[test]
    fn questions_of_a_neighbouring_release_are_read_as_far_as_they_are_known() {
        let question = |text: &str| serde_json::from_str::<Question>(text);
        assert!(matches!(
            question(r#"{"ask": "connections", "after": 3, "colour": "red"}"#),
            Ok(Question::Connections {
                after: 3,
                detail: Detail::Connections
            })
        ));
        assert!(question(r#"{"ask": "weather"}"#).is_err());
        let info: NodeInfo = serde_json::from_str(r#"{"alarm": true, "moon": 1}"#).unwrap();
        assert!(info.alarm && info.stats.is_empty());
    }
}
