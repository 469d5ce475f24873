//! Nodes with one shard each: their disks, their processes, and what they have in common.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use warren_model::{NodeId, ShardId};
use warren_storage::Storage;
use warren_storage::memory::{Completion, Disk};

use super::keeper::{Keeper, Seen};
use super::net::Net;
use crate::{Shards, ShardsConfig};

pub(super) const DEADLINE: Duration = Duration::from_secs(20);
pub(super) const SHARD: ShardId = ShardId(3);

pub(super) struct World {
    pub(super) net: Arc<Net>,
    pub(super) nodes: BTreeMap<u64, Node>,
    starts: u64,
    pub(super) seed: u64,
}

pub(super) struct Node {
    pub(super) disk: Disk,
    pub(super) running: Option<(Shards, Arc<Keeper>)>,
}

fn disk() -> Disk {
    let disk = Disk::new();
    disk.set_sync_delay(Duration::from_micros(200));
    disk.set_completion(Completion::Spawned(Arc::new(|delay, job| {
        drop(tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            job();
        }));
    })));
    disk
}

pub(super) fn ids(nodes: &[u64]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

impl World {
    pub(super) fn new() -> Self {
        // Shows the story with RUST_LOG=warren_consensus=debug; a second test finds it set up.
        drop(
            tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
                .with_test_writer()
                .try_init(),
        );
        Self {
            net: Arc::default(),
            nodes: BTreeMap::new(),
            starts: 0,
            seed: 1,
        }
    }

    /// Nodes that found the shard together; one leads.
    pub(super) async fn founded(nodes: &[u64]) -> Self {
        let mut world = Self::new();
        for node in nodes {
            world.start(*node, Some(nodes)).await;
        }
        world.leader().await;
        world
    }

    /// Starts a node, with the disk that it had.
    pub(super) async fn start(&mut self, node: u64, found: Option<&[u64]>) {
        self.starts += 1;
        let seed = self.seed * 1_000 + self.starts;
        let entry = self.nodes.entry(node).or_insert_with(|| Node {
            disk: disk(),
            running: None,
        });
        let storage = Arc::new(entry.disk.open());
        let keeper = Keeper::open(SHARD, storage.state());
        let mut config = ShardsConfig::new(NodeId(node), seed);
        config.catch_up_deadline = Duration::from_secs(3);
        let shards = Shards::new(config, storage);
        self.net.add(NodeId(node), &shards);
        shards
            .open(SHARD, keeper.clone(), found.map(ids))
            .await
            .unwrap();
        entry.running = Some((shards, keeper));
    }

    /// Opens the shard on a running node where it was closed.
    pub(super) async fn reopen(&mut self, node: u64) {
        let entry = self.nodes.get_mut(&node).unwrap();
        let (shards, keeper) = entry.running.as_mut().unwrap();
        shards.open(SHARD, keeper.clone(), None).await.unwrap();
    }

    /// Kills a node's process; the disk keeps what it has.
    pub(super) async fn kill(&mut self, node: u64) {
        let entry = self.nodes.get_mut(&node).unwrap();
        self.net.remove(NodeId(node));
        entry.running.take().unwrap().0.shutdown().await;
    }

    /// Cuts a node's power.
    pub(super) async fn power_off(&mut self, node: u64) {
        self.nodes[&node].disk.power_off();
        self.kill(node).await;
    }

    /// Cuts a node off from all others.
    pub(super) fn isolate(&self, node: u64) {
        for other in self.net.nodes() {
            if other != NodeId(node) {
                self.net.cut(NodeId(node), other);
            }
        }
    }

    pub(super) fn at(&self, node: u64) -> &Shards {
        &self.nodes[&node].running.as_ref().unwrap().0
    }

    pub(super) fn seen(&self, node: u64) -> Seen {
        self.nodes[&node]
            .running
            .as_ref()
            .unwrap()
            .1
            .seen
            .lock()
            .clone()
    }

    /// The term that a node was told to lead in.
    pub(super) fn leading(&self, node: u64) -> Option<u64> {
        let (_, keeper) = self.nodes[&node].running.as_ref().unwrap();
        keeper.seen.lock().leading()
    }

    pub(super) fn running(&self) -> Vec<u64> {
        let running = self.nodes.iter().filter(|(_, node)| node.running.is_some());
        running.map(|(node, _)| *node).collect()
    }

    /// The node that was told to lead in the newest term, and the term, once all running nodes agree.
    pub(super) async fn leader(&self) -> (u64, u64) {
        self.leader_among(&self.running()).await
    }

    pub(super) async fn leader_among(&self, nodes: &[u64]) -> (u64, u64) {
        eventually("a replica leads and all know", || {
            let leading = nodes
                .iter()
                .filter_map(|node| Some((self.leading(*node)?, *node)));
            let (term, leader) = leading.max()?;
            let agreed = nodes.iter().all(|node| {
                self.at(*node)
                    .status(SHARD)
                    .filter(|status| status.voters.contains(&NodeId(*node)))
                    .is_none_or(|status| status.leader == Some(NodeId(leader)))
            });
            agreed.then_some((leader, term))
        })
        .await
    }

    /// Proposes on the leader, and waits until it is applied there.
    pub(super) async fn propose(&self, payload: &str) {
        let until = Instant::now() + DEADLINE;
        loop {
            let (leader, term) = self.leader().await;
            if self.at(leader).propose(SHARD, term, bytes(payload)) {
                let (_, keeper) = self.nodes[&leader].running.as_ref().unwrap();
                let applied = eventually("it is applied or lost", || {
                    let seen = keeper.seen.lock();
                    let newest = seen.entries.iter().rev().take(100);
                    let applied = newest.into_iter().any(|(_, _, p)| p == payload);
                    (applied || seen.leading() != Some(term)).then_some(applied)
                })
                .await;
                if applied {
                    return;
                }
            }
            assert!(Instant::now() < until, "{payload} was not taken");
        }
    }

    /// Waits until all these have applied the same, and returns it.
    pub(super) async fn equal(&self, nodes: &[u64]) -> Vec<(u64, u64, Bytes)> {
        eventually("all have applied the same", || {
            let last = |node: &u64| {
                let (_, keeper) = self.nodes[node].running.as_ref().unwrap();
                keeper.seen.lock().last
            };
            let first = last(&nodes[0]);
            nodes.iter().all(|node| last(node) == first).then_some(())
        })
        .await;
        let first = self.seen(nodes[0]).entries;
        for node in nodes {
            assert_eq!(self.seen(*node).entries, first, "node {node} differs");
        }
        first
    }
}

pub(super) fn bytes(payload: &str) -> Bytes {
    Bytes::copy_from_slice(payload.as_bytes())
}

pub(super) fn texts(entries: &[(u64, u64, Bytes)]) -> Vec<String> {
    let text = |payload: &Bytes| String::from_utf8_lossy(payload).into_owned();
    entries
        .iter()
        .map(|(_, _, payload)| text(payload))
        .collect()
}

/// Waits for a condition, in virtual time.
pub(super) async fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
