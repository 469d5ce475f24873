//! Proof that the simulator finds bugs: plants one after the other in the product, and counts the seeds that show it.
//!
//! Flow: each run is a process of its own, whose environment names the bug; [`plant`] plants it before anything else. Built only with the feature
//! `planted-bugs`.

use crate::processes::{Done, at_once, done, lock, own_process};
use anyhow::bail;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use warren_model::planted::{self, Bug};

/// Names the bug of a process.
const VARIABLE: &str = "WARREN_PLANTED_BUG";

/// Plants the bug that the environment names, if any.
pub(crate) fn plant() -> anyhow::Result<()> {
    match std::env::var(VARIABLE) {
        Ok(name) if planted::plant(&name).is_none() => bail!("no bug is called '{name}'"),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// How often a bug was found, and by which invariants.
#[derive(Default)]
struct Found {
    runs: usize,
    seeds: Vec<u64>,
    by: BTreeMap<String, usize>,
}

/// Looks for each bug in these seeds. `short`: until it is found. Begins with no further bug once `limit` of real time has passed.
pub(crate) fn find(
    seeds: Vec<u64>,
    short: bool,
    limit: Option<Duration>,
    only: Option<&str>,
    jobs: Option<usize>,
) -> anyhow::Result<bool> {
    let bugs: Vec<Bug> = Bug::ALL
        .iter()
        .copied()
        .filter(|bug| only.is_none_or(|only| bug.name() == only))
        .collect();
    if bugs.is_empty() {
        bail!("no bug is called '{}'", only.unwrap_or_default());
    }
    let (count, began) = (seeds.len(), Instant::now());
    let (mut missed, mut left_out) = (Vec::new(), Vec::new());
    for bug in bugs {
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            left_out.push(bug.name());
            continue;
        }
        let found = look_for(bug, &seeds, short, jobs)?;
        if found.seeds.is_empty() {
            missed.push(bug.name());
        }
        let by: Vec<String> = found
            .by
            .iter()
            .map(|(invariant, times)| format!("{invariant} {times}"))
            .collect();
        println!(
            "{:<26} found in {:>2} of {:>2} seeds{}{}",
            bug.name(),
            found.seeds.len(),
            found.runs,
            found
                .seeds
                .first()
                .map_or_else(String::new, |seed| format!(", first {seed}: ")),
            by.join(", ")
        );
    }
    println!(
        "{count} seeds a bug at most, {:.0} s",
        began.elapsed().as_secs_f64()
    );
    if !left_out.is_empty() {
        println!("left out for want of time: {}", left_out.join(", "));
    }
    if missed.is_empty() && left_out.is_empty() {
        println!("every planted bug is found");
    } else if !missed.is_empty() {
        println!("NOT FOUND: {}", missed.join(", "));
    }
    Ok(missed.is_empty())
}

fn look_for(bug: Bug, seeds: &[u64], short: bool, jobs: Option<usize>) -> anyhow::Result<Found> {
    let (next, found) = (Mutex::new(seeds.iter()), Mutex::new(Found::default()));
    at_once(jobs, || {
        loop {
            if short && !lock(&found).seeds.is_empty() {
                return Ok(());
            }
            let Some(&seed) = lock(&next).next() else {
                return Ok(());
            };
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
    let mut found = found
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    found.seeds.sort_unstable();
    Ok(found)
}
