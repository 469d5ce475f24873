//! Faults of the disk and damage to the files, and what becomes of segments.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use warren_storage::record::{self, Address};
use warren_storage::{LogBounds, LogEntry, Place, StorageError};

use crate::disk::Faults;
use crate::frame::FRAME_MAGIC;
use crate::{LogFiles, Settings};

type Answer = Result<(), StorageError>;

const SMALL: Settings = Settings {
    tail_cache_bytes: 0,
    batch_bytes: 1 << 20,
    segment_bytes: 64 << 10,
    spare_segments: 1,
    open_segments: 2,
};
const ENOSPC: i32 = 28;
const EIO: i32 = 5;

fn open(folder: &Path) -> Result<LogFiles, StorageError> {
    LogFiles::open(folder, &SMALL)
}

fn contents(group: u64, index: u64) -> Bytes {
    Bytes::from(format!("{group}/{index}/").repeat(200))
}

fn entries(group: u64, indexes: std::ops::RangeInclusive<u64>) -> Vec<LogEntry> {
    let entry = |index| LogEntry {
        index,
        bytes: contents(group, index),
    };
    indexes.map(entry).collect()
}

/// Makes a call and gives what will be its answer.
fn begin(call: impl FnOnce(warren_storage::Done)) -> Receiver<Answer> {
    let (sender, receiver) = channel();
    call(Box::new(move |answer| sender.send(answer).unwrap()));
    receiver
}

fn wait(answer: &Receiver<Answer>) -> Answer {
    answer.recv_timeout(Duration::from_secs(30)).unwrap()
}

fn append(files: &LogFiles, group: u64, indexes: std::ops::RangeInclusive<u64>) -> Answer {
    wait(&begin(|done| {
        files.log().append(group, entries(group, indexes), done)
    }))
}

fn purge(files: &LogFiles, group: u64, through: u64) -> Answer {
    wait(&begin(|done| files.log().purge(group, through, done)))
}

fn put(files: &LogFiles, group: u64, value: &'static str) -> Answer {
    let value = Bytes::from(value);
    wait(&begin(|done| {
        files.log().put_record(group, "vote", value, done)
    }))
}

fn all(files: &LogFiles, group: u64) -> Vec<LogEntry> {
    files.log().read(group, 0, u64::MAX, usize::MAX).unwrap()
}

fn faults(files: &LogFiles, faults: Faults) {
    files.set_faults(faults);
}

fn named(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let paths = files.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths
}

/// Copies the folder as a killed process leaves it. Dead segments may go meanwhile: then all over again.
fn copied(folder: &Path) -> tempfile::TempDir {
    loop {
        let copy = tempfile::tempdir().unwrap();
        match copy_into(folder, copy.path()) {
            Ok(()) => return copy,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
        }
    }
}

fn copy_into(folder: &Path, copy: &Path) -> std::io::Result<()> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    for path in &paths {
        std::fs::copy(path, copy.join(path.file_name().unwrap()))?;
    }
    // One that was renamed while it was copied may hold another segment's bytes.
    paths.iter().try_for_each(|path| path.metadata().map(drop))
}

/// Where the frames of a file begin.
fn frames(bytes: &[u8]) -> Vec<usize> {
    memchr::memmem::find_iter(bytes, &FRAME_MAGIC).collect()
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_crash_in_the_middle_of_a_frame_loses_that_frame_alone() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    append(&files, 1, 1..=3).unwrap();
    put(&files, 1, "me").unwrap();
    let before = copied(folder.path());
    append(&files, 1, 4..=8).unwrap();
    let after = copied(folder.path());
    drop(files);
    let segment = &named(after.path(), "segment")[0];
    let whole = std::fs::read(segment).unwrap();
    let begin = *frames(&whole).last().unwrap();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    // The mark is as old as it was when the power went, or lost.
    let mark = std::fs::read(before.path().join("synced-mark")).unwrap();
    for cut in (begin..end).step_by(97).chain([end - 1, end]) {
        for lost in [b'\0', 0xa5] {
            let mut torn = whole.clone();
            torn[cut..end].fill(lost);
            std::fs::write(segment, torn).unwrap();
            let mark = if lost == 0 { &mark[..] } else { b"" };
            std::fs::write(after.path().join("synced-mark"), mark).unwrap();
            let files = open(after.path()).unwrap();
            let last = if cut == end { 8 } else { 3 };
            assert_eq!(all(&files, 1), entries(1, 1..=last), "cut at {cut}");
            let vote = files.log().get_record(1, "vote").unwrap();
            assert_eq!(vote, Some(Bytes::from("me")));
            // It goes on over what was left of the frame.
            append(&files, 1, last + 1..=last + 1).unwrap();
            let again = copied(after.path());
            drop(files);
            let files = open(again.path()).unwrap();
            assert_eq!(all(&files, 1), entries(1, 1..=last + 1), "cut at {cut}");
            let outline = named(after.path(), "index");
            outline
                .iter()
                .for_each(|path| std::fs::remove_file(path).unwrap());
        }
    }
}

