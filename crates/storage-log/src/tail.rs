//! The newest log entries of all groups in memory, so that replication does not read the disk.
//!
//! Invariants: a group's cached entries are contiguous and end with its last entry; an entry stays until the disk has it (its
//! call's number is at most `written`), whatever the budget; beyond the budget, what was appended first goes first.
//!
//! Cost: an append is O(log groups), an eviction O(log groups) an entry.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use warren_storage::LogEntry;

/// What an entry takes beside its contents.
const ENTRY_OVERHEAD_BYTES: usize = 48;

#[derive(Debug)]
pub(crate) struct TailCache {
    tails: BTreeMap<u64, Tail>,
    /// The number of each tail's oldest entry, and its group.
    oldest: BTreeSet<(u64, u64)>,
    bytes: usize,
    bytes_max: usize,
    /// The last call that is on disk.
    written: u64,
}

#[derive(Debug, Default)]
struct Tail {
    /// The index of the first of `entries`.
    first: u64,
    /// The number of the call that brought the entry, and its contents.
    entries: VecDeque<(u64, Bytes)>,
}

impl TailCache {
    pub(crate) fn new(bytes_max: usize) -> TailCache {
        TailCache {
            tails: BTreeMap::new(),
            oldest: BTreeSet::new(),
            bytes: 0,
            bytes_max,
            written: 0,
        }
    }

    /// Adds the entries of the call with this number, which follow the group's last one.
    pub(crate) fn append(&mut self, number: u64, group: u64, entries: &[LogEntry]) {
        let Some(first) = entries.first() else { return };
        let tail = self.tails.entry(group).or_default();
        if tail.entries.is_empty() {
            tail.first = first.index;
            self.oldest.insert((number, group));
        }
        debug_assert_eq!(
            tail.first + tail.entries.len() as u64,
            first.index,
            "a tail has no gap"
        );
        for entry in entries {
            self.bytes += cost(&entry.bytes);
            tail.entries.push_back((number, entry.bytes.clone()));
        }
        self.evict();
    }

    /// Removes the entries above `last_kept`.
    pub(crate) fn truncate(&mut self, group: u64, last_kept: u64) {
        self.change(group, |tail| {
            let kept = last_kept.saturating_add(1).saturating_sub(tail.first);
            let kept = usize::try_from(kept)
                .unwrap_or(usize::MAX)
                .min(tail.entries.len());
            tail.entries
                .drain(kept..)
                .map(|(_, bytes)| cost(&bytes))
                .sum()
        });
    }

    /// Removes the entries up to `through`.
    pub(crate) fn purge(&mut self, group: u64, through: u64) {
        self.change(group, |tail| {
            let purged = through.saturating_add(1).saturating_sub(tail.first);
            let purged = usize::try_from(purged)
                .unwrap_or(usize::MAX)
                .min(tail.entries.len());
            tail.first += purged as u64;
            tail.entries
                .drain(..purged)
                .map(|(_, bytes)| cost(&bytes))
                .sum()
        });
    }

    /// All calls up to this number are on disk: their entries may go.
    pub(crate) fn written(&mut self, number: u64) {
        self.written = number;
        self.evict();
    }

    /// The first index of a group that is cached, none if no entry is.
    pub(crate) fn first(&self, group: u64) -> Option<u64> {
        self.tails
            .get(&group)
            .filter(|tail| !tail.entries.is_empty())
            .map(|tail| tail.first)
    }

    /// Cached entries from `from` up to, but not including, `until`, while `fits` says yes.
    pub(crate) fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        mut fits: impl FnMut(usize) -> bool,
    ) -> Vec<LogEntry> {
        let Some(tail) = self.tails.get(&group).filter(|tail| from >= tail.first) else {
            return Vec::new();
        };
        let skipped = usize::try_from(from - tail.first).unwrap_or(usize::MAX);
        let entries = (from..until).zip(tail.entries.iter().skip(skipped));
        entries
            .take_while(|(_, (_, bytes))| fits(bytes.len()))
            .map(|(index, (_, bytes))| LogEntry {
                index,
                bytes: bytes.clone(),
            })
            .collect()
    }

    fn evict(&mut self) {
        while self.bytes > self.bytes_max {
            let Some((number, group)) = self.oldest.first().copied() else {
                return;
            };
            if number > self.written {
                return;
            }
            self.change(group, |tail| {
                tail.first += 1;
                tail.entries
                    .pop_front()
                    .map_or(0, |(_, bytes)| cost(&bytes))
            });
        }
    }

    /// Changes a tail by what returns the bytes it frees, and keeps the rest in step.
    fn change(&mut self, group: u64, free: impl FnOnce(&mut Tail) -> usize) {
        let Some(tail) = self.tails.get_mut(&group) else {
            return;
        };
        let before = tail.entries.front().map(|(number, _)| *number);
        self.bytes -= free(tail);
        let after = tail.entries.front().map(|(number, _)| *number);
        if before != after {
            before.map(|number| self.oldest.remove(&(number, group)));
            after.map(|number| self.oldest.insert((number, group)));
        }
        if after.is_none() {
            self.tails.remove(&group);
        }
    }
}

