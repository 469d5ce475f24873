//! The synced mark: how far the log was synced, told from outside RocksDB.
//!
//! RocksDB replays its write-ahead log up to the first bad record, because a power loss leaves garbage behind the last sync.
//! Were a synced record to rot, all entries from there on would silently be gone, although they were acknowledged. So each
//! batch carries a number, and once it is synced the number goes into a small file of its own, unsynced. When the folder is
//! opened, RocksDB must have at least the batch that the file names.
//!
//! The file is behind the truth after a power loss (then less is checked), never ahead of it. One small write a batch.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use warren_storage::record::{self, Address};
use warren_storage::{Place, StorageError};

const FILE: &str = "synced-mark";
/// The mark is stored as a record under this address, for its checksum and version.
const ADDRESS: Address<'_> = Address::Record {
    group: 0,
    name: FILE,
};

pub(crate) struct Mark {
    file: File,
    path: PathBuf,
    number: u64,
}

impl Mark {
    /// Opens the mark of a folder whose database has all batches up to `recovered`.
    pub(crate) fn open(folder: &Path, recovered: u64) -> Result<Mark, StorageError> {
        let path = folder.join(FILE);
        let mut options = OpenOptions::new();
        let opened = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let file = opened.map_err(|error| failed(&path, "open the synced mark", &error))?;
        let mark = Mark {
            file,
            path,
            number: recovered,
        };
        match mark.stored()? {
            Some(synced) if synced > recovered => Err(StorageError::Corrupt {
                what: format!(
                    "batch {synced} was synced, but the write-ahead log is readable up to {recovered} only"
                ),
                place: Place::Files {
                    path: folder.to_owned(),
                },
            }),
            // A mark that a power loss has torn says nothing.
            Some(_) | None => Ok(mark),
        }
    }

    /// The number of the next batch.
    pub(crate) fn next(&self) -> u64 {
        self.number + 1
    }

    /// The batch of this number is synced.
    pub(crate) fn set(&mut self, number: u64) -> Result<(), StorageError> {
        let stored = record::encode(ADDRESS, &number.to_le_bytes());
        let written = self.file.write_all_at(&stored, 0);
        written.map_err(|error| failed(&self.path, "write the synced mark", &error))?;
        self.number = number;
        Ok(())
    }

    fn stored(&self) -> Result<Option<u64>, StorageError> {
        let mut stored = [0; record::HEADER_BYTES + 8];
        match self.file.read_exact_at(&mut stored, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(failed(&self.path, "read the synced mark", &error)),
        }
        let contents = record::decode(ADDRESS, stored.to_vec().into()).ok();
        let number = contents.and_then(|contents| <[u8; 8]>::try_from(&contents[..]).ok());
        Ok(number.map(u64::from_le_bytes))
    }
}

fn failed(path: &Path, doing: &'static str, error: &std::io::Error) -> StorageError {
    StorageError::Io {
        path: path.to_owned(),
        doing,
        detail: error.to_string(),
        advice: "check the disk and the folder's permissions, then restart the node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_ahead_of_the_database_is_damage() {
        let folder = tempfile::tempdir().unwrap();
        let mut mark = Mark::open(folder.path(), 0).unwrap();
        assert_eq!(mark.next(), 1);
        mark.set(1).unwrap();
        mark.set(2).unwrap();
        assert_eq!(Mark::open(folder.path(), 2).unwrap().next(), 3);
        assert_eq!(
            Mark::open(folder.path(), 5).unwrap().next(),
            6,
            "the file may be behind"
        );
        let error = Mark::open(folder.path(), 1).err().unwrap();
        assert!(
            matches!(
                error,
                StorageError::Corrupt {
                    place: Place::Files { .. },
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_torn_mark_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        Mark::open(folder.path(), 0).unwrap().set(9).unwrap();
        for torn in [&b"\x01\x08"[..], &[0; 17], b""] {
            std::fs::write(folder.path().join(FILE), torn).unwrap();
            assert!(Mark::open(folder.path(), 0).is_ok());
        }
    }
}