#[test]
fn what_was_synced_and_has_rotted_is_never_lost_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    for index in 1..=20 {
        append(&files, 1, index..=index).unwrap();
    }
    let copy = copied(folder.path());
    drop(files);
    let segment = &named(copy.path(), "segment")[0];
    let whole = std::fs::read(segment).unwrap();
    let frames = frames(&whole);
    assert_eq!(frames.len(), 20);
    let mark = std::fs::read(copy.path().join("synced-mark")).unwrap();
    for (frame, with_mark) in [(10, true), (10, false), (19, true)] {
        let mark: &[u8] = if with_mark { &mark } else { b"" };
        // In a frame's header, and in its table.
        for at in [20, 45] {
            let mut bad = whole.clone();
            bad[frames[frame] + at] ^= 1;
            std::fs::write(segment, bad).unwrap();
            std::fs::write(copy.path().join("synced-mark"), mark).unwrap();
            for _ in 0..2 {
                let error = open(copy.path()).err().expect("entries are lost");
                let place = Place::Files {
                    path: copy.path().to_owned(),
                };
                assert!(
                    matches!(&error, StorageError::Corrupt { place: at, .. } if *at == place),
                    "{error}"
                );
                let text = error.to_string();
                assert!(text.contains("was synced"), "{text}");
                assert!(text.contains(&format!("up to batch {frame}")), "{text}");
            }
        }
    }
    // In a record: the entry has its place in the error, the others are served.
    let mut bad = whole.clone();
    bad[frames[10] + 200] ^= 1;
    std::fs::write(segment, bad).unwrap();
    std::fs::write(copy.path().join("synced-mark"), &mark).unwrap();
    let files = open(copy.path()).unwrap();
    let place = Place::LogEntry {
        group: 1,
        index: 11,
    };
    let read = files.log().read(1, 11, 12, 0);
    assert!(
        matches!(&read, Err(StorageError::Corrupt { place: at, .. }) if *at == place),
        "{read:?}"
    );
    let good = files.log().read(1, 12, 30, usize::MAX).unwrap();
    assert_eq!(good, entries(1, 12..=20));
}

#[test]
fn many_segments_open_with_and_without_their_outlines() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    for index in 1..=300 {
        append(&files, index % 3, index.div_ceil(3)..=index.div_ceil(3)).unwrap();
    }
    wait(&begin(|done| files.log().truncate_after(2, 90, done))).unwrap();
    let copy = copied(folder.path());
    files.close().unwrap();
    assert!(named(folder.path(), "segment").len() > 3);
    for (path, outlines) in [
        (folder.path(), true),
        (copy.path(), true),
        (copy.path(), false),
    ] {
        if !outlines {
            let outline = named(path, "index");
            outline
                .iter()
                .for_each(|path| std::fs::remove_file(path).unwrap());
        }
        let files = open(path).unwrap();
        assert_eq!(all(&files, 0), entries(0, 1..=100));
        assert_eq!(all(&files, 1), entries(1, 1..=100));
        assert_eq!(all(&files, 2), entries(2, 1..=90));
    }
    // One is gone: its entries are missing, not replaced by others.
    std::fs::remove_file(&named(folder.path(), "segment")[2]).unwrap();
    let files = open(folder.path()).unwrap();
    assert_eq!(files.log().bounds(1).unwrap().last, 100);
    let read = files.log().read(1, 1, 200, usize::MAX);
    let missing = matches!(
        &read,
        Err(StorageError::Corrupt {
            place: Place::LogEntry { group: 1, .. },
            ..
        })
    );
    assert!(missing, "{read:?}");
    drop(files);
    // A damaged header in between is named.
    flip(&named(folder.path(), "segment")[1], 20);
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("no readable header"), "{error}");
}

