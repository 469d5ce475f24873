//! Faults: what is done to the cluster, when, and how it is undone.
//!
//! Flow: [`plan`] draws all faults before the run; [`Driver::step`] strikes and undoes them when their time comes. Faults may overlap: network faults are kept as
//! a list, and each link's state is derived anew from those that are on, so that the end of one does not undo another; so are disks and packets.
//! Invariants: every fault ends within the run's working time; a run takes the disk of one node at most, for a while or for good, since two would rightly lose
//! what only they had.

use crate::cluster::{Cluster, Order};
use crate::options::{node_name, pick};
use crate::oracle::Oracle;
use crate::run::CLIENTS;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use std::fmt;
use std::time::Duration;

/// Calm before the first fault, so that runs have something to lose.
const FIRST: Duration = Duration::from_secs(3);
/// On a bad link, how often a packet is lost together with all that are under way.
const LOSS: f64 = 0.05;
/// A node that stops in order may take so long; at the fault's end it is killed.
const STOP_LASTS: Duration = Duration::from_secs(2);
/// What a fault has led to may go on for so long after its end: links are made again, leaders come back.
const AFTERMATH: Duration = Duration::from_secs(1);

/// A clock leaps by so much at least.
const LEAP_MIN: Duration = Duration::from_millis(10);
/// And by less than so much more: a leader's clock may run ahead of a lease holder's by 95 ms while the lease lasts, drift included.
const LEAP_SPREAD_MS: u64 = 61;
/// Between leaps, so that no lease sees two.
const LEAPS_APART: Duration = Duration::from_secs(2);
/// Log entries that rot at once, at most.
const ROTTEN: u64 = 20;

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A node loses power: what it had not synced is lost but for a part.
    PowerLoss,
    /// A node's process is killed: the system still writes what it was given.
    Kill,
    /// All nodes lose power at once.
    PowerLossOfAll,
    /// A node is told to stop in good order, and started again.
    Stop,
    /// A node cannot reach the others, nor they it.
    Partition,
    /// Two nodes cannot reach each other; the third reaches both.
    Cut,
    /// A node's packets reach nobody, but it hears the others.
    OneWay,
    /// Packets between a node and the others stand still, and arrive all at once at the end.
    Hold,
    /// A node stands still for its peers and for its clients: nothing gets in or out until the end.
    Pause,
    /// Packets between two nodes get lost now and then.
    Loss,
    /// Packets that a node sends to others are doubled, or come late and out of order.
    Garble,
    /// A node's disk becomes very slow.
    SlowDisk,
    /// A sync of a node's disk fails; at the end the node is started again, without what was not synced.
    FailingSync,
    /// A node's disk is full; at the end there is room, and the node is started again.
    FullDisk,
    /// A node loses power and its disk, and comes back with an empty one.
    Wipe,
    /// A further node joins the cluster.
    Join,
    /// A shard is given to another node.
    Move,
    /// A node loses power and never comes back; at the end the cluster is told to forget it.
    Leave,
    /// Bits of stored log entries of a node turn over, of which half of the time it reads at once, since it is killed and started. A node that finds damage
    /// heals itself as the shipped program does. At the end what it has not read is well again; what it has read and not healed is, after another start.
    Rot,
    /// A node's clock leaps forward, by less than leases allow for.
    Jump,
    /// A node of the older release is told to stop in good order, and started again as the newer one.
    Upgrade,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 21] = [
        Self::PowerLoss,
        Self::Kill,
        Self::PowerLossOfAll,
        Self::Stop,
        Self::Partition,
        Self::Cut,
        Self::OneWay,
        Self::Hold,
        Self::Pause,
        Self::Loss,
        Self::Garble,
        Self::SlowDisk,
        Self::FailingSync,
        Self::FullDisk,
        Self::Wipe,
        Self::Join,
        Self::Move,
        Self::Leave,
        Self::Rot,
        Self::Jump,
        Self::Upgrade,
    ];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerLoss => "power-loss",
            Self::Kill => "kill",
            Self::PowerLossOfAll => "power-loss-of-all",
            Self::Stop => "stop",
            Self::Partition => "partition",
            Self::Cut => "cut",
            Self::OneWay => "one-way",
            Self::Hold => "hold",
            Self::Pause => "pause",
            Self::Loss => "loss",
            Self::Garble => "garble",
            Self::SlowDisk => "slow-disk",
            Self::FailingSync => "failing-sync",
            Self::FullDisk => "full-disk",
            Self::Wipe => "wipe",
            Self::Join => "join",
            Self::Move => "move",
            Self::Leave => "leave",
            Self::Rot => "rot",
            Self::Jump => "jump",
            Self::Upgrade => "upgrade",
        }
    }

    /// Whether a cluster of this many nodes can have it.
    pub(crate) fn fits(self, nodes: usize) -> bool {
        match self {
            Self::PowerLoss
            | Self::Kill
            | Self::Stop
            | Self::Pause
            | Self::SlowDisk
            | Self::FailingSync
            | Self::FullDisk
            | Self::Jump
            | Self::Upgrade => true,
            Self::PowerLossOfAll
            | Self::Partition
            | Self::Cut
            | Self::OneWay
            | Self::Hold
            | Self::Loss
            | Self::Garble
            | Self::Wipe
            | Self::Join
            | Self::Move => nodes > 1,
            // Two must be left that agree.
            Self::Leave | Self::Rot => nodes > 2,
        }
    }

    /// Whether it keeps its node from running.
    fn downs(self) -> bool {
        match self {
            Self::PowerLoss
            | Self::Kill
            | Self::PowerLossOfAll
            | Self::Stop
            | Self::Wipe
            | Self::Leave
            | Self::Upgrade => true,
            Self::Partition
            | Self::Cut
            | Self::OneWay
            | Self::Hold
            | Self::Pause
            | Self::Loss
            | Self::Garble
            | Self::SlowDisk
            | Self::FailingSync
            | Self::FullDisk
            | Self::Join
            | Self::Move
            | Self::Rot
            | Self::Jump => false,
        }
    }

    /// Whether it is drawn by itself, after the others: it came later, and seeds go on meaning what they meant.
    pub(crate) fn is_drawn_later(self) -> bool {
        matches!(self, Self::Leave | Self::Rot | Self::Jump | Self::Upgrade)
    }

    /// Whether a run has it once at most.
    fn is_once(self) -> bool {
        matches!(self, Self::Wipe | Self::Join | Self::Leave)
    }
}

