//! The routing table as the rest of the node reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use warren_routing::Table;

/// The routing table: written by the metadata group alone, read by everyone.
///
/// The version moves while the table is locked for writing, so whoever holds the read lock sees the version that belongs to
/// what it reads. Cost of [`Self::version`]: one atomic load.
#[derive(Debug)]
pub struct SharedTable {
    table: RwLock<Table>,
    version: AtomicU64,
}

impl SharedTable {
    pub(crate) fn new(table: Table) -> Self {
        let version = AtomicU64::new(table.index());
        Self {
            table: RwLock::new(table),
            version,
        }
    }

    /// The log index up to which the table is applied. It grows at entries that leave the routing as it was, too.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The table, locked against changes: hold it for as short as can be.
    pub fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    /// Changes the table through `change`, which leaves its index at the new version.
    pub(crate) fn write<R>(&self, change: impl FnOnce(&mut RwLockWriteGuard<'_, Table>) -> R) -> R {
        let mut table = self.table.write();
        let result = change(&mut table);
        self.version.store(table.index(), Ordering::Release);
        result
    }
}
