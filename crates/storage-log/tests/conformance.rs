//! The suite on the log's files. The state, which they do not hold, is the in-memory engine's.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;
use warren_storage::conformance::Harness;
use warren_storage::memory::{Disk, MemoryStorage};
use warren_storage::record::{self, Address, HEADER_BYTES};
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

    /// Flips a bit of the record wherever it is stored.
    fn corrupt(&self, address: Address<'_>, at: usize) {
        let mut flipped = 0;
        let folder = self.folder.lock().clone();
        for name in names(&folder).unwrap() {
            let path = folder.join(name);
            let mut bytes = std::fs::read(&path).unwrap();
            let ends = HEADER_BYTES..=bytes.len();
            let places: Vec<usize> = ends
                .map(|end| end - HEADER_BYTES)
                .filter(|begin| is_record(&bytes[*begin..], address))
                .collect();
            for place in &places {
                bytes[place + at] ^= 0x10;
            }
            if !places.is_empty() {
                std::fs::write(&path, bytes).unwrap();
            }
            flipped += places.len();
        }
        assert!(flipped > 0, "{address:?} is nowhere");
    }
}

fn is_record(bytes: &[u8], address: Address<'_>) -> bool {
    let length = u32::from_le_bytes(bytes[1..5].try_into().unwrap()) as usize;
    let Some(stored) = bytes.get(..HEADER_BYTES.saturating_add(length)) else {
        return false;
    };
    bytes[0] == record::VERSION && record::decode(address, Bytes::copy_from_slice(stored)).is_ok()
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
        copy_files(&self.folder.lock(), &copy);
        drop(storage);
        std::fs::remove_dir_all(&*self.folder.lock()).unwrap();
        *self.folder.lock() = copy;
        self.open()
    }

    fn corrupt_entry(&self, group: u64, index: u64, at: usize) {
        self.corrupt(Address::Entry { group, index }, at);
    }

    fn corrupt_record(&self, group: u64, name: &'static str, at: usize) {
        self.corrupt(Address::Record { group, name }, at);
    }
}

/// Copies a folder in use. A segment may go or become another one meanwhile: then all over again.
fn copy_files(from: &Path, to: &Path) {
    while let Err(error) = try_copy_files(from, to) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(to).unwrap();
    }
}

/// The mark first, then the outlines: neither may name what the copy of a segment lacks.
fn try_copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    let mut names = names(from)?;
    names.sort_by_key(|name| {
        (
            name != "synced-mark",
            !name.ends_with(".index"),
            name.clone(),
        )
    });
    for name in &names {
        std::fs::copy(from.join(name), to.join(name))?;
    }
    // One that was renamed while it was copied holds two segments' bytes.
    names
        .iter()
        .try_for_each(|name| from.join(name).metadata().map(|_| ()))
}

fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    Ok(names)
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