#[test]
fn a_slow_group_keeps_no_segment_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = open(folder.path()).unwrap();
    append(&files, 7, 1..=2).unwrap();
    put(&files, 8, "old").unwrap();
    purge(&files, 9, 1000).unwrap();
    wait(&begin(|done| files.log().truncate_after(7, 1, done))).unwrap();
    append(&files, 7, 2..=3).unwrap();
    for round in 1..=10 {
        for index in (round - 1) * 40 + 1..=round * 40 {
            append(&files, 1, index..=index).unwrap();
        }
        purge(&files, 1, round * 40 - 2).unwrap();
        let copy = copied(folder.path());
        if round % 2 == 0 {
            drop(files);
            files = open(folder.path()).unwrap();
        }
        let killed = open(copy.path()).unwrap();
        for files in [&files, &killed] {
            assert_eq!(all(files, 7), entries(7, 1..=3), "round {round}");
            assert_eq!(all(files, 1), entries(1, round * 40 - 1..=round * 40));
            let vote = files.log().get_record(8, "vote").unwrap();
            assert_eq!(vote, Some(Bytes::from("old")));
            let bounds = LogBounds {
                purged_through: 1000,
                last: 1000,
            };
            assert_eq!(files.log().bounds(9).unwrap(), bounds);
        }
    }
    let segments = named(folder.path(), "segment");
    assert!(segments.len() <= 3, "{segments:?}");
    assert!(named(folder.path(), "spare").len() <= 1);
    assert!(named(folder.path(), "index").len() <= segments.len());
}

#[test]
fn segments_with_much_alive_stay() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    for index in 1..=400 {
        append(&files, index % 2, index.div_ceil(2)..=index.div_ceil(2)).unwrap();
        purge(&files, 0, index / 2).unwrap();
    }
    assert_eq!(files.entries_moved(), 0, "half of each segment is alive");
    assert_eq!(all(&files, 1), entries(1, 1..=200));
}

#[test]
fn a_rotten_entry_stays_in_its_segment_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    append(&files, 7, 1..=2).unwrap();
    let segment = &named(folder.path(), "segment")[0];
    let address = Address::Entry { group: 7, index: 1 };
    let header = record::header(address, &contents(7, 1));
    let bytes = std::fs::read(segment).unwrap();
    let at = memchr::memmem::find(&bytes, &header).unwrap();
    flip(segment, at as u64 + 50);
    for index in 1..=200 {
        append(&files, 1, index..=index).unwrap();
        purge(&files, 1, index).unwrap();
    }
    assert!(files.entries_moved() > 0);
    drop(files);
    let files = open(folder.path()).unwrap();
    let read = files.log().read(7, 1, 2, 0);
    let place = Place::LogEntry { group: 7, index: 1 };
    assert!(
        matches!(&read, Err(StorageError::Corrupt { place: at, .. }) if *at == place),
        "{read:?}"
    );
    assert_eq!(files.log().read(7, 2, 3, 0).unwrap(), entries(7, 2..=2));
}

#[test]
fn a_full_disk_refuses_until_the_folder_is_opened_again() {
    for (what, fault) in [
        (
            "no new segment",
            Faults {
                allocate: Some(ENOSPC),
                ..Faults::default()
            },
        ),
        (
            "a torn write",
            Faults {
                write: Some((300, ENOSPC)),
                allocate: Some(ENOSPC),
                ..Faults::default()
            },
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path()).unwrap();
        let mut last = 5;
        append(&files, 1, 1..=5).unwrap();
        put(&files, 1, "me").unwrap();
        faults(&files, fault);
        let error = loop {
            match append(&files, 1, last + 1..=last + 1) {
                Ok(()) => last += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, StorageError::Full { .. }),
            "{what}: {error}"
        );
        let later = put(&files, 1, "you").unwrap_err();
        assert_eq!(later, error.stopping(), "{what}");
        faults(&files, Faults::default());
        assert!(
            append(&files, 1, last + 1..=last + 1).is_err(),
            "{what}: it takes no more, although there is room"
        );

        let copy = copied(folder.path());
        drop(files);
        let killed = open(copy.path()).unwrap();
        let files = open(folder.path()).unwrap();
        for opened in [&killed, &files] {
            assert_eq!(
                all(opened, 1),
                entries(1, 1..=last),
                "{what}: what was refused is gone"
            );
        }
        let vote = files.log().get_record(1, "vote").unwrap();
        assert_eq!(vote, Some(Bytes::from("me")));
        for index in last + 1..=last + 100 {
            append(&files, 1, index..=index).unwrap();
        }
        let copy = copied(folder.path());
        drop(files);
        for path in [folder.path(), copy.path()] {
            let files = open(path).unwrap();
            assert_eq!(all(&files, 1), entries(1, 1..=last + 100), "{what}");
        }
    }
}

