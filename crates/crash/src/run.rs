//! A run: the nodes, and rounds of load and faults, each judged by itself.
//!
//! A round lasts two minutes at most: then everything is healed, drained and judged, and what it remembered is let go. So memory does not
//! grow with `--minutes`, and a run ends with the first round that shows something wrong, while its logs are still short.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::checker::{Limits, SECOND, check};
use crate::cli::Cli;
use crate::conductor::Conductor;
use crate::consumer::Consumer;
use crate::faults::Plan;
use crate::history::{ConsumerLog, FaultKind, History, PublisherLog};
use crate::interrupt::Interrupt;
use crate::network::{NODES, Network};
use crate::nodes::Nodes;
use crate::publisher::Publisher;
use crate::report::Report;
use crate::shared::{Phase, Shared, micros};

/// The longest round.
const ROUND: Duration = Duration::from_secs(120);
/// A first start makes the cluster, elects leaders and may share two cores with a build.
const FIRST_START: Duration = Duration::from_secs(90);
/// Queues of each type.
const QUEUES: usize = 4;
const TYPES: [&str; 2] = ["quorum", "classic"];
/// Publishers at each node, and consumers.
const CLIENTS: usize = 2;
/// Messages that may wait in the queues, about, before publishers pause.
const BACKLOG: u64 = 20_000;
/// The file that tells a folder of this program from others.
const MARKER: &str = "crash-test";

/// Runs the test; `confined` says why there are no network namespaces, if there are none.
pub fn run(cli: &Cli, confined: Option<String>) -> Result<Report> {
    let interrupt = Interrupt::watch()?;
    let seed = cli.seed.unwrap_or_else(|| StdRng::from_os_rng().random());
    let network = if confined.is_some() {
        Network::loopback()?
    } else {
        Network::namespaces().context("cannot make the nodes' network")?
    };
    let mut kinds = cli.kinds.0.clone();
    if confined.is_some() {
        kinds.retain(|kind| *kind != FaultKind::Partition);
    }
    println!(
        "crash test: seed {seed}, {:.1} min; nodes {}",
        cli.minutes.as_secs_f64() / 60.0,
        match &confined {
            None => "in network namespaces".to_owned(),
            Some(reason) => format!("on loopback, without partitions ({reason})"),
        }
    );
    prepare(&cli.data_dir)?;
    let nodes = Nodes::prepare(network, &cli.warren, &cli.certificates, &cli.data_dir)?;
    let logs = nodes.logs();
    let epoch = Instant::now();
    let plan = Plan::new(seed, &kinds, NODES, cli.interval);
    let mut conductor = Conductor::new(nodes, plan, interrupt, epoch, cli.hang_limit);
    conductor.start(FIRST_START)?;
    let queues: Vec<(String, &'static str)> = TYPES
        .iter()
        .flat_map(|kind| (1..=QUEUES).map(move |number| (format!("crash.{kind}.{number}"), *kind)))
        .collect();
    conductor.declare(&queues)?;

    let mut report = Report::new(seed, confined, logs);
    let rounds = cli.minutes.as_secs_f64() / ROUND.as_secs_f64();
    let rounds = (rounds.ceil() as u32).max(1);
    for round in 0..rounds {
        let context = Round {
            cli,
            seed,
            number: u16::try_from(round).unwrap_or(u16::MAX),
            epoch,
            lasts: cli.minutes / rounds,
            queues: queues.iter().map(|(name, _)| name.clone()).collect(),
        };
        let last = round + 1 == rounds;
        let good = context.run(&mut conductor, last, &mut report)?;
        if !good && !last {
            println!("stopping after round {} of {rounds}", round + 1);
            break;
        }
    }
    conductor.abandon();
    let keep = report.violations() > 0;
    if !keep {
        clear(&cli.data_dir)?;
    }
    Ok(report)
}

/// One round's circumstances.
struct Round<'a> {
    cli: &'a Cli,
    seed: u64,
    number: u16,
    epoch: Instant,
    lasts: Duration,
    queues: Vec<String>,
}

