//! One replicated queue's messages by position: where each lies in the shard's log, and which are still there. No contents.
//!
//! Every replica keeps it. Neighbouring messages that came in one entry are one extent, so that cost and memory follow entries, not messages.
//! Invariants: extents are in order and do not overlap; the first one has a message left; positions grow by one with each arrival and are never used again.
//! Cost: O(1) amortised for an arrival's run and for settling in order, O(log extents) for settling anywhere.

use std::collections::{BTreeMap, VecDeque};

/// Positions of a queue start here: 0 is no position.
const FIRST: u64 = 1;
/// The position that says of a touched queue that all of it, now and later, may have been delivered.
pub const IN_USE: u64 = u64::MAX;
/// The same of a queue that has had gets, and no consumer.
pub const GOT_FROM: u64 = u64::MAX - 1;
/// Extents that may be dead in the middle before they are cleared away.
const DEAD_MAX: usize = 64;

/// Where an extent's messages lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In an entry of the log.
    Entry {
        /// Index of the entry.
        index: u64,
        /// Where the item of the extent's first message starts in it, see [`crate::entry`].
        items_at: u32,
        /// Where their block starts.
        block_at: u32,
    },
    /// In the state store, under their positions.
    Stored,
}

/// A run of messages with neighbouring positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Position of the first.
    pub first: u64,
    /// How many there were at the beginning.
    pub count: u32,
    /// Where they lie.
    pub location: Location,
    /// Record bytes of all of them.
    bytes: u64,
    live: u32,
    /// How many at the beginning are gone.
    prefix: u32,
    /// Which of the others are gone; empty if none.
    gone: Vec<u64>,
}

impl Extent {
    /// Position behind the last.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Messages that are still there.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// Whether the `n`th message is still there.
    #[inline]
    pub fn has(&self, n: u32) -> bool {
        n < self.count
            && n >= self.prefix
            && self
                .gone
                .get(n as usize / 64)
                .is_none_or(|word| word >> (n % 64) & 1 == 0)
    }

    /// Removes messages `from..until`; returns how many were there.
    fn remove(&mut self, from: u32, until: u32) -> u32 {
        let before = self.live;
        if from <= self.prefix {
            for n in self.prefix..until {
                self.live -= u32::from(self.has(n));
            }
            self.prefix = self.prefix.max(until);
        } else {
            if self.gone.is_empty() {
                self.gone = vec![0; (self.count as usize).div_ceil(64)];
            }
            for n in from..until {
                if self.has(n) {
                    self.gone[n as usize / 64] |= 1 << (n % 64);
                    self.live -= 1;
                }
            }
        }
        // What is gone right behind the prefix belongs to it.
        while !self.gone.is_empty() && self.prefix < self.count && !self.has(self.prefix) {
            self.prefix += 1;
        }
        if self.prefix == self.count {
            self.gone = Vec::new();
        }
        before - self.live
    }
}

/// A queue's index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    extents: VecDeque<Extent>,
    next: u64,
    live: u64,
    bytes: u64,
    dead: usize,
    /// How often a message was delivered and put back, if it was.
    returned: BTreeMap<u64, u32>,
    touched: u64,
    /// Changed since this was last taken by [`Index::take_dirty`].
    dirty: bool,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            extents: VecDeque::new(),
            next: FIRST,
            live: 0,
            bytes: 0,
            dead: 0,
            returned: BTreeMap::new(),
            touched: 0,
            dirty: true,
        }
    }
}

impl Index {
    /// Messages that are there, whoever holds them.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Their record bytes; approximately, while an extent is partly gone.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The position that the next message will get.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Position of the first message that may be there.
    pub fn first(&self) -> u64 {
        self.extents
            .front()
            .map_or(self.next, |e| e.first + u64::from(e.prefix))
    }

    /// Messages before this position may have been delivered before; [`IN_USE`] and [`GOT_FROM`]: any.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// Whether its leader may deliver without saying so first: the log says that messages may have been delivered.
    pub fn is_in_use(&self) -> bool {
        self.touched >= GOT_FROM
    }

    /// How often the message at `position` was put back.
    pub fn returns(&self, position: u64) -> u32 {
        self.returned.get(&position).copied().unwrap_or(0)
    }

