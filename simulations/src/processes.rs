//! Runs of seeds in processes of their own: what libraries keep for the whole process would else depend on the runs before.

use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stands for no invariant's name.
pub(crate) const HELD: &str = "-";

/// How a seed went in a process of its own.
pub(crate) struct Done {
    pub(crate) simulated_ms: u64,
    pub(crate) broken: Option<String>,
    pub(crate) text: String,
}

/// Seeds to run.
pub(crate) struct Source {
    /// In this order.
    pub(crate) seeds: Box<dyn Iterator<Item = u64> + Send>,
    /// Simulated minutes; each seed has its own length if not given.
    pub(crate) minutes: Option<f64>,
    /// Begins with no further seed once so much real time has passed.
    pub(crate) limit: Option<Duration>,
}

/// Runs seeds. Whether all held, and how many there were.
pub(crate) fn many(source: Source, jobs: Option<usize>) -> anyhow::Result<(bool, u64)> {
    let Source {
        seeds,
        minutes,
        limit,
    } = source;
    let began = Instant::now();
    let next = Mutex::new(seeds);
    let failed: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let (simulated_ms, count) = (AtomicU64::new(0), AtomicU64::new(0));
    at_once(jobs, || {
        while limit.is_none_or(|limit| began.elapsed() < limit) {
            let Some(seed) = lock(&next).next() else {
                break;
            };
            let done = done(seed, &mut own_process("one", seed, minutes)?)?;
            simulated_ms.fetch_add(done.simulated_ms, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            // One lock for the whole report: reports do not mix.
            let mut failed = lock(&failed);
            print!("{}", done.text);
            if let Some(invariant) = done.broken {
                failed.insert(seed, invariant);
            }
        }
        Ok(())
    })?;
    let simulated = simulated_ms.into_inner() as f64 / 1000.0;
    let (real, count) = (began.elapsed().as_secs_f64(), count.into_inner());
    println!(
        "{count} seeds, {simulated:.0} s simulated in {real:.0} s ({:.0} a second)",
        simulated / real.max(0.001)
    );
    let failed = lock(&failed);
    if failed.is_empty() {
        println!("all invariants held");
    } else {
        let seeds: Vec<String> = failed
            .iter()
            .map(|(seed, invariant)| format!("{seed} ({invariant})"))
            .collect();
        println!(
            "FAILED: {} of {count} seeds: {}",
            failed.len(),
            seeds.join(", ")
        );
    }
    Ok((failed.is_empty(), count))
}

/// Runs the same work on several threads, as many as there are cores unless said; the first error is passed on.
pub(crate) fn at_once(
    jobs: Option<usize>,
    work: impl Fn() -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let jobs = jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
        .max(1);
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a thread of the simulator failed"))
            })
            .collect();
        results.into_iter().collect()
    })
}

/// Runs a process that runs a seed.
pub(crate) fn done(seed: u64, process: &mut Command) -> anyhow::Result<Done> {
    let output = process.output().context("cannot run this program again")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let head = text
        .split_once('\n')
        .and_then(|(head, rest)| Some((head.split_once(' ')?, rest)));
    if let Some(((simulated_ms, broken), rest)) = head
        && let Ok(simulated_ms) = simulated_ms.parse()
    {
        return Ok(Done {
            simulated_ms,
            broken: (broken != HELD).then(|| broken.to_owned()),
            text: rest.to_owned(),
        });
    }
    let text = format!(
        "seed {seed}: FAILED, the simulator did not end well: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(Done {
        simulated_ms: 0,
        broken: Some("stuck or crashed".to_owned()),
        text,
    })
}

/// This program again, with one seed.
pub(crate) fn own_process(
    action: &str,
    seed: u64,
    minutes: Option<f64>,
) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args([action, "--seed", &seed.to_string()]);
    if let Some(minutes) = minutes {
        command.args(["--minutes", &minutes.to_string()]);
    }
    Ok(command)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
