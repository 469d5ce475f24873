//! The simulator: runs seeds, replays one, and proves that a seed repeats.

#[cfg(feature = "planted-bugs")]
mod mutants;
mod seeded;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use warren_simulations::faults::Kind;
use warren_simulations::workloads::Workload;
use warren_simulations::{Certificates, Detail, Options, Report, invariants, run};

/// Stands for no invariant's name.
const HELD: &str = "-";
/// Nodes that certificates are made for.
const NODES: usize = 6;
/// How often a run is looked at, in real time.
const LOOK: Duration = Duration::from_millis(20);
/// A run whose simulated time stands still for so long, in real time, never goes on.
const STUCK: Duration = Duration::from_secs(60);
/// Seeds that once failed, with what was wrong.
const PINNED: &str = include_str!("../seeds.txt");

/// Deterministic simulation of whole Warren clusters under faults.
#[derive(Parser)]
#[command(
    after_help = "Example: cargo xtask simulate run --seeds 30\nEach failure is printed with the one line that repeats it."
)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Runs many seeds, one line each; fails if any does.
    Run {
        /// How many.
        #[arg(long, default_value_t = 30)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 1)]
        first: u64,
        /// How long clients work and faults strike, in simulated minutes; each seed has its own length if not given.
        #[arg(long)]
        minutes: Option<f64>,
        /// Runs at once; as many as there are cores if not given.
        #[arg(long)]
        jobs: Option<usize>,
    },
    /// Runs one seed again, exactly.
    Replay {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Simulated minutes, as given to the run.
        #[arg(long)]
        minutes: Option<f64>,
        /// Prints everything that happens.
        #[arg(long)]
        trace: bool,
        /// Writes everything that happens, packets included, into a file.
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
        /// Has the oracle believe in a queue that nobody declares: shows that a broken invariant is found and reported.
        #[arg(long, hide = true)]
        sabotage: bool,
    },
    /// Runs one seed as a part of a run of many.
    #[command(hide = true)]
    One {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Simulated minutes.
        #[arg(long)]
        minutes: Option<f64>,
    },
    /// Runs a seed twice in fresh processes; fails if they differ in any event or packet.
    Determinism {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Simulated minutes.
        #[arg(long)]
        minutes: Option<f64>,
    },
    /// Runs the seeds that once failed.
    Pinned,
    /// Plants one bug after the other, and shows in how many seeds each is found; fails if one is not. Only if built with the bugs, as by `cargo xtask`.
    Mutants {
        /// How many seeds each bug is looked for in.
        #[arg(long, default_value_t = 12)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 1)]
        first: u64,
        /// Ends with each bug's first find.
        #[arg(long)]
        short: bool,
        /// Only this bug.
        #[arg(long, value_name = "BUG")]
        only: Option<String>,
        /// Runs at once; as many as there are cores if not given.
        #[arg(long)]
        jobs: Option<usize>,
    },
    /// Shows invariants, workloads, kinds of faults, and pinned seeds.
    List,
}

fn main() -> ExitCode {
    #[cfg(feature = "planted-bugs")]
    if let Err(error) = mutants::plant() {
        eprintln!("simulate: {error:#}");
        return ExitCode::from(2);
    }
    match act(Arguments::parse().action) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn act(action: Action) -> anyhow::Result<bool> {
    match action {
        Action::Run {
            seeds,
            first,
            minutes,
            jobs,
        } => many((first..first + seeds).collect(), minutes, jobs),
        Action::One { seed, minutes } => one(seed, minutes),
        Action::Replay {
            seed,
            minutes,
            trace,
            record,
            sabotage,
        } => replay(
            &Options {
                sabotage,
                ..Options::of(seed, length(minutes))
            },
            minutes,
            trace,
            record.as_deref(),
        ),
        Action::Determinism { seed, minutes } => determinism(seed, minutes),
        #[cfg(feature = "planted-bugs")]
        Action::Mutants {
            seeds,
            first,
            short,
            only,
            jobs,
        } => mutants::find(
            (first..first + seeds).collect(),
            short,
            only.as_deref(),
            jobs,
        ),
        #[cfg(not(feature = "planted-bugs"))]
        Action::Mutants { .. } => {
            bail!("this simulator is built without planted bugs: cargo xtask simulate mutants")
        }
        Action::Pinned => many(pinned().map(|(seed, _)| seed).collect(), None, None),
        Action::List => {
            list();
            Ok(true)
        }
    }
}

fn length(minutes: Option<f64>) -> Option<Duration> {
    minutes.map(|minutes| Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0))
}

