//! The simulated hosts that run nodes: disks that outlive them, and what each start does.

use crate::certificates::Certificates;
use crate::faults::Kind;
use crate::network::HostNetwork;
use crate::options::{Options, node_name};
use crate::oracle::Oracle;
use crate::run::TICK;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use turmoil::net::TcpListener;
use warren_model::{Command, Level, ShardId};
use warren_node::{Config, Node, Settings};
use warren_storage::Storage;
use warren_storage::memory::{Completion, Disk, Job, Rot};
use warren_transport::PeerAddress;

/// UDP port of the links between nodes.
const LINKS: u16 = 25_672;
/// TCP port of AMQP.
pub(crate) const AMQP: u16 = 5_672;
/// How often a node is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// Setting damaged data aside is as good as a fault for so long.
const HEALING: Duration = Duration::from_secs(1);

/// The nodes of a run.
#[derive(Clone)]
pub(crate) struct Cluster {
    inner: Rc<Inner>,
}

struct Inner {
    options: Options,
    certificates: Certificates,
    disks: RefCell<Vec<Disk>>,
    networks: Vec<HostNetwork>,
    /// What nodes are told to do, by node.
    orders: RefCell<Vec<VecDeque<Order>>>,
    /// The further node has been told to join.
    joined: Cell<bool>,
    /// The node that is gone for good.
    gone: Cell<Option<usize>>,
    /// The cluster is to forget it.
    forgets: Cell<bool>,
    /// Damage of the disks, by node.
    damage: RefCell<Vec<Damage>>,
    /// Nodes that have set damaged data aside and are to be started again.
    healing: RefCell<Vec<usize>>,
    /// What each node's next start knows.
    knows: RefCell<Vec<Level>>,
}

/// What has become of a disk that rots.
#[derive(Default)]
struct Damage {
    rotten: Vec<Rot>,
    /// The process that runs has read some of it.
    found: bool,
    /// Damaged data was set aside: the node founds no cluster any more.
    rejoins: bool,
}

/// How a process's life ended.
enum End {
    Stopped,
    /// What it stored is damaged, and the others can do without it.
    Damaged,
}

/// What a node is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// To stop in good order.
    Stop,
    /// To give a shard, counted from 0 and around, to another node.
    Move { shard: u64, to: usize },
    /// To have its clock leap.
    Jump(Duration),
}

impl Cluster {
    /// Disks and certificates; hosts come with [`Self::add_hosts`].
    pub(crate) fn new(options: &Options, certificates: &Certificates) -> Self {
        let hosts = options.hosts();
        Self {
            inner: Rc::new(Inner {
                options: options.clone(),
                certificates: certificates.clone(),
                disks: RefCell::new((0..hosts).map(|_| new_disk(options)).collect()),
                networks: (0..hosts).map(|_| HostNetwork::default()).collect(),
                orders: RefCell::new(vec![VecDeque::new(); hosts]),
                joined: Cell::new(false),
                gone: Cell::new(None),
                forgets: Cell::new(false),
                damage: RefCell::new((0..hosts).map(|_| Damage::default()).collect()),
                healing: RefCell::default(),
                knows: RefCell::new((0..hosts).map(|node| first_level(options, node)).collect()),
            }),
        }
    }

    /// Hosts of nodes, one that has not joined included.
    pub(crate) fn hosts(&self) -> usize {
        self.inner.options.hosts()
    }

    /// Nodes that belong to the cluster, or are to.
    pub(crate) fn members(&self) -> Vec<usize> {
        let joined = usize::from(self.inner.joined.get());
        let all = 0..(self.inner.options.nodes + joined).min(self.hosts());
        all.filter(|node| !self.is_gone(*node)).collect()
    }

    /// From now on a node is gone: it does not run any more.
    pub(crate) fn lose(&self, node: usize) {
        self.inner.gone.set(Some(node));
    }

    /// Whether a node is gone for good.
    pub(crate) fn is_gone(&self, node: usize) -> bool {
        self.inner.gone.get() == Some(node)
    }

    /// From now on each node that runs, now or later, has the cluster forget the one that is gone.
    pub(crate) fn forget_gone(&self) {
        self.inner.forgets.set(true);
    }

    /// The node that the cluster is to forget.
    fn to_forget(&self) -> Option<usize> {
        self.inner.gone.get().filter(|_| self.inner.forgets.get())
    }

    /// From now on the further node is to run.
    pub(crate) fn join(&self) {
        self.inner.joined.set(true);
    }

    /// From its next start on a node runs the newer release.
    pub(crate) fn upgrade(&self, node: usize) {
        self.inner.knows.borrow_mut()[node] = Level::NEWEST;
    }

    /// Tells a node to do something, if it runs.
    pub(crate) fn order(&self, node: usize, order: Order) {
        self.inner.orders.borrow_mut()[node].push_back(order);
    }

