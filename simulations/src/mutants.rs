//! Proof that the simulator finds bugs: plants one after the other in the product, and counts the seeds that show it.
//!
//! Flow: each run is a process of its own, whose environment names the bug; [`plant`] plants it before anything else. Built only with the feature
//! `planted-bugs`. Every seed that is used runs without a bug, too: one that fails then proves nothing about a bug, and fails the whole.
//! `mutants.txt` knows for each bug some seeds that found it, which come first.

use crate::fresh::{self, Numbers};
use crate::processes::{Done, at_once, done, lock, own_process};
use anyhow::bail;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use warren_model::planted::{self, Bug};
use warren_simulations::options::{LEADERS, METADATA, QUEUES, UPGRADES};

/// Names the bug of a process.
const VARIABLE: &str = "WARREN_PLANTED_BUG";
/// Bugs, and seeds that found them.
const KNOWN: &str = include_str!("../mutants.txt");

/// Plants the bug that the environment names, if any.
pub(crate) fn plant() -> anyhow::Result<()> {
    match std::env::var(VARIABLE) {
        Ok(name) if planted::plant(&name).is_none() => bail!("no bug is called '{name}'"),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// What to look for, and how.
pub(crate) struct Search {
    /// Besides the seeds that are known to find a bug; some of each kind if none are given.
    pub(crate) seeds: Option<Vec<u64>>,
    /// Until a bug is found.
    pub(crate) short: bool,
    /// Begins with no further bug once so much real time has passed.
    pub(crate) limit: Option<Duration>,
    /// Only this bug.
    pub(crate) only: Option<String>,
    /// Only so many bugs, drawn from the id of this commit.
    pub(crate) few: Option<(usize, String)>,
    pub(crate) jobs: Option<usize>,
}

/// How often a bug was found, and by which invariants.
#[derive(Default)]
struct Found {
    runs: usize,
    seeds: Vec<u64>,
    by: BTreeMap<String, usize>,
}

/// Looks for each bug.
pub(crate) fn find(search: &Search) -> anyhow::Result<bool> {
    let known = known()?;
    let bugs = bugs(search, &known)?;
    let others = search.seeds.clone().unwrap_or_else(usual_seeds);
    let began = Instant::now();
    let mut plain = Plain::default();
    let (mut missed, mut left_out) = (Vec::new(), Vec::new());
    for bug in bugs {
        if search.limit.is_some_and(|limit| began.elapsed() >= limit) {
            left_out.push(bug.name());
            continue;
        }
        let first = known.get(bug.name()).map_or(&[][..], Vec::as_slice);
        let others = others.iter().filter(|seed| !first.contains(seed));
        let others: Vec<u64> = others.copied().collect();
        let mut found = Found::default();
        // What is known to find it comes alone: in most cases nothing else has to be run.
        for seeds in [first, &others] {
            if !search.short || found.seeds.is_empty() {
                look_for(bug, seeds, search, &mut plain, &mut found)?;
            }
        }
        if found.seeds.is_empty() {
            missed.push(bug.name());
        }
        println!("{}", line(bug, &found));
    }
    println!(
        "{} seeds were run without a bug, too; {:.0} s in all",
        plain.held.len() + plain.failed.len(),
        began.elapsed().as_secs_f64()
    );
    if !plain.failed.is_empty() {
        let failed = plain.failed.values().map(String::as_str);
        println!(
            "FAILED without any bug: {:?}\n{}",
            plain.failed.keys().collect::<Vec<_>>(),
            failed.collect::<String>()
        );
    }
    if !left_out.is_empty() {
        println!("left out for want of time: {}", left_out.join(", "));
    }
    if !missed.is_empty() {
        println!("NOT FOUND: {}", missed.join(", "));
    } else if left_out.is_empty() {
        println!("every planted bug that was looked for is found");
    }
    Ok(missed.is_empty() && plain.failed.is_empty())
}

fn line(bug: Bug, found: &Found) -> String {
    let by: Vec<String> = found
        .by
        .iter()
        .map(|(invariant, times)| format!("{invariant} {times}"))
        .collect();
    let seeds: Vec<String> = found.seeds.iter().map(u64::to_string).collect();
    let which = if seeds.is_empty() {
        String::new()
    } else {
        format!(": {} by {}", seeds.join(" "), by.join(", "))
    };
    format!(
        "{:<26} found in {:>2} of {:>2} seeds{which}",
        bug.name(),
        found.seeds.len(),
        found.runs,
    )
}

/// The bugs that are asked for. If only a few, they are drawn from those that some seed is known to find.
fn bugs(search: &Search, known: &BTreeMap<&str, Vec<u64>>) -> anyhow::Result<Vec<Bug>> {
    let only = search.only.as_deref();
    let mut bugs: Vec<Bug> = Bug::ALL
        .iter()
        .copied()
        .filter(|bug| only.is_none_or(|only| bug.name() == only))
        .collect();
    if bugs.is_empty() {
        bail!("no bug is called '{}'", only.unwrap_or_default());
    }
    if let Some((few, revision)) = &search.few {
        let id = fresh::commit(revision)?;
        println!("{few} bugs drawn from commit {id}");
        bugs.retain(|bug| known.get(bug.name()).is_some_and(|seeds| !seeds.is_empty()));
        let mut drawn: Vec<(u64, Bug)> = Numbers::of(&id).zip(bugs).collect();
        drawn.sort_by_key(|(number, _)| *number);
        bugs = drawn.into_iter().map(|(_, bug)| bug).take(*few).collect();
    }
    Ok(bugs)
}

/// Seeds that are known to find bugs, by the bug's name.
fn known() -> anyhow::Result<BTreeMap<&'static str, Vec<u64>>> {
    let mut known: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in KNOWN.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else {
            continue;
        };
        let seeds = words.map(str::parse).collect::<Result<Vec<u64>, _>>();
        match (Bug::ALL.iter().find(|bug| bug.name() == name), seeds) {
            (Some(bug), Ok(seeds)) => known.insert(bug.name(), seeds),
            (None, _) | (_, Err(_)) => {
                bail!("mutants.txt: '{line}' does not begin with a bug and go on with seeds")
            }
        };
    }
    Ok(known)
}