/// One fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// When it strikes, from when the cluster stands.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it does.
    pub kind: Kind,
    /// Whom it strikes.
    pub node: usize,
    /// The other end, where there is one.
    pub other: usize,
    /// A number that says more, where there is more to say.
    pub which: u64,
}

impl Fault {
    /// Whether a node, or one of its links, is struck by it.
    fn touches(&self, node: usize) -> bool {
        match self.kind {
            Kind::PowerLossOfAll => true,
            Kind::Cut | Kind::Loss => node == self.node || node == self.other,
            Kind::PowerLoss
            | Kind::Kill
            | Kind::Stop
            | Kind::Partition
            | Kind::OneWay
            | Kind::Hold
            | Kind::Pause
            | Kind::Garble
            | Kind::SlowDisk
            | Kind::FailingSync
            | Kind::FullDisk
            | Kind::Wipe
            | Kind::Leave
            | Kind::Rot
            | Kind::Jump
            | Kind::Upgrade => node == self.node,
            // Nobody is to notice.
            Kind::Join | Kind::Move => false,
        }
    }
}

impl Fault {
    /// How far a clock leaps.
    fn leap(&self) -> Duration {
        LEAP_MIN + Duration::from_millis(self.which % LEAP_SPREAD_MS)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = node_name(self.node);
        write!(f, "{}", self.kind.name())?;
        match self.kind {
            Kind::PowerLossOfAll | Kind::Join => Ok(()),
            Kind::Cut | Kind::Loss => write!(f, " between {node} and {}", node_name(self.other)),
            Kind::Move => write!(f, " of a shard to {}", node_name(self.other)),
            Kind::PowerLoss
            | Kind::Kill
            | Kind::Stop
            | Kind::Partition
            | Kind::OneWay
            | Kind::Hold
            | Kind::Pause
            | Kind::Garble
            | Kind::SlowDisk
            | Kind::FailingSync
            | Kind::FullDisk
            | Kind::Wipe
            | Kind::Leave
            | Kind::Rot
            | Kind::Upgrade => write!(f, " of {node}"),
            Kind::Jump => write!(f, " of {node} by {:?}", self.leap()),
        }?;
        write!(f, " for {:.1} s", self.lasts.as_secs_f64())
    }
}

