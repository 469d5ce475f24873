//! The applied state: unsynced atomic writes from the calling thread, reads, and scans of a fixed view.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rocksdb::{ReadOptions, WriteBatch};
use warren_storage::{Scan, Space, StateStore, StorageError, Write, key};

use crate::database::{Database, family_of};
use crate::engine::Shared;
use crate::scan;

impl StateStore for Shared {
    fn write_spaces(&self, batches: Vec<(Space, Vec<Write>)>) -> Result<(), StorageError> {
        let database = self.writable()?;
        let mut batch = WriteBatch::default();
        for (space, writes) in &batches {
            for write in writes {
                add_to(&database, &mut batch, *space, write)?;
            }
        }
        database
            .write(batch, "write the state")
            .inspect_err(|error| self.log.stop(error))?;
        self.state_writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.database()?
            .get(family_of(space), &key::state(space, key))
    }

    fn scan_range(
        &self,
        space: Space,
        from: &[u8],
        until: Option<&[u8]>,
    ) -> Result<Scan, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(key::state(space, from));
        options.set_iterate_upper_bound(match until {
            Some(until) => key::state(space, until),
            None => key::state_end(space).to_vec(),
        });
        // A scan is read once, front to back: it must not push the working set out of the block cache.
        options.fill_cache(false);
        scan::start(self.database()?, family_of(space), options)
    }

    fn sync(&self) -> Result<(), StorageError> {
        let database = self.writable()?;
        database
            .sync("sync the state")
            .inspect_err(|error| self.log.stop(error))
    }
}

fn add_to(
    database: &Database,
    batch: &mut WriteBatch,
    space: Space,
    write: &Write,
) -> Result<(), StorageError> {
    let state = database.family(family_of(space))?;
    match write {
        Write::Put(key, value) => batch.put_cf(state, key::state(space, key), value),
        Write::Delete(key) => batch.delete_cf(state, key::state(space, key)),
        Write::DeleteRange(from, until) if from < until => {
            batch.delete_range_cf(state, key::state(space, from), key::state(space, until));
        }
        // RocksDB refuses a range that ends before it begins; it holds nothing.
        Write::DeleteRange(..) => {}
        Write::DeleteAll => {
            batch.delete_range_cf(
                state,
                key::state(space, &[]),
                key::state_end(space).to_vec(),
            );
        }
    }
    Ok(())
}
