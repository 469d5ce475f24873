//! `cargo xtask simulate`: the simulator, built and run with the arguments as they are.

use anyhow::Result;

use crate::repository::Repository;
use crate::{run, toolchain};

/// Arguments of the simulator.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: cargo xtask simulate run --seeds 30")]
pub struct Arguments {
    /// What to do and with what: see `cargo xtask simulate help`.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<String>,
}

/// Runs the simulator.
pub fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    toolchain::ensure()?;
    let words: Vec<&str> = arguments.arguments.iter().map(String::as_str).collect();
    simulate(&repository, &words)
}

/// Builds and runs the simulator with these arguments. Only where it is to find planted bugs is it built with them.
pub fn simulate(repository: &Repository, arguments: &[&str]) -> Result<()> {
    let mut cargo = vec!["run", "--release", "--package", "warren-simulations"];
    if arguments.first() == Some(&"mutants") {
        cargo.extend(["--features", "planted-bugs"]);
    }
    cargo.push("--");
    run::visibly(&mut repository.cargo(&[&cargo, arguments].concat()))
}
