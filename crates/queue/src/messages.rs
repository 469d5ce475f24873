//! A queue's messages by position: ready, held, or gone.
//!
//! Positions count arrivals. `slots` covers `base..end`; everything from `cursor` on has never been delivered and is ready, or was purged. Messages that were
//! returned lie below the cursor and are listed in `returned`. Where a few messages stay long while many pass, they move to `stragglers`, so that
//! memory follows the number of messages and not the span of their positions.

use crate::blocks::{BlockNumber, Blocks};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use warren_model::planted;

/// Below this span of positions stragglers stay where they are.
const SPAN_MIN: u64 = 4096;
/// A block is copied out of when the queue keeps less than one part in so many of it.
const WASTE_FACTOR: usize = 4;
/// Smaller blocks are never worth copying out of.
const COPY_MIN: usize = 8 * 1024;
/// Positions of a queue that is not replicated start here: 0 is no position.
const FIRST: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// By the consumer of this index.
    Held(u32),
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    block: BlockNumber,
    offset: u32,
    len: u32,
    state: State,
    redelivered: bool,
}

/// A message as it lies in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) position: u64,
    pub(crate) block: BlockNumber,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) redelivered: bool,
}

#[derive(Debug)]
pub(crate) struct Messages {
    slots: VecDeque<Slot>,
    base: u64,
    cursor: u64,
    returned: BTreeSet<u64>,
    stragglers: BTreeMap<u64, Slot>,
    blocks: Blocks,
    ready: u64,
    unacked: u64,
    bytes: u64,
    /// Slots in `base..cursor` that are gone.
    gone: u64,
    /// Position of the first message of the block that is arriving, and its bytes kept so far.
    arriving: Option<(u64, usize)>,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            slots: VecDeque::new(),
            base: FIRST,
            cursor: FIRST,
            returned: BTreeSet::new(),
            stragglers: BTreeMap::new(),
            blocks: Blocks::default(),
            ready: 0,
            unacked: 0,
            bytes: 0,
            gone: 0,
            arriving: None,
        }
    }
}

impl Messages {
    pub(crate) fn ready(&self) -> u64 {
        self.ready
    }

