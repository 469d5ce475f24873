//! What a run is like, drawn from its seed: cluster, network, disks, workloads and faults.
//!
//! Swarm testing: each run has a part of the workloads and fault kinds switched off, since what is always on hides what only shows without it.

use crate::faults::{Fault, Kind};
use crate::workloads::{Take, Workload};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::time::Duration;
use warren_node::ShardLogs;

/// Seeds from this one on are about replicated queues.
pub const QUEUES: u64 = 1_000_000;
/// Seeds from this one on are about the cluster's metadata.
pub const METADATA: u64 = 2_000_000;
/// Seeds from this one on are about leaders that others take for dead.
pub const LEADERS: u64 = 3_000_000;
/// Seeds from this one on are about clusters whose nodes are upgraded one after the other.
pub const UPGRADES: u64 = 4_000_000;
/// The first seeds of each sort lack the latest kinds of faults, and so go on meaning what they meant.
const LATEST: u64 = 100;

/// Faults that make shards change their leader, or that lose what is on its way to it.
const CHANGING_LEADERS: [Kind; 11] = [
    Kind::PowerLoss,
    Kind::Kill,
    Kind::Stop,
    Kind::Partition,
    Kind::Cut,
    Kind::OneWay,
    Kind::Hold,
    Kind::Pause,
    Kind::Loss,
    Kind::SlowDisk,
    Kind::Move,
];

/// Faults that part a leader from its majority and leave it running.
const PARTING: [Kind; 3] = [Kind::Partition, Kind::OneWay, Kind::Hold];

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
    /// How much of the shards' logs is kept.
    pub logs: ShardLogs,
    /// How much faster than the true time each node's clock runs.
    pub drifts: Vec<f64>,
    /// How likely a client cuts its connection in the middle of what it writes, at each write.
    pub cuts: f64,
    /// How clients take messages from queues: one of these each time.
    pub takes: Vec<Take>,
    /// How long consumers take over a message, in milliseconds: one of these each time. Slow ones have queues fill up.
    pub slow_ms: Vec<u64>,
    /// Everybody publishes to one queue and consumes from it.
    pub one_queue: bool,
    /// Kinds of faults of this run.
    pub kinds: Vec<Kind>,
    /// The faults, in the order of their beginnings.
    pub faults: Vec<Fault>,
    /// How long clients work while faults strike, from when the cluster stands.
    pub work: Duration,
    /// The oracle is told something false, to show that it finds out.
    pub sabotage: bool,
}

impl Options {
    /// Nodes that there may be: those that found the cluster, and one that may join.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.nodes + usize::from(self.kinds.contains(&Kind::Join))
    }
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
        let options = match seed {
            UPGRADES.. => Self::of_upgrades(seed, work),
            LEADERS.. => Self::of_leaders(seed, work),
            METADATA.. => Self::of_metadata(seed, work),
            QUEUES.. => Self::of_queues(seed, work),
            ..QUEUES => Self::of_everything(seed, work),
        };
        options.with_latest_faults()
    }

    /// In a part of the runs bits rot, and in a part clocks leap.
    fn with_latest_faults(mut self) -> Self {
        if self.seed % QUEUES < LATEST {
            return self;
        }
        let mut rng = StdRng::seed_from_u64(self.seed ^ 0x1a7e57);
        let (rots, jumps) = (rng.random_bool(0.25), rng.random_bool(0.25));
        // A run takes the disk of one node at most.
        let takes_disks = self.kinds.contains(&Kind::Wipe) || self.kinds.contains(&Kind::Leave);
        let rots = usize::from(rots && !takes_disks && Kind::Rot.fits(self.nodes));
        let jumps = if jumps { rng.random_range(1..=8) } else { 0 };
        for (kind, times) in [(Kind::Rot, rots), (Kind::Jump, jumps)] {
            for _ in 0..times {
                let (faults, nodes) = (&mut self.faults, self.nodes);
                if crate::faults::plan_one(&mut rng, faults, kind, nodes, self.work)
                    && !self.kinds.contains(&kind)
                {
                    self.kinds.push(kind);
                }
            }
        }
        self
    }

    fn of_everything(seed: u64, work: Option<Duration>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let drawn = Duration::from_secs(rng.random_range(15..50));
        let work = work.unwrap_or(drawn);
        let nodes = *pick(&mut rng, &[1, 3, 3, 3, 3, 3, 3, 3, 5, 5]);
        let latency_min = Duration::from_micros(*pick(&mut rng, &[200, 500, 1000, 2000]));
        let latency = (
            latency_min,
            // Packets overtake each other within this: much more, and QUIC takes all the time for lost what is only late.
            latency_min + Duration::from_millis(*pick(&mut rng, &[1, 2, 5, 10])),
        );
        let mut kinds: Vec<Kind> = Kind::ALL
            .iter()
            .copied()
            .filter(|kind| !kind.is_drawn_later())
            .filter(|kind| rng.random_bool(0.35) && kind.fits(nodes))
            .collect();
        let mut faults = crate::faults::plan(&mut rng, &kinds, nodes, work);
        // What came later draws from a generator of its own, so that seeds go on meaning what they meant.
        let mut later = StdRng::seed_from_u64(seed ^ 0x1a7e);
        let leaves = later.random_bool(0.2) && Kind::Leave.fits(nodes);
        if leaves
            && !kinds.contains(&Kind::Wipe)
            && crate::faults::plan_one(&mut later, &mut faults, Kind::Leave, nodes, work)
        {
            kinds.push(Kind::Leave);
        }
        Self {
            seed,
            nodes,
            shards: if rng.random_bool(0.5) {
                *pick(&mut rng, &[1, 3, 16])
            } else {
                rng.random_range(1..=16)
            },
            latency,
            sync_delay: Duration::from_micros(*pick(&mut rng, &[0, 150, 1000, 8000])),
            workloads: workloads(&mut rng),
            think: Duration::from_millis(*pick(&mut rng, &[5, 20, 100, 300])),
            heartbeat_s: *pick(&mut rng, &[0, 2, 10]),
            logs: ShardLogs {
                checkpoint_bytes: *pick(&mut rng, &[2 << 10, 32 << 10, 256 << 10, 16 << 20]),
                log_bytes_max: *pick(&mut rng, &[64 << 10, 256 << 10, 1 << 20, 64 << 20]),
            },
            drifts: drifts(&mut rng, nodes),
            cuts: *pick(&mut rng, &[0.0, 0.0, 0.0, 0.001, 0.01]),
            takes: takes(&mut StdRng::seed_from_u64(seed ^ 0x7a4e)),
            slow_ms: vec![0],
            one_queue: false,
            kinds,
            faults,
            work,
            sabotage: false,
        }
    }
}

