//! The simulator in the checks: every seed that once failed and some that each check runs; and, if asked for, fresh seeds for some minutes, and planted bugs
//! until each is found.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::repository::Repository;
use crate::simulate::simulate;

/// Real minutes of fresh seeds.
const FRESH_MINUTES: &str = "5";
/// After so many real minutes no further planted bug is looked for.
const BUGS_MINUTES: &str = "4";

/// Seeds that once failed, and the first thirty.
pub fn known(repository: &Repository) -> Result<()> {
    println!("seeds that once failed");
    simulate(repository, &["pinned"])?;
    println!("the first seeds");
    simulate(repository, &["run", "--seeds", "30"])
}

/// Fresh seeds, and planted bugs.
pub fn fresh(repository: &Repository) -> Result<()> {
    // The time in seconds: every run has seeds that none has had before.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = now.context("the clock is before 1970")?.as_secs();
    println!("fresh seeds from {first} on, for {FRESH_MINUTES} minutes");
    let first = first.to_string();
    let arguments = [
        "run",
        "--first",
        &first,
        "--seeds",
        "100000",
        "--limit",
        FRESH_MINUTES,
    ];
    simulate(repository, &arguments)?;
    println!("planted bugs");
    simulate(repository, &["mutants", "--short", "--limit", BUGS_MINUTES])
}
