//! The database of one folder: opening it, its column families, and reads and writes with typed errors.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use rocksdb::{ColumnFamily, ColumnFamilyDescriptor, DB, WriteBatch};
use warren_storage::{Damage, Place, Space, StorageError, key};

use crate::Settings;
use crate::failure::typed;

/// RocksDB insists on a family of this name. It holds the layout's version.
const LAYOUT_FAMILY: &str = "default";
/// How keys and column families are laid out; in the database under [`key::LAYOUT`].
const LAYOUT: u8 = 1;

pub(crate) struct Database {
    db: DB,
    path: PathBuf,
    /// What a read has found damaged first.
    damage: Damage,
}

/// Which column family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Layout,
    State,
    Queue,
    Message,
}

/// Where a space's keys are. What changes at very different rates, or differs much in size, is better compacted apart.
pub(crate) fn family_of(space: Space) -> Family {
    match space {
        Space::Table | Space::Node => Family::State,
        Space::Queue => Family::Queue,
        Space::Message => Family::Message,
    }
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::Layout => LAYOUT_FAMILY,
            Family::State => "state",
            Family::Queue => "queue",
            Family::Message => "message",
        }
    }
}

impl Database {
    pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Database, StorageError> {
        std::fs::create_dir_all(path).map_err(|error| StorageError::Io {
            path: path.to_owned(),
            doing: "create the data folder",
            detail: error.to_string(),
            advice: "check the folder's parent and its permissions",
        })?;
        let [state, queue, message] = settings.families();
        let families = [
            (Family::Layout, rocksdb::Options::default()),
            (Family::State, state),
            (Family::Queue, queue),
            (Family::Message, message),
        ];
        let families =
            families.map(|(family, options)| ColumnFamilyDescriptor::new(family.name(), options));
        let db = DB::open_cf_descriptors(&settings.database(), path, families)
            .map_err(|error| typed(path, "open the database", &error))?;
        let database = Database {
            db,
            damage: Damage::default(),
            path: path.to_owned(),
        };
        database.check_layout()?;
        // RocksDB has written what it replayed into synced files: a killed process leaves nothing that we serve but could lose.
        Ok(database)
    }

    pub(crate) fn raw(&self) -> &DB {
        &self.db
    }

    pub(crate) fn family(&self, family: Family) -> Result<&ColumnFamily, StorageError> {
        let name = family.name();
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
        let found = found.map_err(|error| self.unread("read a key", &error))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// What a read failed of; noted if it is damage.
    pub(crate) fn unread(&self, doing: &'static str, error: &rocksdb::Error) -> StorageError {
        let error = typed(&self.path, doing, error);
        self.damage.note(&error);
        error
    }

    /// The first damage that a read has found, if there was some.
    pub(crate) fn damage(&self) -> Option<StorageError> {
        self.damage.first()
    }

    fn check_layout(&self) -> Result<(), StorageError> {
        let Some(stored) = self.get(Family::Layout, key::LAYOUT)? else {
            let mut batch = WriteBatch::default();
            batch.put_cf(self.family(Family::Layout)?, key::LAYOUT, [LAYOUT]);
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
                database.family(Family::Layout).unwrap(),
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
