//! How fast the log is: entries of 1 KiB a second, each batch with its sync, and many groups at once; and how long a state
//! write takes meanwhile (median and 99th percentile), as it must not wait for the log's syncs.
//!
//! `cargo run --release -p warren-storage-rocksdb --example append [FOLDER [SECONDS]]`

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_storage::{LogEntry, Space, Storage, StorageError, Write};
use warren_storage_rocksdb::{RocksStorage, Settings};

const ENTRY_BYTES: usize = 1024;
/// How far a group's log grows before it is purged.
const KEPT: u64 = 20_000;

struct Load {
    groups: u64,
    /// Entries of one append.
    batch: u64,
    /// Appends that a group has under way at once.
    depth: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = tempfile::tempdir()?;
    let folder = arguments
        .next()
        .map_or(parent.path().join("data"), PathBuf::from);
    let seconds = arguments.next().map_or(Ok(3), |seconds| seconds.parse())?;
    println!("groups  batch  depth    entries/s    syncs/s  state µs p50 / p99   RSS MB");
    let loads = [
        (1, 1, 1),
        (1, 32, 1),
        (1, 256, 1),
        (1, 256, 4),
        (64, 1, 1),
        (64, 1, 16),
        (64, 32, 1),
    ];
    for (number, (groups, batch, depth)) in (0u32..).zip(loads) {
        let storage = RocksStorage::open(&folder.join(number.to_string()), &Settings::default())?;
        let stop = AtomicBool::new(false);
        let (log, state) = std::thread::scope(|scope| {
            let state = scope.spawn(|| state_writes_us(&storage, &stop));
            let log = run(
                &storage,
                &Load {
                    groups,
                    batch,
                    depth,
                },
                Duration::from_secs(seconds),
            );
            stop.store(true, Ordering::Relaxed);
            (log, state.join())
        });
        let (rate, syncs) = log?;
        let (median, p99) = state.map_err(|_| "the state writer panicked")??;
        let memory = resident_mb();
        println!(
            "{groups:>6} {batch:>6} {depth:>6} {rate:>12.0} {syncs:>10.0} {median:>11} {p99:>7} {memory:>8}"
        );
        storage.close()?;
    }
    Ok(())
}

fn run(storage: &RocksStorage, load: &Load, time: Duration) -> Result<(f64, f64), StorageError> {
    let log = storage.log();
    let bytes = Bytes::from(
        (0..ENTRY_BYTES)
            .map(|at| (at * 31 % 251).to_le_bytes()[0])
            .collect::<Vec<u8>>(),
    );
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
        if *next % KEPT < load.batch {
            log.purge(group, next.saturating_sub(KEPT), Box::new(|_| ()));
        }
    };
    let (begun, before) = (Instant::now(), storage.stats());
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
    let (seconds, after) = (begun.elapsed().as_secs_f64(), storage.stats());
    let batch = f64::from(u32::try_from(load.batch).unwrap_or(u32::MAX));
    let syncs = f64::from(u32::try_from(after.log_syncs - before.log_syncs).unwrap_or(u32::MAX));
    Ok((answered * batch / seconds, syncs / seconds))
}

/// Writes the state about once a millisecond and returns the median and the 99th percentile of how long a write took.
fn state_writes_us(
    storage: &RocksStorage,
    stop: &AtomicBool,
) -> Result<(u128, u128), StorageError> {
    let state = storage.state();
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let key = Bytes::from(times.len().to_be_bytes().to_vec());
        let begun = Instant::now();
        state.write(
            Space::Queue,
            vec![Write::Put(key, Bytes::from_static(&[7; 200]))],
        )?;
        times.push(begun.elapsed().as_micros());
        std::thread::sleep(Duration::from_millis(1));
    }
    times.sort_unstable();
    let at = |percent: usize| {
        times
            .get(times.len() * percent / 100)
            .copied()
            .unwrap_or_default()
    };
    Ok((at(50), at(99)))
}

/// Resident memory, where the system tells.
fn resident_mb() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.map_or("?".to_owned(), |kilobytes| (kilobytes / 1024).to_string())
}
