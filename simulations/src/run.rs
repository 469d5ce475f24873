//! One run: hosts, steps, faults on time, and the last checks.
//!
//! Flow: the cluster forms; clients work while faults strike; faults end, every node must serve again soon and clients go on for a while; clients finish; queues
//! are emptied, exclusive queues must be gone, and the tables must have come together.

use crate::certificates::Certificates;
use crate::cluster::Cluster;
use crate::faults::Driver;
use crate::invariants::{Digests, Exclusives, Fact, Leaders, Levels, Space};
use crate::options::{Options, node_name};
use crate::oracle::{Oracle, Phase, Violation};
use crate::timeline::{Detail, Timeline};
use crate::workloads::{Worker, Workload};
use crate::{drain, panics, probe};
use futures::future::{FutureExt as _, LocalBoxFuture};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use turmoil::Sim;
use warren_model::{Level, ShardId};

/// One step of the simulation.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// A cluster that comes up for the first time routes within this time.
const FORMING: Duration = Duration::from_secs(20);
/// How long clients go on after the last fault: until every node must serve again, and then in calm.
const HEALING: Duration = Duration::from_secs(16);
/// Every client ends within this time: a few operations, each within its deadline.
const STOPPING: Duration = Duration::from_secs(120);
/// Tables have come together and left-overs are gone within this time after the last client.
const CHECKING: Duration = Duration::from_secs(60);

/// The host that all clients are on: each host costs time at every step, whether anything happens on it or not.
pub(crate) const CLIENTS: &str = "clients";

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// What it was like.
    pub options: Options,
    /// How much time was simulated.
    pub simulated: Duration,
    /// The first invariant that did not hold.
    pub violation: Option<Violation>,
    /// What happened.
    pub timeline: Timeline,
    /// What was done and checked, for people: a run that does nothing proves nothing.
    pub counts: Counts,
}

/// What a run has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Operations of clients.
    pub operations: u64,
    /// Messages delivered.
    pub deliveries: u64,
    /// Digests of two nodes compared.
    pub digests: u64,
    /// Answered declares held against tables that routed.
    pub declares: u64,
    /// Hash rings compared.
    pub rings: u64,
    /// Names of exclusive queues taken again.
    pub exclusives: u64,
    /// Confirmed messages looked for at the end.
    pub drained: u64,
    /// Deliveries that were not the first of their message.
    pub again: u64,
}

/// Runs a seed's simulation. `progress` follows the simulated time, in milliseconds: a run whose time stands still has code that runs without end.
#[must_use]
pub fn run(
    options: &Options,
    certificates: &Certificates,
    detail: Detail,
    progress: &Arc<AtomicU64>,
) -> Report {
    let timeline = Timeline::new(detail);
    panics::watch();
    let (oracle, simulated) = tracing::subscriber::with_default(timeline.clone(), || {
        Run::new(options, certificates, &timeline, progress).run()
    });
    panics::unwatch();
    let state = oracle.state();
    let counts = Counts {
        deliveries: state.messages.deliveries(),
        digests: state.digests.compared(),
        declares: state.declares.checks(),
        rings: state.ring.compared(),
        exclusives: state.exclusives.times_taken_over(),
        drained: state.messages.drained(),
        again: state.holds.again(),
        operations: 0,
    };
    drop(state);
    let counts = Counts {
        operations: oracle.operations(),
        ..counts
    };
    Report {
        options: options.clone(),
        simulated,
        violation: oracle.violation(),
        timeline,
        counts,
    }
}

/// Everything that talks with nodes as a client.
fn clients(
    options: &Options,
    cluster: &Cluster,
    oracle: &Oracle,
) -> Vec<LocalBoxFuture<'static, ()>> {
    let work = |(number, workload): (usize, &Workload)| {
        let worker = Worker::new(options, number, oracle.clone());
        worker.run(*workload).boxed_local()
    };
    let probe = |node| probe::run(oracle.clone(), cluster.clone(), node).boxed_local();
    let mut clients: Vec<_> = options.workloads.iter().enumerate().map(work).collect();
    clients.extend((0..options.hosts()).map(probe));
    if options.workloads.contains(&Workload::Publish) {
        clients.push(drain::run(oracle.clone()).boxed_local());
    }
    clients
}