impl Round<'_> {
    /// Runs and judges it; says whether nothing is wrong.
    fn run(&self, conductor: &mut Conductor, last: bool, report: &mut Report) -> Result<bool> {
        let rate = f64::from(self.cli.rate) / (NODES * CLIENTS) as f64;
        let shared = Shared::new(
            self.epoch,
            self.seed,
            self.number,
            self.queues.clone(),
            rate,
            BACKLOG,
        );
        let begin = shared.now();
        let (publishers, consumers) = self.clients(conductor, &shared)?;
        if last {
            conductor.finish()?;
        }
        let history = History {
            queues: self.queues.clone(),
            publishers,
            consumers,
            faults: std::mem::take(&mut conductor.faults),
            incidents: std::mem::take(&mut conductor.incidents),
            begin,
            end: shared.now(),
        };
        let limits = Limits {
            hang: micros(self.cli.hang_limit),
            grace: 5 * SECOND,
            notice: 2 * SECOND,
        };
        let verdict = check(&history, &limits);
        let good = verdict.findings.violations() == 0;
        report.absorb(&history, verdict);
        Ok(good)
    }

    /// Runs the clients while the conductor conducts; their logs.
    fn clients(
        &self,
        conductor: &mut Conductor,
        shared: &Shared,
    ) -> Result<(Vec<PublisherLog>, Vec<ConsumerLog>)> {
        let until = Instant::now() + self.lasts;
        let address = |conductor: &Conductor, number: usize| {
            let node = number % NODES;
            (node, conductor.nodes.network().addresses(node).amqp)
        };
        std::thread::scope(|scope| {
            // However the conductor ends, the clients do too.
            let _close = CloseOnDrop(shared);
            let (mut publishers, mut consumers) = (Vec::new(), Vec::new());
            for number in 0..NODES * CLIENTS {
                let (node, address) = address(conductor, number);
                let seed = self.seed ^ u64::from(self.number) << 32 ^ (number as u64 + 1) << 8;
                let consumer = Consumer::new(shared, number, node, address, seed | 1);
                consumers.push(scope.spawn(|| consumer.run()));
                let publisher = Publisher::new(shared, number as u16, node, address, seed);
                publishers.push(scope.spawn(|| publisher.run()));
            }
            let conducted = conductor.round(shared, until);
            if conducted.is_err() {
                conductor.abandon();
            }
            shared.enter(Phase::Close);
            let failed = |_| anyhow!("a client of the test panicked");
            let publishers = publishers
                .into_iter()
                .map(|client| client.join().map_err(failed))
                .collect::<Result<_>>()?;
            let consumers = consumers
                .into_iter()
                .map(|client| client.join().map_err(failed))
                .collect::<Result<_>>()?;
            conducted.map(|()| (publishers, consumers))
        })
    }
}

struct CloseOnDrop<'a>(&'a Shared);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.enter(Phase::Close);
    }
}

/// Makes the data folder, empty of an earlier run; a folder of anything else is left alone.
fn prepare(folder: &Path) -> Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.join(MARKER).exists() {
        let empty = fs::read_dir(folder)
            .with_context(|| format!("cannot read {shown}"))?
            .next()
            .is_none();
        ensure!(
            empty,
            "{shown} is not empty and holds no earlier crash test; give another --data-dir, or empty it"
        );
    }
    clear(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {shown}"))?;
    fs::write(folder.join(MARKER), "").with_context(|| format!("cannot write in {shown}"))
}

fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strange_folder_is_left_alone_and_an_own_one_is_emptied() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        prepare(&folder).unwrap();
        fs::write(folder.join("old"), "").unwrap();
        prepare(&folder).unwrap();
        assert!(!folder.join("old").exists());

        fs::remove_file(folder.join(MARKER)).unwrap();
        fs::write(folder.join("precious"), "").unwrap();
        assert!(prepare(&folder).is_err());
        assert!(folder.join("precious").exists());
    }
}
