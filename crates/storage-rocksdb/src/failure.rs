//! RocksDB's errors, which carry a kind and a sentence, as typed ones.

use std::path::Path;

use rocksdb::ErrorKind;
use warren_storage::{Place, StorageError};

/// The typed form of an error from RocksDB.
pub(crate) fn typed(path: &Path, doing: &'static str, error: &rocksdb::Error) -> StorageError {
    from_parts(path, doing, error.kind(), error.to_string())
}

fn from_parts(path: &Path, doing: &'static str, kind: ErrorKind, detail: String) -> StorageError {
    let path = path.to_owned();
    // The only sign of these two is the sentence: strerror's for ENOSPC, and RocksDB's own about its file LOCK.
    if detail.contains("No space left on device") {
        return StorageError::Full { path };
    }
    if detail.contains("While lock file") || detail.contains("lock hold by current process") {
        return StorageError::Locked { path };
    }
    if kind == ErrorKind::Corruption {
        let what = format!("{doing}: {detail}");
        return StorageError::Corrupt {
            what,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_kinds_become_types() {
        let typed =
            |kind, detail: &str| from_parts(Path::new("data"), "append", kind, detail.to_owned());
        let path = Path::new("data").to_owned();
        let full = "IO error: No space left on device: While appending to file: data/000004.log";
        assert_eq!(typed(ErrorKind::IOError, full), StorageError::Full { path });
        let corrupt = typed(ErrorKind::Corruption, "Corruption: block checksum mismatch");
        assert!(matches!(corrupt, StorageError::Corrupt { .. }), "{corrupt}");
        let sync = typed(
            ErrorKind::IOError,
            "IO error: Input/output error: While fdatasync: data/000004.log",
        );
        assert!(
            matches!(
                &sync,
                StorageError::Io {
                    doing: "append",
                    ..
                }
            ),
            "{sync}"
        );
    }
}
