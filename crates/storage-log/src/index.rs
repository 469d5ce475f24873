//! Where everything lies: groups, their entries' and records' places in the segments, and how much of a segment is alive.
//!
//! It is what the synced frames say, one after the other: the writer applies each frame's table once it is synced, and
//! opening the folder applies all tables again, through the same code. Entries that are not yet synced are the tail cache's.
//!
//! Segments in between may be gone: all that they held was dead or had moved. What they said of groups is said again by the
//! bounds at the beginning of each segment, and of entries and records that are still alive by a later frame, so the last
//! word on each is always there. An entry whose place is not known after all is reported when it is read.
//!
//! Cost: 16 bytes an entry. Appending is O(log groups) an item and O(1) an entry; so are removals.

use std::collections::{BTreeMap, VecDeque};

use warren_storage::LogBounds;

use crate::frame::{self, Entries, Item, Malformed};

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The segment, 0 if the place is not known.
    pub(crate) segment: u32,
    /// Bytes of the record with its header.
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
}

const UNKNOWN: Location = Location {
    segment: 0,
    bytes: 0,
    offset: 0,
};

/// Room for entries that a group may keep without using it.
const SPARE_ENTRIES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Index {
    groups: BTreeMap<u64, Group>,
    /// What is alive in each segment that is there.
    live: BTreeMap<u32, Live>,
}

#[derive(Debug, Default)]
struct Group {
    purged_through: u64,
    /// From the first index that is not purged on.
    entries: VecDeque<Location>,
    records: BTreeMap<String, Location>,
}

/// Entries alive in a segment. Small records do not count: each new segment repeats them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

impl Group {
    fn last(&self) -> u64 {
        self.purged_through + self.entries.len() as u64
    }

    /// Where an index is, or would be, among the entries.
    fn position(&self, index: u64) -> Option<usize> {
        let position = index.checked_sub(self.purged_through)?.checked_sub(1)?;
        usize::try_from(position).ok()
    }
}

impl Index {
    pub(crate) fn add_segment(&mut self, segment: u32) {
        self.live.entry(segment).or_default();
    }

    pub(crate) fn remove_segment(&mut self, segment: u32) {
        self.live.remove(&segment);
    }

    /// The segments in which no entry is alive.
    pub(crate) fn dead(&self) -> Vec<u32> {
        let dead = self.live.iter().filter(|(_, live)| live.entries == 0);
        dead.map(|(segment, _)| *segment).collect()
    }

