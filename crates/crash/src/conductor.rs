//! The conductor: brings faults about and takes them away again, waits for recoveries, and watches the nodes meanwhile.
//!
//! All its waits look for Ctrl-C and for nodes that ended by themselves: such a node is an incident, and is started again.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::faults::{Plan, Planned};
use crate::history::{FaultKind, FaultLog, Incident, IncidentKind, Micros};
use crate::interrupt::Interrupt;
use crate::network::NODES;
use crate::nodes::{Nodes, name, words};
use crate::shared::{Phase, Shared, micros};
use crate::wire::Wire;

const TICK: Duration = Duration::from_millis(10);
const PROGRESS: Duration = Duration::from_secs(10);
/// How long load goes on after the last recovery.
const AFTER: Duration = Duration::from_secs(2);
/// After so long without a delivery the queues count as empty.
const QUIET: Micros = 4_000_000;
/// After so long without a delivery messages that are ready are stuck.
const STUCK: Micros = 15_000_000;
/// How long deliveries may go on after the load, beyond the hang limit.
const DRAIN: Duration = Duration::from_secs(60);

/// The conductor.
pub struct Conductor {
    /// The nodes.
    pub nodes: Nodes,
    /// The present round's faults.
    pub faults: Vec<FaultLog>,
    /// The present round's incidents.
    pub incidents: Vec<Incident>,
    plan: Plan,
    interrupt: Interrupt,
    epoch: Instant,
    hang: Duration,
    progress: Instant,
}

impl Conductor {
    /// A conductor; `epoch` is when the run began.
    pub fn new(
        nodes: Nodes,
        plan: Plan,
        interrupt: Interrupt,
        epoch: Instant,
        hang: Duration,
    ) -> Self {
        Self {
            nodes,
            faults: Vec::new(),
            incidents: Vec::new(),
            plan,
            interrupt,
            epoch,
            hang,
            progress: epoch,
        }
    }

