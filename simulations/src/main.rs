//! The simulator: runs seeds, replays one, and proves that a seed repeats.

mod fresh;
#[cfg(feature = "planted-bugs")]
mod mutants;
mod processes;
mod repeats;
mod seeded;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use processes::{HELD, Source, many};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warren_simulations::faults::Kind;
use warren_simulations::workloads::Workload;
use warren_simulations::{Certificates, Detail, Options, Report, invariants, run};

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
        /// Begins no further seed after so many minutes of real time, however many are left.
        #[arg(long, value_name = "MINUTES")]
        limit: Option<f64>,
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
    /// Runs seeds twice each in fresh processes; fails if two runs differ in any event or packet.
    Determinism {
        /// The first seed.
        #[arg(long)]
        seed: u64,
        /// How many.
        #[arg(long, default_value_t = 1)]
        seeds: u64,
        /// Simulated minutes.
        #[arg(long)]
        minutes: Option<f64>,
        /// Seeds at once; twice as many processes run.
        #[arg(long)]
        jobs: Option<usize>,
    },
    /// Measures how fast three nodes with 200 messages a second and without faults are simulated, on one core.
    Bench {
        /// The seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Simulated minutes of load.
        #[arg(long, default_value_t = 2.0)]
        minutes: f64,
        /// Shards.
        #[arg(long, default_value_t = 16)]
        shards: u16,
    },
    /// Runs the seeds that once failed.
    Pinned,
    /// Runs seeds that are drawn from a commit's id, some of each kind; fails if any does.
    Fresh {
        /// The commit.
        #[arg(long, value_name = "REVISION", default_value = "HEAD")]
        commit: String,
        /// Begins with no further seed after so many minutes of real time.
        #[arg(long, required_unless_present = "seeds")]
        minutes: Option<f64>,
        /// How many, at most.
        #[arg(long)]
        seeds: Option<usize>,
        /// Runs at once; as many as there are cores if not given.
        #[arg(long)]
        jobs: Option<usize>,
    },
    /// Plants one bug after the other, and shows in how many seeds each is found; fails if one is not. Only if built with the bugs, as by `cargo xtask`.
    Mutants {
        /// How many seeds each bug is looked for in, besides those that are known to find it: some of each kind if not given.
        #[arg(long)]
        seeds: Option<u64>,
        /// The first of them.
        #[arg(long, default_value_t = 1)]
        first: u64,
        /// Ends with each bug's first find.
        #[arg(long)]
        short: bool,
        /// Only so many bugs, drawn from a commit's id.
        #[arg(long, value_name = "BUGS")]
        few: Option<usize>,
        /// That commit.
        #[arg(long, value_name = "REVISION", default_value = "HEAD")]
        commit: String,
        /// Begins with no further bug after so many minutes of real time, and says which were left out.
        #[arg(long, value_name = "MINUTES")]
        limit: Option<f64>,
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
            limit,
            jobs,
        } => {
            let source = Source {
                seeds: Box::new(first..first + seeds),
                minutes,
                limit: length(limit),
            };
            Ok(many(source, jobs)?.0)
        }
        Action::Fresh {
            commit,
            minutes,
            seeds,
            jobs,
        } => fresh::run(&commit, length(minutes), seeds, jobs),
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
        Action::Determinism {
            seed,
            seeds,
            minutes,
            jobs,
        } => repeats::all((seed..seed + seeds).collect(), minutes, jobs),
        Action::Bench {
            seed,
            minutes,
            shards,
        } => bench(seed, minutes, shards),
        #[cfg(feature = "planted-bugs")]
        Action::Mutants {
            seeds,
            first,
            short,
            few,
            commit,
            limit,
            only,
            jobs,
        } => mutants::find(&mutants::Search {
            seeds: seeds.map(|seeds| (first..first + seeds).collect()),
            short,
            limit: length(limit),
            only,
            few: few.map(|few| (few, commit)),
            jobs,
        }),
        #[cfg(not(feature = "planted-bugs"))]
        Action::Mutants { .. } => {
            bail!("this simulator is built without planted bugs: cargo xtask simulate mutants")
        }
        Action::Pinned => {
            let source = Source {
                seeds: Box::new(pinned().map(|(seed, _)| seed)),
                minutes: None,
                limit: None,
            };
            Ok(many(source, None)?.0)
        }
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

/// A seed's run for [`processes::many`]: the first line says how long and what broke, the rest is for people.
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

/// How fast a run without faults is.
fn bench(seed: u64, minutes: f64, shards: u16) -> anyhow::Result<bool> {
    let work = length(Some(minutes)).unwrap_or_default();
    let began = Instant::now();
    let options = Options {
        shards,
        ..Options::bench(seed, work)
    };
    let report = on_thread(options, Detail::Last)?;
    let took = began.elapsed();
    println!("{}", line(&report, took));
    let simulated = report.simulated.as_secs_f64();
    let of_core = core_time().map_or_else(String::new, |of_core| {
        let speed = simulated / of_core.as_secs_f64().max(0.001);
        format!(", {speed:.1} a second of a core's own time, whatever else the machine does")
    });
    println!(
        "{:.1} simulated seconds a second{of_core}",
        simulated / took.as_secs_f64().max(0.001)
    );
    explain(&report, None);
    Ok(report.violation.is_none())
}

/// How long this process has had a core so far, where the system says so.
fn core_time() -> Option<Duration> {
    /// What the system counts processes' time in, for programs: a hundredth of a second on every platform that there is.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in brackets, may hold blanks itself. Behind it, the 12th and 13th: in the program, and in the system for it.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11);
    let mut time = || times.next()?.parse::<u32>().ok();
    Some(TICK * (time()? + time()?))
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
