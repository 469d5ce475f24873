//! The blocks of records that a queue's messages lie in, counted by use, so that a message costs no reference count of its own.
//!
//! Invariant: a block is listed while a message lies in it; blocks are numbered in order of arrival and forgotten from the front.

use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Debug)]
struct Block {
    bytes: Bytes,
    /// Messages that lie in it.
    live: u32,
}

/// Number of a block within its queue.
pub(crate) type BlockNumber = u64;

#[derive(Debug, Default)]
pub(crate) struct Blocks {
    list: VecDeque<Block>,
    first: BlockNumber,
}

impl Blocks {
    /// Counts one more message in `bytes`, which is the newest block if it was used before.
    #[inline]
    pub(crate) fn add(&mut self, bytes: &Bytes) -> BlockNumber {
        if let Some(last) = self.list.back_mut()
            && last.bytes.as_ptr() == bytes.as_ptr()
            && last.live > 0
        {
            last.live += 1;
        } else {
            self.list.push_back(Block {
                bytes: bytes.clone(),
                live: 1,
            });
        }
        self.first + self.list.len() as u64 - 1
    }

    #[inline]
    pub(crate) fn get(&self, number: BlockNumber) -> Option<&Bytes> {
        self.list
            .get(number.checked_sub(self.first)? as usize)
            .map(|b| &b.bytes)
    }

    /// Number and size of the newest block.
    pub(crate) fn newest(&self) -> Option<(BlockNumber, &Bytes)> {
        self.list
            .back()
            .map(|b| (self.first + self.list.len() as u64 - 1, &b.bytes))
    }

    /// How many messages lie in a block.
    pub(crate) fn live(&self, number: BlockNumber) -> u32 {
        number
            .checked_sub(self.first)
            .and_then(|i| self.list.get(i as usize))
            .map_or(0, |b| b.live)
    }

    /// Puts other bytes in a block's place (the messages' offsets are the caller's to mend).
    pub(crate) fn replace(&mut self, number: BlockNumber, bytes: Bytes) {
        if let Some(block) = number
            .checked_sub(self.first)
            .and_then(|i| self.list.get_mut(i as usize))
        {
            block.bytes = bytes;
        }
    }

    /// One message less in a block; the memory is let go with the last.
    #[inline]
    pub(crate) fn release(&mut self, number: BlockNumber) {
        let Some(block) = number
            .checked_sub(self.first)
            .and_then(|i| self.list.get_mut(i as usize))
        else {
            debug_assert!(false, "released block {number} is not listed");
            return;
        };
        block.live -= 1;
        if block.live == 0 {
            block.bytes = Bytes::new();
            while self.list.front().is_some_and(|b| b.live == 0) {
                self.list.pop_front();
                self.first += 1;
            }
        }
    }
}