/// A run on a thread of its own, whose randomness is the seed's.
fn on_thread(options: Options, detail: Detail) -> anyhow::Result<Report> {
    let seed = options.seed;
    let progress = Arc::new(AtomicU64::new(0));
    let watched = progress.clone();
    let simulation = move || -> anyhow::Result<Report> {
        // The same certificates for all seeds and in all processes.
        seeded::seed(0);
        let certificates = Certificates::make(NODES)?;
        seeded::seed(seed);
        Ok(run(&options, &certificates, detail, &progress))
    };
    let thread = std::thread::Builder::new()
        .name(format!("seed-{seed}"))
        .stack_size(16 << 20)
        .spawn(simulation)?;
    let (mut last, mut since) = (0, Instant::now());
    while !thread.is_finished() {
        std::thread::sleep(LOOK);
        let now = watched.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > STUCK {
            // The thread cannot be stopped: this ends the process.
            bail!(
                "seed {seed} is stuck at {:.3} s: simulated code runs without end. Repeat it with a debugger: cargo xtask simulate replay --seed {seed}",
                last as f64 / 1000.0
            );
        }
    }
    match thread.join() {
        Ok(report) => report,
        Err(_) => bail!("the simulator itself failed at seed {seed}"),
    }
}

/// Runs each seed in a process of its own: what libraries keep for the whole process would else depend on the runs before.
fn many(seeds: Vec<u64>, minutes: Option<f64>, jobs: Option<usize>) -> anyhow::Result<bool> {
    let jobs = jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
        .max(1);
    let (began, count) = (Instant::now(), seeds.len());
    let next = Mutex::new(seeds.into_iter());
    let failed: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let simulated_ms = AtomicU64::new(0);
    let one_after_the_other = || -> anyhow::Result<()> {
        loop {
            let Some(seed) = lock(&next).next() else {
                return Ok(());
            };
            let done = in_process(seed, minutes)?;
            simulated_ms.fetch_add(done.simulated_ms, Ordering::Relaxed);
            // One lock for the whole report: reports do not mix.
            let mut failed = lock(&failed);
            print!("{}", done.text);
            if let Some(invariant) = done.broken {
                failed.insert(seed, invariant);
            }
        }
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|_| scope.spawn(one_after_the_other))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| bail!("a thread of the simulator failed"))
            })
            .collect::<Vec<_>>()
    });
    results.into_iter().collect::<anyhow::Result<()>>()?;
    let simulated = simulated_ms.into_inner() as f64 / 1000.0;
    let real = began.elapsed().as_secs_f64();
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
    Ok(failed.is_empty())
}

/// How a seed went in a process of its own.
struct Done {
    simulated_ms: u64,
    broken: Option<String>,
    text: String,
}

fn in_process(seed: u64, minutes: Option<f64>) -> anyhow::Result<Done> {
    done(seed, &mut own_process("one", seed, minutes)?)
}

/// Runs a process that runs a seed.
fn done(seed: u64, process: &mut Command) -> anyhow::Result<Done> {
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
fn own_process(action: &str, seed: u64, minutes: Option<f64>) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args([action, "--seed", &seed.to_string()]);
    if let Some(minutes) = minutes {
        command.args(["--minutes", &minutes.to_string()]);
    }
    Ok(command)
}