/// Draws a run's faults.
pub(crate) fn plan(rng: &mut StdRng, kinds: &[Kind], nodes: usize, work: Duration) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let pause_ms = *pick(rng, &[500, 2000, 6000]);
    let longest_ms: u64 = *pick(rng, &[800, 4000, 12000]);
    let mut at = FIRST;
    while !kinds.is_empty() {
        at += Duration::from_millis(rng.random_range(50..pause_ms * 2));
        let mut lasts = Duration::from_millis(rng.random_range(100..longest_ms));
        let kind = *pick(rng, kinds);
        if kind == Kind::Stop {
            lasts += STOP_LASTS;
        }
        if at + lasts > work {
            break;
        }
        let node = rng.random_range(0..nodes);
        let other = (node + rng.random_range(1..nodes.max(2))) % nodes;
        let which = rng.random();
        if kind.is_once() && faults.iter().any(|fault| fault.kind == kind) {
            continue;
        }
        faults.push(Fault {
            at,
            lasts,
            kind,
            node,
            other,
            which,
        });
    }
    faults
}

/// Draws faults one at a time, each for long, with some rest behind it: whatever comes of one comes about.
pub(crate) fn plan_apart(
    rng: &mut StdRng,
    kinds: &[Kind],
    nodes: usize,
    work: Duration,
) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut at = FIRST;
    while !kinds.is_empty() {
        at += Duration::from_millis(rng.random_range(500..1500));
        let lasts = Duration::from_millis(rng.random_range(2500..6000));
        if at + lasts > work {
            break;
        }
        let node = rng.random_range(0..nodes);
        faults.push(Fault {
            at,
            lasts,
            kind: *pick(rng, kinds),
            node,
            other: (node + 1) % nodes,
            which: rng.random(),
        });
        at += lasts;
    }
    faults
}

/// Adds an upgrade of each node to a plan, one after the other in some order.
pub(crate) fn plan_upgrades(
    rng: &mut StdRng,
    faults: &mut Vec<Fault>,
    nodes: usize,
    work: Duration,
) {
    let each = work.saturating_sub(FIRST + STOP_LASTS) / u32::try_from(nodes).unwrap_or(u32::MAX);
    let mut order: Vec<usize> = (0..nodes).collect();
    order.shuffle(rng);
    for (place, node) in (0u32..).zip(order) {
        let fault = Fault {
            at: FIRST + each * place + each.mul_f64(rng.random_range(0.0..0.7)),
            lasts: STOP_LASTS + each.mul_f64(rng.random_range(0.0..0.3)),
            kind: Kind::Upgrade,
            node,
            other: node,
            which: rng.random(),
        };
        let place = faults.partition_point(|other| other.at <= fault.at);
        faults.insert(place, fault);
    }
}

/// Adds a fault of one kind to a plan, at some time. False if there is no time for it.
pub(crate) fn plan_one(
    rng: &mut StdRng,
    faults: &mut Vec<Fault>,
    kind: Kind,
    nodes: usize,
    work: Duration,
) -> bool {
    let lasts = Duration::from_millis(rng.random_range(100..6000));
    let latest = work.saturating_sub(lasts + FIRST);
    let at = FIRST + latest.mul_f64(rng.random_range(0.0..1.0));
    let node = rng.random_range(0..nodes);
    let fault = Fault {
        at,
        lasts,
        kind,
        node,
        other: node,
        which: rng.random(),
    };
    let near = |other: &Fault| other.kind == Kind::Jump && other.at.abs_diff(at) < LEAPS_APART;
    if latest.is_zero() || (kind == Kind::Jump && faults.iter().any(near)) {
        return false;
    }
    let place = faults.partition_point(|fault| fault.at <= at);
    faults.insert(place, fault);
    true
}

/// Strikes faults and undoes them.
pub(crate) struct Driver {
    /// Still to come, the last one first.
    coming: Vec<Fault>,
    /// Under way.
    on: Vec<Fault>,
    /// From when the plan's times count.
    base: Duration,
    /// For what a power loss leaves on a disk.
    rng: StdRng,
}

