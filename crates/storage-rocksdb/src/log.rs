//! The log as callers see it: bounds, tail and queue change under one lock, the disk follows.
//!
//! A read that needs the disk leaves the lock; each truncation and purge changes the group's generation, so that a read
//! that they overtook is done again and never joins old entries to new ones.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::MutexGuard;
use rocksdb::ReadOptions;
use warren_storage::record::{self, Address};
use warren_storage::{Done, LogBounds, LogEntry, LogStore, Place, StorageError, key};

use crate::database::{Database, Family};
use crate::engine::{Counters, Shared};
use crate::failure::typed;
use crate::tail::TailCache;
use crate::writer::{Call, Change};

/// What callers and the writer share under one lock.
pub(crate) struct Front {
    /// Groups that were touched since the folder was opened.
    groups: BTreeMap<u64, Group>,
    /// Small records put since then, by group and name.
    records: BTreeMap<(u64, &'static str), Bytes>,
    pub(crate) tails: TailCache,
    pub(crate) queue: VecDeque<Call>,
    /// The number of the newest call.
    last_number: u64,
    pub(crate) closing: bool,
    /// The first failure of a write.
    pub(crate) stopped: Option<StorageError>,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    bounds: LogBounds,
    /// Changes with each truncation and purge.
    generation: u64,
}

/// A read under way.
struct Reading {
    entries: Vec<LogEntry>,
    bytes_max: usize,
    bytes_left: usize,
    /// Whether an entry was taken.
    begun: bool,
    /// The next entry did not fit.
    full: bool,
    /// The group's generation that the entries are of.
    generation: Option<u64>,
}

impl Front {
    pub(crate) fn new(tail_cache_bytes: usize) -> Front {
        Front {
            groups: BTreeMap::new(),
            records: BTreeMap::new(),
            tails: TailCache::new(tail_cache_bytes),
            queue: VecDeque::new(),
            last_number: 0,
            closing: false,
            stopped: None,
        }
    }

    fn group(&mut self, group: u64) -> &mut Group {
        self.groups.entry(group).or_insert(Group {
            bounds: LogBounds::default(),
            generation: 0,
        })
    }
}

impl Shared {
    /// The front with the group's bounds loaded. The first touch of a group reads them from the disk, outside the lock: no
    /// call of this group can change them before they are loaded.
    fn front_with(&self, group: u64) -> Result<MutexGuard<'_, Front>, StorageError> {
        let front = self.front.lock();
        if front.closing {
            return Err(StorageError::Closed);
        }
        if front.groups.contains_key(&group) {
            return Ok(front);
        }
        drop(front);
        let bounds = self.database()?.bounds(group)?;
        let mut front = self.front.lock();
        if front.closing {
            return Err(StorageError::Closed);
        }
        front.groups.entry(group).or_insert(Group {
            bounds,
            generation: 0,
        });
        Ok(front)
    }

    /// Queues a call for the writer. `make` applies it to the front; a refused call is answered in its turn.
    fn call(
        &self,
        group: u64,
        done: Done,
        make: impl FnOnce(&mut Front, u64) -> Result<Change, StorageError>,
    ) {
        let mut front = match self.front_with(group) {
            Ok(front) => front,
            Err(error) => return done(Err(error)),
        };
        front.last_number += 1;
        let number = front.last_number;
        let made = match &front.stopped {
            Some(cause) => Err(cause.stopping()),
            None => make(&mut front, number),
        };
        let (change, answer) = match made {
            Ok(change) => (change, Ok(())),
            Err(refused) => (Change::Nothing, Err(refused)),
        };
        front.queue.push_back(Call {
            number,
            change,
            answer,
            done,
        });
        let first = front.queue.len() == 1;
        drop(front);
        if first {
            self.work.notify_one();
        }
    }
}

impl LogStore for Shared {
    fn append(&self, group: u64, entries: Vec<LogEntry>, done: Done) {
        self.call(group, done, |front, number| {
            let bounds = &mut front.group(group).bounds;
            let mut bytes = 0;
            for (expected, entry) in (bounds.next()..).zip(&entries) {
                if entry.index != expected {
                    return Err(StorageError::OutOfOrder {
                        group,
                        expected,
                        got: entry.index,
                    });
                }
                record::check_size(
                    Address::Entry {
                        group,
                        index: entry.index,
                    },
                    &entry.bytes,
                )?;
                bytes += entry.bytes.len();
            }
            let Some(last) = entries.last() else {
                return Ok(Change::Nothing);
            };
            bounds.last = last.index;
            front.tails.append(number, group, &entries);
            Counters::add(&self.counters.log_entries, entries.len());
            Counters::add(&self.counters.log_bytes, bytes);
            Ok(Change::Append { group, entries })
        });
    }

