//! `cargo xtask cluster`: the cluster of `cluster-config/` on this machine.
//!
//! Flow of `cluster`: build, make the certificates that are missing, start the nodes ([`process`]), wait until they route ([`health`]),
//! prove the main job ([`proof`]), then stay until Ctrl-C or leave them running (`--detach`). What runs is known from the data folder
//! alone, by process id and start time: nothing is ever signalled that was not recorded there by this program.

mod health;
mod interrupt;
mod nodes;
mod ports;
mod process;
mod proof;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use nix::sys::signal::Signal;

use crate::repository::Repository;
use crate::run::{EX_UNAVAILABLE, Stop};
use crate::toolchain;
use interrupt::Interrupt;
use nodes::{Cluster, Node};
use process::Record;

/// How long a node may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Options of `cluster`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: cargo xtask cluster --fresh --detach && cargo xtask cluster kill 2 && cargo xtask cluster start 2"
)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// How many nodes: a cluster of three, or one node that is a cluster of its own.
    #[arg(long, default_value = "3", value_parser = ["1", "3"])]
    nodes: String,
    /// Where the nodes keep data, log and process id; warren-data in the checkout unless given.
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Remove what an earlier cluster left in the data folder.
    #[arg(long)]
    fresh: bool,
    /// Stop the nodes and end once the cluster has proved that it works.
    #[arg(long, conflicts_with = "detach")]
    check: bool,
    /// Leave the nodes running and end once the cluster has proved that it works.
    #[arg(long)]
    detach: bool,
    /// Use the release binaries as they are.
    #[arg(long)]
    no_build: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Stop all nodes that run.
    Down,
    /// Kill a node the hard way (SIGKILL).
    Kill {
        /// The node's number.
        node: usize,
    },
    /// Stop a node in order (SIGTERM).
    Stop {
        /// The node's number.
        node: usize,
    },
    /// Start a node again, without building, and wait until it routes.
    Start {
        /// The node's number.
        node: usize,
    },
}

/// Runs the cluster or one of its actions.
pub fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let data = match &arguments.data_dir {
        Some(folder) => std::path::absolute(folder)
            .with_context(|| format!("unusable data folder {}", folder.display()))?,
        None => repository.root.join("warren-data"),
    };
    match &arguments.action {
        None => up(
            &repository,
            arguments,
            Cluster::new(
                &repository,
                data,
                if arguments.nodes == "1" { 1 } else { 3 },
            )?,
        ),
        Some(action) => act(&repository, action, &Cluster::existing(&repository, data)?),
    }
}

fn act(repository: &Repository, action: &Action, cluster: &Cluster) -> Result<()> {
    match action {
        Action::Down => {
            let running: Vec<(&Node, Record)> = cluster.running();
            if running.is_empty() {
                println!("no node of {} runs", cluster.data.display());
            }
            stop(running)
        }
        Action::Kill { node } => {
            let node = cluster.node(*node)?;
            let record = recorded(node)?;
            record.signal(Signal::SIGKILL)?;
            process::wait_for_end(&[record], GRACE);
            println!("{} killed (was process {})", node.name, record.pid);
            Ok(())
        }
        Action::Stop { node } => {
            let node = cluster.node(*node)?;
            stop(vec![(node, recorded(node)?)])
        }
        Action::Start { node } => {
            let node = cluster.node(*node)?;
            if let Some(record) = node.record() {
                println!("{} already runs (process {})", node.name, record.pid);
                return Ok(());
            }
            certificates(repository, cluster)?;
            let interrupt = Interrupt::watch()?;
            ports::must_be_free(&[node])?;
            let mut child = process::start(repository, node)?;
            health::wait(&[node], std::slice::from_mut(&mut child), &interrupt)
        }
    }
}

fn recorded(node: &Node) -> Result<Record> {
    let text = || {
        format!(
            "{} does not run, as far as {} says",
            node.name,
            node.pid_file().display()
        )
    };
    node.record()
        .ok_or_else(|| Stop::error(EX_UNAVAILABLE, text()))
}

