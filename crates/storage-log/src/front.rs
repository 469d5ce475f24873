//! The log as callers see it: bounds, tail, records and queue change under one lock, the disk follows.
//!
//! Two views of the groups: `bounds`, `tails` and `records` are as all calls that have returned leave them; `index` is what is
//! synced. Below a group's tail all entries are in the index, so a read takes what it needs of both under the lock, with the
//! files, and reads the files after it. What it then reads never changes: a segment is written over only once it is out of the
//! index and no reader holds its file.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use warren_storage::record::{self, Address};
use warren_storage::{Done, LogBounds, LogEntry, LogStore, Place, StorageError};

use crate::engine::{Counters, Shared};
use crate::index::{Index, Location};
use crate::segments::Segments;
use crate::tail::TailCache;
use crate::writer::{Call, Change};

/// The most that is read at once: entries pin the piece that they were read with.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// What callers and the writer share under one lock.
pub(crate) struct Front {
    pub(crate) bounds: BTreeMap<u64, LogBounds>,
    /// Small records put since the folder was opened, by group and name.
    records: BTreeMap<(u64, &'static str), Bytes>,
    pub(crate) tails: TailCache,
    pub(crate) index: Index,
    pub(crate) segments: Segments,
    pub(crate) queue: VecDeque<Call>,
    /// The number of the newest call.
    last_number: u64,
    pub(crate) closing: bool,
    /// The first failure of a write.
    pub(crate) stopped: Option<StorageError>,
}

/// Records that lie back to back in a segment.
struct Run {
    file: Arc<File>,
    segment: u32,
    offset: u64,
    bytes: u64,
    /// The first entry's index, and the bytes of each record.
    first: u64,
    lengths: Vec<u32>,
}

/// What a read may still take. The first entry always fits.
struct Budget {
    bytes: usize,
    begun: bool,
}

impl Budget {
    fn fits(&mut self, bytes: usize) -> bool {
        if self.begun && bytes > self.bytes {
            // Nothing behind it is taken either.
            self.bytes = 0;
            return false;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.begun = true;
        true
    }
}

impl Front {
    pub(crate) fn new(index: Index, segments: Segments, tail_cache_bytes: usize) -> Front {
        Front {
            bounds: index.groups().collect(),
            records: BTreeMap::new(),
            tails: TailCache::new(tail_cache_bytes),
            index,
            segments,
            queue: VecDeque::new(),
            last_number: 0,
            closing: false,
            stopped: None,
        }
    }

    fn bounds(&self, group: u64) -> LogBounds {
        self.bounds.get(&group).copied().unwrap_or_default()
    }
}

impl Shared {
    fn open_front(&self) -> Result<MutexGuard<'_, Front>, StorageError> {
        let front = self.front.lock();
        if front.closing {
            return Err(StorageError::Closed);
        }
        Ok(front)
    }

