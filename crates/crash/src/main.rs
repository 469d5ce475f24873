//! `warren-crash`: the crash test. Three real nodes under publish and consume load, faults at random, and a checker that accounts for every
//! message. `cargo xtask test crash` builds and runs it.
//!
//! Flow: [`sandbox`] runs the program again in namespaces of its own, [`network`] lays links that can be cut, [`nodes`] starts the
//! processes. [`run`] goes through rounds: each has [`publisher`]s and [`consumer`]s at every node, a thread and a connection each, while
//! the [`conductor`] strikes with the [`faults`] that the seed gives; then all is healed and drained, and the [`checker`] judges what the
//! clients wrote into the [`history`]. [`report`] tells it.
//!
//! Invariants:
//! - The checker is pure and sees only what clients saw; it asks the broker nothing.
//! - Clients never publish a message twice, so whatever is seen twice was doubled by the broker.
//! - One node is at fault at a time, but for hasty faults (see [`faults`]); so a majority is always there or coming back.
//! - Every wait has a deadline, and what overruns it is a finding. Nothing outlives the program (see [`sandbox`]).
//! - Rate, backlog and the length of a round are bounded, and so is memory.
//!
//! Not found by it: what only a loss of power loses. A killed process leaves what it has written to the kernel, synced or not.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod checker;
mod cli;
mod conductor;
mod consumer;
mod faults;
mod history;
mod interrupt;
mod network;
mod nodes;
mod publisher;
mod report;
mod run;
mod sandbox;
mod shared;
mod wire;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;

use cli::Cli;
use interrupt::{EX_INTERRUPTED, Interrupted};

/// There are violations, or those that were expected did not come.
const EXIT_WRONG: u8 = 1;
/// The test could not be run. clap uses the same code for wrong usage.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    match start(&Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("warren-crash: {error:#}");
            let interrupted = error.downcast_ref::<Interrupted>().is_some();
            ExitCode::from(if interrupted {
                EX_INTERRUPTED
            } else {
                EXIT_FAILED
            })
        }
    }
}

fn start(cli: &Cli) -> Result<u8> {
    let confined = if cli.inside {
        None
    } else if cli.loopback {
        Some("as --loopback asks".to_owned())
    } else {
        match sandbox::enter()? {
            sandbox::Outcome::Ran(code) => return Ok(code),
            sandbox::Outcome::Cannot(reason) => {
                Some(format!("no right to make network namespaces: {reason}"))
            }
        }
    };
    let report = run::run(cli, confined)?;
    print!("{}", report.text(cli.expect_failure));
    if let Some(path) = &cli.json {
        let json = format!("{:#}\n", report.json(cli.expect_failure));
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(if report.is_good(cli.expect_failure) {
        0
    } else {
        EXIT_WRONG
    })
}
