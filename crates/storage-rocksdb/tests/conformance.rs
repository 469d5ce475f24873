//! The suite on RocksDB.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;
use warren_storage::Storage;
use warren_storage::conformance::{Harness, copy_in_use, corrupt_record_in};
use warren_storage::record::Address;
use warren_storage_rocksdb::{RocksStorage, Settings};

struct Rocks {
    parent: TempDir,
    /// The folder in use; the next one is a copy.
    folder: Mutex<PathBuf>,
    copies: AtomicUsize,
    settings: Settings,
}

impl Rocks {
    fn new(tail_cache_bytes: usize) -> Rocks {
        let parent = TempDir::new().unwrap();
        let folder = Mutex::new(parent.path().join("0"));
        let log = warren_storage_log::Settings {
            tail_cache_bytes,
            segment_bytes: 1 << 20,
            ..Default::default()
        };
        let settings = Settings {
            log,
            ..Settings::default()
        };
        Rocks {
            parent,
            folder,
            copies: AtomicUsize::new(0),
            settings,
        }
    }
}

impl Harness for Rocks {
    fn open(&self) -> Arc<dyn Storage> {
        Arc::new(RocksStorage::open(&self.folder.lock(), &self.settings).unwrap())
    }

    /// Copies the folder while it is in use: the files as a killed process leaves them.
    fn interrupt(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        let copies = self.copies.fetch_add(1, Ordering::Relaxed) + 1;
        let copy = self.parent.path().join(copies.to_string());
        copy_in_use(&self.folder.lock(), &copy, rank);
        drop(storage);
        *self.folder.lock() = copy;
        self.open()
    }

    fn corrupt_entry(&self, group: u64, index: u64, at: usize) {
        let folder = self.folder.lock().join("raft-log");
        corrupt_record_in(&folder, Address::Entry { group, index }, at);
    }

    fn corrupt_record(&self, group: u64, name: &'static str, at: usize) {
        let folder = self.folder.lock().join("raft-log");
        corrupt_record_in(&folder, Address::Record { group, name }, at);
    }
}

/// The log's mark first, then its outlines: neither may name what the copy of a segment lacks.
fn rank(name: &str) -> u32 {
    match name {
        "synced-mark" => 0,
        _ if name.ends_with(".index") => 1,
        _ => 2,
    }
}

mod cached {
    warren_storage::conformance_tests!(super::Rocks::new(1 << 20));
}

/// With next to no tail cache, reads come from the disk as soon as they can.
mod uncached {
    warren_storage::conformance_tests!(super::Rocks::new(0));
}