/// Some seeds of each kind.
fn usual_seeds() -> Vec<u64> {
    let kinds = [
        (1, 4),
        (QUEUES, 4),
        (METADATA, 3),
        (LEADERS, 2),
        (UPGRADES, 1),
    ];
    kinds
        .iter()
        .flat_map(|(first, count)| *first..first + count)
        .collect()
}

/// How seeds go without a bug.
#[derive(Default)]
struct Plain {
    held: Vec<u64>,
    failed: BTreeMap<u64, String>,
}

fn look_for(
    bug: Bug,
    seeds: &[u64],
    search: &Search,
    plain: &mut Plain,
    found: &mut Found,
) -> anyhow::Result<()> {
    let (next, found) = (Mutex::new(seeds.iter()), Mutex::new(found));
    let plain = Mutex::new(plain);
    at_once(search.jobs, || {
        loop {
            if search.short && !lock(&found).seeds.is_empty() {
                return Ok(());
            }
            let Some(&seed) = lock(&next).next() else {
                return Ok(());
            };
            let unknown = {
                let plain = lock(&plain);
                if plain.failed.contains_key(&seed) {
                    continue;
                }
                !plain.held.contains(&seed)
            };
            if unknown {
                let Done { broken, text, .. } = done(seed, &mut own_process("one", seed, None)?)?;
                let mut plain = lock(&plain);
                if broken.is_some() {
                    plain.failed.insert(seed, text);
                    continue;
                }
                plain.held.push(seed);
            }
            let mut process = own_process("one", seed, None)?;
            let Done { broken, .. } = done(seed, process.env(VARIABLE, bug.name()))?;
            let mut found = lock(&found);
            found.runs += 1;
            if let Some(invariant) = broken {
                found.seeds.push(seed);
                *found.by.entry(invariant).or_default() += 1;
            }
        }
    })?;
    lock(&found).seeds.sort_unstable();
    Ok(())
}