impl Options {
    /// A run that is all about replicated queues: few shards, many who publish and take, and faults close to each other that make leaders change.
    fn of_queues(seed: u64, work: Option<Duration>) -> Self {
        use Workload::{Consume, Publish};
        let mut rng = StdRng::seed_from_u64(seed);
        let drawn = Duration::from_secs(rng.random_range(10..25));
        let work = work.unwrap_or(drawn);
        let nodes = *pick(&mut rng, &[3, 3, 3, 3, 5]);
        let latency_min = Duration::from_micros(*pick(&mut rng, &[200, 500, 2000]));
        let latency = (
            latency_min,
            latency_min + Duration::from_millis(*pick(&mut rng, &[1, 2, 10])),
        );
        let kinds: Vec<Kind> = CHANGING_LEADERS
            .iter()
            .copied()
            .filter(|_| rng.random_bool(0.5))
            .collect();
        let faults = busiest(&mut rng, &kinds, nodes, work);
        let workloads = std::iter::repeat_n(Publish, rng.random_range(1..=3))
            .chain(std::iter::repeat_n(Consume, rng.random_range(2..=5)))
            .collect();
        Self {
            seed,
            nodes,
            shards: rng.random_range(1..=3),
            latency,
            sync_delay: Duration::from_micros(*pick(&mut rng, &[0, 150, 1000, 8000])),
            workloads,
            think: Duration::from_millis(*pick(&mut rng, &[5, 20, 100])),
            heartbeat_s: *pick(&mut rng, &[0, 2, 10]),
            logs: ShardLogs {
                checkpoint_bytes: *pick(&mut rng, &[2 << 10, 32 << 10, 16 << 20]),
                log_bytes_max: *pick(&mut rng, &[64 << 10, 1 << 20, 64 << 20]),
            },
            drifts: drifts(&mut rng, nodes),
            cuts: *pick(&mut rng, &[0.0, 0.0, 0.001, 0.01]),
            takes: takes(&mut rng),
            slow_ms: pick(&mut rng, &[&[0][..], &[0, 0, 10, 50], &[20, 50, 200]]).to_vec(),
            one_queue: false,
            kinds,
            faults,
            work,
            sabotage: false,
        }
    }

    /// A run that is all about metadata: many changes at once, through leaders that lose their majority while they are proposed.
    fn of_metadata(seed: u64, work: Option<Duration>) -> Self {
        use Workload::{Contend, Exclusive, Topology};
        let mut rng = StdRng::seed_from_u64(seed);
        let mut options = Self::of_queues(seed, work);
        options.shards = 1;
        let also = options
            .kinds
            .iter()
            .copied()
            .filter(|_| rng.random_bool(0.3));
        options.kinds = PARTING.into_iter().chain(also).collect();
        options.faults = busiest(&mut rng, &options.kinds, options.nodes, options.work);
        options.workloads = (0..rng.random_range(4..=7))
            .map(|_| *pick(&mut rng, &[Contend, Contend, Topology, Exclusive]))
            .collect();
        options.think = Duration::from_millis(*pick(&mut rng, &[5, 20]));
        options
    }