fn cost(bytes: &Bytes) -> usize {
    bytes.len() + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(indexes: std::ops::RangeInclusive<u64>) -> Vec<LogEntry> {
        indexes
            .map(|index| LogEntry {
                index,
                bytes: Bytes::from(vec![0; 100]),
            })
            .collect()
    }

    fn indexes(cache: &TailCache, group: u64) -> Vec<u64> {
        let Some(first) = cache.first(group) else {
            return Vec::new();
        };
        cache
            .read(group, first, u64::MAX, |_| true)
            .iter()
            .map(|entry| entry.index)
            .collect()
    }

    #[test]
    fn what_is_not_written_stays_and_the_oldest_goes_first() {
        let mut cache = TailCache::new(4 * (100 + ENTRY_OVERHEAD_BYTES));
        cache.append(1, 7, &entries(1..=3));
        cache.append(2, 8, &entries(5..=7));
        cache.append(3, 7, &entries(4..=4));
        assert_eq!(
            (indexes(&cache, 7), indexes(&cache, 8)),
            (vec![1, 2, 3, 4], vec![5, 6, 7])
        );
        cache.written(1);
        assert_eq!(
            (indexes(&cache, 7), indexes(&cache, 8)),
            (vec![4], vec![5, 6, 7])
        );
        cache.append(4, 9, &entries(1..=2));
        assert_eq!(
            (indexes(&cache, 7), indexes(&cache, 8)),
            (vec![4], vec![5, 6, 7]),
            "call 2 is not written yet"
        );
        cache.written(4);
        assert_eq!(
            (indexes(&cache, 7), indexes(&cache, 8), indexes(&cache, 9)),
            (vec![4], vec![7], vec![1, 2])
        );
    }

    #[test]
    fn truncating_and_purging_free_what_they_remove() {
        let mut cache = TailCache::new(1 << 20);
        cache.append(1, 7, &entries(1..=9));
        cache.truncate(7, 6);
        cache.purge(7, 2);
        assert_eq!(indexes(&cache, 7), [3, 4, 5, 6]);
        assert_eq!(cache.bytes, 4 * (100 + ENTRY_OVERHEAD_BYTES));
        cache.append(2, 7, &entries(7..=7));
        cache.truncate(7, 0);
        assert_eq!(
            (indexes(&cache, 7), cache.bytes, cache.oldest.len()),
            (vec![], 0, 0)
        );
        cache.append(3, 7, &entries(1..=2));
        cache.purge(7, 50);
        assert_eq!(
            (indexes(&cache, 7), cache.bytes, cache.oldest.len()),
            (vec![], 0, 0)
        );
    }

    #[test]
    fn reads_stop_where_they_are_told() {
        let mut cache = TailCache::new(1 << 20);
        cache.append(1, 7, &entries(5..=9));
        let read = |from, until, most: usize| -> Vec<u64> {
            let mut left = most;
            let fits = |_| {
                left = left.wrapping_sub(1);
                left < most
            };
            cache
                .read(7, from, until, fits)
                .iter()
                .map(|entry| entry.index)
                .collect()
        };
        assert_eq!(read(6, 8, 10), [6, 7]);
        assert_eq!(read(6, 100, 2), [6, 7]);
        assert_eq!(
            read(4, 8, 10),
            [] as [u64; 0],
            "the beginning is not cached"
        );
        assert_eq!(read(10, 12, 10), [] as [u64; 0]);
    }
}