#[test]
fn any_other_failure_lasts_until_the_folder_is_opened_again() {
    for (what, fault) in [
        (
            "sync",
            Faults {
                sync: Some(EIO),
                ..Faults::default()
            },
        ),
        (
            "sync without room",
            Faults {
                sync: Some(ENOSPC),
                ..Faults::default()
            },
        ),
        (
            "write",
            Faults {
                write: Some((50, EIO)),
                ..Faults::default()
            },
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path()).unwrap();
        append(&files, 1, 1..=5).unwrap();
        faults(&files, fault);
        let failing = [6, 7, 8]
            .map(|index| begin(|done| files.log().append(1, entries(1, index..=index), done)));
        let answers = failing.each_ref().map(|answer| wait(answer).unwrap_err());
        assert!(
            matches!(&answers[0], StorageError::Io { .. }),
            "{what}: {answers:?}"
        );
        assert!(
            answers.iter().all(|error| error.root() == &answers[0]),
            "{what}: {answers:?}"
        );
        faults(&files, Faults::default());
        let error = append(&files, 1, 6..=6).unwrap_err();
        assert_eq!(error, answers[0].stopping(), "{what}");
        assert_eq!(
            files.log().read(1, 1, 6, usize::MAX).unwrap(),
            entries(1, 1..=5)
        );
        assert!(append(&files, 1, 9..=9).is_err());
        assert!(files.close().is_err());
        drop(files);
        let files = open(folder.path()).unwrap();
        let last = files.log().bounds(1).unwrap().last;
        assert_eq!(all(&files, 1), entries(1, 1..=last));
        assert!((5..=8).contains(&last), "{what}: {last}");
        append(&files, 1, last + 1..=last + 1).unwrap();
    }
}

#[test]
fn a_call_larger_than_a_segment_gets_one_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    append(&files, 1, 1..=1).unwrap();
    append(&files, 1, 2..=200).unwrap();
    append(&files, 1, 201..=201).unwrap();
    for files in [files, open(copied(folder.path()).path()).unwrap()] {
        assert_eq!(all(&files, 1), entries(1, 1..=201));
    }
}

#[test]
fn a_folder_of_a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    append(&files, 1, 1..=1).unwrap();
    drop(files);
    let segment = &named(folder.path(), "segment")[0];
    let mut bytes = std::fs::read(segment).unwrap();
    bytes[8] = 2;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..48]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(segment, bytes).unwrap();
    let error = open(folder.path()).err().unwrap();
    assert!(
        matches!(
            error,
            StorageError::NewerFormat {
                version: 2,
                known: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_second_process_is_refused_until_the_first_has_closed() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).unwrap();
    let error = open(folder.path()).err().unwrap();
    assert!(matches!(error, StorageError::Locked { .. }), "{error}");
    first.close().unwrap();
    assert!(open(folder.path()).is_ok(), "closed, though not dropped");
}

#[test]
fn the_tail_is_read_from_memory_and_stays_within_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        tail_cache_bytes: 20_000,
        ..SMALL
    };
    let files = LogFiles::open(folder.path(), &settings).unwrap();
    for index in 1..=100 {
        append(&files, 1, index..=index).unwrap();
    }
    assert_eq!(files.log().read(1, 92, 101, usize::MAX).unwrap().len(), 9);
    assert_eq!(files.stats().log_reads_from_disk, 0);
    assert_eq!(all(&files, 1), entries(1, 1..=100));
    assert_eq!(files.stats().log_reads_from_disk, 1);
}

#[test]
fn a_segment_that_was_just_begun_is_no_damage_and_a_damaged_one_is() {
    let folder = tempfile::tempdir().unwrap();
    let files = open(folder.path()).unwrap();
    append(&files, 1, 1..=5).unwrap();
    drop(files);
    let begun = folder.path().join("00000007.segment");
    for bytes in [&b""[..], &[0; 9000], &[0xa5; 9000]] {
        std::fs::write(&begun, bytes).unwrap();
        let files = open(folder.path()).unwrap();
        assert_eq!(all(&files, 1), entries(1, 1..=5));
        assert!(!begun.exists());
    }
    // What was synced in it is missed, and it is left for whoever looks into it.
    let segment = &named(folder.path(), "segment")[0];
    flip(segment, 20);
    for _ in 0..2 {
        let error = open(folder.path()).err().expect("its entries are lost");
        assert!(error.to_string().contains("was synced"), "{error}");
        assert!(segment.exists());
    }
    flip(segment, 20);
    assert_eq!(all(&open(folder.path()).unwrap(), 1), entries(1, 1..=5));
}
