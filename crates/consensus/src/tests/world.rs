//! Nodes of a world: their disks, their processes, and what they have in common.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination, Place};
use warren_model::{Command, Incarnation, Level, NodeId, Outcome, SessionId, ShardId};
use warren_storage::memory::{Completion, Disk};
use warren_transport::PeerAddress;

use super::net::Net;
use crate::{Config, Hooks, Metadata, Proposed};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) net: Arc<Net>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) adjust: fn(&mut Config),
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    incarnation: u64,
    /// What its next start knows.
    pub(crate) knows: Level,
    seeds: Vec<PeerAddress>,
    pub(crate) disk: Disk,
    pub(crate) running: Option<Metadata>,
    pub(crate) hooks: Arc<Recorder>,
}

/// Remembers the indexes that the hooks were told.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) applied: Mutex<Vec<u64>>,
    pub(crate) replaced: Mutex<Vec<u64>>,
}

impl Hooks for Recorder {
    fn applied(&self, index: u64, _: &[warren_routing::Event]) {
        self.applied.lock().push(index);
    }

    fn replaced(&self, index: u64) {
        self.replaced.lock().push(index);
    }
}

pub(crate) fn seeds(names: &[&str]) -> Vec<PeerAddress> {
    names
        .iter()
        .map(|name| PeerAddress {
            name: (*name).into(),
            address: format!("{name}:1"),
        })
        .collect()
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

impl World {
    pub(crate) fn new() -> Self {
        Self::adjusted(|_| {})
    }

    pub(crate) fn adjusted(adjust: fn(&mut Config)) -> Self {
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
            adjust,
        }
    }

    /// A cluster of these nodes, all routable.
    pub(crate) async fn cluster(names: &[&str]) -> Self {
        Self::adjusted_cluster(names, |_| {}).await
    }

    pub(crate) async fn adjusted_cluster(names: &[&str], adjust: fn(&mut Config)) -> Self {
        let mut world = Self::adjusted(adjust);
        for (at, name) in names.iter().enumerate() {
            world.create(name, at as u64 + 1, &seeds(names));
            world.start(name).await;
        }
        world.all_routable().await;
        world.all_up().await;
        world
    }

    pub(crate) fn create(&mut self, name: &str, id: u64, seeds: &[PeerAddress]) {
        let node = Node {
            id: NodeId(id),
            incarnation: 0,
            knows: Level::NEWEST,
            seeds: seeds.to_vec(),
            disk: disk(),
            running: None,
            hooks: Arc::default(),
        };
        self.nodes.insert(name.into(), node);
    }

    pub(crate) async fn start(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        node.incarnation += 1;
        node.hooks = Arc::default();
        let incarnation = Incarnation(node.incarnation);
        let mut config = Config::new(
            node.id,
            incarnation,
            name,
            format!("{name}:1"),
            node.id.0 * 1000 + node.incarnation,
        );
        config.seeds = node.seeds.clone();
        config.shards = 4;
        config.knows = node.knows;
        (self.adjust)(&mut config);
        let storage = Arc::new(node.disk.open());
        let metadata = Metadata::open(config, storage, node.hooks.clone())
            .await
            .unwrap();
        self.net.add(
            node.id,
            name,
            incarnation,
            node.knows,
            &node.seeds,
            &metadata,
        );
        metadata.start_on(self.net.wire(node.id));
        node.running = Some(metadata);
        self.net.relink();
    }

    /// Kills a node's process; the disk keeps what it has.
    pub(crate) async fn kill(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        self.net.remove(node.id);
        node.running.take().unwrap().stop().await;
    }

    /// Cuts a node's power.
    pub(crate) async fn power_off(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        self.net.remove(node.id);
        node.disk.power_off();
        node.running.take().unwrap().stop().await;
    }

    /// Stops a node in good order.
    pub(crate) async fn shutdown(&mut self, name: &str) {
        let node = self.nodes.get_mut(name).unwrap();
        node.running.take().unwrap().shutdown().await;
        self.net.remove(node.id);
    }

    /// Cuts a node off from all others.
    pub(crate) fn isolate(&self, name: &str) {
        for other in self.nodes.keys().filter(|other| *other != name) {
            self.net.cut(self.id(name), self.id(other));
        }
    }

    pub(crate) fn id(&self, name: &str) -> NodeId {
        self.nodes[name].id
    }

    pub(crate) fn at(&self, name: &str) -> &Metadata {
        self.nodes[name].running.as_ref().unwrap()
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (&String, &Metadata)> {
        self.nodes
            .iter()
            .filter_map(|(name, node)| Some((name, node.running.as_ref()?)))
    }

    pub(crate) async fn all_routable(&self) {
        for (name, metadata) in self.running() {
            assert!(
                metadata.wait_routable(DEADLINE).await,
                "{name} may not route: {:?}",
                metadata.status()
            );
        }
    }

    /// Brings nodes up again that were marked down while they were cut off, as their owners would, until all may route.
    pub(crate) async fn revive(&mut self) {
        let until = Instant::now() + DEADLINE;
        while !self.running().all(|(_, metadata)| metadata.may_route()) {
            assert!(
                Instant::now() < until,
                "not all may route: {:?}",
                self.running()
                    .map(|(_, metadata)| metadata.status())
                    .collect::<Vec<_>>()
            );
            for node in self.nodes.values_mut() {
                if let Some(metadata) = node
                    .running
                    .as_ref()
                    .filter(|metadata| metadata.is_marked_down())
                {
                    node.incarnation += 1;
                    metadata.renew_incarnation(Incarnation(node.incarnation));
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn all_up(&self) {
        for (_, metadata) in self.running() {
            eventually("all are up", || {
                metadata
                    .status()
                    .members
                    .iter()
                    .all(|member| member.up)
                    .then_some(())
            })
            .await;
        }
    }

    /// The name of the node that leads, as all running nodes see it.
    pub(crate) async fn leader(&self) -> String {
        let names: Vec<String> = self.running().map(|(name, _)| name.clone()).collect();
        self.leader_among(&names).await
    }

    /// The name of the node that leads, as these nodes see it.
    pub(crate) async fn leader_among(&self, names: &[String]) -> String {
        eventually("all agree on a running leader", || {
            let leaders: Vec<_> = names
                .iter()
                .map(|name| self.at(name).status().leader)
                .collect();
            let first = leaders.first().copied().flatten()?;
            let name = names.iter().find(|name| self.id(name) == first)?;
            leaders
                .iter()
                .all(|leader| *leader == Some(first))
                .then(|| name.clone())
        })
        .await
    }

    /// Waits until all running nodes have applied the same, and checks that their tables are equal.
    pub(crate) async fn assert_equal(&self) {
        eventually("all have applied the same", || {
            let mut applied: Vec<u64> = self
                .running()
                .map(|(_, metadata)| metadata.table().version())
                .collect();
            applied.dedup();
            (applied.len() == 1).then_some(())
        })
        .await;
        let mut digests: Vec<_> = self
            .running()
            .map(|(_, metadata)| metadata.table().read().digest())
            .collect();
        digests.dedup();
        assert_eq!(digests.len(), 1, "tables differ at equal index");
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }
}

/// Waits for a condition, in virtual time.
pub(crate) async fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn declare(name: &str) -> Command {
    Command::DeclareQueue(DeclareQueue {
        vhost: "/".into(),
        name: name.into(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session: SessionId::default(),
        place: Place::Shard(ShardId(0)),
    })
}

pub(crate) fn bind(queue: &str, key: &str) -> Command {
    Command::Bind(Binding {
        vhost: "/".into(),
        source: "amq.direct".into(),
        destination: Destination::Queue(queue.into()),
        key: key.into(),
        arguments: Vec::new(),
        session: SessionId::default(),
    })
}

/// The declaration of an exchange that is not durable.
pub(crate) fn transient_exchange(name: &str) -> Command {
    Command::DeclareExchange(DeclareExchange {
        vhost: "/".into(),
        name: name.into(),
        kind: "fanout".into(),
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: Vec::new(),
    })
}

pub(crate) fn has_exchange(metadata: &Metadata, name: &str) -> bool {
    metadata.table().read().exchange("/", name).is_some()
}

pub(crate) fn has_queue(metadata: &Metadata, name: &str) -> bool {
    metadata.table().read().queue("/", name).is_some()
}

/// Declares a queue from a node, which must succeed.
pub(crate) async fn declared(metadata: &Metadata, name: &str) -> Proposed {
    let proposed = metadata.propose(declare(name), DEADLINE).await.unwrap();
    assert!(
        matches!(proposed.outcome, Outcome::Queue { .. }),
        "{proposed:?}"
    );
    proposed
}