    pub(crate) fn unacked(&self) -> u64 {
        self.unacked
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Slots in use, for tests of memory.
    #[cfg(test)]
    pub(crate) fn span(&self) -> usize {
        self.slots.len() + self.stragglers.len()
    }

    pub(crate) fn block(&self, number: BlockNumber) -> Option<&Bytes> {
        self.blocks.get(number)
    }

    fn end(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    #[inline]
    pub(crate) fn push_ready(&mut self, block: &Bytes, offset: u32, len: u32) {
        self.push(block, offset, len, State::Ready, false);
        self.ready += 1;
    }

    /// Stores a message that a consumer takes at once. Only when nothing is ready.
    #[inline]
    pub(crate) fn push_held(&mut self, block: &Bytes, offset: u32, len: u32, holder: u32) -> u64 {
        debug_assert_eq!(self.ready, 0);
        // What lies between the cursor and the end was purged.
        self.gone += self.end() - self.cursor;
        let position = self.push(block, offset, len, State::Held(holder), false);
        self.cursor = position + 1;
        self.unacked += 1;
        position
    }

    #[inline]
    fn push(
        &mut self,
        block: &Bytes,
        offset: u32,
        len: u32,
        state: State,
        redelivered: bool,
    ) -> u64 {
        let position = self.end();
        let number = self.blocks.add(block);
        self.slots.push_back(Slot {
            block: number,
            offset,
            len,
            state,
            redelivered,
        });
        self.bytes += u64::from(len);
        let (_, kept) = self.arriving.get_or_insert((position, 0));
        *kept += len as usize;
        position
    }

    /// Goes on at `position`, which is not before the end: what lies between is not there.
    fn go_on_at(&mut self, position: u64) {
        if self.slots.is_empty() {
            (self.base, self.cursor, self.gone) = (position, position, 0);
            return;
        }
        let hole = Slot {
            block: 0,
            offset: 0,
            len: 0,
            state: State::Gone,
            redelivered: false,
        };
        while self.end() < position {
            self.slots.push_back(hole);
        }
    }

    /// Whether a message of this position would be the next one, or come behind a gap.
    pub(crate) fn is_ahead(&self, position: u64) -> bool {
        position >= self.end()
    }

    /// Stores a ready message of a replicated queue at its position.
    pub(crate) fn push_ready_at(
        &mut self,
        position: u64,
        block: &Bytes,
        offset: u32,
        len: u32,
        redelivered: bool,
    ) {
        self.go_on_at(position);
        self.push(block, offset, len, State::Ready, redelivered);
        self.ready += 1;
    }

    /// Stores a message of a replicated queue that `holder` holds.
    pub(crate) fn push_held_at(
        &mut self,
        position: u64,
        block: &Bytes,
        offset: u32,
        len: u32,
        redelivered: bool,
        holder: u32,
    ) {
        self.go_on_at(position);
        self.push(block, offset, len, State::Held(holder), redelivered);
        self.unacked += 1;
        // With nothing ready before it, the cursor need not come by here.
        if self.ready == 0 {
            self.gone += (self.cursor..position)
                .filter(|p| self.slot(*p).is_some_and(|s| s.state == State::Gone))
                .count() as u64;
            self.cursor = position + 1;
        }
    }

    /// A message of a replicated queue passes without being kept.
    pub(crate) fn pass(&mut self, position: u64) {
        self.go_on_at(position + 1);
    }

    /// A ready message is with `holder` after all. False if it is not ready here.
    pub(crate) fn hold(&mut self, position: u64, holder: u32) -> bool {
        let Some(slot) = self.slot_mut(position) else {
            return false;
        };
        if slot.state != State::Ready {
            return false;
        }
        slot.state = State::Held(holder);
        self.returned.remove(&position);
        self.ready -= 1;
        self.unacked += 1;
        true
    }

    /// See [`crate::Queue::seal`].
    pub(crate) fn seal(&mut self, block: &Bytes) {
        let Some((from, kept)) = self.arriving.take() else {
            return;
        };
        if block.len() < COPY_MIN || kept * WASTE_FACTOR >= block.len() {
            return;
        }
        let Some((number, bytes)) = self.blocks.newest() else {
            return;
        };
        if bytes.as_ptr() != block.as_ptr() {
            return;
        }
        let base = self.base;
        let first = from.saturating_sub(base) as usize;
        // Messages that came in it earlier would be left with the wrong block.
        let lie_in_it = |slots: &VecDeque<Slot>| {
            let arrived = slots.iter().skip(first);
            arrived
                .filter(|s| s.block == number && s.state != State::Gone)
                .count()
        };
        if self.blocks.live(number) as usize != lie_in_it(&self.slots) {
            return;
        }
        let mut copy = Vec::with_capacity(kept);
        for slot in self
            .slots
            .iter_mut()
            .skip(first)
            .filter(|s| s.block == number && s.state != State::Gone)
        {
            let start = slot.offset as usize;
            slot.offset = copy.len() as u32;
            copy.extend_from_slice(&bytes[start..start + slot.len as usize]);
        }
        self.blocks.replace(number, Bytes::from(copy));
    }

    /// Record bytes of the message that [`Messages::take_ready`] would take.
    #[inline]
    pub(crate) fn next_ready_len(&mut self) -> Option<u32> {
        if self.ready == 0 {
            return None;
        }
        let position = self.next_ready()?;
        self.slot(position).map(|s| s.len)
    }

    #[inline]
    fn next_ready(&mut self) -> Option<u64> {
        if let Some(&position) = self.returned.first()
            && !planted!(RequeueAtTail)
        {
            return Some(position);
        }
        // Purged slots may lie at the cursor, and in a replicated queue such as are held already.
        while self.cursor < self.end() {
            match self.slots[(self.cursor - self.base) as usize].state {
                State::Ready => return Some(self.cursor),
                State::Held(_) => {}
                State::Gone => self.gone += 1,
            }
            self.cursor += 1;
        }
        self.returned.first().copied()
    }

    /// Takes the first ready message: for a holder, or for good (then the caller calls [`Messages::release`] when it is done with the block).
    pub(crate) fn take_ready(&mut self, holder: Option<u32>) -> Option<Stored> {
        if self.ready == 0 {
            return None;
        }
        let position = self.next_ready()?;
        if position == self.cursor {
            self.cursor += 1;
        } else {
            self.returned.remove(&position);
        }
        let slot = self.slot_mut(position)?;
        slot.state = match holder {
            Some(holder) => State::Held(holder),
            None => State::Gone,
        };
        let stored = Stored {
            position,
            block: slot.block,
            offset: slot.offset,
            len: slot.len,
            redelivered: slot.redelivered,
        };
        self.ready -= 1;
        match holder {
            Some(_) => self.unacked += 1,
            None => self.went(position, stored.len),
        }
        Some(stored)
    }

    /// Lets go of the block of a message taken for good.
    pub(crate) fn release(&mut self, stored: &Stored) {
        self.blocks.release(stored.block);
    }

    /// Removes a message that `holder` holds.
    #[inline]
    pub(crate) fn remove(&mut self, position: u64, holder: u32) -> bool {
        let Some(slot) = self.slot_mut(position) else {
            return false;
        };
        if slot.state != State::Held(holder) {
            return false;
        }
        slot.state = State::Gone;
        let (block, len) = (slot.block, slot.len);
        self.unacked -= 1;
        self.went(position, len);
        self.blocks.release(block);
        true
    }

    /// Puts a message that `holder` holds back to its place.
    pub(crate) fn requeue(&mut self, position: u64, holder: u32) -> bool {
        let Some(slot) = self.slot_mut(position) else {
            return false;
        };
        if slot.state != State::Held(holder) {
            return false;
        }
        slot.state = State::Ready;
        slot.redelivered = true;
        self.unacked -= 1;
        self.ready += 1;
        if position < self.cursor {
            self.returned.insert(position);
        }
        true
    }

    /// Puts all that `holder` holds back.
    pub(crate) fn requeue_all(&mut self, holder: u32) {
        let held = |(position, slot): (u64, &Slot)| {
            (slot.state == State::Held(holder)).then_some(position)
        };
        let base = self.base;
        let positions: Vec<u64> = self
            .stragglers
            .iter()
            .map(|(p, s)| (*p, s))
            .filter_map(held)
            .chain(
                self.slots
                    .iter()
                    .enumerate()
                    .map(|(i, s)| (base + i as u64, s))
                    .filter_map(held),
            )
            .collect();
        for position in positions {
            self.requeue(position, holder);
        }
    }

    pub(crate) fn purge(&mut self) -> u64 {
        let purged = self.ready;
        for position in std::mem::take(&mut self.returned) {
            self.drop_ready(position);
        }
        for position in self.cursor..self.end() {
            self.drop_ready(position);
        }
        self.ready = 0;
        while self.cursor < self.end() {
            let gone = self.slots[(self.cursor - self.base) as usize].state == State::Gone;
            self.gone += u64::from(gone);
            self.cursor += 1;
        }
        self.trim();
        purged
    }

    fn drop_ready(&mut self, position: u64) {
        let below_cursor = position < self.cursor;
        let Some(slot) = self.slot_mut(position) else {
            return;
        };
        if slot.state != State::Ready {
            return;
        }
        slot.state = State::Gone;
        let (block, len) = (slot.block, slot.len);
        self.blocks.release(block);
        self.bytes -= u64::from(len);
        if position < self.base {
            self.stragglers.remove(&position);
        } else if below_cursor {
            self.gone += 1;
        }
    }

    pub(crate) fn is_held(&self, position: u64) -> bool {
        self.slot(position)
            .is_some_and(|slot| matches!(slot.state, State::Held(_)))
    }

    /// Position of the first ready message that was never delivered.
    pub(crate) fn undelivered(&mut self) -> Option<u64> {
        let ready = |p: &u64| self.slot(*p).is_some_and(|s| s.state == State::Ready);
        (self.cursor..self.end()).find(ready)
    }

    #[inline]
    fn slot(&self, position: u64) -> Option<&Slot> {
        match position.checked_sub(self.base) {
            Some(index) => self.slots.get(index as usize),
            None => self.stragglers.get(&position),
        }
    }

    #[inline]
    fn slot_mut(&mut self, position: u64) -> Option<&mut Slot> {
        match position.checked_sub(self.base) {
            Some(index) => self.slots.get_mut(index as usize),
            None => self.stragglers.get_mut(&position),
        }
    }

    /// Book-keeping for a message below the cursor that has just gone.
    #[inline]
    fn went(&mut self, position: u64, len: u32) {
        self.bytes -= u64::from(len);
        if position < self.base {
            self.stragglers.remove(&position);
            return;
        }
        // What lies before the cursor is counted when the cursor comes by.
        if position < self.cursor {
            self.gone += 1;
        }
        self.trim();
    }

    #[inline]
    fn trim(&mut self) {
        while self.base < self.cursor && self.slots.front().is_some_and(|s| s.state == State::Gone)
        {
            self.slots.pop_front();
            self.base += 1;
            self.gone -= 1;
        }
        let span = self.cursor - self.base;
        if span > SPAN_MIN && self.gone * 8 > span * 7 {
            self.spill();
        }
        // A burst must not pin its peak for ever.
        if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 8 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    /// Moves what is left below the cursor to `stragglers`.
    fn spill(&mut self) {
        while self.base < self.cursor {
            if let Some(slot) = self.slots.pop_front()
                && slot.state != State::Gone
            {
                self.stragglers.insert(self.base, slot);
            }
            self.base += 1;
        }
        self.gone = 0;
    }
}
