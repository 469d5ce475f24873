//! A scan that owns its database: RocksDB's iterator borrows, and a caller must be able to take it anywhere.
//!
//! RocksDB's iterator looks at the keys as of its creation. While it lives, the files that it needs stay.

use std::sync::Arc;

use bytes::Bytes;
use rocksdb::{DBRawIterator, ReadOptions};
use self_cell::self_cell;
use warren_storage::{Scan, StorageError};

use crate::database::{Database, Family};

self_cell!(
    struct OwnedIterator {
        owner: Arc<Database>,
        #[not_covariant]
        dependent: DBRawIterator,
    }
);

/// Iterates over the state keys within the options' bounds, without their space byte.
pub(crate) fn start(
    database: Arc<Database>,
    family: Family,
    options: ReadOptions,
) -> Result<Scan, StorageError> {
    let mut cell = OwnedIterator::try_new(database, |database| {
        let mut iterator = database
            .raw()
            .raw_iterator_cf_opt(database.family(family)?, options);
        iterator.seek_to_first();
        Ok::<_, StorageError>(iterator)
    })?;
    let mut ended = false;
    Ok(Box::new(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let next = cell.with_dependent_mut(|database, iterator| next(database, iterator));
        // An error ends the scan too: RocksDB's iterator is of no use after it.
        ended = !matches!(next, Some(Ok(_)));
        next
    })))
}

fn next(
    database: &Database,
    iterator: &mut DBRawIterator<'_>,
) -> Option<Result<(Bytes, Bytes), StorageError>> {
    let Some((key, value)) = iterator.item() else {
        let ended = iterator.status();
        return ended
            .err()
            .map(|error| Err(database.unread("scan the state", &error)));
    };
    let item = (
        Bytes::copy_from_slice(key.get(1..).unwrap_or_default()),
        Bytes::copy_from_slice(value),
    );
    iterator.next();
    Some(Ok(item))
}
