//! The suite on RocksDB.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rocksdb::{DB, Options};
use tempfile::TempDir;
use warren_storage::conformance::Harness;
use warren_storage::{Storage, key};
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
        let settings = Settings {
            tail_cache_bytes,
            ..Settings::default()
        };
        Rocks {
            parent,
            folder,
            copies: AtomicUsize::new(0),
            settings,
        }
    }

    fn corrupt(&self, family: &str, key: &[u8], at: usize) {
        let db = DB::open_cf(
            &Options::default(),
            &*self.folder.lock(),
            ["default", "log", "records", "state"],
        );
        let db = db.unwrap();
        let family = db.cf_handle(family).unwrap();
        let mut stored = db.get_cf(family, key).unwrap().unwrap();
        stored[at] ^= 0x10;
        db.put_cf(family, key, stored).unwrap();
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
        copy_files(&self.folder.lock(), &copy);
        drop(storage);
        *self.folder.lock() = copy;
        self.open()
    }

    fn corrupt_entry(&self, group: u64, index: u64, at: usize) {
        self.corrupt("log", &key::log_entry(group, index), at);
    }

    fn corrupt_record(&self, group: u64, name: &'static str, at: usize) {
        self.corrupt("records", &key::record(group, name), at);
    }
}

/// Copies a folder in use. RocksDB may remove a file meanwhile that it no longer needs: then all over again, since
/// what replaces it may be missing from the copy.
fn copy_files(from: &Path, to: &Path) {
    while let Err(error) = try_copy_files(from, to) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(to).unwrap();
    }
}

/// The mark first: it must not name a batch that the copy of the write-ahead log lacks.
fn try_copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from)? {
        names.push(entry?.file_name());
    }
    names.sort_by_key(|name| (name != "synced-mark", name.clone()));
    for name in names.iter().filter(|name| *name != "LOCK") {
        std::fs::copy(from.join(name), to.join(name))?;
    }
    Ok(())
}

mod cached {
    warren_storage::conformance_tests!(super::Rocks::new(1 << 20));
}

/// With next to no tail cache, reads come from the disk as soon as they can.
mod uncached {
    warren_storage::conformance_tests!(super::Rocks::new(0));
}
