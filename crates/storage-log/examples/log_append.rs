//! How fast the log is: entries a second, each batch with its sync, of one group and of many at once, with what it takes of a
//! core; and how long it takes to open with 2 GiB of log.
//!
//! `cargo run --release -p warren-storage-log --example log_append [FOLDER [SECONDS]]`

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_storage::{LogEntry, StorageError};
use warren_storage_log::{LogFiles, Settings};

/// How many bytes of entries a group keeps.
const KEPT_BYTES: u64 = 32 << 20;
const OPENED_BYTES: usize = 2 << 30;

struct Load {
    groups: u64,
    /// Entries of one append.
    batch: u64,
    /// Appends that a group has under way at once.
    depth: u64,
    bytes: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = tempfile::tempdir()?;
    let folder = arguments
        .next()
        .map_or(parent.path().join("data"), PathBuf::from);
    let seconds = arguments.next().map_or(Ok(3), |seconds| seconds.parse())?;
    println!("groups  batch  depth    bytes    entries/s     MiB/s    syncs/s   cores   RSS MB");
    let loads = [
        (1, 1, 1, 1024),
        (1, 32, 1, 1024),
        (1, 256, 1, 1024),
        (1, 1024, 1, 1024),
        (1, 256, 4, 1024),
        (64, 1, 1, 1024),
        (64, 1, 16, 1024),
        (64, 32, 1, 1024),
        (16, 1, 2, 256 << 10),
        (16, 1, 1, 2 << 20),
    ];
    for (number, (groups, batch, depth, bytes)) in (0u32..).zip(loads) {
        let files = LogFiles::open(&folder.join(number.to_string()), &Settings::default())?;
        let load = Load {
            groups,
            batch,
            depth,
            bytes,
        };
        let busy = processor_seconds();
        let begun = Instant::now();
        let (rate, syncs) = run(&files, &load, Duration::from_secs(seconds))?;
        let cores = (processor_seconds() - busy) / begun.elapsed().as_secs_f64();
        let mebibytes = rate * bytes as f64 / f64::from(1 << 20);
        println!(
            "{groups:>6} {batch:>6} {depth:>6} {bytes:>8} {rate:>12.0} {mebibytes:>9.0} {syncs:>10.0} {cores:>7.2} {:>8}",
            resident_mb()
        );
        files.close()?;
        drop(files);
        std::fs::remove_dir_all(folder.join(number.to_string()))?;
    }
    for bytes in [1024, 256 << 10] {
        open(&folder.join("open"), bytes)?;
    }
    Ok(())
}

fn run(files: &LogFiles, load: &Load, time: Duration) -> Result<(f64, f64), StorageError> {
    let log = files.log();
    let bytes = contents(load.bytes);
    let kept = (KEPT_BYTES / load.bytes as u64).max(1);
    let (sender, receiver) = channel::<(u64, Result<(), StorageError>)>();
    let mut next = vec![1; usize::try_from(load.groups).unwrap_or(usize::MAX)];
    let mut append = |group: u64| {
        let Some(next) = next.get_mut(usize::try_from(group).unwrap_or(usize::MAX)) else {
            return;
        };
        let entries = (*next..*next + load.batch).map(|index| LogEntry {
            index,
            bytes: bytes.clone(),
        });
        let sender = sender.clone();
        // Nobody listens once the time is up.
        log.append(
            group,
            entries.collect(),
            Box::new(move |answer| drop(sender.send((group, answer)))),
        );
        *next += load.batch;
        if *next % kept < load.batch {
            log.purge(group, next.saturating_sub(kept), Box::new(|_| ()));
        }
    };
    let (begun, before) = (Instant::now(), files.stats());
    (0..load.groups).for_each(|group| (0..load.depth).for_each(|_| append(group)));
    let mut answered = 0.0;
    while begun.elapsed() < time {
        let Ok((group, answer)) = receiver.recv() else {
            break;
        };
        answer?;
        answered += 1.0;
        append(group);
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), files.stats());
    let syncs = (after.log_syncs - before.log_syncs) as f64;
    Ok((answered * load.batch as f64 / seconds, syncs / seconds))
}

/// Fills a folder and opens it as it was closed, and as a killed process leaves it.
fn open(folder: &Path, bytes: usize) -> Result<(), Box<dyn std::error::Error>> {
    let files = LogFiles::open(folder, &Settings::default())?;
    let contents = contents(bytes);
    let batch = (1 << 20) / bytes as u64;
    let mut next = [1; 16];
    for round in 0..OPENED_BYTES >> 20 {
        let group = round % 16;
        let first = next.get(group).copied().unwrap_or(1);
        let entries = (first..first + batch).map(|index| LogEntry {
            index,
            bytes: contents.clone(),
        });
        let (sender, receiver) = channel();
        let done = Box::new(move |answer| drop(sender.send(answer)));
        files.log().append(group as u64, entries.collect(), done);
        if round % 8 == 7 {
            receiver.recv()??;
        }
        if let Some(next) = next.get_mut(group) {
            *next = first + batch;
        }
    }
    files.close()?;
    drop(files);
    for left in ["closed", "killed in the last segment", "without outlines"] {
        let mut outlines: Vec<PathBuf> = std::fs::read_dir(folder)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        outlines.retain(|path| path.extension().is_some_and(|name| name == "index"));
        outlines.sort();
        match left {
            "closed" => {}
            "without outlines" => outlines.iter().try_for_each(std::fs::remove_file)?,
            _ => outlines.last().map_or(Ok(()), std::fs::remove_file)?,
        }
        let begun = Instant::now();
        let files = LogFiles::open(folder, &Settings::default())?;
        println!(
            "2 GiB in entries of {bytes} bytes, {left}: opened in {:.1} ms, {} MB resident",
            begun.elapsed().as_secs_f64() * 1e3,
            resident_mb()
        );
        drop(files);
    }
    Ok(std::fs::remove_dir_all(folder)?)
}

fn contents(bytes: usize) -> Bytes {
    (0..bytes)
        .map(|at| (at * 31 % 251).to_le_bytes()[0])
        .collect()
}

/// What the process has used of the processors, in seconds, where the system tells.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = fields.split(' ').skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

/// Resident memory, where the system tells.
fn resident_mb() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.map_or("?".to_owned(), |kilobytes| (kilobytes / 1024).to_string())
}