    /// Oldest entry of the log that a message lies in.
    pub fn oldest_entry(&self) -> Option<u64> {
        self.extents
            .iter()
            .filter(|e| e.live > 0)
            .find_map(|e| match e.location {
                Location::Entry { index, .. } => Some(index),
                Location::Stored => None,
            })
    }

    /// Whether it has changed since this was last asked.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// A run of messages arrives; returns the first one's position.
    #[inline]
    pub fn arrive(&mut self, count: u32, bytes: u64, location: Location) -> u64 {
        let first = self.next;
        self.dirty = true;
        self.next += u64::from(count);
        self.live += u64::from(count);
        self.bytes += bytes;
        self.extents.push_back(Extent {
            first,
            count,
            location,
            bytes,
            live: count,
            prefix: 0,
            gone: Vec::new(),
        });
        first
    }

    /// Messages are settled: removes those of `position..position + count` that are there, and returns how many that were.
    pub fn settle(&mut self, position: u64, count: u32) -> u32 {
        let end = position.saturating_add(u64::from(count));
        let mut at = self.extents.partition_point(|e| e.end() <= position);
        let mut removed = 0;
        while let Some(extent) = self.extents.get_mut(at)
            && extent.first < end
        {
            let from = position.saturating_sub(extent.first) as u32;
            let until = (end - extent.first).min(u64::from(extent.count)) as u32;
            let live = extent.live;
            let gone = extent.remove(from, until);
            if gone > 0 {
                // Shares of what is left, so that nothing is left with the last message.
                let share = extent.bytes * u64::from(gone) / u64::from(live);
                extent.bytes -= share;
                self.bytes -= share;
                self.dead += usize::from(extent.live == 0);
            }
            removed += gone;
            at += 1;
        }
        if removed > 0 {
            self.dirty = true;
            self.live -= u64::from(removed);
            self.trim();
            if !self.returned.is_empty() {
                let settled: Vec<u64> = self
                    .returned
                    .range(position..end)
                    .map(|(p, _)| *p)
                    .collect();
                for position in settled {
                    self.returned.remove(&position);
                }
            }
        }
        removed
    }

    fn trim(&mut self) {
        while self.extents.front().is_some_and(|e| e.live == 0) {
            self.extents.pop_front();
            self.dead -= 1;
        }
        if self.dead > DEAD_MAX && self.dead * 2 > self.extents.len() {
            self.extents.retain(|e| e.live > 0);
            self.dead = 0;
        }
    }

    /// A message was put back. One that is not there is passed over.
    pub fn put_back(&mut self, position: u64) {
        if self.find(position).is_some() {
            *self.returned.entry(position).or_default() += 1;
            self.dirty = true;
        }
    }

    /// Messages before `position` may have been delivered.
    pub fn touch(&mut self, position: u64) {
        self.dirty |= self.touched != position;
        self.touched = position;
    }

    /// The extent and number within it of a message that is there.
    pub fn find(&self, position: u64) -> Option<(&Extent, u32)> {
        let at = self.extents.partition_point(|e| e.end() <= position);
        let extent = self.extents.get(at)?;
        let n = u32::try_from(position.checked_sub(extent.first)?).ok()?;
        extent.has(n).then_some((extent, n))
    }

    /// Extents that have positions from `position` on, in order.
    pub fn extents_from(&self, position: u64) -> impl Iterator<Item = &Extent> {
        let at = self.extents.partition_point(|e| e.end() <= position);
        self.extents.range(at..).filter(|e| e.live > 0)
    }

    /// How many messages are there from `position` on.
    pub fn live_from(&self, position: u64) -> u64 {
        if position >= self.next {
            return 0;
        }
        let live = |extent: &Extent| {
            if extent.first >= position {
                return u64::from(extent.live);
            }
            let from = (position - extent.first) as u32;
            (from..extent.count).filter(|n| extent.has(*n)).count() as u64
        };
        self.extents_from(position).map(live).sum()
    }

