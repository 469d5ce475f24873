//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use clap::{Parser, ValueEnum};

use crate::checker::Class;
use crate::history::FaultKind;

/// Run three real nodes under load and faults, and account for every message.
#[derive(Debug, Clone, Parser)]
#[command(name = "warren-crash", version, after_help = HELP)]
pub struct Cli {
    /// The warren binary.
    #[arg(long, value_name = "PATH")]
    pub warren: PathBuf,
    /// The folder with ca.pem, and nodeN.pem and nodeN.key for the three nodes.
    #[arg(long, value_name = "DIR")]
    pub certificates: PathBuf,
    /// Where the nodes keep data and logs. Emptied at the start, kept if something is wrong.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// How long faults and load go on; fractions are fine.
    #[arg(long, default_value = "2", value_parser = minutes)]
    pub minutes: Duration,
    /// Seed of faults, routes and sizes; a random one by default, and printed. It does not fix when processes run.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Kinds of faults; none: `--kinds none`.
    #[arg(long, value_name = "KIND,…", default_value = "kill,stop,partition,restart", value_parser = kinds)]
    pub kinds: Kinds,
    /// Seconds from one fault's recovery to the next fault, about.
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub interval: Duration,
    /// Messages a second, over all publishers.
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub rate: u32,
    /// What takes longer than this many seconds is a hang.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub hang_limit: Duration,
    /// Write the report as JSON, too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Succeed if and only if there are violations, or violations of this class: for a broker with a planted bug.
    #[arg(
        long,
        value_name = "CLASS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "any",
        value_parser = expected
    )]
    pub expect_failure: Option<Expected>,
    /// Nodes on loopback instead of in network namespaces, and no partitions.
    #[arg(long)]
    pub loopback: bool,
    /// Set by the program itself once it is inside its namespaces.
    #[arg(long, hide = true)]
    pub inside: bool,
}

const HELP: &str = "\
Example: warren-crash --warren target/release/warren --certificates cluster-config/certificates --data-dir target/crash --minutes 0.5
`cargo xtask test crash` does that.

The nodes run in network namespaces of a process tree of its own: nothing is left behind, however the program ends. Without the right
to make them, the nodes run on loopback and there are no partitions; the report says so.
Exit codes: 0 nothing is wrong, 1 there are violations (with --expect-failure the other way round), 2 the test could not be run.";

/// What `--kinds` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kinds(pub Vec<FaultKind>);

/// What `--expect-failure` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// A violation.
    Any,
    /// A violation of this class.
    Class(Class),
}

fn minutes(text: &str) -> Result<Duration> {
    positive(text, 60.0, 24.0 * 3600.0)
}

fn seconds(text: &str) -> Result<Duration> {
    positive(text, 1.0, 3600.0)
}

fn positive(text: &str, unit: f64, most: f64) -> Result<Duration> {
    let seconds = text.parse::<f64>()? * unit;
    ensure!(
        seconds > 0.0 && seconds <= most,
        "not between 0 and {}",
        most / unit
    );
    Ok(Duration::from_secs_f64(seconds))
}

fn kinds(text: &str) -> Result<Kinds> {
    if text == "none" {
        return Ok(Kinds(Vec::new()));
    }
    let kind = |word: &str| {
        FaultKind::from_str(word, false)
            .map_err(|_| anyhow!("{word}: not one of kill, stop, partition, restart"))
    };
    Ok(Kinds(text.split(',').map(kind).collect::<Result<_>>()?))
}

fn expected(text: &str) -> Result<Expected> {
    if text == "any" {
        return Ok(Expected::Any);
    }
    Class::from_str(text, false)
        .map(Expected::Class)
        .map_err(|_| {
            let names = Class::ALL.map(Class::name).join(", ");
            anyhow!("{text}: not one of any, {names}")
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(more: &[&str]) -> Result<Cli, clap::Error> {
        let base = [
            "warren-crash",
            "--warren",
            "w",
            "--certificates",
            "c",
            "--data-dir",
            "d",
        ];
        Cli::try_parse_from(base.iter().chain(more))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn minutes_may_be_fractions() {
        assert_eq!(
            parse(&["--minutes", "0.5"]).unwrap().minutes,
            Duration::from_secs(30)
        );
        for bad in ["0", "-1", "x", "1e9"] {
            assert!(parse(&["--minutes", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_are_a_list() {
        let kinds = parse(&["--kinds", "kill,stop"]).unwrap().kinds;
        assert_eq!(kinds, Kinds(vec![FaultKind::Kill, FaultKind::Stop]));
        assert_eq!(parse(&["--kinds", "none"]).unwrap().kinds, Kinds(vec![]));
        assert_eq!(parse(&[]).unwrap().kinds, Kinds(FaultKind::ALL.to_vec()));
        assert!(parse(&["--kinds", "kill,flood"]).is_err());
    }

    #[test]
    fn a_failure_may_be_expected_of_a_class() {
        let expected = |word| parse(&[word]).unwrap().expect_failure;
        assert_eq!(expected("--expect-failure"), Some(Expected::Any));
        assert_eq!(
            expected("--expect-failure=lost"),
            Some(Expected::Class(Class::Lost))
        );
        assert!(parse(&["--expect-failure=ghosts"]).is_err());
        assert_eq!(parse(&[]).unwrap().expect_failure, None);
    }
}