impl Driver {
    pub(crate) fn new(faults: &[Fault], base: Duration, rng: StdRng) -> Self {
        Self {
            coming: faults.iter().rev().copied().collect(),
            on: Vec::new(),
            base,
            rng,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.coming.is_empty() && self.on.is_empty()
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, sim: &mut turmoil::Sim<'_>, cluster: &Cluster, oracle: &Oracle) {
        let now = sim.elapsed().saturating_sub(self.base);
        while let Some(fault) = self.coming.pop_if(|fault| fault.at <= now) {
            self.strike(fault, sim, cluster, oracle);
        }
        while let Some(place) = self
            .on
            .iter()
            .position(|fault| fault.at + fault.lasts <= now)
        {
            let fault = self.on.remove(place);
            oracle.disturbed(format_args!("end of {fault}"));
            self.undo(fault, sim, cluster, oracle);
        }
        for node in cluster.take_healing() {
            self.start(node, sim, cluster);
        }
    }

    fn strike(
        &mut self,
        fault: Fault,
        sim: &mut turmoil::Sim<'_>,
        cluster: &Cluster,
        oracle: &Oracle,
    ) {
        oracle.disturbed(format_args!("{fault}"));
        self.on.push(fault);
        let until = sim.elapsed() + fault.lasts + AFTERMATH;
        (0..cluster.hosts())
            .filter(|node| fault.touches(*node))
            .for_each(|node| oracle.node_faulted(node, until));
        let node = fault.node;
        match fault.kind {
            Kind::PowerLoss => self.crash(node, true, sim, cluster, oracle),
            Kind::Kill => self.crash(node, false, sim, cluster, oracle),
            Kind::PowerLossOfAll => {
                (0..cluster.hosts()).for_each(|node| self.crash(node, true, sim, cluster, oracle))
            }
            Kind::Stop => cluster.order(node, Order::Stop),
            Kind::Upgrade => {
                cluster.upgrade(node);
                cluster.order(node, Order::Stop);
            }
            Kind::Wipe => {
                self.crash(node, true, sim, cluster, oracle);
                cluster.replace_disk(node);
            }
            Kind::Leave => {
                self.crash(node, true, sim, cluster, oracle);
                cluster.lose(node);
                oracle.node_gone(node);
            }
            Kind::Join => {
                cluster.join();
                sim.bounce(node_name(cluster.hosts() - 1));
            }
            Kind::Move => cluster.order(
                node,
                Order::Move {
                    shard: fault.which,
                    to: fault.other,
                },
            ),
            Kind::Rot => {
                let restarts = fault.which.is_multiple_of(2);
                if restarts {
                    self.crash(node, false, sim, cluster, oracle);
                }
                let entries = 1 + fault.which / 2 % ROTTEN;
                cluster.rot(node, entries, &mut |below| self.rng.random_range(0..below));
                if restarts {
                    self.start(node, sim, cluster);
                }
            }
            Kind::Jump => cluster.order(node, Order::Jump(fault.leap())),
            Kind::FailingSync => cluster.disk(node).fail_syncs(1),
            Kind::SlowDisk | Kind::FullDisk => self.set_disk(node, cluster),
            Kind::Garble => self.set_packets(node, cluster),
            Kind::Partition | Kind::Cut | Kind::OneWay | Kind::Hold | Kind::Pause | Kind::Loss => {
                self.set_links(sim, cluster, oracle)
            }
        }
    }

    fn undo(
        &mut self,
        fault: Fault,
        sim: &mut turmoil::Sim<'_>,
        cluster: &Cluster,
        oracle: &Oracle,
    ) {
        let node = fault.node;
        match fault.kind {
            Kind::PowerLoss | Kind::Kill | Kind::Wipe => self.start(node, sim, cluster),
            Kind::PowerLossOfAll => {
                for node in cluster.members() {
                    self.start(node, sim, cluster);
                }
            }
            Kind::Leave => cluster.forget_gone(),
            Kind::Stop | Kind::Upgrade => {
                if sim.is_host_running(node_name(node)) {
                    self.crash(node, false, sim, cluster, oracle);
                }
                self.start(node, sim, cluster);
            }
            Kind::FailingSync => {
                cluster.disk(node).fail_syncs(0);
                self.crash(node, true, sim, cluster, oracle);
                self.start(node, sim, cluster);
            }
            Kind::FullDisk => {
                self.set_disk(node, cluster);
                self.crash(node, false, sim, cluster, oracle);
                self.start(node, sim, cluster);
            }
            Kind::SlowDisk => self.set_disk(node, cluster),
            Kind::Garble => self.set_packets(node, cluster),
            Kind::Rot => {
                if cluster.unrot(node) {
                    self.crash(node, false, sim, cluster, oracle);
                    self.start(node, sim, cluster);
                }
            }
            Kind::Join | Kind::Move | Kind::Jump => {}
            Kind::Partition | Kind::Cut | Kind::OneWay | Kind::Hold | Kind::Pause | Kind::Loss => {
                self.set_links(sim, cluster, oracle)
            }
        }
    }

    /// A node that is down already stays down; of its disk there may now be less.
    fn crash(
        &mut self,
        node: usize,
        power_loss: bool,
        sim: &mut turmoil::Sim<'_>,
        cluster: &Cluster,
        oracle: &Oracle,
    ) {
        oracle.node_down(node);
        if power_loss {
            cluster
                .disk(node)
                .crash(&mut |below| self.rng.random_range(0..below));
        }
        sim.crash(node_name(node));
    }

    /// Starts a node again, unless another fault keeps it down.
    fn start(&self, node: usize, sim: &mut turmoil::Sim<'_>, cluster: &Cluster) {
        let downs = |fault: &Fault| fault.kind.downs() && fault.touches(node);
        let stays_down = cluster.is_gone(node) || self.on.iter().any(downs);
        if !stays_down && !sim.is_host_running(node_name(node)) {
            sim.bounce(node_name(node));
        }
    }

    fn is_on(&self, node: usize, kind: Kind) -> Option<&Fault> {
        self.on
            .iter()
            .find(|fault| fault.kind == kind && fault.node == node)
    }

    /// Brings a disk into the state that the faults under way ask for.
    fn set_disk(&self, node: usize, cluster: &Cluster) {
        let disk = cluster.disk(node);
        match self.is_on(node, Kind::SlowDisk) {
            Some(_) => disk.set_sync_delay(Duration::from_millis(80)),
            None => cluster.reset_disk(node),
        }
        let full = self.is_on(node, Kind::FullDisk);
        disk.set_capacity(full.map(|fault| disk.used_bytes() + fault.which % 20_000));
    }

    fn set_packets(&self, node: usize, cluster: &Cluster) {
        let garbled = self.is_on(node, Kind::Garble);
        cluster.garble(node, garbled.map(|fault| fault.which));
    }

    /// Brings each link into the state that the faults under way ask for.
    fn set_links(&self, sim: &mut turmoil::Sim<'_>, cluster: &Cluster, oracle: &Oracle) {
        let nodes = cluster.hosts();
        for a in 0..nodes {
            for b in a + 1..nodes {
                self.set_link(a, b, sim);
            }
        }
        for node in 0..nodes {
            let paused = self
                .on
                .iter()
                .any(|fault| fault.kind == Kind::Pause && fault.node == node);
            if paused {
                sim.hold(node_name(node), CLIENTS);
            } else {
                sim.release(node_name(node), CLIENTS);
            }
            oracle.node_paused(node, paused);
        }
    }

    fn set_link(&self, a: usize, b: usize, sim: &mut turmoil::Sim<'_>) {
        let of = |fault: &Fault| fault.node == a || fault.node == b;
        let between = |fault: &Fault| of(fault) && (fault.other == a || fault.other == b);
        let (mut cut, mut held, mut lossy, mut silent) = (false, false, false, Vec::new());
        for fault in &self.on {
            match fault.kind {
                Kind::Partition => cut |= of(fault),
                Kind::Cut => cut |= between(fault),
                Kind::OneWay if of(fault) => silent.push(fault.node),
                Kind::Hold | Kind::Pause => held |= of(fault),
                Kind::Loss => lossy |= between(fault),
                Kind::OneWay
                | Kind::PowerLoss
                | Kind::Kill
                | Kind::PowerLossOfAll
                | Kind::Stop
                | Kind::Garble
                | Kind::SlowDisk
                | Kind::FailingSync
                | Kind::FullDisk
                | Kind::Wipe
                | Kind::Join
                | Kind::Move
                | Kind::Leave
                | Kind::Rot
                | Kind::Jump
                | Kind::Upgrade => {}
            }
        }
        let (from, to) = (node_name(a), node_name(b));
        sim.set_link_fail_rate(from.as_str(), to.as_str(), if lossy { LOSS } else { 0.0 });
        // What is held comes through before anything else is decided on.
        sim.release(from.as_str(), to.as_str());
        sim.repair(from.as_str(), to.as_str());
        if cut {
            sim.partition(from.as_str(), to.as_str());
        } else if !silent.is_empty() {
            for node in silent {
                let other = if node == a { b } else { a };
                sim.partition_oneway(node_name(node), node_name(other));
            }
        } else if held {
            sim.hold(from.as_str(), to.as_str());
        }
    }
}
