//! The suite on the log's files. The state, which they do not hold, is the in-memory engine's.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;
use warren_storage::conformance::{Harness, copy_in_use, corrupt_record_in};
use warren_storage::memory::{Disk, MemoryStorage};
use warren_storage::record::Address;
use warren_storage::{LogStore, StateStore, Storage, StorageError, StorageStats};
use warren_storage_log::{LogFiles, Settings};

struct Files {
    parent: TempDir,
    /// The folder in use; the next one is a copy.
    folder: Mutex<PathBuf>,
    copies: AtomicUsize,
    settings: Settings,
    state: Disk,
}

struct WithState {
    log: LogFiles,
    state: MemoryStorage,
}

impl Storage for WithState {
    fn log(&self) -> Arc<dyn LogStore> {
        self.log.log()
    }

    fn state(&self) -> Arc<dyn StateStore> {
        self.state.state()
    }

    fn stats(&self) -> StorageStats {
        self.log.stats()
    }

    fn close(&self) -> Result<(), StorageError> {
        self.log.close().and(self.state.close())
    }
}

impl Files {
    fn new(settings: Settings) -> Files {
        let parent = TempDir::new().unwrap();
        Files {
            folder: Mutex::new(parent.path().join("0")),
            parent,
            copies: AtomicUsize::new(0),
            settings,
            state: Disk::new(),
        }
    }
}

impl Harness for Files {
    fn open(&self) -> Arc<dyn Storage> {
        Arc::new(WithState {
            log: LogFiles::open(&self.folder.lock(), &self.settings).unwrap(),
            state: self.state.open(),
        })
    }

    /// Copies the folder while it is in use: the files as a killed process leaves them.
    fn interrupt(&self, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        let copies = self.copies.fetch_add(1, Ordering::Relaxed) + 1;
        let copy = self.parent.path().join(copies.to_string());
        copy_in_use(&self.folder.lock(), &copy, rank);
        drop(storage);
        std::fs::remove_dir_all(&*self.folder.lock()).unwrap();
        *self.folder.lock() = copy;
        self.open()
    }

    fn corrupt_entry(&self, group: u64, index: u64, at: usize) {
        corrupt_record_in(&self.folder.lock(), Address::Entry { group, index }, at);
    }

    fn corrupt_record(&self, group: u64, name: &'static str, at: usize) {
        corrupt_record_in(&self.folder.lock(), Address::Record { group, name }, at);
    }
}

/// The mark first, then the outlines: neither may name what the copy of a segment lacks.
fn rank(name: &str) -> u32 {
    match name {
        "synced-mark" => 0,
        _ if name.ends_with(".index") => 1,
        _ => 2,
    }
}

mod cached {
    warren_storage::conformance_tests!(super::Files::new(super::Settings {
        segment_bytes: 1 << 20,
        ..Default::default()
    }));
}

/// With next to no tail cache, reads come from the disk as soon as they can.
mod uncached {
    warren_storage::conformance_tests!(super::Files::new(super::Settings {
        tail_cache_bytes: 0,
        segment_bytes: 1 << 20,
        ..Default::default()
    }));
}

/// Many segments, most of them sealed, emptied, reused or removed while the suite runs.
mod tiny_segments {
    warren_storage::conformance_tests!(super::Files::new(super::Settings {
        tail_cache_bytes: 0,
        segment_bytes: 4096,
        open_segments: 2,
        ..Default::default()
    }));
}
