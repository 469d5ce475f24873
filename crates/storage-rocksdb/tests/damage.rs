//! Damage to the files, and who may open them.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use warren_storage::{LogEntry, Place, Space, Storage, StorageError, Write};
use warren_storage_rocksdb::{RocksStorage, Settings};

fn open(folder: &Path) -> Result<RocksStorage, StorageError> {
    RocksStorage::open(folder, &Settings::default())
}

fn append(storage: &RocksStorage, index: u64) {
    let (sender, receiver) = channel();
    let bytes = Bytes::from(vec![index.to_le_bytes()[0]; 1000]);
    let done = Box::new(move |answer| sender.send(answer).unwrap());
    let entry = LogEntry { index, bytes };
    storage.log().append(1, vec![entry], done);
    receiver
        .recv_timeout(Duration::from_secs(30))
        .unwrap()
        .unwrap();
}

#[test]
fn a_lost_log_is_no_empty_log() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open(folder.path()).unwrap();
    (1..=100).for_each(|index| append(&storage, index));
    storage.close().unwrap();
    for entry in std::fs::read_dir(folder.path().join("raft-log")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|name| name == "segment") {
            std::fs::remove_file(path).unwrap();
        }
    }
    for _ in 0..2 {
        let error = open(folder.path()).err().expect("all entries are lost");
        let place = Place::Files {
            path: folder.path().join("raft-log"),
        };
        assert!(
            matches!(&error, StorageError::Corrupt { place: at, .. } if *at == place),
            "{error}"
        );
        assert!(
            error.to_string().contains("batch 100 was synced"),
            "{error}"
        );
    }
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
fn large_values_and_deleted_ranges_of_queues_are_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let key = |number: u32| Bytes::from(number.to_be_bytes().to_vec());
    let value = |number: u32, bytes: usize| Bytes::from(number.to_le_bytes().repeat(bytes / 4));
    let storage = open(folder.path()).unwrap();
    for number in 0..2000 {
        let bytes = if number % 2 == 0 { 64 << 10 } else { 16 };
        let writes = vec![
            (Space::Queue, vec![Write::Put(key(number), key(number))]),
            (
                Space::Message,
                vec![Write::Put(key(number), value(number, bytes))],
            ),
        ];
        storage.state().write_spaces(writes).unwrap();
    }
    for space in [Space::Queue, Space::Message] {
        let range = Write::DeleteRange(key(0), key(1990));
        storage.state().write(space, vec![range]).unwrap();
    }
    storage.close().unwrap();
    let storage = open(folder.path()).unwrap();
    let kept = |space| -> Vec<(Bytes, Bytes)> {
        let scan = storage.state().scan(space).unwrap();
        scan.collect::<Result<_, _>>().unwrap()
    };
    let messages: Vec<(Bytes, Bytes)> = (1990..2000)
        .map(|number| {
            let bytes = if number % 2 == 0 { 64 << 10 } else { 16 };
            (key(number), value(number, bytes))
        })
        .collect();
    assert_eq!(kept(Space::Message), messages);
    assert_eq!(kept(Space::Queue).len(), 10);
}
