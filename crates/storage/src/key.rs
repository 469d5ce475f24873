//! The keys of engines that store everything as sorted keys. Numbers are big endian, so that keys sort as numbers do.
//!
//! ```text
//! log      group (8) index (8)                 -> record
//! records  0                                   -> layout      version of the whole layout, 1 byte
//! records  1 group (8) name                    -> record      a caller's small record
//! records  2 group (8)                         -> record      purge mark: the last purged index, 8 bytes little endian
//! records  3                                   -> number      of the last synced batch, 8 bytes little endian
//! state    space (1) key                       -> value       as the caller gave it
//! ```

use crate::Space;

/// The key of the layout's version, among the records.
pub const LAYOUT: &[u8] = &[0];
/// The key of the last synced batch's number, among the records.
pub const BATCH_NUMBER: &[u8] = &[3];
const RECORD: u8 = 1;
const PURGE_MARK: u8 = 2;

/// The key of a log entry.
#[must_use]
pub fn log_entry(group: u64, index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&group.to_be_bytes());
    key[8..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The index in a key of [`log_entry`] of that group; none if it is another group's or no such key.
#[must_use]
pub fn log_index(group: u64, key: &[u8]) -> Option<u64> {
    let index = key.strip_prefix(&group.to_be_bytes())?;
    Some(u64::from_be_bytes(index.try_into().ok()?))
}

/// The key of a group's small record.
#[must_use]
pub fn record(group: u64, name: &str) -> Vec<u8> {
    [&[RECORD][..], &group.to_be_bytes(), name.as_bytes()].concat()
}

/// The key of a group's purge mark.
#[must_use]
pub fn purge_mark(group: u64) -> [u8; 9] {
    let mut key = [PURGE_MARK; 9];
    key[1..].copy_from_slice(&group.to_be_bytes());
    key
}

/// The key of a piece of state.
#[must_use]
pub fn state(space: Space, key: &[u8]) -> Vec<u8> {
    [&[space.byte()][..], key].concat()
}

/// The first key behind all keys of a space.
#[must_use]
pub fn state_end(space: Space) -> [u8; 1] {
    [space.byte() + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_group_then_index() {
        assert!(log_entry(1, u64::MAX) < log_entry(2, 0));
        assert!(log_entry(1, 255) < log_entry(1, 256));
        assert_eq!(log_index(1, &log_entry(1, 256)), Some(256));
        assert_eq!(log_index(2, &log_entry(1, 256)), None);
        assert_eq!(log_index(0, &[0; 15]), None);
    }

    #[test]
    fn golden_keys_never_change() {
        assert_eq!(
            log_entry(1, 2),
            [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]
        );
        assert_eq!(record(1, "vote"), b"\x01\0\0\0\0\0\0\0\x01vote");
        assert_eq!(purge_mark(1), *b"\x02\0\0\0\0\0\0\0\x01");
        assert_eq!(state(Space::Node, b"id"), b"\x02id");
    }

    #[test]
    fn a_space_ends_before_the_next() {
        for space in Space::ALL {
            let end = state_end(space);
            assert!(state(space, &[0xff; 40]).as_slice() < &end[..]);
            assert!(
                Space::ALL
                    .iter()
                    .filter(|other| **other > space)
                    .all(|other| state(*other, &[]) >= end.to_vec())
            );
        }
    }
}
