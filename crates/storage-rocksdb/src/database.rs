//! The database of one folder: opening it, its column families, and reads and writes with typed errors.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use rocksdb::{ColumnFamily, ColumnFamilyDescriptor, DB, ReadOptions, WriteBatch};
use warren_storage::record::Address;
use warren_storage::{LogBounds, Place, StorageError, key, record};

use crate::Settings;
use crate::failure::typed;

const LOG: &str = "log";
const RECORDS: &str = "records";
const STATE: &str = "state";
/// How keys and column families are laid out; in the database under [`key::LAYOUT`].
const LAYOUT: u8 = 1;

pub(crate) struct Database {
    db: DB,
    path: PathBuf,
}

/// Which column family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Log,
    Records,
    State,
}

impl Database {
    pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Database, StorageError> {
        std::fs::create_dir_all(path).map_err(|error| StorageError::Io {
            path: path.to_owned(),
            doing: "create the data folder",
            detail: error.to_string(),
            advice: "check the folder's parent and its permissions",
        })?;
        let [log, records, state] = settings.families();
        let families = [
            // RocksDB insists on it; nothing is in it.
            ColumnFamilyDescriptor::new("default", rocksdb::Options::default()),
            ColumnFamilyDescriptor::new(LOG, log),
            ColumnFamilyDescriptor::new(RECORDS, records),
            ColumnFamilyDescriptor::new(STATE, state),
        ];
        let db = DB::open_cf_descriptors(&settings.database(), path, families)
            .map_err(|error| typed(path, "open the database", &error))?;
        let database = Database {
            db,
            path: path.to_owned(),
        };
        database.check_layout()?;
        // RocksDB has written what it replayed into synced files: a killed process leaves nothing that we serve but could lose.
        Ok(database)
    }

    /// The number of the last synced batch of log calls, 0 if there was none.
    pub(crate) fn batch_number(&self) -> Result<u64, StorageError> {
        let Some(stored) = self.get(Family::Records, key::BATCH_NUMBER)? else {
            return Ok(0);
        };
        let stored = <[u8; 8]>::try_from(&stored[..]).map_err(|_| StorageError::Corrupt {
            what: format!("batch number {stored:?}"),
            place: Place::Files {
                path: self.path.clone(),
            },
        })?;
        Ok(u64::from_le_bytes(stored))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn raw(&self) -> &DB {
        &self.db
    }

    pub(crate) fn family(&self, family: Family) -> Result<&ColumnFamily, StorageError> {
        let name = match family {
            Family::Log => LOG,
            Family::Records => RECORDS,
            Family::State => STATE,
        };
        self.db
            .cf_handle(name)
            .ok_or_else(|| StorageError::Corrupt {
                what: format!("column family {name} is missing"),
                place: Place::Files {
                    path: self.path.clone(),
                },
            })
    }

    /// An atomic write, durable after the next [`Database::sync`].
    pub(crate) fn write(&self, batch: WriteBatch, doing: &'static str) -> Result<(), StorageError> {
        self.db
            .write(batch)
            .map_err(|error| typed(&self.path, doing, &error))
    }

    /// Syncs the write-ahead log, and with it everything written before.
    pub(crate) fn sync(&self, doing: &'static str) -> Result<(), StorageError> {
        self.db
            .flush_wal(true)
            .map_err(|error| typed(&self.path, doing, &error))
    }

    pub(crate) fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self.db.get_pinned_cf(self.family(family)?, key);
        let found = found.map_err(|error| typed(&self.path, "read a key", &error))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    pub(crate) fn record(&self, group: u64, name: &str) -> Result<Option<Bytes>, StorageError> {
        let stored = self.get(Family::Records, &key::record(group, name))?;
        stored
            .map(|stored| record::decode(Address::Record { group, name }, stored))
            .transpose()
    }

    /// A group's bounds as they are on disk: one key read and one seek.
    pub(crate) fn bounds(&self, group: u64) -> Result<LogBounds, StorageError> {
        let purged_through = self.purge_mark(group)?;
        let mut options = ReadOptions::default();
        // Also spares the seek all that is deleted but not yet compacted away.
        options.set_iterate_lower_bound(key::log_entry(group, purged_through.saturating_add(1)));
        let mut iterator = self
            .db
            .raw_iterator_cf_opt(self.family(Family::Log)?, options);
        iterator.seek_for_prev(key::log_entry(group, u64::MAX));
        let last = iterator
            .key()
            .and_then(|found| key::log_index(group, found))
            .unwrap_or(purged_through);
        iterator
            .status()
            .map_err(|error| typed(&self.path, "find the end of a log", &error))?;
        Ok(LogBounds {
            purged_through,
            last,
        })
    }

    fn purge_mark(&self, group: u64) -> Result<u64, StorageError> {
        let Some(stored) = self.get(Family::Records, &key::purge_mark(group))? else {
            return Ok(0);
        };
        let contents = record::decode(Address::PurgeMark { group }, stored)?;
        let contents = <[u8; 8]>::try_from(&contents[..]).map_err(|_| StorageError::Corrupt {
            what: format!("{} bytes where 8 belong", contents.len()),
            place: Place::PurgeMark { group },
        })?;
        Ok(u64::from_le_bytes(contents))
    }

    fn check_layout(&self) -> Result<(), StorageError> {
        let Some(stored) = self.get(Family::Records, key::LAYOUT)? else {
            let mut batch = WriteBatch::default();
            batch.put_cf(self.family(Family::Records)?, key::LAYOUT, [LAYOUT]);
            self.write(batch, "mark the layout")?;
            return self.sync("mark the layout");
        };
        let place = Place::Files {
            path: self.path.clone(),
        };
        match stored[..] {
            [LAYOUT] => Ok(()),
            [version] if version > LAYOUT => Err(StorageError::NewerFormat {
                place,
                version,
                known: LAYOUT,
            }),
            _ => Err(StorageError::Corrupt {
                what: format!("layout mark {stored:?}"),
                place,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_newer_layout_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::open(folder.path(), &Settings::default()).unwrap();
        database
            .db
            .put_cf(
                database.family(Family::Records).unwrap(),
                key::LAYOUT,
                [LAYOUT + 1],
            )
            .unwrap();
        drop(database);
        let error = Database::open(folder.path(), &Settings::default())
            .err()
            .unwrap();
        assert!(
            matches!(
                error,
                StorageError::NewerFormat {
                    version: 2,
                    known: LAYOUT,
                    ..
                }
            ),
            "{error}"
        );
    }
}
