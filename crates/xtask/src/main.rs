//! `cargo xtask`: everything that one does with the repository, as one program.
//!
//! `cluster` builds and runs the three-node cluster of `cluster-config/` on this machine and proves that it works, `test` runs every
//! check in order, `simulate` hands over to the simulator. What the machine lacks for that is installed, or named with the one command
//! that installs it.

mod amqp;
mod checks;
mod cluster;
mod packages;
mod repository;
mod run;
mod simulate;
mod toolchain;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Warren's own tasks.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build and run a cluster on this machine, prove that it works, and stay until Ctrl-C.
    Cluster(cluster::Arguments),
    /// Run the checks: all of them in order, or those named.
    Test(checks::Arguments),
    /// Run the deterministic simulator with these arguments.
    Simulate(simulate::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { run::EX_USAGE } else { 0 });
        }
    };
    let result = match arguments.task {
        Task::Cluster(arguments) => cluster::run(&arguments),
        Task::Test(arguments) => checks::run(&arguments),
        Task::Simulate(arguments) => simulate::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(run::exit_code(&error))
        }
    }
}
