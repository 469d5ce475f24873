//! What a run is like, drawn from its seed: cluster, network, disks, workloads and faults.
//!
//! Swarm testing: each run has a part of the workloads and fault kinds switched off, since what is always on hides what only shows without it.

use crate::faults::{Fault, Kind};
use crate::workloads::Workload;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::time::Duration;

/// Everything that is drawn before a run begins.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Shards that it is founded with.
    pub shards: u16,
    /// Least and greatest latency of a packet.
    pub latency: (Duration, Duration),
    /// How long a disk takes to sync.
    pub sync_delay: Duration,
    /// Workloads, one a client host.
    pub workloads: Vec<Workload>,
    /// Longest pause of a client between two things it does.
    pub think: Duration,
    /// Heartbeat that clients agree on, in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Kinds of faults of this run.
    pub kinds: Vec<Kind>,
    /// The faults, in the order of their beginnings.
    pub faults: Vec<Fault>,
    /// How long clients work while faults strike, from when the cluster stands.
    pub work: Duration,
    /// The oracle is told something false, to show that it finds out.
    pub sabotage: bool,
}

/// Name of a node, and of its host.
#[must_use]
pub fn node_name(node: usize) -> String {
    format!("n{}", node + 1)
}

impl Options {
    /// The options of a seed. Faults strike for `work`, or for as long as the seed says.
    #[must_use]
    pub fn of(seed: u64, work: Option<Duration>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let drawn = Duration::from_secs(rng.random_range(15..50));
        let work = work.unwrap_or(drawn);
        let nodes = if rng.random_bool(0.15) { 1 } else { 3 };
        let latency_min = Duration::from_micros(*pick(&mut rng, &[200, 500, 1000, 2000]));
        let latency = (
            latency_min,
            latency_min + Duration::from_millis(*pick(&mut rng, &[1, 2, 5, 20])),
        );
        let kinds: Vec<Kind> = Kind::ALL
            .iter()
            .copied()
            .filter(|kind| rng.random_bool(0.45) && kind.fits(nodes))
            .collect();
        let faults = crate::faults::plan(&mut rng, &kinds, nodes, work);
        Self {
            seed,
            nodes,
            shards: *pick(&mut rng, &[1, 3, 16]),
            latency,
            sync_delay: Duration::from_micros(*pick(&mut rng, &[0, 150, 1000, 8000])),
            workloads: workloads(&mut rng),
            think: Duration::from_millis(*pick(&mut rng, &[5, 20, 100, 300])),
            heartbeat_s: *pick(&mut rng, &[0, 2, 10]),
            kinds,
            faults,
            work,
            sabotage: false,
        }
    }
}

/// Between three and seven clients, of one to four sorts.
fn workloads(rng: &mut StdRng) -> Vec<Workload> {
    let mut sorts: Vec<Workload> = Workload::ALL
        .iter()
        .copied()
        .filter(|_| rng.random_bool(0.55))
        .collect();
    if sorts.is_empty() {
        sorts.push(*pick(rng, &Workload::ALL));
    }
    let clients = rng.random_range(3..=7).max(sorts.len());
    let mut all = sorts.clone();
    while all.len() < clients {
        all.push(*pick(rng, &sorts));
    }
    if all.contains(&Workload::Consume) && !all.contains(&Workload::Publish) {
        all.push(Workload::Publish);
    }
    all
}

/// One of these.
pub(crate) fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<_>>().join("+");
        let workloads = names(&mut self.workloads.iter().map(|w| w.name().to_owned()));
        let kinds = match self.kinds.len() {
            0 => "no faults".to_owned(),
            _ => format!(
                "{} faults of {}",
                self.faults.len(),
                names(&mut self.kinds.iter().map(|k| k.name().to_owned()))
            ),
        };
        write!(
            f,
            "{} node{}, {} shards, packets {:?} to {:?}, syncs {:?}, {workloads}, {kinds}",
            self.nodes,
            if self.nodes == 1 { "" } else { "s" },
            self.shards,
            self.latency.0,
            self.latency.1,
            self.sync_delay
        )
    }
}
