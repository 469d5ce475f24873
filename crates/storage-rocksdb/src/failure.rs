//! RocksDB's errors, which carry a kind and a sentence, as typed ones.

use std::path::Path;

use rocksdb::ErrorKind;
use warren_storage::{Place, StorageError};

/// The typed form of an error from RocksDB.
pub(crate) fn typed(path: &Path, doing: &'static str, error: &rocksdb::Error) -> StorageError {
    let detail = error.to_string();
    let path = path.to_owned();
    // The only sign of these two is the sentence: strerror's for ENOSPC, and RocksDB's own about its file LOCK.
    if detail.contains("No space left on device") {
        return StorageError::Full { path };
    }
    if detail.contains("While lock file") || detail.contains("lock hold by current process") {
        return StorageError::Locked { path };
    }
    if error.kind() == ErrorKind::Corruption {
        return StorageError::Corrupt {
            what: format!("{doing}: {detail}"),
            place: Place::Files { path },
        };
    }
    let advice = "check the disk and the folder's permissions, then restart the node";
    StorageError::Io {
        path,
        doing,
        detail,
        advice,
    }
}