    /// Applies a frame's table, whose body begins at the offset of the segment.
    pub(crate) fn apply(
        &mut self,
        table: &[u8],
        segment: u32,
        mut offset: u64,
    ) -> Result<(), Malformed> {
        for item in frame::items(table) {
            match item? {
                Item::Append(entries) => self.append(entries, segment, &mut offset),
                Item::Rewritten(entries) => self.rewritten(entries, segment, &mut offset),
                Item::Truncate { group, last_kept } => self.truncate(group, last_kept),
                Item::Purge { group, through } => self.purge(group, through),
                Item::Record { group, name, bytes } => {
                    let location = Location {
                        segment,
                        bytes,
                        offset,
                    };
                    offset += u64::from(bytes);
                    let records = &mut self.groups.entry(group).or_default().records;
                    match records.get_mut(name) {
                        Some(held) => *held = location,
                        None => {
                            records.insert(name.to_owned(), location);
                        }
                    }
                }
                Item::Bounds {
                    group,
                    purged_through,
                    last,
                } => {
                    self.purge(group, purged_through);
                    self.truncate(group, last);
                    self.fill(group, last);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = (u64, LogBounds)> {
        self.groups.iter().map(|(group, held)| {
            let bounds = LogBounds {
                purged_through: held.purged_through,
                last: held.last(),
            };
            (*group, bounds)
        })
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, &str, Location)> {
        self.groups.iter().flat_map(|(group, held)| {
            let records = held.records.iter();
            records.map(|(name, location)| (*group, name.as_str(), *location))
        })
    }

    pub(crate) fn record(&self, group: u64, name: &str) -> Option<Location> {
        self.groups.get(&group)?.records.get(name).copied()
    }

    /// The places of the entries from `from` on. One that is not known is none.
    pub(crate) fn entries_from(
        &self,
        group: u64,
        from: u64,
    ) -> impl Iterator<Item = Option<Location>> {
        let held = self.groups.get(&group);
        let held = held.and_then(|held| Some((held, held.position(from)?)));
        let entries = held.into_iter().flat_map(|(held, skipped)| {
            let start = skipped.min(held.entries.len());
            held.entries.range(start..)
        });
        entries.map(|location| (location.segment != 0).then_some(*location))
    }

    /// All entries alive in segments with at most so many live bytes, the oldest segments first, up to a budget of bytes.
    /// Segments above `segment_max` are left out. Looks at every entry once.
    pub(crate) fn stragglers(
        &self,
        live_bytes_max: u64,
        bytes_max: u64,
        segments: impl Fn(u32) -> bool,
    ) -> Vec<(u64, u64, Location)> {
        let mut budget = bytes_max;
        let mut chosen = BTreeMap::new();
        for (segment, live) in &self.live {
            let few = live.entries > 0 && live.bytes <= live_bytes_max;
            if few && live.bytes <= budget && segments(*segment) {
                budget -= live.bytes;
                chosen.insert(*segment, ());
            }
        }
        if chosen.is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (group, held) in &self.groups {
            let indexes = held.purged_through + 1..;
            for (index, location) in indexes.zip(&held.entries) {
                if chosen.contains_key(&location.segment) {
                    found.push((*group, index, *location));
                }
            }
        }
        found
    }

    fn append(&mut self, entries: Entries<'_>, segment: u32, offset: &mut u64) {
        let group = entries.group;
        // Where segments in between are gone, it may replace entries that a truncation there had removed.
        self.truncate(group, entries.first.saturating_sub(1));
        self.fill(group, entries.first.saturating_sub(1));
        let held = self.groups.entry(group).or_default();
        let mut added = Live::default();
        for (index, bytes) in entries.iter() {
            if index > held.purged_through {
                held.entries.push_back(Location {
                    segment,
                    bytes,
                    offset: *offset,
                });
                added.entries += 1;
                added.bytes += u64::from(bytes);
            }
            *offset += u64::from(bytes);
        }
        let live = self.live.entry(segment).or_default();
        live.entries += added.entries;
        live.bytes += added.bytes;
    }

    fn rewritten(&mut self, entries: Entries<'_>, segment: u32, offset: &mut u64) {
        for (index, bytes) in entries.iter() {
            let held = self.groups.entry(entries.group).or_default();
            let position = held.position(index);
            let place = position.and_then(|position| held.entries.get_mut(position));
            if let Some(place) = place {
                let location = Location {
                    segment,
                    bytes,
                    offset: *offset,
                };
                let before = std::mem::replace(place, location);
                release(&mut self.live, [before]);
                let live = self.live.entry(segment).or_default();
                live.entries += 1;
                live.bytes += u64::from(bytes);
            }
            *offset += u64::from(bytes);
        }
    }

    fn truncate(&mut self, group: u64, last_kept: u64) {
        let held = self.groups.entry(group).or_default();
        let kept = last_kept.saturating_sub(held.purged_through);
        let kept = usize::try_from(kept).unwrap_or(usize::MAX);
        if kept < held.entries.len() {
            release(&mut self.live, held.entries.drain(kept..));
        }
    }

    fn purge(&mut self, group: u64, through: u64) {
        let held = self.groups.entry(group).or_default();
        if through > held.purged_through {
            let purged = usize::try_from(through - held.purged_through).unwrap_or(usize::MAX);
            let purged = purged.min(held.entries.len());
            release(&mut self.live, held.entries.drain(..purged));
            held.purged_through = through;
        }
        if held.entries.len() * 4 + SPARE_ENTRIES < held.entries.capacity() {
            held.entries.shrink_to(held.entries.len() * 2);
        }
    }

    /// Makes the group's log end at `last` at least, with entries in unknown places.
    fn fill(&mut self, group: u64, last: u64) {
        let held = self.groups.entry(group).or_default();
        let length = last.saturating_sub(held.purged_through);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > held.entries.len() {
            held.entries.resize(length, UNKNOWN);
        }
    }
}

/// Counts entries out of their segments. Neighbours mostly share one.
fn release(live: &mut BTreeMap<u32, Live>, locations: impl IntoIterator<Item = Location>) {
    let mut run = (0, Live::default());
    let mut take = |segment: u32, run: Live| {
        if let Some(live) = live.get_mut(&segment) {
            live.entries -= run.entries;
            live.bytes -= run.bytes;
        }
    };
    for location in locations {
        if location.segment != run.0 {
            take(run.0, run.1);
            run = (location.segment, Live::default());
        }
        run.1.entries += 1;
        run.1.bytes += u64::from(location.bytes);
    }
    take(run.0, run.1);
}