/// A seed's run for [`in_process`]: the first line says how long and what broke, the rest is for people.
fn one(seed: u64, minutes: Option<f64>) -> anyhow::Result<bool> {
    let began = Instant::now();
    let report = on_thread(Options::of(seed, length(minutes)), Detail::Last)?;
    let broken = report
        .violation
        .as_ref()
        .map_or(HELD, |violation| violation.invariant);
    println!(
        "{} {broken}\n{}",
        report.simulated.as_millis(),
        line(&report, began.elapsed())
    );
    explain(&report, minutes);
    Ok(report.violation.is_none())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn line(report: &Report, took: Duration) -> String {
    let counts = report.counts;
    let how = if report.violation.is_some() {
        "FAILED"
    } else {
        "ok"
    };
    format!(
        "seed {}: {how}, {:.0} s in {:.1} s; {}; {} operations, {} deliveries ({} again), checks: {} drained, {} digests, {} declares, {} rings, {} exclusives",
        report.options.seed,
        report.simulated.as_secs_f64(),
        took.as_secs_f64(),
        report.options,
        counts.operations,
        counts.deliveries,
        counts.again,
        counts.drained,
        counts.digests,
        counts.declares,
        counts.rings,
        counts.exclusives
    )
}

/// What a person needs to know of a failed run.
fn explain(report: &Report, minutes: Option<f64>) {
    let Some(violation) = &report.violation else {
        return;
    };
    for event in report.timeline.last() {
        println!("  {event}");
    }
    let minutes = minutes.map_or_else(String::new, |minutes| format!(" --minutes {minutes}"));
    println!(
        "seed {} has broken {} at {:.3} s: {}",
        report.options.seed,
        violation.invariant,
        violation.at.as_secs_f64(),
        violation.what
    );
    println!(
        "repeat it with: cargo xtask simulate replay --seed {}{minutes}",
        report.options.seed
    );
}

fn replay(
    options: &Options,
    minutes: Option<f64>,
    trace: bool,
    record: Option<&Path>,
) -> anyhow::Result<bool> {
    let detail = match (record, trace) {
        (Some(_), _) => Detail::Packets,
        (None, true) => Detail::All,
        (None, false) => Detail::Last,
    };
    let began = Instant::now();
    let report = on_thread(options.clone(), detail)?;
    if let Some(file) = record {
        let mut all = report.timeline.all().join("\n");
        all.push('\n');
        std::fs::write(file, all).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if trace {
        report
            .timeline
            .all()
            .iter()
            .filter(|event| !event.contains(" net "))
            .for_each(|event| println!("{event}"));
    }
    println!("{}", line(&report, began.elapsed()));
    if !trace {
        explain(&report, minutes);
    } else if let Some(violation) = &report.violation {
        println!(
            "seed {} has broken {} at {:.3} s: {}",
            options.seed,
            violation.invariant,
            violation.at.as_secs_f64(),
            violation.what
        );
    }
    Ok(report.violation.is_none())
}

fn determinism(seed: u64, minutes: Option<f64>) -> anyhow::Result<bool> {
    let folder =
        std::env::temp_dir().join(format!("warren-determinism-{}-{seed}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let recorded = |name: &str| -> anyhow::Result<String> {
        let file = folder.join(name);
        let output = own_process("replay", seed, minutes)?
            .arg("--record")
            .arg(&file)
            .output()
            .context("cannot run this program again")?;
        if output.status.code() == Some(2) {
            bail!(
                "the run did not end well: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let both = recorded("first").and_then(|first| Ok((first, recorded("second")?)));
    let removed = std::fs::remove_dir_all(&folder);
    let (first, second) = both?;
    removed.with_context(|| format!("cannot remove {}", folder.display()))?;
    let (one, other): (Vec<&str>, Vec<&str>) = (first.lines().collect(), second.lines().collect());
    match (0..one.len().max(other.len())).find(|place| one.get(*place) != other.get(*place)) {
        None => {
            println!(
                "seed {seed} repeats: {} events, packets included, are the same in both runs",
                one.len()
            );
            Ok(true)
        }
        Some(place) => {
            println!(
                "seed {seed} does NOT repeat: the runs differ from event {} of {} on",
                place + 1,
                one.len()
            );
            one[place.saturating_sub(20)..place]
                .iter()
                .for_each(|event| println!("    {event}"));
            println!(
                "  1 {}\n  2 {}",
                one.get(place).unwrap_or(&"(ended)"),
                other.get(place).unwrap_or(&"(ended)")
            );
            Ok(false)
        }
    }
}

/// Pinned seeds, with what was wrong.
fn pinned() -> impl Iterator<Item = (u64, &'static str)> {
    let lines = PINNED
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| {
        let (seed, what) = line.split_once(' ').unwrap_or((line, ""));
        Some((seed.parse().ok()?, what.trim()))
    })
}

fn list() {
    println!("Invariants:");
    invariants::ALL
        .iter()
        .for_each(|(name, what)| println!("  {name:<20} {what}"));
    println!(
        "Workloads: {}",
        Workload::ALL.map(Workload::name).join(", ")
    );
    println!("Faults: {}", Kind::ALL.map(Kind::name).join(", "));
    println!("Pinned seeds:");
    pinned().for_each(|(seed, what)| println!("  {seed:<8} {what}"));
}
