//! Faults: what is done to the cluster, when, and how it is undone.
//!
//! Flow: [`plan`] draws all faults before the run; [`Driver::step`] strikes and undoes them when their time comes. Faults may overlap: network faults are kept as
//! a list, and each link's state is derived anew from those that are on, so that the end of one does not undo another.
//! Invariant: every fault ends within the run's working time.

use crate::cluster::Cluster;
use crate::options::{node_name, pick};
use crate::oracle::Oracle;
use rand::Rng;
use rand::rngs::StdRng;
use std::fmt;
use std::time::Duration;

/// Calm before the first fault, so that runs have something to lose.
const FIRST: Duration = Duration::from_secs(3);
/// On a bad link, how often a packet is lost together with all that are under way.
const LOSS: f64 = 0.05;

/// What a fault does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A node loses power: what it had not synced is lost but for a part.
    PowerLoss,
    /// A node's process is killed: the system still writes what it was given.
    Kill,
    /// All nodes lose power at once.
    PowerLossOfAll,
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
    /// A node's disk becomes very slow.
    SlowDisk,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::PowerLoss,
        Self::Kill,
        Self::PowerLossOfAll,
        Self::Partition,
        Self::Cut,
        Self::OneWay,
        Self::Hold,
        Self::Pause,
        Self::Loss,
        Self::SlowDisk,
    ];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PowerLoss => "power-loss",
            Self::Kill => "kill",
            Self::PowerLossOfAll => "power-loss-of-all",
            Self::Partition => "partition",
            Self::Cut => "cut",
            Self::OneWay => "one-way",
            Self::Hold => "hold",
            Self::Pause => "pause",
            Self::Loss => "loss",
            Self::SlowDisk => "slow-disk",
        }
    }

    /// Whether a cluster of this many nodes can have it.
    pub(crate) fn fits(self, nodes: usize) -> bool {
        match self {
            Self::PowerLoss | Self::Kill | Self::Pause | Self::SlowDisk => true,
            Self::PowerLossOfAll
            | Self::Partition
            | Self::Cut
            | Self::OneWay
            | Self::Hold
            | Self::Loss => nodes > 1,
        }
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
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = node_name(self.node);
        write!(f, "{}", self.kind.name())?;
        match self.kind {
            Kind::PowerLossOfAll => Ok(()),
            Kind::Cut | Kind::Loss => write!(f, " between {node} and {}", node_name(self.other)),
            Kind::PowerLoss
            | Kind::Kill
            | Kind::Partition
            | Kind::OneWay
            | Kind::Hold
            | Kind::Pause
            | Kind::SlowDisk => write!(f, " of {node}"),
        }?;
        write!(f, " for {:.1} s", self.lasts.as_secs_f64())
    }
}

/// Draws a run's faults.
pub(crate) fn plan(rng: &mut StdRng, kinds: &[Kind], nodes: usize, work: Duration) -> Vec<Fault> {
    let mut faults = Vec::new();
    let pause_ms = *pick(rng, &[500, 2000, 6000]);
    let longest_ms: u64 = *pick(rng, &[800, 4000, 12000]);
    let mut at = FIRST;
    while !kinds.is_empty() {
        at += Duration::from_millis(rng.random_range(50..pause_ms * 2));
        let lasts = Duration::from_millis(rng.random_range(100..longest_ms));
        if at + lasts > work {
            break;
        }
        let node = rng.random_range(0..nodes);
        let other = (node + rng.random_range(1..nodes.max(2))) % nodes;
        faults.push(Fault {
            at,
            lasts,
            kind: *pick(rng, kinds),
            node,
            other,
        });
    }
    faults
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
        match fault.kind {
            Kind::PowerLoss => self.crash(fault.node, true, sim, cluster, oracle),
            Kind::Kill => self.crash(fault.node, false, sim, cluster, oracle),
            Kind::PowerLossOfAll => {
                (0..cluster.size()).for_each(|node| self.crash(node, true, sim, cluster, oracle))
            }
            Kind::SlowDisk => cluster
                .disk(fault.node)
                .set_sync_delay(Duration::from_millis(80)),
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
        match fault.kind {
            Kind::PowerLoss | Kind::Kill => self.start(fault.node, sim),
            Kind::PowerLossOfAll => (0..cluster.size()).for_each(|node| self.start(node, sim)),
            Kind::SlowDisk => cluster.reset_disk(fault.node),
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
    fn start(&self, node: usize, sim: &mut turmoil::Sim<'_>) {
        let downs = |fault: &&Fault| match fault.kind {
            Kind::PowerLoss | Kind::Kill => fault.node == node,
            Kind::PowerLossOfAll => true,
            Kind::Partition
            | Kind::Cut
            | Kind::OneWay
            | Kind::Hold
            | Kind::Pause
            | Kind::Loss
            | Kind::SlowDisk => false,
        };
        if self.on.iter().find(downs).is_none() && !sim.is_host_running(node_name(node)) {
            sim.bounce(node_name(node));
        }
    }

    /// Brings each link into the state that the faults under way ask for.
    fn set_links(&self, sim: &mut turmoil::Sim<'_>, cluster: &Cluster, oracle: &Oracle) {
        let nodes = cluster.size();
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
            for client in cluster.clients() {
                if paused {
                    sim.hold(node_name(node), client.as_str());
                } else {
                    sim.release(node_name(node), client.as_str());
                }
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
                | Kind::SlowDisk => {}
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