    fn truncate_after(&self, group: u64, last_kept: u64, done: Done) {
        self.call(group, done, |front, _| {
            let held = front.group(group);
            let last_kept = last_kept.max(held.bounds.purged_through);
            if last_kept >= held.bounds.last {
                return Ok(Change::Nothing);
            }
            let until = held.bounds.next();
            held.bounds.last = last_kept;
            held.generation += 1;
            front.tails.truncate(group, last_kept);
            Ok(Change::Truncate {
                group,
                from: last_kept + 1,
                until,
            })
        });
    }

    fn purge(&self, group: u64, through: u64, done: Done) {
        self.call(group, done, |front, _| {
            let held = front.group(group);
            let before = held.bounds;
            if through <= before.purged_through {
                return Ok(Change::Nothing);
            }
            held.bounds = LogBounds {
                purged_through: through,
                last: before.last.max(through),
            };
            held.generation += 1;
            front.tails.purge(group, through);
            Ok(Change::Purge {
                group,
                from: before.first(),
                until: through.min(before.last) + 1,
                through,
            })
        });
    }

    fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StorageError> {
        let mut reading = Reading::new(bytes_max);
        loop {
            let mut front = self.front_with(group)?;
            let Group { bounds, generation } = *front.group(group);
            reading.keep_or_restart(generation);
            let next = reading
                .entries
                .last()
                .map_or(from.max(bounds.first()), |last| last.index + 1);
            let until = until.min(bounds.next());
            let cached = front.tails.first(group).unwrap_or(bounds.next());
            if next >= cached || next >= until {
                let rest = front
                    .tails
                    .read(group, next, until, |bytes| reading.fits(bytes));
                reading.entries.extend(rest);
                return Ok(reading.entries);
            }
            drop(front);

            // The cache may move on meanwhile: then the next round finds the gap on the disk too.
            Counters::add(&self.counters.log_reads_from_disk, 1);
            let read = self
                .database()?
                .read(group, next, until.min(cached), &mut reading);
            if read.is_err() || reading.full {
                let overtaken = self.front_with(group)?.group(group).generation != generation;
                if !overtaken {
                    return read.map(|()| reading.entries);
                }
            }
        }
    }

    fn bounds(&self, group: u64) -> Result<LogBounds, StorageError> {
        let mut front = self.front_with(group)?;
        Ok(front.group(group).bounds)
    }

    fn put_record(&self, group: u64, name: &'static str, value: Bytes, done: Done) {
        self.call(group, done, |front, _| {
            record::check_size(Address::Record { group, name }, &value)?;
            front.records.insert((group, name), value.clone());
            Ok(Change::Record { group, name, value })
        });
    }

    fn get_record(&self, group: u64, name: &'static str) -> Result<Option<Bytes>, StorageError> {
        let front = self.front_with(group)?;
        if let Some(value) = front.records.get(&(group, name)) {
            return Ok(Some(value.clone()));
        }
        drop(front);
        let found = self.database()?.record(group, name)?;
        // One put since the look above is the newer one.
        let front = self.front_with(group)?;
        Ok(front.records.get(&(group, name)).cloned().or(found))
    }

    fn resume(&self) -> Result<(), StorageError> {
        let front = self.front.lock();
        front
            .stopped
            .as_ref()
            .map_or(Ok(()), |cause| Err(cause.stopping()))
    }
}

impl Reading {
    fn new(bytes_max: usize) -> Reading {
        Reading {
            entries: Vec::new(),
            bytes_max,
            bytes_left: bytes_max,
            begun: false,
            full: false,
            generation: None,
        }
    }

    /// Begins again if a truncation or a purge came in between.
    fn keep_or_restart(&mut self, generation: u64) {
        if self.generation != Some(generation) {
            *self = Reading {
                generation: Some(generation),
                ..Reading::new(self.bytes_max)
            };
        }
    }

    /// Whether an entry of this size still fits. The first one always does.
    fn fits(&mut self, bytes: usize) -> bool {
        self.full = bytes > self.bytes_left && self.begun;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.begun = true;
        !self.full
    }
}

impl Database {
    /// Reads entries from the disk, all of which must be there, until they no longer fit.
    fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        reading: &mut Reading,
    ) -> Result<(), StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(key::log_entry(group, from));
        options.set_iterate_upper_bound(key::log_entry(group, until));
        let mut iterator = self
            .raw()
            .raw_iterator_cf_opt(self.family(Family::Log)?, options);
        iterator.seek(key::log_entry(group, from));
        for index in from..until {
            let found = iterator
                .item()
                .filter(|(at, _)| key::log_index(group, at) == Some(index));
            let Some((_, stored)) = found else {
                iterator
                    .status()
                    .map_err(|error| typed(self.path(), "read the log", &error))?;
                let place = Place::LogEntry { group, index };
                return Err(StorageError::Corrupt {
                    what: "the entry is missing".to_owned(),
                    place,
                });
            };
            let stored = Bytes::copy_from_slice(stored);
            let bytes = record::decode(Address::Entry { group, index }, stored)?;
            if !reading.fits(bytes.len()) {
                return Ok(());
            }
            reading.entries.push(LogEntry { index, bytes });
            iterator.next();
        }
        Ok(())
    }
}
