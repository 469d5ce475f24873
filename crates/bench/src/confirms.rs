//! One producer's confirms: which messages the broker has answered for, and how.
//!
//! Delivery tags are the messages' numbers plus one, as there is one publishing channel a connection. Below `low` everything is answered, so
//! an ack of many costs no more than the messages that it answers.

use std::collections::VecDeque;

use anyhow::{Result, ensure};

use crate::bitmap::Bitmap;
use crate::histogram::Histogram;

/// Acks and nacks so far.
#[derive(Debug, Default)]
pub struct Confirms {
    acked: Bitmap,
    nacked: Bitmap,
    /// The first message without an answer.
    low: u64,
    /// Ends of written blocks, with when they were written.
    written: VecDeque<(u64, u32)>,
    latency: Histogram,
}

impl Confirms {
    /// Messages below `end` have been written by now.
    pub fn wrote(&mut self, end: u64, now_us: u32) {
        self.written.push_back((end, now_us));
    }

    /// The broker answered for `tag`, or for all up to it. `sent` is how many messages there are.
    ///
    /// # Errors
    /// If there is no such message.
    pub fn settle(&mut self, tag: u64, multiple: bool, ack: bool, sent: u64) -> Result<()> {
        ensure!(tag <= sent, "the broker confirmed message {tag} of {sent}");
        // A tag of 0 with `multiple` answers for all that has been sent.
        let end = if tag == 0 { sent } else { tag };
        let start = if multiple {
            self.low
        } else {
            end.saturating_sub(1)
        };
        for seq in start..end {
            if !self.is_settled(seq) {
                let answer = if ack {
                    &mut self.acked
                } else {
                    &mut self.nacked
                };
                answer.insert(seq);
            }
        }
        while self.is_settled(self.low) {
            self.low += 1;
        }
        Ok(())
    }

    /// Times every block that is now answered for; called once a read.
    pub fn measure(&mut self, now_us: u32, record: bool) {
        while let Some(&(end, at)) = self.written.front() {
            if end > self.low {
                return;
            }
            self.written.pop_front();
            if record {
                self.latency.record(now_us.wrapping_sub(at));
            }
        }
    }

    #[inline]
    fn is_settled(&self, seq: u64) -> bool {
        self.acked.contains(seq) || self.nacked.contains(seq)
    }

    /// How many messages have an answer.
    pub const fn settled(&self) -> u64 {
        self.acked.count() + self.nacked.count()
    }

    /// How many were refused.
    pub const fn nacked(&self) -> u64 {
        self.nacked.count()
    }

    /// How many were confirmed.
    pub const fn acked(&self) -> u64 {
        self.acked.count()
    }

    /// Whether a message is confirmed.
    pub fn is_acked(&self, seq: u64) -> bool {
        self.acked.contains(seq)
    }

    /// Times from a block's write to its last confirm.
    pub const fn latency(&self) -> &Histogram {
        &self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_multiple_and_out_of_order() {
        let mut confirms = Confirms::default();
        confirms.settle(3, false, true, 10).unwrap();
        assert_eq!((confirms.settled(), confirms.low), (1, 0));
        confirms.settle(5, true, false, 10).unwrap();
        assert_eq!(
            (confirms.acked(), confirms.nacked(), confirms.low),
            (1, 4, 5)
        );
        assert!(confirms.is_acked(2) && !confirms.is_acked(3));
        confirms.settle(0, true, true, 10).unwrap();
        assert_eq!((confirms.settled(), confirms.low), (10, 10));
    }

    #[test]
    fn a_repeated_or_unknown_answer_changes_nothing() {
        let mut confirms = Confirms::default();
        confirms.settle(1, false, true, 2).unwrap();
        confirms.settle(1, false, false, 2).unwrap();
        assert_eq!((confirms.acked(), confirms.nacked()), (1, 0));
        assert!(confirms.settle(3, false, true, 2).is_err());
    }

    #[test]
    fn a_block_is_timed_when_all_of_it_is_answered() {
        let mut confirms = Confirms::default();
        confirms.wrote(2, 100);
        confirms.settle(1, false, true, 2).unwrap();
        confirms.measure(150, true);
        assert_eq!(confirms.latency().percentile_us(1.0), None);
        confirms.settle(2, false, true, 2).unwrap();
        confirms.measure(180, true);
        assert_eq!(confirms.latency().percentile_us(1.0), Some(80));
    }
}