    /// A run whose leaders are parted from the others, one at a time and for long, while queues are full, and some consumers slow: what two that both take
    /// themselves for a shard's leader would deliver shows.
    fn of_leaders(seed: u64, work: Option<Duration>) -> Self {
        use Workload::{Consume, Publish};
        let mut options = Self::of_queues(seed, work);
        let mut rng = StdRng::seed_from_u64(seed);
        let drawn = Duration::from_secs(rng.random_range(25..45));
        options.work = work.unwrap_or(drawn);
        options.shards = 1;
        let kinds = PARTING.iter().filter(|_| rng.random_bool(0.6));
        options.kinds = kinds.copied().collect();
        let (kinds, nodes) = (&options.kinds, options.nodes);
        options.faults = crate::faults::plan_apart(&mut rng, kinds, nodes, options.work);
        options.workloads = std::iter::repeat_n(Publish, rng.random_range(2..=3))
            .chain(std::iter::repeat_n(Consume, rng.random_range(5..=8)))
            .collect();
        options.think = Duration::from_millis(*pick(&mut rng, &[5, 20]));
        options.takes = vec![Take::Acknowledged];
        // The queue fills up, and the consumers of one leader get ahead of the other's.
        options.slow_ms = vec![20, 200, 400];
        options.one_queue = true;
        options
    }

    /// A run with whatever there is, whose nodes begin as an older release and are upgraded one after the other.
    fn of_upgrades(seed: u64, work: Option<Duration>) -> Self {
        let mut options = Self::of_everything(seed, work);
        let mut rng = StdRng::seed_from_u64(seed ^ 0x1e7e1);
        let (faults, nodes) = (&mut options.faults, options.nodes);
        crate::faults::plan_upgrades(&mut rng, faults, nodes, options.work);
        options.kinds.push(Kind::Upgrade);
        options
    }

    /// What the simulator's speed is measured by: three nodes, 16 shards, no faults, and 200 messages a second through queues on all of them.
    #[must_use]
    pub fn bench(seed: u64, work: Duration) -> Self {
        use Workload::{Consume, Publish};
        Self {
            seed,
            nodes: 3,
            shards: 16,
            latency: (Duration::from_micros(500), Duration::from_millis(2)),
            sync_delay: Duration::from_millis(1),
            workloads: vec![Publish, Publish, Consume, Consume, Consume],
            // Each publisher sends 4.5 messages on average, and then pauses for 45 ms on average.
            think: Duration::from_millis(70),
            heartbeat_s: 10,
            logs: ShardLogs {
                checkpoint_bytes: 256 << 10,
                log_bytes_max: 1 << 20,
            },
            drifts: vec![0.0; 4],
            cuts: 0.0,
            takes: vec![Take::Acknowledged],
            slow_ms: vec![0],
            one_queue: false,
            kinds: Vec::new(),
            faults: Vec::new(),
            work,
            sabotage: false,
        }
    }
}

/// The one of a few plans with the most to bear.
fn busiest(rng: &mut StdRng, kinds: &[Kind], nodes: usize, work: Duration) -> Vec<Fault> {
    let mut plan = || crate::faults::plan(rng, kinds, nodes, work);
    let plans: Vec<Vec<Fault>> = (0..3).map(|_| plan()).collect();
    let weight = |plan: &Vec<Fault>| plan.iter().map(|fault| fault.lasts).sum::<Duration>();
    plans.into_iter().max_by_key(weight).unwrap_or_default()
}

/// Clocks of the nodes, and of one that may join.
fn drifts(rng: &mut StdRng, nodes: usize) -> Vec<f64> {
    let most = *pick(rng, &[0.0, 0.0, 0.001, 0.01]);
    let drift = |_| most * rng.random_range(0.0..1.0);
    (0..=nodes).map(drift).collect()
}

/// A third of the runs have acknowledgements only, as it excuses nothing; the others mix.
fn takes(rng: &mut StdRng) -> Vec<Take> {
    use Take::{Acknowledged, Given, OneByOne};
    let of: [&[Take]; 6] = [
        &[Acknowledged],
        &[Acknowledged],
        &[Acknowledged, Given],
        &[Acknowledged, OneByOne],
        &[Acknowledged, OneByOne, OneByOne],
        &[Acknowledged, Given, OneByOne],
    ];
    pick(rng, &of).to_vec()
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
            "{} node{}, {} shards of {} and {} KiB, packets {:?} to {:?}, syncs {:?}",
            self.nodes,
            if self.nodes == 1 { "" } else { "s" },
            self.shards,
            self.logs.checkpoint_bytes >> 10,
            self.logs.log_bytes_max >> 10,
            self.latency.0,
            self.latency.1,
            self.sync_delay
        )?;
        let drift = self.drifts.iter().copied().fold(0.0, f64::max);
        if drift > 0.0 {
            write!(f, ", clocks apart by {:.2} %", drift * 100.0)?;
        }
        if self.cuts > 0.0 {
            write!(f, ", cuts of {}", self.cuts)?;
        }
        if self.takes.contains(&Take::Given) {
            write!(f, ", some need not acknowledge")?;
        }
        if self.takes.contains(&Take::OneByOne) {
            write!(f, ", some get one by one")?;
        }
        write!(f, ", {workloads}, {kinds}")
    }
}
