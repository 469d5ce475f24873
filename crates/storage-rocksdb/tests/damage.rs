//! Damage to the files, and what the tail cache spares the disk.

#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use warren_storage::{LogEntry, Place, Storage, StorageError};
use warren_storage_rocksdb::{RocksStorage, Settings};

fn open(folder: &Path) -> Result<RocksStorage, StorageError> {
    RocksStorage::open(folder, &Settings::default())
}

/// Appends entries of 1000 bytes one by one.
fn append(storage: &RocksStorage, indexes: std::ops::RangeInclusive<u64>) {
    for index in indexes {
        let (sender, receiver) = channel();
        let bytes = Bytes::from(vec![index.to_le_bytes()[0]; 1000]);
        let done = Box::new(move |answer| sender.send(answer).unwrap());
        storage
            .log()
            .append(1, vec![LogEntry { index, bytes }], done);
        receiver
            .recv_timeout(Duration::from_secs(30))
            .unwrap()
            .unwrap();
    }
}

/// The write-ahead log with the most in it, and its size without what was only reserved.
fn write_ahead_log(folder: &Path) -> (PathBuf, u64) {
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let sized = logs.map(|path| (path.clone(), path.metadata().unwrap().len()));
    sized.max_by_key(|(_, size)| *size).unwrap()
}

#[test]
fn rot_in_the_write_ahead_log_is_no_silent_loss() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).unwrap();
    append(&storage, 1..=100);
    storage.close().unwrap();
    let (path, size) = write_ahead_log(folder.path());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, size / 2).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], size / 2).unwrap();
    for _ in 0..2 {
        let error = open(folder.path())
            .err()
            .expect("about half of the entries are lost");
        assert!(
            matches!(
                &error,
                StorageError::Corrupt {
                    place: Place::Files { .. },
                    ..
                }
            ),
            "{error}"
        );
        assert!(
            error.to_string().contains("batch 100 was synced"),
            "{error}"
        );
    }
}

#[test]
fn garbage_behind_the_last_sync_does_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).unwrap();
    append(&storage, 1..=100);
    storage.close().unwrap();
    let (path, size) = write_ahead_log(folder.path());
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xa5; 5000], size).unwrap();
    let storage = open(folder.path()).unwrap();
    assert_eq!(storage.log().bounds(1).unwrap().last, 100);
    append(&storage, 101..=101);
    assert_eq!(
        storage.log().read(1, 1, 200, usize::MAX).unwrap().len(),
        101
    );
}

#[test]
fn a_second_engine_on_the_folder_is_refused_until_the_first_is_closed() {
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
        ..Settings::default()
    };
    let storage = RocksStorage::open(folder.path(), &settings).unwrap();
    append(&storage, 1..=100);
    let log = storage.log();
    assert_eq!(log.read(1, 85, 101, usize::MAX).unwrap().len(), 16);
    assert_eq!(storage.stats().log_reads_from_disk, 0);
    let entries = log.read(1, 1, 101, usize::MAX).unwrap();
    assert!(
        entries
            .iter()
            .zip(1..)
            .all(|(entry, index)| entry.index == index)
            && entries.len() == 100
    );
    assert_eq!(
        storage.stats().log_reads_from_disk,
        1,
        "the beginning has left the cache"
    );
}
