//! The simulator in the checks: every seed that once failed and the first ones; and if asked for, fresh seeds, drawn from the commit's id, for some minutes, and a
//! few planted bugs, drawn likewise, until each is found.
//!
//! Each commit so has fresh seeds that none has had before, and its run can be repeated exactly: the seeds are printed, and the command that runs them again.

use anyhow::Result;

use crate::repository::Repository;
use crate::simulate::simulate;

/// Real minutes of fresh seeds.
const FRESH_MINUTES: &str = "5";
/// Planted bugs: seeds that are known to find them are run first, so that each takes seconds.
const FEW_BUGS: &str = "6";
/// After so many real minutes no further planted bug is looked for.
const BUGS_MINUTES: &str = "2";

/// Seeds that are run always beside those that once failed.
const FIRST_SEEDS: &str = "30";

/// Seeds that once failed, and the first ones.
pub fn fixed(repository: &Repository) -> Result<()> {
    simulate(repository, &["pinned"])?;
    simulate(repository, &["run", "--seeds", FIRST_SEEDS])
}

/// Fresh seeds, and planted bugs.
pub fn fresh(repository: &Repository) -> Result<()> {
    println!("fresh seeds, for {FRESH_MINUTES} minutes");
    simulate(repository, &["fresh", "--minutes", FRESH_MINUTES])?;
    println!("a few planted bugs");
    let few = ["mutants", "--short", "--few", FEW_BUGS];
    simulate(repository, &[&few[..], &["--limit", BUGS_MINUTES]].concat())
}