    /// Queues a call for the writer. `make` applies it to the front; a refused call is answered in its turn.
    fn call(&self, done: Done, make: impl FnOnce(&mut Front, u64) -> Result<Change, StorageError>) {
        let mut front = match self.open_front() {
            Ok(front) => front,
            Err(error) => return done(Err(error)),
        };
        front.last_number += 1;
        let number = front.last_number;
        let (change, answer) = match make(&mut front, number) {
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

    /// A call that is refused once the log has stopped.
    fn writing_call(
        &self,
        done: Done,
        make: impl FnOnce(&mut Front, u64) -> Result<Change, StorageError>,
    ) {
        self.call(done, |front, number| match &front.stopped {
            Some(cause) => Err(cause.stopping()),
            None => make(front, number),
        });
    }

    /// Adds what lies on disk of the entries to the runs, while it fits.
    fn plan(
        &self,
        front: &mut Front,
        group: u64,
        indexes: std::ops::Range<u64>,
        budget: &mut Budget,
        runs: &mut Vec<Run>,
    ) -> Result<(), StorageError> {
        let Front {
            index, segments, ..
        } = front;
        let mut locations = index.entries_from(group, indexes.start);
        for index in indexes {
            let Some(location) = locations.next().flatten() else {
                let place = Place::LogEntry { group, index };
                let what = "the entry is missing".to_owned();
                return Err(StorageError::Corrupt { what, place });
            };
            if !budget.fits(contents_bytes(location)) {
                break;
            }
            match runs.last_mut().filter(|run| run.takes(location)) {
                Some(run) => run.add(location),
                None => {
                    let file = segments.get(&self.disk, location.segment)?;
                    runs.push(Run::new(file, index, location));
                }
            }
        }
        Ok(())
    }
}

fn contents_bytes(location: Location) -> usize {
    (location.bytes as usize).saturating_sub(record::HEADER_BYTES)
}

impl LogStore for Shared {
    fn append(&self, group: u64, entries: Vec<LogEntry>, done: Done) {
        self.writing_call(done, |front, number| {
            let mut bounds = front.bounds(group);
            let mut bytes = 0;
            for (expected, entry) in (bounds.next()..).zip(&entries) {
                let index = entry.index;
                if index != expected {
                    return Err(StorageError::OutOfOrder {
                        group,
                        expected,
                        got: index,
                    });
                }
                record::check_size(Address::Entry { group, index }, &entry.bytes)?;
                bytes += entry.bytes.len();
            }
            let Some(last) = entries.last() else {
                return Ok(Change::Nothing);
            };
            bounds.last = last.index;
            front.bounds.insert(group, bounds);
            front.tails.append(number, group, &entries);
            Counters::add(&self.counters.log_entries, entries.len());
            Counters::add(&self.counters.log_bytes, bytes);
            Ok(Change::Append {
                group,
                entries,
                bytes,
            })
        });
    }

    fn truncate_after(&self, group: u64, last_kept: u64, done: Done) {
        self.writing_call(done, |front, _| {
            let mut bounds = front.bounds(group);
            let last_kept = last_kept.max(bounds.purged_through);
            if last_kept >= bounds.last {
                return Ok(Change::Nothing);
            }
            bounds.last = last_kept;
            front.bounds.insert(group, bounds);
            front.tails.truncate(group, last_kept);
            Ok(Change::Truncate { group, last_kept })
        });
    }

    fn purge(&self, group: u64, through: u64, done: Done) {
        self.writing_call(done, |front, _| {
            let before = front.bounds(group);
            if through <= before.purged_through {
                return Ok(Change::Nothing);
            }
            let bounds = LogBounds {
                purged_through: through,
                last: before.last.max(through),
            };
            front.bounds.insert(group, bounds);
            front.tails.purge(group, through);
            Ok(Change::Purge { group, through })
        });
    }

    fn read(
        &self,
        group: u64,
        from: u64,
        until: u64,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StorageError> {
        let mut front = self.open_front()?;
        let bounds = front.bounds(group);
        let (from, until) = (from.max(bounds.first()), until.min(bounds.next()));
        if from >= until {
            return Ok(Vec::new());
        }
        let mut budget = Budget {
            bytes: bytes_max,
            begun: false,
        };
        let (mut runs, mut next) = (Vec::new(), from);
        let cached = front.tails.first(group).unwrap_or(until).clamp(from, until);
        if cached > from {
            Counters::add(&self.counters.log_reads_from_disk, 1);
            self.plan(&mut front, group, from..cached, &mut budget, &mut runs)?;
            next = runs.last().map_or(from, Run::next);
        }
        let mut cached_entries = Vec::new();
        if next == cached {
            cached_entries = front
                .tails
                .read(group, next, until, |bytes| budget.fits(bytes));
        }
        drop(front);

        let mut entries = Vec::new();
        for run in runs {
            run.read(self, group, &mut entries)
                .inspect_err(|error| self.damage.note(error))?;
        }
        if entries.is_empty() {
            return Ok(cached_entries);
        }
        entries.append(&mut cached_entries);
        Ok(entries)
    }

    fn bounds(&self, group: u64) -> Result<LogBounds, StorageError> {
        Ok(self.open_front()?.bounds(group))
    }

    fn put_record(&self, group: u64, name: &'static str, value: Bytes, done: Done) {
        self.writing_call(done, |front, _| {
            record::check_size(Address::Record { group, name }, &value)?;
            front.records.insert((group, name), value.clone());
            Ok(Change::Record { group, name, value })
        });
    }

    fn get_record(&self, group: u64, name: &'static str) -> Result<Option<Bytes>, StorageError> {
        let mut front = self.open_front()?;
        if let Some(value) = front.records.get(&(group, name)) {
            return Ok(Some(value.clone()));
        }
        let Some(location) = front.index.record(group, name) else {
            return Ok(None);
        };
        let file = front.segments.get(&self.disk, location.segment)?;
        drop(front);
        self.stored(&file, location)
            .and_then(|stored| record::decode(Address::Record { group, name }, stored))
            .inspect_err(|error| self.damage.note(error))
            .map(Some)
    }
}

impl Shared {
    /// A record as it is stored.
    pub(crate) fn stored(&self, file: &File, location: Location) -> Result<Bytes, StorageError> {
        let mut stored = vec![0; location.bytes as usize];
        self.read_at(file, location.segment, location.offset, &mut stored)?;
        Ok(Bytes::from(stored))
    }

    fn read_at(
        &self,
        file: &File,
        segment: u32,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), StorageError> {
        match file.read_exact_at(bytes, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.disk.corrupt(format!(
                    "segment {segment:08x} ends before {} bytes at {offset}",
                    bytes.len()
                )))
            }
            Err(error) => Err(self.disk.failed("read the log", &error)),
        }
    }
}

impl Run {
    fn new(file: Arc<File>, first: u64, location: Location) -> Run {
        let mut run = Run {
            file,
            segment: location.segment,
            offset: location.offset,
            bytes: 0,
            first,
            lengths: Vec::new(),
        };
        run.add(location);
        run
    }

    /// Whether the record follows the run's last one.
    fn takes(&self, location: Location) -> bool {
        self.segment == location.segment
            && self.offset + self.bytes == location.offset
            && self.bytes + u64::from(location.bytes) <= RUN_BYTES_MAX
    }

    fn add(&mut self, location: Location) {
        self.bytes += u64::from(location.bytes);
        self.lengths.push(location.bytes);
    }

    /// The index behind the run's last one.
    fn next(&self) -> u64 {
        self.first + self.lengths.len() as u64
    }

    /// Reads the run with one allocation, which the entries share.
    fn read(
        &self,
        shared: &Shared,
        group: u64,
        entries: &mut Vec<LogEntry>,
    ) -> Result<(), StorageError> {
        let mut stored = vec![0; usize::try_from(self.bytes).unwrap_or(usize::MAX)];
        shared.read_at(&self.file, self.segment, self.offset, &mut stored)?;
        let mut stored = Bytes::from(stored);
        entries.reserve(self.lengths.len());
        for (index, bytes) in (self.first..).zip(&self.lengths) {
            let record = stored.split_to((*bytes as usize).min(stored.len()));
            let bytes = record::decode(Address::Entry { group, index }, record)?;
            entries.push(LogEntry { index, bytes });
        }
        Ok(())
    }
}