    fn next_order(&self, node: usize) -> Option<Order> {
        self.inner.orders.borrow_mut()[node].pop_front()
    }

    /// Has packets that a node sends doubled and delayed, or not any more.
    pub(crate) fn garble(&self, node: usize, seed: Option<u64>) {
        self.inner.networks[node].garble(seed);
    }

    pub(crate) fn disk(&self, node: usize) -> Disk {
        self.inner.disks.borrow()[node].clone()
    }

    /// A node gets a new, empty disk.
    pub(crate) fn replace_disk(&self, node: usize) {
        self.inner.disks.borrow_mut()[node] = new_disk(&self.inner.options);
    }

    /// So many of a node's log entries rot.
    pub(crate) fn rot(&self, node: usize, entries: u64, draw: &mut impl FnMut(u64) -> u64) {
        let entries = usize::try_from(entries).unwrap_or_default();
        let rotten = self.disk(node).rot(entries, draw);
        self.inner.damage.borrow_mut()[node].rotten.extend(rotten);
    }

    /// What has rotted of a node's disk is well again. Whether its process has read some of it meanwhile.
    pub(crate) fn unrot(&self, node: usize) -> bool {
        let damage = &mut self.inner.damage.borrow_mut()[node];
        self.disk(node).unrot(&std::mem::take(&mut damage.rotten));
        std::mem::take(&mut damage.found)
    }

    /// Nodes that have set damaged data aside, and are to be started again.
    pub(crate) fn take_healing(&self) -> Vec<usize> {
        std::mem::take(&mut self.inner.healing.borrow_mut())
    }

    /// Does with damaged data as the shipped program does: sets it aside; the node starts again without any.
    fn heal(&self, node: usize, oracle: &Oracle) {
        oracle.disturbed(format_args!("{} sets damaged data aside", node_name(node)));
        oracle.node_faulted(node, oracle.now() + HEALING);
        let mut damage = self.inner.damage.borrow_mut();
        if damage[node].rotten.is_empty() {
            let what = format!("{} finds damage where nothing rots", node_name(node));
            oracle.violated("nodes-start", what);
        }
        damage[node] = Damage {
            rejoins: true,
            ..Damage::default()
        };
        drop(damage);
        self.replace_disk(node);
        self.inner.healing.borrow_mut().push(node);
    }

    /// The disk is as fast again as the run's options say.
    pub(crate) fn reset_disk(&self, node: usize) {
        self.disk(node)
            .set_sync_delay(self.inner.options.sync_delay);
    }

    /// Adds a host for each node. It starts at once.
    pub(crate) fn add_hosts(&self, sim: &mut turmoil::Sim<'_>, oracle: &Oracle) {
        for node in 0..self.hosts() {
            let (cluster, oracle) = (self.clone(), oracle.clone());
            sim.host(node_name(node), move || {
                let (cluster, oracle) = (cluster.clone(), oracle.clone());
                async move {
                    if !cluster.members().contains(&node) {
                        return Ok(());
                    }
                    match cluster.run(node, &oracle).await {
                        Ok(End::Stopped) => {}
                        Ok(End::Damaged) => cluster.heal(node, &oracle),
                        Err(error) if oracle.is_faulted(node) && !says_corrupt(&*error) => {
                            // A process that cannot use its disk ends; it is started again when the disk is well.
                            oracle.note(
                                &node_name(node),
                                format_args!("does not start or stops by itself: {error}"),
                            );
                        }
                        Err(error) => oracle.violated(
                            "nodes-start",
                            format_args!(
                                "{} does not start or stops by itself: {error}",
                                node_name(node)
                            ),
                        ),
                    }
                    Ok(())
                }
            });
        }
    }

