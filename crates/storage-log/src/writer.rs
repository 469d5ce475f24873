//! The log writer: one thread that turns queued calls into synced frames and answers them in order.
//!
//! Flow: take what has queued up (at most `batch_bytes`), write it as one frame, sync it, move the mark, apply the frame to the
//! index, let the tail cache go of it, call the `done`s. Calls that arrive meanwhile are the next batch.
//!
//! A frame that does not fit into the segment begins a new one. There it starts with the bounds of all groups and all small
//! records, so that no older segment is needed for these, and with entries moved from segments in which little is alive.
//! Segments in which nothing is alive any more become spares, or are removed, once the frame that says so is synced.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use warren_storage::record::{self, Address};
use warren_storage::{Done, LogBounds, LogEntry, StorageError};

use crate::disk::Kind;
use crate::engine::{Counters, Shared};
use crate::frame::{Builder, FRAME_HEADER_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::index::Location;
use crate::mark::Mark;
use crate::outline::Outline;
use crate::recover::{Active, Recovered};

/// A segment with no more alive than this part of a segment may be emptied, and no more than this part of a new segment is
/// moved into it: at most an eighth is written twice.
const STRAGGLERS_PART: u64 = 8;
/// What an item takes at most beside its record, with a name of usual length.
const ITEM_BYTES: usize = 64;

/// A queued log call.
pub(crate) struct Call {
    /// Grows by one with each call of any group.
    pub(crate) number: u64,
    pub(crate) change: Change,
    /// The answer, unless the write fails.
    pub(crate) answer: Result<(), StorageError>,
    pub(crate) done: Done,
}

/// What a call changes on disk.
pub(crate) enum Change {
    Append {
        group: u64,
        entries: Vec<LogEntry>,
        /// Of all contents.
        bytes: usize,
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
        value: Bytes,
    },
    Nothing,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    mark: Mark,
    active: Option<Active>,
    /// The number of the last synced frame.
    last_number: u64,
    spares: Vec<u32>,
    next_segment: u32,
    builder: Builder,
}

impl Writer {
    /// A writer that goes on where the folder ends.
    pub(crate) fn new(shared: Arc<Shared>, mark: Mark, recovered: Recovered) -> Writer {
        if let Some(active) = &recovered.active {
            let mut front = shared.front.lock();
            front.segments.add(active.header.segment, &active.file);
        }
        Writer {
            shared,
            mark,
            active: recovered.active,
            last_number: recovered.last_number,
            spares: recovered.spares,
            next_segment: recovered.next_segment,
            builder: Builder::default(),
        }
    }

    /// Starts the thread. It ends once the front is closing and the queue is empty.
    pub(crate) fn start(mut self) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name("warren-log-writer".to_owned())
            .spawn(move || self.run())
    }

    fn run(&mut self) {
        while let Some(calls) = next_calls(&self.shared) {
            let written = self.write(&calls);
            if let Err(error) = &written {
                self.shared.stop(error);
            }
            Counters::add(&self.shared.counters.log_calls, calls.len());
            let removing = calls.iter().any(|call| call.change.removes());
            for call in calls {
                answer(call, &written);
            }
            if removing && written.is_ok() {
                self.reclaim();
            }
        }
        self.close();
    }

    fn write(&mut self, calls: &VecDeque<Call>) -> Result<(), StorageError> {
        let last = calls.back().map_or(0, |call| call.number);
        let bytes: usize = calls.iter().map(|call| call.change.bytes()).sum();
        if bytes > 0 {
            // A write may have failed since these calls were taken in.
            if let Some(cause) = &self.shared.front.lock().stopped {
                return Err(cause.stopping());
            }
            let (header, began) = self.write_frame(calls, bytes)?;
            self.written(&header)?;
            self.last_number = header.number;
            if began {
                self.reclaim();
            }
        }
        self.shared.front.lock().tails.written(last);
        Ok(())
    }

    /// Writes and syncs the calls as one frame, and says whether it began a segment.
    fn write_frame(
        &mut self,
        calls: &VecDeque<Call>,
        bytes: usize,
    ) -> Result<(FrameHeader, bool), StorageError> {
        let shared = self.shared.clone();
        let needed = (FRAME_HEADER_BYTES + bytes) as u64;
        self.builder.clear();
        let fits = |active: &Active| active.outline.end + needed <= active.bytes;
        let begun = match self.active.as_ref().is_some_and(fits) {
            true => None,
            false => Some(self.begin_segment(needed)?),
        };
        for call in calls {
            call.change.add_to(&mut self.builder);
        }
        let Some(active) = begun.as_ref().or(self.active.as_ref()) else {
            return Err(shared.disk.corrupt("no segment is open".to_owned()));
        };
        let salt = active.header.salt;
        let header = self.builder.finish(self.last_number + 1, salt);
        Counters::add(&shared.counters.log_syncs, 1);
        let written = shared
            .disk
            .write(&active.file, &mut self.builder.slices())
            .and_then(|()| shared.disk.sync(&active.file))
            .and_then(|()| match begun {
                Some(_) => shared.disk.sync_folder(),
                None => Ok(()),
            });
        let began = begun.is_some();
        match (written, begun) {
            (Ok(()), Some(begun)) => self.seal_and_go_on_with(begun),
            (Ok(()), None) => {}
            (Err(error), Some(begun)) => {
                // Otherwise it would be taken for a segment that has lost its frames.
                let segment = begun.header.segment;
                if let Err(stays) = shared.disk.remove(Kind::Segment, segment) {
                    tracing::error!(error = %stays, "a segment that was begun in vain stays");
                }
                return Err(error);
            }
            (Err(error), None) => return Err(error),
        }
        Ok((header, began))
    }

    /// The frame is durable: the index learns of it.
    fn written(&mut self, header: &FrameHeader) -> Result<(), StorageError> {
        let shared = &self.shared;
        self.mark.set(&shared.disk, header.number)?;
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let table = self.builder.table();
        let body = active.outline.end + FRAME_HEADER_BYTES as u64 + u64::from(header.table_bytes);
        let applied = shared
            .front
            .lock()
            .index
            .apply(table, active.header.segment, body);
        active.outline.add(table, header.frame_bytes());
        applied.map_err(|_| {
            shared
                .disk
                .corrupt("a frame's table makes no sense".to_owned())
        })
    }

    /// Prepares a segment, and puts into the frame what a segment begins with.
    fn begin_segment(&mut self, needed: u64) -> Result<Active, StorageError> {
        let moved = self.add_beginning()?;
        let beginning = SEGMENT_HEADER_BYTES as u64 + needed + moved;
        let bytes = beginning.max(self.shared.segment_bytes);
        let segment = self.next_segment;
        self.next_segment += 1;
        let created = self.create_segment(segment, bytes);
        if created.is_err()
            && let Err(error) = self.shared.disk.remove(Kind::Segment, segment)
        {
            tracing::error!(%error, "a segment that was begun in vain stays");
        }
        created
    }

    fn create_segment(&mut self, segment: u32, bytes: u64) -> Result<Active, StorageError> {
        let disk = &self.shared.disk;
        if let Some(spare) = self.spares.pop() {
            disk.rename(spare, Kind::Spare, (segment, Kind::Segment))?;
        }
        let file = disk.open_for_writing(segment)?;
        if disk.size(&file)? > bytes {
            // It was made for a large call.
            disk.cut(&file, bytes)?;
        }
        disk.allocate(&file, bytes)?;
        let header = SegmentHeader {
            segment,
            previous: self
                .active
                .as_ref()
                .map_or(0, |active| active.header.segment),
            first_number: self.last_number + 1,
            salt: RandomState::new().build_hasher().finish(),
        };
        disk.write(&file, &mut [std::io::IoSlice::new(&header.encode())])?;
        Ok(Active {
            outline: Outline::new(&header),
            header,
            file: Arc::new(file),
            bytes,
        })
    }

    /// Adds the bounds of all groups, all small records, and the entries that move here. Returns about how many bytes.
    fn add_beginning(&mut self) -> Result<u64, StorageError> {
        let shared = self.shared.clone();
        let most = shared.segment_bytes / STRAGGLERS_PART;
        let mut front = shared.front.lock();
        let bounds: Vec<(u64, LogBounds)> = front.index.groups().collect();
        let records = front.index.records();
        let records: Vec<(u64, String, Location)> = records
            .map(|(group, name, location)| (group, name.to_owned(), location))
            .collect();
        let active = self.active.as_ref().map(|active| active.header.segment);
        // What is still being written into, until now, is too young.
        let moving = front
            .index
            .stragglers(most, most, |segment| Some(segment) != active);
        let mut file = |segment| front.segments.get(&shared.disk, segment);
        let mut records_with_files = Vec::with_capacity(records.len());
        for (group, name, location) in records {
            records_with_files.push((group, name, location, file(location.segment)?));
        }
        let mut moving_with_files = Vec::with_capacity(moving.len());
        for (group, index, location) in moving {
            moving_with_files.push((group, index, location, file(location.segment)?));
        }
        drop(front);

        let mut bytes = 0;
        for (group, bounds) in bounds {
            self.builder
                .bounds(group, bounds.purged_through, bounds.last);
            bytes += ITEM_BYTES;
        }
        for (group, name, location, file) in records_with_files {
            // As it is, also if it has rotted: then that goes on being found.
            let stored = shared.stored(&file, location)?;
            self.builder.stored_record(group, &name, &stored);
            bytes += ITEM_BYTES + name.len() + stored.len();
        }
        let mut after = None;
        for (group, index, location, file) in moving_with_files {
            let stored = shared.stored(&file, location)?;
            let address = Address::Entry { group, index };
            if let Err(error) = record::decode(address, stored.clone()) {
                tracing::error!(%error, "an entry stays in its segment");
                after = None;
                continue;
            }
            if after != Some((group, index)) {
                self.builder.rewritten(group, index);
                bytes += ITEM_BYTES;
            }
            after = Some((group, index + 1));
            self.builder.stored(&stored);
            bytes += 4 + stored.len();
            Counters::add(&shared.counters.entries_moved, 1);
        }
        Ok(bytes as u64)
    }

    /// The new segment's first frame is durable.
    fn seal_and_go_on_with(&mut self, begun: Active) {
        let shared = &self.shared;
        let mut front = shared.front.lock();
        front.segments.add(begun.header.segment, &begun.file);
        front.index.add_segment(begun.header.segment);
        drop(front);
        if let Some(mut sealed) = self.active.replace(begun) {
            write_outline(shared, &mut sealed);
            // The rest of its room would stay unused.
            if let Err(error) = shared.disk.cut(&sealed.file, sealed.outline.end) {
                tracing::warn!(%error, "a full segment keeps its unused room");
            }
        }
    }

    /// Frees the segments in which nothing is alive. What says so is durable.
    fn reclaim(&mut self) {
        let active = self.active.as_ref().map(|active| active.header.segment);
        let shared = self.shared.clone();
        let mut front = shared.front.lock();
        let dead = front.index.dead();
        let mut free = Vec::new();
        for segment in dead {
            if Some(segment) != active {
                front.index.remove_segment(segment);
                free.push((segment, front.segments.remove(segment)));
            }
        }
        drop(front);
        for (segment, read) in free {
            let disk = &shared.disk;
            let reuse = !read && self.spares.len() < shared.spare_segments;
            let freed = match reuse {
                true => disk.rename(segment, Kind::Segment, (segment, Kind::Spare)),
                false => disk.remove(Kind::Segment, segment),
            };
            match freed {
                Ok(()) if reuse => self.spares.push(segment),
                Ok(()) => {}
                // The next opening finds it again, and tries again.
                Err(error) => tracing::warn!(%error, "a dead segment stays"),
            }
            if let Err(error) = disk.remove(Kind::Index, segment) {
                tracing::warn!(%error, "a dead segment's index stays");
            }
        }
    }

    fn close(&mut self) {
        if let Some(active) = &mut self.active {
            write_outline(&self.shared, active);
        }
    }
}

