//! The crash test: `warren-crash`, built and run on the release binary or on another one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages::{self, Need};
use crate::repository::Repository;
use crate::run;

/// Options of the step crash.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of the step crash")]
pub struct Options {
    /// How long faults and load go on; fractions are fine.
    #[arg(long, default_value = "2")]
    minutes: String,
    /// Seed of the faults; a random one by default, and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Kinds of faults, of kill, stop, partition and restart; or none.
    #[arg(long, value_name = "KIND,…")]
    kinds: Option<String>,
    /// Seconds from one fault's recovery to the next fault, about.
    #[arg(long, value_name = "SECONDS")]
    interval: Option<String>,
    /// Messages a second, over all publishers.
    #[arg(long)]
    rate: Option<String>,
    /// Another warren binary than the one that is built.
    #[arg(long, value_name = "PATH")]
    warren: Option<PathBuf>,
    /// Where the nodes keep data and logs; crash in the target folder unless given.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Write the report as JSON, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Succeed if and only if there are violations, or violations of this class (such as lost): for a broker with a planted bug.
    #[arg(long, value_name = "CLASS", num_args = 0..=1, require_equals = true, default_missing_value = "any")]
    expect_failure: Option<String>,
}

/// The bug that the crash test must find, and what comes of it.
const PLANTED: (&str, &str) = ("confirm-before-commit", "lost");

/// Builds what is needed, and runs the test.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    repository.build(&[])?;

    // Paths on the command line are relative to where the user is, which need not be the checkout's root.
    let built = repository.binaries.join("warren");
    let data = repository.target().join("crash");
    let mut crash = crash(
        repository,
        options.warren.as_ref().unwrap_or(&built),
        options.data_dir.as_ref().unwrap_or(&data),
    )?;
    crash.args(["--minutes", &options.minutes]);
    if let Some(seed) = options.seed {
        crash.args(["--seed", &seed.to_string()]);
    }
    for (name, value) in [
        ("--kinds", &options.kinds),
        ("--interval", &options.interval),
        ("--rate", &options.rate),
    ] {
        if let Some(value) = value {
            crash.args([name, value]);
        }
    }
    if let Some(path) = &options.json {
        crash.arg("--json").arg(path);
    }
    if let Some(class) = &options.expect_failure {
        crash.arg(format!("--expect-failure={class}"));
    }
    run::visibly(&mut crash)
}

/// Runs the test against a server that loses what it confirms when its node is killed, and succeeds if and only if the test says so.
pub fn finds_a_planted_bug(repository: &Repository) -> Result<()> {
    let (bug, class) = PLANTED;
    let built = repository.binaries.join("warren");
    let planted = repository.target().join("warren-with-a-planted-bug");
    repository.build(&["--features", "warren/planted-bugs"])?;
    std::fs::copy(&built, &planted)
        .with_context(|| format!("cannot copy {} to {}", built.display(), planted.display()))?;
    // Nobody should find a binary with bugs where the one that ships is.
    repository.build(&[])?;
    let mut crash = crash(repository, &planted, &repository.target().join("crash"))?;
    crash
        .env("WARREN_PLANTED_BUG", bug)
        .args(["--minutes", "0.7", "--kinds", "kill", "--interval", "1.5"])
        .arg(format!("--expect-failure={class}"));
    run::visibly(&mut crash)
}

/// The test against this server, with its data there.
fn crash(repository: &Repository, warren: &Path, data: &Path) -> Result<Command> {
    packages::ensure(&[
        Need::program("ip", "iproute2", "ip, for the nodes' networks"),
        Need::program("unshare", "util-linux", "unshare, for the nodes' networks"),
    ])?;
    let folder = repository.cluster_config().join("certificates");
    let names: Vec<String> = (1..=3).map(|number| format!("node{number}")).collect();
    warren_certificates::ensure(&folder, &names, &[])?;
    let mut crash = Command::new(repository.binaries.join("warren-crash"));
    crash
        .arg("--warren")
        .arg(warren)
        .arg("--certificates")
        .arg(folder)
        .arg("--data-dir")
        .arg(data);
    Ok(crash)
}
