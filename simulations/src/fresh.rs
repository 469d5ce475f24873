//! Seeds that are drawn from a commit's id: each commit runs others, and a commit's own can be run again exactly, on any machine and before it is handed in.

use crate::processes::{self, Source};
use anyhow::{Context as _, bail};
use std::process::Command;
use std::time::Duration;
use warren_simulations::options::{LEADERS, METADATA, QUEUES, UPGRADES};

/// So many seeds about upgrades there are to draw from: as many as of each other sort.
const UPGRADES_DRAWN: u64 = 1_000_000;

/// A commit's whole id.
pub(crate) fn commit(revision: &str) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--verify", "--quiet", "--end-of-options"])
        .arg(format!("{revision}^{{commit}}"))
        .output()
        .context("cannot run git, which knows the commit that seeds are drawn from")?;
    let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || id.is_empty() {
        bail!(
            "git knows no commit '{revision}' here: name one with --commit, inside of a checkout"
        );
    }
    Ok(id)
}

/// Numbers from a commit's id: SplitMix64, begun with a hash of the id (FNV-1a).
pub(crate) struct Numbers {
    state: u64,
}

impl Numbers {
    pub(crate) fn of(id: &str) -> Self {
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let state = id.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        Self { state }
    }
}

impl Iterator for Numbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    }
}

/// A commit's seeds, without end: in turn one that draws from everything, one about queues, one about metadata, one about leaders, and one about
/// upgrades.
pub(crate) fn seeds(id: &str) -> impl Iterator<Item = u64> + Send + use<> {
    Numbers::of(id)
        .enumerate()
        .map(|(place, number)| match place % 5 {
            0 => number % QUEUES,
            1 => QUEUES + number % (METADATA - QUEUES),
            2 => METADATA + number % (LEADERS - METADATA),
            3 => LEADERS + number % (UPGRADES - LEADERS),
            _ => UPGRADES + number % UPGRADES_DRAWN,
        })
}

/// Runs a commit's seeds: until so much real time has passed, or so many.
pub(crate) fn run(
    revision: &str,
    limit: Option<Duration>,
    count: Option<usize>,
    jobs: Option<usize>,
) -> anyhow::Result<bool> {
    let id = commit(revision)?;
    println!("seeds of commit {id}");
    let seeds = seeds(&id).take(count.unwrap_or(usize::MAX));
    let source = Source {
        seeds: Box::new(seeds),
        minutes: None,
        limit,
    };
    let (held, count) = processes::many(source, jobs)?;
    println!("the same seeds again: cargo xtask simulate fresh --commit {id} --seeds {count}");
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_the_same_seeds_each_time_of_all_kinds_and_another_has_others() {
        let of = |id: &str| seeds(id).take(10).collect::<Vec<_>>();
        let one = of("f639f76");
        assert_eq!(one, of("f639f76"));
        assert_ne!(one, of("f639f77"));
        for place in [0, 5] {
            assert!(one[place] < QUEUES);
            assert!((QUEUES..METADATA).contains(&one[place + 1]));
            assert!((METADATA..LEADERS).contains(&one[place + 2]));
            assert!((LEADERS..UPGRADES).contains(&one[place + 3]));
            assert!((UPGRADES..UPGRADES + UPGRADES_DRAWN).contains(&one[place + 4]));
        }
        assert_ne!(one[0], one[5]);
    }
}