/// Without it, opening looks at the frames.
fn write_outline(shared: &Shared, active: &mut Active) {
    if let Err(error) = active.outline.write(&shared.disk, &active.header) {
        tracing::warn!(%error, "a segment stays without its index");
    }
}

/// Waits for calls; none: the log is closing and all is answered. To resume is a batch of its own.
fn next_calls(shared: &Shared) -> Option<VecDeque<Call>> {
    let mut front = shared.front.lock();
    while front.queue.is_empty() {
        if front.closing {
            return None;
        }
        shared.work.wait(&mut front);
    }
    let (mut bytes, mut count) = (0usize, 0usize);
    for call in &front.queue {
        bytes = bytes.saturating_add(call.change.bytes());
        if count > 0 && bytes > shared.batch_bytes {
            break;
        }
        count += 1;
    }
    let rest = front.queue.split_off(count);
    Some(std::mem::replace(&mut front.queue, rest))
}

fn answer(call: Call, written: &Result<(), StorageError>) {
    let answer = match call.change {
        Change::Nothing => call.answer,
        Change::Append { .. }
        | Change::Truncate { .. }
        | Change::Purge { .. }
        | Change::Record { .. } => written.clone().and(call.answer),
    };
    let done = call.done;
    // A caller's panic must not take the answers of all others with it.
    if catch_unwind(AssertUnwindSafe(move || done(answer))).is_err() {
        tracing::error!("a log call's done panicked");
    }
}