struct Run<'a> {
    options: &'a Options,
    sim: Sim<'static>,
    cluster: Cluster,
    oracle: Oracle,
    progress: Arc<AtomicU64>,
}

impl<'a> Run<'a> {
    fn new(
        options: &'a Options,
        certificates: &Certificates,
        timeline: &Timeline,
        progress: &Arc<AtomicU64>,
    ) -> Self {
        let mut sim = turmoil::Builder::new()
            .rng_seed(options.seed)
            .enable_random_order()
            .tick_duration(TICK)
            .min_message_latency(options.latency.0)
            .max_message_latency(options.latency.1)
            .udp_capacity(65_536)
            .tcp_capacity(1_024)
            .simulation_duration(Duration::from_secs(86_400))
            .build();
        let oracle = Oracle::new(options.hosts(), timeline.clone());
        let cluster = Cluster::new(options, certificates);
        cluster.add_hosts(&mut sim, &oracle);
        let clients = clients(options, &cluster, &oracle);
        sim.client(CLIENTS, async move {
            let clients: Vec<_> = clients.into_iter().map(tokio::task::spawn_local).collect();
            for client in clients {
                // One that has panicked has left it with `panics`.
                let _ = client.await;
            }
            Ok(())
        });
        Self {
            options,
            sim,
            cluster,
            oracle,
            progress: progress.clone(),
        }
    }

    fn run(mut self) -> (Oracle, Duration) {
        // A phase that fails has said why.
        if self.phases().is_none() {
            self.note_shards();
            self.note_links();
        }
        let simulated = self.sim.elapsed();
        // Nodes go before the simulation does; what they say in going is of no matter.
        (0..self.cluster.hosts()).for_each(|node| self.oracle.node_down(node));
        drop(self.sim);
        (self.oracle, simulated)
    }

    fn phases(&mut self) -> Option<()> {
        self.until("serves-again", "the cluster has formed", FORMING, |run| {
            run.oracle.all_route(run.options.nodes)
        })?;
        if self.options.sabotage {
            self.oracle
                .state()
                .declares
                .settle(Fact::Queue("nobody declares this".into()), true);
        }
        self.oracle.enter(Phase::Working);
        let begins = self.sim.elapsed();
        let mut driver = Driver::new(
            &self.options.faults,
            begins,
            StdRng::seed_from_u64(self.options.seed ^ 0xfa17),
        );
        let (end, mut done) = (begins + self.options.work, false);
        while self.sim.elapsed() < end || !done {
            driver.step(&mut self.sim, &self.cluster, &self.oracle);
            done = driver.is_done();
            self.step()?;
        }
        self.oracle.enter(Phase::Healing);
        let healed = self.sim.elapsed();
        let mut led = None;
        while self.sim.elapsed() < healed + HEALING {
            // No fault is left, but a node may just have set damaged data aside.
            driver.step(&mut self.sim, &self.cluster, &self.oracle);
            self.step()?;
            if led.is_none() && self.is_look_due() {
                let misled = self.misled();
                let now = self.sim.elapsed();
                match misled {
                    None => led = Some(now),
                    Some(misled) if now > healed + Leaders::SOON => {
                        self.oracle.violated(
                            Leaders::NAME,
                            format_args!("{:?} after the last fault: {misled}", now - healed),
                        );
                    }
                    Some(_) => {}
                }
                if led.is_some() {
                    self.oracle.note(
                        "run",
                        format_args!("preferred leaders lead after {:?}", now - healed),
                    );
                }
            }
        }
        self.oracle.enter(Phase::Stopping);
        let clients = self.options.workloads.len();
        self.until("no-hang", "all clients have finished", STOPPING, |run| {
            run.oracle.clients_done() == clients
        })?;
        self.oracle.enter(Phase::Checking);
        self.until(
            Exclusives::NAME,
            "exclusive queues are gone",
            CHECKING,
            |run| run.on_tables(|name, table| Exclusives::left_in(name, table).is_ok()),
        )?;
        self.until(
            Digests::NAME,
            "all tables have come together",
            CHECKING,
            Self::tables_are_equal,
        )?;
        self.until(
            Levels::NAME,
            "the cluster has come to the newest level",
            CHECKING,
            |run| run.on_tables(|_, table| table.level() == Level::NEWEST),
        )?;
        while !self.step()? {}
        self.check_space()
    }

