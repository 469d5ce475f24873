//! `cargo xtask test`: every check, from the quick to the slow.
//!
//! All steps build in the release profile and the same target folder, so that RocksDB is compiled once for all of them. The runners
//! print their own results; a step only adds its heading and its time.

mod blackbox;
mod crash;
mod rules;
mod simulations;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::repository::Repository;
use crate::{run, toolchain};

/// Options of `test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples: cargo xtask test\n          cargo xtask test rules unit\n          cargo xtask test blackbox -- -k topic\n          cargo xtask test crash --minutes 10 --kinds kill,partition"
)]
pub struct Arguments {
    /// Which steps to run; all of them but `fresh`, in this order, unless named.
    #[arg(value_enum)]
    steps: Vec<Step>,
    /// Run the steps after one that failed, too.
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    crash: crash::Options,
    /// Arguments for pytest in the step blackbox.
    #[arg(last = true)]
    pytest: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Formatting.
    Fmt,
    /// Which crate may depend on which, and what the pure crates may use.
    Rules,
    /// Lints, in all targets.
    Clippy,
    /// Unit and property tests.
    Unit,
    /// Examples in the documentation.
    Doc,
    /// The simulator: seeds that once failed, and the first thirty.
    Simulate,
    /// The simulator: five minutes of seeds that are drawn from the commit's id, and some planted bugs until each is found. Only if it is named.
    Fresh,
    /// Real clients against real processes.
    Blackbox,
    /// Three real processes under load, kills, stops, partitions and restarts, and every message accounted for.
    Crash,
    /// The crash test against a server with a planted bug, which it must find.
    CrashFinds,
}

impl Step {
    fn run(self, repository: &Repository, arguments: &Arguments) -> Result<()> {
        let cargo = |words: &[&str]| run::visibly(&mut repository.cargo(words));
        match self {
            Self::Fmt => cargo(&["fmt", "--all", "--check"]),
            Self::Rules => rules::check(repository),
            Self::Clippy => cargo(&[
                "clippy",
                "--release",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]),
            Self::Unit => cargo(&[
                "test",
                "--release",
                "--workspace",
                "--lib",
                "--bins",
                "--tests",
            ]),
            Self::Doc => cargo(&["test", "--release", "--workspace", "--doc"]),
            Self::Simulate => simulations::fixed(repository),
            Self::Fresh => simulations::fresh(repository),
            Self::Blackbox => blackbox::run(repository, &arguments.pytest),
            Self::Crash => crash::run(repository, &arguments.crash),
            Self::CrashFinds => crash::finds_a_planted_bug(repository),
        }
    }

    fn builds(self) -> bool {
        match self {
            Self::Fmt | Self::Rules => false,
            Self::Clippy
            | Self::Unit
            | Self::Doc
            | Self::Simulate
            | Self::Blackbox
            | Self::Crash
            | Self::CrashFinds
            | Self::Fresh => true,
        }
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

/// Runs the steps; fails at the first that fails, or with `--keep-going` at the end.
pub fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let steps = if arguments.steps.is_empty() {
        // Fresh seeds still find a bug of the product in every few hundred: until they do not, they say nothing of the change that is tested.
        let usual = |step: &Step| *step != Step::Fresh;
        Step::value_variants()
            .iter()
            .copied()
            .filter(usual)
            .collect()
    } else {
        arguments.steps.clone()
    };
    if steps.iter().any(|step| step.builds()) {
        toolchain::ensure()?;
    }
    let mut times = Vec::new();
    let mut failures = Vec::new();
    for step in steps {
        println!("\n== {}", step.name());
        let begin = Instant::now();
        let result = step.run(&repository, arguments);
        times.push(line(&step.name(), begin.elapsed(), result.is_ok()));
        if let Err(error) = result {
            eprintln!("{}: {error:#}", step.name());
            failures.push(step.name());
            if !arguments.keep_going {
                break;
            }
        }
    }
    println!("\n{}", times.join("\n"));
    if !failures.is_empty() {
        bail!("failed: {}", failures.join(", "));
    }
    Ok(())
}

fn line(name: &str, time: Duration, good: bool) -> String {
    format!(
        "{name:11} {:8.1} s  {}",
        time.as_secs_f64(),
        if good { "ok" } else { "FAILED" }
    )
}