    /// Starts all nodes and waits until they route; the first start makes the cluster.
    pub fn start(&mut self, patience: Duration) -> Result<()> {
        for node in 0..NODES {
            self.nodes.start(node)?;
        }
        let deadline = Instant::now() + patience;
        while !self.all_route() {
            self.interrupt.check()?;
            for node in 0..NODES {
                if let Some(status) = self.nodes.ended(node)? {
                    anyhow::bail!(
                        "{} {}:\n      {}",
                        name(node),
                        words(status),
                        self.nodes.log_tail(node)
                    );
                }
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "not all nodes route within {} s; node1 says:\n      {}",
                patience.as_secs(),
                self.nodes.log_tail(0)
            );
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Declares the queues, each of its type; a cluster that has just been made may need a moment.
    pub fn declare(&mut self, queues: &[(String, &'static str)]) -> Result<()> {
        let deadline = Instant::now() + self.hang;
        loop {
            let attempt = self.try_declare(queues);
            match attempt {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("cannot declare the queues");
                }
                Err(_) => self.wait(Duration::from_millis(200), None, None)?,
            }
        }
    }

    fn try_declare(&self, queues: &[(String, &'static str)]) -> Result<()> {
        let mut wire = Wire::open(self.nodes.network().addresses(0).amqp, "crash conductor")?;
        for (queue, kind) in queues {
            wire.declare(queue, kind, false)?;
        }
        Ok(wire.close()?)
    }

    /// One round: load and faults until `until`, then everything healed and drained.
    pub fn round(&mut self, shared: &Shared, until: Instant) -> Result<()> {
        self.load(shared, until)?;
        self.drain(shared)
    }

    fn load(&mut self, shared: &Shared, until: Instant) -> Result<()> {
        let mut next = self.plan.draw();
        // The first of a round has none before it.
        let mut hasty = false;
        while let Some(fault) = next {
            if !hasty {
                let pause = fault
                    .pause
                    .min(until.saturating_duration_since(Instant::now()));
                self.wait(pause, None, Some(shared))?;
            }
            if Instant::now() + fault.lasts >= until {
                break;
            }
            self.strike(&fault, hasty, shared)?;
            next = self.plan.draw();
            hasty = next.is_some_and(|next| next.hasty && Instant::now() + next.lasts < until);
            if !hasty && !self.recovered(shared)? {
                return Ok(());
            }
        }
        self.recovered(shared)?;
        let left = until.saturating_duration_since(Instant::now());
        self.wait(left.max(AFTER), None, Some(shared))
    }

    /// A fault from its begin to its healing.
    fn strike(&mut self, fault: &Planned, hasty: bool, shared: &Shared) -> Result<()> {
        let Planned { kind, node, .. } = *fault;
        let begin = self.now();
        println!(
            "{:9.3} s  {:9} {}, for {:.2} s{}{}",
            begin as f64 / 1e6,
            kind.name(),
            name(node),
            fault.lasts.as_secs_f64(),
            if fault.clients_too {
                ", from its clients too"
            } else {
                ""
            },
            if hasty {
                ", before the one before is recovered from"
            } else {
                ""
            }
        );
        self.faults.push(FaultLog {
            kind,
            node,
            begin,
            healed: None,
            recovered: None,
            hasty,
        });
        let index = self.faults.len() - 1;
        match kind {
            FaultKind::Kill => {
                self.nodes.kill(node)?;
                self.wait(fault.lasts, None, Some(shared))?;
                self.nodes.start(node)?;
            }
            FaultKind::Stop => {
                self.nodes.signal(node, Signal::SIGSTOP)?;
                self.wait(fault.lasts, None, Some(shared))?;
                self.nodes.signal(node, Signal::SIGCONT)?;
            }
            FaultKind::Partition => {
                self.nodes.network().cut(node, fault.clients_too)?;
                self.wait(fault.lasts, None, Some(shared))?;
                self.nodes.network().heal(node)?;
            }
            FaultKind::Restart => {
                self.stop(node, Some(shared))?;
                self.wait(fault.lasts, None, Some(shared))?;
                self.nodes.start(node)?;
            }
        }
        self.faults[index].healed = Some(self.now());
        Ok(())
    }

    /// Stops a node in order; one that does not end in time is an incident, and is killed.
    fn stop(&mut self, node: usize, shared: Option<&Shared>) -> Result<()> {
        self.nodes.signal(node, Signal::SIGTERM)?;
        let deadline = Instant::now() + self.hang;
        loop {
            if let Some(status) = self.nodes.ended(node)? {
                if !status.success() {
                    self.incident(
                        IncidentKind::Died,
                        format!("{} {} after SIGTERM", name(node), words(status)),
                    );
                }
                return Ok(());
            }
            if Instant::now() > deadline {
                self.incident(
                    IncidentKind::Hung,
                    format!("{} did not end after SIGTERM", name(node)),
                );
                return self.nodes.kill(node);
            }
            self.wait(TICK, Some(node), shared)?;
        }
    }

    /// Waits until all nodes route again; says whether they do.
    fn recovered(&mut self, shared: &Shared) -> Result<bool> {
        let begin = Instant::now();
        while !self.all_route() {
            if begin.elapsed() > self.hang {
                let late: Vec<usize> = (0..NODES)
                    .filter(|node| !self.nodes.routes(*node))
                    .collect();
                for node in late {
                    let tail = self.nodes.log_tail(node);
                    let text = format!(
                        "{} does not route again; the end of its log:\n      {tail}",
                        name(node)
                    );
                    self.incident(IncidentKind::Hung, text);
                }
                return Ok(false);
            }
            self.wait(TICK, None, Some(shared))?;
        }
        let now = self.now();
        for fault in &mut self.faults {
            fault.recovered.get_or_insert(now);
        }
        Ok(true)
    }

    fn all_route(&self) -> bool {
        (0..NODES).all(|node| self.nodes.routes(node))
    }

    /// Lets publishers get their answers and consumers everything that is there.
    fn drain(&mut self, shared: &Shared) -> Result<()> {
        shared.enter(Phase::Drain);
        let (begin, began) = (Instant::now(), self.now());
        loop {
            self.wait(Duration::from_millis(100), None, Some(shared))?;
            let counter = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let silence = self.now() - counter(&shared.last_delivery).max(began);
            let unanswered = counter(&shared.unanswered) > 0 && begin.elapsed() < self.hang;
            if silence > QUIET && !unanswered && counter(&shared.held) == 0 {
                let ready = self.ready(shared);
                let left: u64 = ready.iter().map(|(_, count)| u64::from(*count)).sum();
                if left == 0 {
                    return Ok(());
                }
                if silence > STUCK {
                    for (queue, count) in ready.iter().filter(|(_, count)| *count > 0) {
                        let text = format!("{queue} has {count} messages that nobody gets");
                        self.incident(IncidentKind::Hung, text);
                    }
                    return Ok(());
                }
            }
            if begin.elapsed() > self.hang + DRAIN {
                let text = format!(
                    "queues are not empty after {} s: {} deliveries held, the last came {:.1} s ago",
                    begin.elapsed().as_secs(),
                    counter(&shared.held),
                    silence as f64 / 1e6
                );
                self.incident(IncidentKind::Hung, text);
                return Ok(());
            }
        }
    }

    /// How many messages are ready, by queue; a queue that cannot be asked for has one, so that it is asked for again.
    fn ready(&self, shared: &Shared) -> Vec<(String, u32)> {
        let opened = Wire::open(self.nodes.network().addresses(0).amqp, "crash conductor");
        let Ok(mut wire) = opened else {
            return vec![("(no connection to node1)".to_owned(), 1)];
        };
        let mut ready = Vec::new();
        for queue in &shared.queues {
            let count = wire.declare(queue, "", true).unwrap_or(1);
            ready.push((queue.clone(), count));
        }
        let _ = wire.close();
        ready
    }

    /// Stops all nodes in order.
    pub fn finish(&mut self) -> Result<()> {
        for node in 0..NODES {
            self.stop(node, None)?;
        }
        Ok(())
    }

    /// Kills all nodes, stopped ones too.
    pub fn abandon(&mut self) {
        for node in 0..NODES {
            let _ = self.nodes.kill(node);
        }
    }

    fn incident(&mut self, kind: IncidentKind, text: String) {
        println!("{:9.3} s  {text}", self.now() as f64 / 1e6);
        let at = self.now();
        self.incidents.push(Incident { at, kind, text });
    }

    fn now(&self) -> Micros {
        micros(self.epoch.elapsed())
    }

    /// Waits, and watches the nodes meanwhile but for one that shall end.
    fn wait(
        &mut self,
        duration: Duration,
        leaving: Option<usize>,
        shared: Option<&Shared>,
    ) -> Result<()> {
        let deadline = Instant::now() + duration;
        loop {
            self.interrupt.check()?;
            for node in (0..NODES).filter(|node| leaving != Some(*node)) {
                if let Some(status) = self.nodes.ended(node)? {
                    self.died(node, &words(status))?;
                }
            }
            if let Some(shared) = shared {
                self.watch(shared);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(TICK));
        }
    }

    fn died(&mut self, node: usize, how: &str) -> Result<()> {
        let tail = self.nodes.log_tail(node);
        let text = format!(
            "{} {how} by itself; the end of its log:\n      {tail}",
            name(node)
        );
        self.incident(IncidentKind::Died, text);
        // Its clients are no worse off than after a kill.
        let begin = self.now();
        self.faults.push(FaultLog {
            kind: FaultKind::Kill,
            node,
            begin,
            healed: Some(begin),
            recovered: None,
            hasty: true,
        });
        self.nodes.start(node)
    }

    fn watch(&mut self, shared: &Shared) {
        let counter = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let silence = self.now().saturating_sub(counter(&shared.last_delivery));
        if silence > QUIET && counter(&shared.held) == 0 && shared.waiting() > 0 {
            shared.write_off();
        }
        if self.progress.elapsed() > PROGRESS {
            self.progress = Instant::now();
            println!(
                "{:9.3} s  published {}, confirmed {}, delivered {}; {} clients connected",
                self.now() as f64 / 1e6,
                counter(&shared.published),
                counter(&shared.confirmed),
                counter(&shared.delivered),
                counter(&shared.connected)
            );
        }
    }
}