    /// Whether it is time for a look that costs something.
    fn is_look_due(&self) -> bool {
        self.sim.elapsed().as_millis().is_multiple_of(100)
    }

    /// A shard that some node does not know to be led by its preferred leader.
    fn misled(&self) -> Option<String> {
        let running = self.oracle.running();
        if running.len() != self.cluster.members().len() {
            return Some("not all nodes run".to_owned());
        }
        let misled = |(_, node): &(usize, Arc<warren_node::Node>)| Leaders::misled(node);
        running
            .iter()
            .find_map(misled)
            .map(|misled| misled.to_string())
    }

    /// Writes down how each node sees each shard.
    fn note_shards(&self) {
        for (number, node) in self.oracle.running() {
            for shard in 0..self.options.shards {
                if let Some(status) = node.shard_status(ShardId(shard)) {
                    self.oracle
                        .note(&node_name(number), format_args!("{status:?}"));
                }
            }
        }
    }

    /// Writes down each node's links: what waits on one that is stuck, for example.
    fn note_links(&self) {
        for (number, node) in self.oracle.running() {
            for link in node.links() {
                self.oracle
                    .note(&node_name(number), format_args!("{link:?}"));
            }
        }
    }

    /// Holds what disks hold against what they may, where all was drained.
    fn check_space(&mut self) -> Option<()> {
        if !self.oracle.is_drained() {
            return Some(());
        }
        let kept_bytes = self.oracle.state().kept_bytes;
        for (number, node) in self.oracle.running() {
            let space = Space {
                checkpoint_bytes: self.options.logs.checkpoint_bytes,
                log_bytes_max: self.options.logs.log_bytes_max,
                shards: self.options.shards.into(),
                kept_bytes,
                commands: node.metadata().table().read().index(),
            };
            let used = self.cluster.disk(number).used_bytes();
            self.oracle.note(
                "run",
                format_args!("the disk of {} holds {used} bytes", node_name(number)),
            );
            let verdict = space.check(&node_name(number), used);
            self.oracle.judge(Space::NAME, verdict);
        }
        self.oracle.violation().is_none().then_some(())
    }

    /// Steps until something is so; a violation if it does not come about in time.
    fn until(
        &mut self,
        invariant: &'static str,
        what: &str,
        within: Duration,
        is_so: impl Fn(&Self) -> bool,
    ) -> Option<()> {
        let end = self.sim.elapsed() + within;
        while !is_so(self) {
            if self.sim.elapsed() > end {
                self.oracle
                    .violated(invariant, format_args!("not so within {within:?}: {what}"));
                return None;
            }
            self.step()?;
        }
        Some(())
    }

    /// One tick of everything. None once an invariant is broken; true when all clients are done.
    fn step(&mut self) -> Option<bool> {
        let stepped = self.sim.step();
        self.oracle.stepped(self.sim.elapsed());
        self.oracle.judge_suspicions();
        self.progress.store(
            u64::try_from(self.sim.elapsed().as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        for panic in panics::take() {
            self.oracle.violated("no-panic", panic);
        }
        match stepped {
            Ok(done) if self.oracle.violation().is_none() => Some(done),
            Ok(_) => None,
            Err(error) => {
                self.oracle.violated("no-panic", error);
                None
            }
        }
    }

    fn on_tables(&self, holds: impl Fn(&str, &warren_routing::Table) -> bool) -> bool {
        let running = self.oracle.running();
        running.len() == self.cluster.members().len()
            && running
                .iter()
                .all(|(number, node)| holds(&node_name(*number), &node.metadata().table().read()))
    }

    fn tables_are_equal(&self) -> bool {
        let running = self.oracle.running();
        let tables: Vec<_> = running
            .iter()
            .map(|(_, node)| {
                (
                    node.metadata().table().read().index(),
                    node.metadata().table().read().digest(),
                )
            })
            .collect();
        tables.len() == self.cluster.members().len()
            && tables.windows(2).all(|pair| pair[0] == pair[1])
    }
}
