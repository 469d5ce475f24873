//! `warren-bench`: Warren's benchmark. It loads a broker that speaks AMQP 0-9-1, measures it, and checks what comes back.
//!
//! Flow of a load: [`plan`] says which queues there are and where each message must arrive, [`topology`] declares that,
//! [`load`] opens a connection and a thread per [`producer`] and [`consumer`], samples their [`meter`] over the measured time,
//! lets them drain, and hands what was received to the [`checker`]. [`declare`] measures declarations, [`compare`] runs the
//! named [`workloads`] (each a command line of this program) against two brokers in turn, [`report`] prints a line for people
//! and a line of JSON.
//!
//! Invariants:
//! - Only loopback addresses are loaded ([`target`]).
//! - Every wait has a deadline: a run ends by itself, whatever the broker does, and deletes what it declared.
//! - Every message carries its run, stream and number ([`body`]), so that each loss, duplicate and reordering is seen. A message
//!   counts as lost only if the consumers went idle without it, never because time ran out.
//! - What the broker has not been asked to hold is bounded: producers wait once `--backlog` messages are under way.
//!
//! Cost: a producer patches 16 bytes in frames built beforehand ([`ring`]) and writes 64 KiB at a time; a consumer reads up to
//! 256 KiB at a time and takes deliveries apart in place ([`deliveries`]); the checker is a bit a message. No message allocates.
//!
//! Exit codes: 0 done, 1 something confirmed is lost, 2 it could not be run to its end (usage, connection, drain deadline).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bitmap;
mod body;
mod checker;
mod cli;
mod compare;
mod confirms;
mod connection;
mod consumer;
mod declare;
mod deliveries;
mod histogram;
mod input;
mod load;
mod meter;
mod plan;
mod producer;
mod report;
mod ring;
mod target;
mod topology;
mod workloads;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};

/// Something confirmed is lost.
const EXIT_LOST: u8 = 1;
/// It could not be run to its end. clap uses the same code for wrong usage.
const EXIT_FAILED: u8 = 2;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Load(options) => load::run(&options).map(|report| {
            report.print();
            report.exit_code()
        }),
        Command::Declare(options) => declare::run(&options).map(|report| {
            report.print();
            0
        }),
        Command::Compare(options) => compare::run(&options),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("warren-bench: {error:#}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}