fn up(repository: &Repository, arguments: &Arguments, cluster: Cluster) -> Result<()> {
    if !arguments.no_build {
        toolchain::ensure()?;
        repository.build(&[])?;
    }
    cluster.prepare(arguments.fresh)?;
    certificates(repository, &cluster)?;

    let running = cluster.running();
    for (node, record) in &running {
        println!("{} already runs (process {})", node.name, record.pid);
    }
    let starting: Vec<&Node> = cluster
        .nodes
        .iter()
        .filter(|node| !running.iter().any(|(other, _)| other.number == node.number))
        .collect();
    ports::must_be_free(&starting)?;
    let interrupt = Interrupt::watch()?;
    let mut children = Vec::new();
    let result =
        bring_up(repository, &cluster, &starting, &mut children, &interrupt).and_then(|()| {
            if arguments.check {
                return Ok(());
            }
            show(repository, &cluster);
            if arguments.detach {
                return Ok(());
            }
            println!("\nCtrl-C stops the nodes that were started here.");
            stay(&mut children, &interrupt)
        });
    if arguments.detach && result.is_ok() {
        println!("\nThe nodes run on; `cargo xtask cluster down` stops them.");
        return Ok(());
    }
    // Also those of them that were killed and started again from elsewhere since.
    let ours = starting
        .iter()
        .filter_map(|node| Some((*node, node.record()?)))
        .collect();
    let stopped = stop(ours);
    result.and(stopped)
}

fn certificates(repository: &Repository, cluster: &Cluster) -> Result<()> {
    let folder = repository.cluster_config().join("certificates");
    let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    if !warren_certificates::ensure(&folder, &names, &[])?.is_empty() {
        println!("made development certificates in {}", folder.display());
    }
    Ok(())
}

fn bring_up(
    repository: &Repository,
    cluster: &Cluster,
    starting: &[&Node],
    children: &mut Vec<process::Started>,
    interrupt: &Interrupt,
) -> Result<()> {
    for node in starting {
        children.push(process::start(repository, node)?);
    }
    let all: Vec<&Node> = cluster.nodes.iter().collect();
    health::wait(&all, children, interrupt)?;
    proof::run(&all)
}

fn show(repository: &Repository, cluster: &Cluster) {
    println!("\nThe cluster is ready; user guest, password guest:");
    for node in &cluster.nodes {
        println!(
            "  {}  amqp://{}  http://{}  log {}",
            node.name,
            node.amqp,
            node.http,
            node.log_file().display()
        );
    }
    println!(
        "  {} shows it",
        repository.binaries.join("warrenctl").display()
    );
}

/// Until Ctrl-C. A node that ends meanwhile is said, and left: killing nodes is what such a cluster is for.
fn stay(children: &mut [process::Started], interrupt: &Interrupt) -> Result<()> {
    while !interrupt.came() {
        for child in children.iter_mut() {
            if let Some(status) = child.ended()? {
                println!(
                    "{} ended ({status}); `cargo xtask cluster start {}` starts it again",
                    child.name, child.number
                );
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    println!();
    Ok(())
}

/// SIGTERM to all at once, then SIGKILL to those that do not end in time.
fn stop(nodes: Vec<(&Node, Record)>) -> Result<()> {
    for (_, record) in &nodes {
        record.signal(Signal::SIGTERM)?;
    }
    let records: Vec<Record> = nodes.iter().map(|(_, record)| *record).collect();
    let left = process::wait_for_end(&records, GRACE);
    for (node, record) in &nodes {
        if left.contains(record) {
            println!(
                "{} did not end within {} s of SIGTERM; killing it",
                node.name,
                GRACE.as_secs()
            );
            record.signal(Signal::SIGKILL)?;
        } else {
            println!("{} stopped", node.name);
        }
    }
    if !process::wait_for_end(&left, GRACE).is_empty() {
        bail!("a killed node still runs; it may hang in the kernel");
    }
    Ok(())
}