impl Change {
    /// At least what it takes in a frame; 0 if it takes no frame.
    fn bytes(&self) -> usize {
        match self {
            Change::Append { entries, bytes, .. } => {
                ITEM_BYTES + bytes + entries.len() * (record::HEADER_BYTES + 4)
            }
            Change::Record { name, value, .. } => ITEM_BYTES + name.len() + value.len(),
            Change::Truncate { .. } | Change::Purge { .. } => ITEM_BYTES,
            Change::Nothing => 0,
        }
    }

    /// Whether entries may be dead now.
    fn removes(&self) -> bool {
        match self {
            Change::Truncate { .. } | Change::Purge { .. } => true,
            Change::Append { .. } | Change::Record { .. } | Change::Nothing => false,
        }
    }

    fn add_to(&self, builder: &mut Builder) {
        match self {
            Change::Append { group, entries, .. } => {
                let group = *group;
                builder.append(group, entries.first().map_or(0, |entry| entry.index));
                for LogEntry { index, bytes } in entries {
                    let address = Address::Entry {
                        group,
                        index: *index,
                    };
                    builder.entry(address, bytes);
                }
            }
            Change::Truncate { group, last_kept } => builder.truncate(*group, *last_kept),
            Change::Purge { group, through } => builder.purge(*group, *through),
            Change::Record { group, name, value } => builder.record(*group, name, value),
            Change::Nothing => {}
        }
    }
}