    /// The messages that are there and of which `keep` says no, as runs of positions.
    pub fn runs_without(&self, keep: impl Fn(u64) -> bool) -> Vec<(u64, u32)> {
        let mut runs: Vec<(u64, u32)> = Vec::new();
        for extent in self.extents.iter().filter(|e| e.live > 0) {
            for n in (extent.prefix..extent.count).filter(|n| extent.has(*n)) {
                let position = extent.first + u64::from(n);
                if keep(position) {
                    continue;
                }
                match runs.last_mut() {
                    Some((first, count))
                        if *first + u64::from(*count) == position && *count < u32::MAX =>
                    {
                        *count += 1;
                    }
                    _ => runs.push((position, 1)),
                }
            }
        }
        runs
    }

    /// Messages of entries up to `index` lie in the state store from now on. Returns their extents as they were.
    pub fn moved_to_store(&mut self, through: u64) -> Vec<Extent> {
        let mut moved = Vec::new();
        for extent in self.extents.iter_mut().filter(|e| e.live > 0) {
            match extent.location {
                Location::Entry { index, .. } if index <= through => {
                    moved.push(extent.clone());
                    extent.location = Location::Stored;
                }
                Location::Entry { .. } => break,
                Location::Stored => {}
            }
        }
        self.dirty |= !moved.is_empty();
        moved
    }

    /// Whether a message lies in the state store.
    pub fn has_stored(&self) -> bool {
        self.extents
            .iter()
            .any(|e| e.live > 0 && e.location == Location::Stored)
    }

    /// The index as a replica has it that keeps all messages in its state store.
    pub fn all_stored(&self) -> Self {
        let mut index = self.clone();
        for extent in &mut index.extents {
            extent.location = Location::Stored;
        }
        index
    }

    /// The index as bytes, to be kept.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        for n in [self.next, self.touched] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&(self.returned.len() as u32).to_le_bytes());
        for (position, times) in &self.returned {
            out.extend_from_slice(&position.to_le_bytes());
            out.extend_from_slice(&times.to_le_bytes());
        }
        for extent in self.extents.iter().filter(|e| e.live > 0) {
            extent.encode(&mut out);
        }
        out
    }

    /// Reads back what [`Index::encode`] made. None if it is damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut read = Read(bytes);
        if read.take::<1>()? != [VERSION] {
            return None;
        }
        let mut index = Self {
            next: read.u64()?,
            touched: read.u64()?,
            dirty: false,
            ..Self::default()
        };
        for _ in 0..read.u32()? {
            let position = read.u64()?;
            index.returned.insert(position, read.u32()?);
        }
        while !read.0.is_empty() {
            let extent = Extent::decode(&mut read)?;
            if index.extents.back().is_some_and(|e| e.end() > extent.first)
                || extent.end() > index.next
            {
                return None;
            }
            index.live += u64::from(extent.live);
            index.bytes += extent.bytes;
            index.extents.push_back(extent);
        }
        Some(index)
    }
}

/// The only version of an index's bytes there is so far.
const VERSION: u8 = 1;

impl Extent {
    fn encode(&self, out: &mut Vec<u8>) {
        let (index, items_at, block_at) = match self.location {
            Location::Entry {
                index,
                items_at,
                block_at,
            } => (index, items_at, block_at),
            // No entry has this index.
            Location::Stored => (u64::MAX, 0, 0),
        };
        for n in [self.first, index, self.bytes] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        for n in [self.count, items_at, block_at, self.prefix] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.push(u8::from(!self.gone.is_empty()));
        for word in &self.gone {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn decode(read: &mut Read<'_>) -> Option<Self> {
        let (first, index, bytes) = (read.u64()?, read.u64()?, read.u64()?);
        let (count, items_at, block_at, prefix) =
            (read.u32()?, read.u32()?, read.u32()?, read.u32()?);
        let gone = match read.take::<1>()? {
            [0] => Vec::new(),
            [1] => (0..(count as usize).div_ceil(64))
                .map(|_| read.u64())
                .collect::<Option<_>>()?,
            _ => return None,
        };
        let location = if index == u64::MAX {
            Location::Stored
        } else {
            Location::Entry {
                index,
                items_at,
                block_at,
            }
        };
        first.checked_add(u64::from(count))?;
        let mut extent = Self {
            first,
            count,
            location,
            bytes,
            live: 0,
            prefix,
            gone,
        };
        extent.live = if extent.gone.is_empty() {
            count.checked_sub(prefix)?
        } else {
            (prefix..count).filter(|n| extent.has(*n)).count() as u32
        };
        (extent.live > 0).then_some(extent)
    }
}

struct Read<'a>(&'a [u8]);

impl Read<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn at(index: u64) -> Location {
        Location::Entry {
            index,
            items_at: 1,
            block_at: 2,
        }
    }

