//! The crash test: `warren-crash`, built and run on the release binary or on another one.

use std::path::PathBuf;

use anyhow::Result;

use crate::packages::{self, Need};
use crate::repository::Repository;
use crate::{certificates, run};

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

/// Builds what is needed, and runs the test.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    packages::ensure(&[
        Need::program("ip", "iproute2", "ip, for the nodes' networks"),
        Need::program("unshare", "util-linux", "unshare, for the nodes' networks"),
    ])?;
    let mut build = vec!["build", "--release", "--package", "warren-crash"];
    if options.warren.is_none() {
        build.extend(["--package", "warren"]);
    }
    run::visibly(&mut repository.cargo(&build))?;

    let folder = repository.cluster_config().join("certificates");
    let names: Vec<String> = (1..=3).map(|number| format!("node{number}")).collect();
    certificates::ensure(&folder, &names)?;

    // Paths on the command line are relative to where the user is, which need not be the checkout's root.
    let mut crash = std::process::Command::new(repository.binaries.join("warren-crash"));
    let built = repository.binaries.join("warren");
    let data = repository.target().join("crash");
    crash
        .arg("--warren")
        .arg(options.warren.as_ref().unwrap_or(&built))
        .arg("--certificates")
        .arg(folder)
        .arg("--data-dir")
        .arg(options.data_dir.as_ref().unwrap_or(&data))
        .args(["--minutes", &options.minutes]);
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
