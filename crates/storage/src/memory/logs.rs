//! The logs of all groups as a simulated disk holds them: encoded records, and the changes made to them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::record::{self, Address};
use crate::{LogBounds, LogEntry, Place, StorageError};

/// One change of the logs, as one call makes it.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// Encoded entries with consecutive indexes, from the first one's on.
    Append {
        group: u64,
        first: u64,
        stored: Vec<Bytes>,
    },
    Truncate {
        group: u64,
        last_kept: u64,
    },
    Purge {
        group: u64,
        through: u64,
    },
    Record {
        group: u64,
        name: &'static str,
        stored: Bytes,
    },
}

#[derive(Debug, Clone, Default)]
pub(super) struct Logs {
    groups: BTreeMap<u64, Group>,
    /// The size of all records.
    pub(super) bytes: u64,
}

#[derive(Debug, Clone, Default)]
struct Group {
    purged_through: u64,
    entries: BTreeMap<u64, Bytes>,
    records: BTreeMap<String, Bytes>,
}

impl Change {
    /// Bytes that the change adds.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Change::Append { stored, .. } => stored.iter().map(size).sum(),
            Change::Record { stored, .. } => size(stored),
            Change::Truncate { .. } | Change::Purge { .. } => 0,
        }
    }
}

impl Logs {
    pub(super) fn apply(&mut self, change: &Change) {
        let (group, bytes) = match change {
            Change::Append { group, .. }
            | Change::Truncate { group, .. }
            | Change::Purge { group, .. }
            | Change::Record { group, .. } => {
                (self.groups.entry(*group).or_default(), &mut self.bytes)
            }
        };
        *bytes += change.bytes();
        let removed: u64 = match change {
            Change::Append { first, stored, .. } => {
                group.entries.extend((*first..).zip(stored.iter().cloned()));
                0
            }
            Change::Truncate { last_kept, .. } => group
                .entries
                .split_off(&last_kept.saturating_add(1))
                .values()
                .map(size)
                .sum(),
            Change::Purge { through, .. } => {
                group.purged_through = group.purged_through.max(*through);
                let kept = group
                    .entries
                    .split_off(&group.purged_through.saturating_add(1));
                std::mem::replace(&mut group.entries, kept)
                    .values()
                    .map(size)
                    .sum()
            }
            Change::Record { name, stored, .. } => group
                .records
                .insert((*name).to_owned(), stored.clone())
                .as_ref()
                .map_or(0, size),
        };
        *bytes -= removed;
    }

    pub(super) fn bounds(&self, group: u64) -> LogBounds {
        let Some(group) = self.groups.get(&group) else {
            return LogBounds::default();
        };
        let last = group
            .entries
            .last_key_value()
            .map_or(group.purged_through, |(last, _)| *last);
        LogBounds {
            purged_through: group.purged_through,
            last,
        }
    }

    pub(super) fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StorageError> {
        let (mut entries, mut bytes) = (Vec::new(), 0usize);
        let first = from.max(self.bounds(group).first());
        let Some(held) = self.groups.get(&group).filter(|_| first < until) else {
            return Ok(entries);
        };
        for (index, (at, stored)) in (first..).zip(held.entries.range(first..until)) {
            if *at != index {
                let place = Place::LogEntry { group, index };
                return Err(StorageError::Corrupt {
                    what: "the entry is missing".to_owned(),
                    place,
                });
            }
            let contents = record::decode(Address::Entry { group, index }, stored.clone())?;
            bytes = bytes.saturating_add(contents.len());
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            entries.push(LogEntry {
                index,
                bytes: contents,
            });
        }
        Ok(entries)
    }

    pub(super) fn record(&self, group: u64, name: &str) -> Result<Option<Bytes>, StorageError> {
        let stored = self
            .groups
            .get(&group)
            .and_then(|group| group.records.get(name));
        stored
            .map(|stored| record::decode(Address::Record { group, name }, stored.clone()))
            .transpose()
    }

    /// Drops the records that a crash cut short, and what was to follow them: no call that wrote them was ever answered.
    pub(super) fn drop_torn_tails(&mut self) {
        for group in self.groups.values_mut() {
            while let Some(last) = group
                .entries
                .last_entry()
                .filter(|last| record::is_torn(last.get()))
            {
                self.bytes -= size(&last.remove());
            }
        }
    }

    /// Group, index and size of each entry.
    pub(super) fn places(&self) -> Vec<(u64, u64, usize)> {
        let groups = self.groups.iter();
        groups
            .flat_map(|(group, held)| {
                let entries = held.entries.iter();
                entries.map(|(index, stored)| (*group, *index, stored.len()))
            })
            .collect()
    }

    pub(super) fn entry(&self, group: u64, index: u64) -> Option<&Bytes> {
        self.groups.get(&group)?.entries.get(&index)
    }

    pub(super) fn entry_mut(&mut self, group: u64, index: u64) -> Option<&mut Bytes> {
        self.groups.get_mut(&group)?.entries.get_mut(&index)
    }

    pub(super) fn record_mut(&mut self, group: u64, name: &str) -> Option<&mut Bytes> {
        self.groups.get_mut(&group)?.records.get_mut(name)
    }
}

fn size(stored: &Bytes) -> u64 {
    stored.len() as u64
}