    /// What is there, as a plain set.
    fn positions(index: &Index) -> BTreeSet<u64> {
        index
            .runs_without(|_| false)
            .into_iter()
            .flat_map(|(first, count)| first..first + u64::from(count))
            .collect()
    }

    #[test]
    fn agrees_with_a_plain_set_whatever_is_settled() {
        let mut random = 0x1234_5678_9abc_def1u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..200 {
            let (mut index, mut model, mut entry) = (Index::default(), BTreeSet::new(), 0);
            for _ in 0..200 {
                match next(5) {
                    0 | 1 => {
                        let count = next(200) as u32 + 1;
                        entry += 1;
                        let first = index.arrive(count, u64::from(count) * 10, at(entry));
                        model.extend(first..first + u64::from(count));
                    }
                    2 => {
                        let (first, count) = (index.first(), next(300) as u32);
                        let expected: Vec<u64> = model
                            .range(first..first + u64::from(count))
                            .copied()
                            .collect();
                        assert_eq!(index.settle(first, count) as usize, expected.len());
                        model.retain(|p| !expected.contains(p));
                    }
                    _ => {
                        let (first, count) = (next(index.next() + 5), next(20) as u32);
                        let expected: Vec<u64> = model
                            .range(first..first + u64::from(count))
                            .copied()
                            .collect();
                        assert_eq!(index.settle(first, count) as usize, expected.len());
                        model.retain(|p| !expected.contains(p));
                    }
                }
                assert_eq!(index.live() as usize, model.len());
                assert_eq!(
                    model.first().copied().unwrap_or(index.next()),
                    index.first()
                );
            }
            let from = next(index.next() + 2);
            assert_eq!(index.live_from(from) as usize, model.range(from..).count());
            assert_eq!(positions(&index), model);
            assert_eq!(model.is_empty(), index.bytes() == 0);
            let back = Index::decode(&index.encode()).unwrap();
            assert_eq!(positions(&back), model);
            assert_eq!(
                (back.next(), back.live(), back.bytes(), back.oldest_entry()),
                (
                    index.next(),
                    index.live(),
                    index.bytes(),
                    index.oldest_entry()
                )
            );
        }
    }

    #[test]
    fn messages_that_stay_do_not_pin_those_that_went() {
        let mut index = Index::default();
        let first = index.arrive(1, 1, at(1));
        for entry in 2..10_000 {
            let position = index.arrive(3, 30, at(entry));
            index.settle(position, 3);
        }
        assert_eq!((index.live(), index.first()), (1, first));
        assert!(index.extents.len() < 200, "{}", index.extents.len());
    }

    #[test]
    fn returns_are_counted_while_the_message_is_there() {
        let mut index = Index::default();
        let first = index.arrive(2, 2, at(1));
        index.put_back(first);
        index.put_back(first);
        index.put_back(first + 9);
        assert_eq!((index.returns(first), index.returns(first + 9)), (2, 0));
        let back = Index::decode(&index.encode()).unwrap();
        assert_eq!(back.returns(first), 2);
        index.settle(first, 1);
        assert_eq!(index.returns(first), 0);
    }

    #[test]
    fn damaged_bytes_are_refused_and_never_a_panic() {
        let mut index = Index::default();
        index.arrive(100, 2, at(1));
        index.arrive(100, 2, at(2));
        index.settle(50, 3);
        index.put_back(7);
        let bytes = index.encode();
        for end in 0..bytes.len() {
            assert_ne!(Index::decode(&bytes[..end]).as_ref(), Some(&index));
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x80;
            let _ = Index::decode(&bad);
        }
    }
}