    /// One process's life.
    async fn run(&self, number: usize, oracle: &Oracle) -> Result<End, Box<dyn std::error::Error>> {
        let start = oracle.node_starts(number);
        self.inner.orders.borrow_mut()[number].clear();
        self.inner.damage.borrow_mut()[number].found = false;
        // What an earlier process had open, the system has closed.
        self.inner.networks[number].close_all();
        let (storage, network) = (
            Arc::new(self.disk(number).open()),
            Arc::new(self.inner.networks[number].clone()),
        );
        drift(self.inner.options.drifts[number]);
        let node = Node::start(
            self.config(number, start),
            storage.clone(),
            network,
            tokio::runtime::Handle::current(),
        );
        let node = match (node.await, storage.damage()) {
            (Err(error), Some(_)) => {
                let what = format!("cannot be started: {error}");
                oracle.note(&node_name(number), what);
                return Ok(End::Damaged);
            }
            (started, _) => started?,
        };
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, AMQP)).await?;
        oracle.node_up(number, node.clone());
        let (looked_at, looker, cluster) = (node.clone(), oracle.clone(), self.clone());
        let mut stop = Box::pin(async move {
            let mut forgotten = None;
            loop {
                looker.look_at(number, &looked_at);
                if looked_at.storage_damage().is_some() {
                    cluster.inner.damage.borrow_mut()[number].found = true;
                    if looked_at.is_dispensable() {
                        return End::Damaged;
                    }
                }
                if let Some(gone) = cluster.to_forget().filter(|gone| forgotten != Some(*gone)) {
                    forgotten = Some(gone);
                    tokio::spawn(forget(looked_at.clone(), gone));
                }
                match cluster.next_order(number) {
                    Some(Order::Stop) => return End::Stopped,
                    Some(Order::Jump(by)) => tokio::time::advance(by).await,
                    Some(Order::Move { shard, to }) => {
                        tokio::spawn(move_shard(looked_at.clone(), shard, to));
                    }
                    None => tokio::time::sleep(LOOK).await,
                }
            }
        });
        let end = loop {
            tokio::select! {
                biased;
                end = &mut stop => break end,
                accepted = listener.accept() => {
                    let (stream, peer) = accepted?;
                    tokio::spawn(node.clone().serve(stream, peer));
                }
            }
        };
        oracle.node_down(number);
        drop(listener);
        node.shutdown().await;
        // The process is gone, and so are its sockets.
        self.inner.networks[number].close_all();
        oracle.note(&node_name(number), "has stopped in good order");
        Ok(end)
    }

    fn config(&self, number: usize, start: u64) -> Config {
        let options = &self.inner.options;
        let address = |node: usize| format!("{}:{LINKS}", node_name(node));
        let peers = (0..options.nodes)
            .map(|node| PeerAddress {
                name: node_name(node),
                address: address(node),
            })
            .collect();
        // Simulated clients are on hosts of their own.
        let settings = Settings {
            loopback_users: Vec::new(),
            logs: options.logs,
            ..Settings::default()
        };
        Config {
            name: node_name(number),
            cluster_name: "simulated".into(),
            bind: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), LINKS).into(),
            address: address(number),
            amqp: format!("{}:{AMQP}", node_name(number)),
            http: String::new(),
            listeners: Vec::new(),
            peers,
            rejoins: self.inner.damage.borrow()[number].rejoins,
            shards: options.shards,
            tls: self.inner.certificates.of(number),
            seed: Some(
                options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ (number as u64) << 48
                    ^ start << 56,
            ),
            settings,
            free_disk: None,
            knows: self.inner.knows.borrow()[number],
            first_user: Some(("guest".into(), "guest".into())),
        }
    }
}

/// What a node knows at first. One that joins a cluster is of its newest release.
fn first_level(options: &Options, node: usize) -> Level {
    if options.kinds.contains(&Kind::Upgrade) && node < options.nodes {
        Level::FIRST
    } else {
        Level::NEWEST
    }
}

fn new_disk(options: &Options) -> Disk {
    let disk = Disk::new();
    disk.set_completion(Completion::Spawned(Arc::new(
        |after: Duration, job: Job| {
            // On the host that has the disk: its clock, and gone with its process.
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                job();
            });
        },
    )));
    disk.set_sync_delay(options.sync_delay);
    disk
}

/// Whether a node that does not start has found its disk's contents wrong: no fault that there is may lead to that.
fn says_corrupt(error: &dyn std::error::Error) -> bool {
    error.to_string().contains("corrupt")
}

/// Has this host's clock run faster than the true time: a part of a step is passed over now and then.
fn drift(rate: f64) {
    if rate <= 0.0 {
        return;
    }
    let period = TICK.div_f64(rate);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(period).await;
            // Beyond the end of this step by one.
            tokio::time::advance(TICK * 2).await;
        }
    });
}

/// Gives a shard to another node, as an operator would.
async fn move_shard(node: Arc<Node>, shard: u64, to: usize) {
    let command = {
        let table = node.metadata().table().read();
        let Some((_, shards)) = table.cluster() else {
            return;
        };
        let name = node_name(to);
        let Some(to) = table.nodes().find(|known| known.name == name) else {
            return;
        };
        let shard = ShardId(u16::try_from(shard % u64::from(shards)).unwrap_or_default());
        Command::MoveShard { shard, to: to.id }
    };
    // It may be refused, if that node is down.
    let _ = node
        .metadata()
        .propose(command, Duration::from_secs(5))
        .await;
}

/// Has the cluster forget a node, as an operator would that does not give up.
async fn forget(node: Arc<Node>, gone: usize) {
    let name = node_name(gone);
    loop {
        let known = {
            let table = node.metadata().table().read();
            table
                .nodes()
                .find(|known| known.name == name)
                .map(|known| known.id)
        };
        let Some(known) = known else {
            return;
        };
        // It may be refused or time out while there is no leader.
        let _ = node
            .metadata()
            .propose(
                Command::NodeForgotten { node: known },
                Duration::from_secs(5),
            )
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
