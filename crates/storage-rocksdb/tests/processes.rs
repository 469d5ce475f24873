//! What only a process of its own can show: a real kill, the folder's lock, and a disk that takes no more.
//!
//! The children are this test program again, asked for one of the `child_` tests, with the folder in `FOLDER`.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use warren_storage::{LogEntry, Space, Storage, StorageError, Write};
use warren_storage_rocksdb::{RocksStorage, Settings};

const FOLDER: &str = "WARREN_STORAGE_TEST_FOLDER";
const GROUPS: u64 = 4;

fn open(folder: &Path) -> Result<RocksStorage, StorageError> {
    RocksStorage::open(folder, &Settings::default())
}

fn child_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// A command that runs one of the `child_` tests in the folder.
fn child(name: &str, folder: &Path, shell: Option<&str>) -> Child {
    let program = std::env::current_exe().unwrap();
    let mut command = match shell {
        // The shell sets limits, then becomes the program.
        Some(limits) => {
            let mut command = Command::new("sh");
            command
                .arg("-c")
                .arg(format!("{limits}; exec \"$0\" \"$@\""))
                .arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args([
        "--exact",
        name,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Lines like `answered 3 17` of a child: group and index.
fn answered(line: &str) -> Option<(u64, u64)> {
    let (_, numbers) = line.split_once("answered ")?;
    let (group, index) = numbers.trim().split_once(' ')?;
    Some((group.parse().ok()?, index.parse().ok()?))
}

fn entry(group: u64, index: u64, size: usize) -> LogEntry {
    let head = format!("{group}/{index}/").into_bytes();
    LogEntry {
        index,
        bytes: Bytes::from([head, vec![b'x'; size]].concat()),
    }
}

#[test]
fn a_killed_process_loses_nothing_that_it_answered() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = [0; GROUPS as usize];
    for round in 1..=3 {
        let mut child = child("child_appends_until_it_is_killed", folder.path(), None);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < 2000 {
            let line = lines
                .next()
                .expect("the child runs until it is killed")
                .unwrap();
            seen += usize::from(
                answered(&line)
                    .inspect(|(group, index)| last[*group as usize] = *index)
                    .is_some(),
            );
        }
        let locked = open(folder.path()).err().expect("the child has it open");
        assert!(matches!(locked, StorageError::Locked { .. }), "{locked}");
        assert!(
            locked.to_string().contains("another process uses"),
            "{locked}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before it died counts, too.
        for line in lines.map_while(Result::ok) {
            if let Some((group, index)) = answered(&line) {
                last[group as usize] = index;
            }
        }
        let storage = open(folder.path()).unwrap();
        for group in 0..GROUPS {
            let end = storage.log().bounds(group).unwrap().last;
            let answered = last[group as usize];
            assert!(
                end >= answered,
                "round {round}: group {group} ends at {end}, {answered} was answered"
            );
            let entries = storage.log().read(group, 1, end + 1, usize::MAX).unwrap();
            assert_eq!(entries.len() as u64, end);
            assert!(
                entries
                    .iter()
                    .all(|found| *found == entry(group, found.index, 100))
            );
        }
        storage.close().unwrap();
    }
}

#[test]
#[ignore = "run by a_killed_process_loses_nothing_that_it_answered"]
fn child_appends_until_it_is_killed() {
    let Some(folder) = child_folder() else { return };
    let storage = open(&folder).unwrap();
    let log = storage.log();
    let (sender, receiver) = channel();
    let mut next: Vec<u64> = (0..GROUPS)
        .map(|group| log.bounds(group).unwrap().next())
        .collect();
    let mut append = |group: u64| {
        let index = next[group as usize];
        next[group as usize] += 1;
        let sender = sender.clone();
        let done = move |answer: Result<(), StorageError>| {
            answer.unwrap();
            println!("answered {group} {index}");
            sender.send(group).unwrap();
        };
        log.append(group, vec![entry(group, index, 100)], Box::new(done));
    };
    (0..GROUPS).for_each(|group| (0..8).for_each(|_| append(group)));
    while let Ok(group) = receiver.recv_timeout(Duration::from_secs(30)) {
        append(group);
    }
}

#[test]
fn a_disk_that_takes_no_more_is_reported_and_nothing_answered_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    // No file may grow beyond 4 MiB: the stand-in for a disk that fails, which needs no privileges. A log segment may.
    let limits = "trap '' XFSZ; ulimit -f 8192";
    let child = child(
        "child_appends_until_the_disk_refuses",
        folder.path(),
        Some(limits),
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let last = text
        .lines()
        .filter_map(answered)
        .map(|(_, index)| index)
        .max()
        .unwrap();
    let storage = open(folder.path()).unwrap();
    let end = storage.log().bounds(0).unwrap().last;
    assert!(end >= last, "{end} is there, {last} was answered");
    assert_eq!(
        storage.log().read(0, last, last + 1, 0).unwrap(),
        [entry(0, last, 64 << 10)]
    );
}

#[test]
#[ignore = "run by a_disk_that_takes_no_more_is_reported_and_nothing_answered_is_lost"]
fn child_appends_until_the_disk_refuses() {
    let Some(folder) = child_folder() else { return };
    let log = warren_storage_log::Settings {
        segment_bytes: 1 << 20,
        ..Default::default()
    };
    let settings = Settings {
        log,
        ..Settings::default()
    };
    let storage = RocksStorage::open(&folder, &settings).unwrap();
    let log = storage.log();
    let append = |index: u64, size: usize| {
        let (sender, receiver) = channel();
        let done = Box::new(move |answer| sender.send(answer).unwrap());
        log.append(0, vec![entry(0, index, size)], done);
        receiver.recv_timeout(Duration::from_secs(30)).unwrap()
    };
    for index in 1..=100 {
        append(index, 64 << 10).unwrap();
        println!("answered 0 {index}");
    }
    // This one needs a segment that is larger than the limit.
    let error = append(101, 5 << 20).unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error}");
    let later = append(102, 64 << 10).unwrap_err();
    assert!(
        matches!(&later, StorageError::Stopped { .. }) && *later.root() == error,
        "{later}"
    );
    let write = storage
        .state()
        .write(Space::Node, vec![Write::DeleteAll])
        .unwrap_err();
    assert!(matches!(write, StorageError::Stopped { .. }), "{write}");
    assert_eq!(
        log.read(0, 1, 2, 0).unwrap(),
        [entry(0, 1, 64 << 10)],
        "reads go on"
    );
    assert!(storage.close().is_err());
}
