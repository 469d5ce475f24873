//! Proof that seeds repeat: runs each twice, at the same time, and compares everything that happened, packets included.
//!
//! At the same time, so that the two see different loads and times: what depends on either shows.

use crate::processes::{at_once, lock, own_process};
use anyhow::{Context as _, bail};
use std::path::Path;
use std::sync::Mutex;

/// Whether all of these seeds repeat.
pub(crate) fn all(
    seeds: Vec<u64>,
    minutes: Option<f64>,
    jobs: Option<usize>,
) -> anyhow::Result<bool> {
    let count = seeds.len();
    let (next, failed) = (Mutex::new(seeds.into_iter()), Mutex::new(Vec::new()));
    at_once(jobs, || {
        loop {
            let Some(seed) = lock(&next).next() else {
                return Ok(());
            };
            let difference = compare(seed, minutes)?;
            let mut failed = lock(&failed);
            match difference {
                Compared::Same(events) => println!(
                    "seed {seed} repeats: {events} events, packets included, are the same in both runs"
                ),
                Compared::Different(how) => {
                    println!("{how}");
                    failed.push(seed);
                }
            }
        }
    })?;
    let failed = lock(&failed);
    if count > 1 {
        println!("{} of {count} seeds repeat", count - failed.len());
    }
    if !failed.is_empty() {
        println!("FAILED: seeds that do not repeat: {failed:?}");
    }
    Ok(failed.is_empty())
}

enum Compared {
    /// So many events.
    Same(usize),
    /// Where they part, for people.
    Different(String),
}

fn compare(seed: u64, minutes: Option<f64>) -> anyhow::Result<Compared> {
    let folder =
        std::env::temp_dir().join(format!("warren-determinism-{}-{seed}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let both = std::thread::scope(|scope| {
        let first = scope.spawn(|| recorded(seed, minutes, &folder.join("first")));
        let second = recorded(seed, minutes, &folder.join("second"))?;
        let first = first
            .join()
            .unwrap_or_else(|_| bail!("a thread of the simulator failed"))?;
        Ok::<_, anyhow::Error>((first, second))
    });
    let removed = std::fs::remove_dir_all(&folder);
    let (first, second) = both?;
    removed.with_context(|| format!("cannot remove {}", folder.display()))?;
    let (one, other): (Vec<&str>, Vec<&str>) = (first.lines().collect(), second.lines().collect());
    let place = (0..one.len().max(other.len())).find(|place| one.get(*place) != other.get(*place));
    let Some(place) = place else {
        return Ok(Compared::Same(one.len()));
    };
    let before: String = one[place.saturating_sub(20)..place]
        .iter()
        .map(|event| format!("    {event}\n"))
        .collect();
    Ok(Compared::Different(format!(
        "seed {seed} does NOT repeat: the runs differ from event {} of {} on\n{before}  1 {}\n  2 {}",
        place + 1,
        one.len(),
        one.get(place).unwrap_or(&"(ended)"),
        other.get(place).unwrap_or(&"(ended)")
    )))
}

/// Everything that happens in a run, in a process of its own.
fn recorded(seed: u64, minutes: Option<f64>, file: &Path) -> anyhow::Result<String> {
    let output = own_process("replay", seed, minutes)?
        .arg("--record")
        .arg(file)
        .output()
        .context("cannot run this program again")?;
    if output.status.code() == Some(2) {
        bail!(
            "the run did not end well: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}
