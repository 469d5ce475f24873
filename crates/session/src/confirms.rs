//! Publisher confirms of one channel: which publishes are still open, and which acks to send.
//!
//! Flow: each publish is pushed with the number of outcomes to wait for; outcomes settle it; [`Confirms::flush`] writes as few acks as tell it all:
//! one `multiple` ack for each run of the settled front, single ones for what was settled ahead of it, a nack for each that failed.
//! Invariants: `base` is the first publish that is not yet reported; a reported one ahead of the front stays in `open` until the front reaches it.
//! A `multiple` ack never runs over a nack: clients that put answers into order before they pass them on would take the nacked one for acked.
//! Numbers ("sequences") go on where the session's earlier channels stopped, so that a late outcome of a closed channel is never taken for one of
//! the channel that has its number now; clients see them counted from 1.

use std::collections::VecDeque;
use warren_protocol::{BasicAck, BasicNack, Method};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// So many outcomes to come; the flag says that one has failed.
    Open(u32, bool),
    /// Settled, not reported yet.
    Settled(bool),
    /// Reported ahead of the front.
    Reported(bool),
}

#[derive(Debug)]
pub(crate) struct Confirms {
    /// The last sequence before this channel's first.
    floor: u64,
    base: u64,
    open: VecDeque<State>,
    /// Settled since the last flush, in order of settlement.
    fresh: Vec<u64>,
}

impl Confirms {
    /// Numbers begin after `floor`.
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            floor,
            base: floor + 1,
            open: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    /// The number of the next publish.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.base + self.open.len() as u64
    }

    /// Publishes that wait for an outcome.
    pub(crate) fn unconfirmed(&self) -> u64 {
        let waits = |state: &&State| matches!(state, State::Open(..));
        self.open.iter().filter(waits).count() as u64
    }

    /// A publish with so many outcomes to come; none: it is settled.
    #[inline]
    pub(crate) fn push(&mut self, outcomes: u32) {
        if outcomes == 0 {
            self.fresh.push(self.next());
            self.open.push_back(State::Settled(true));
        } else {
            self.open.push_back(State::Open(outcomes, false));
        }
    }

    /// A publish that is refused from the start.
    pub(crate) fn push_failed(&mut self) {
        self.fresh.push(self.next());
        self.open.push_back(State::Settled(false));
    }

    /// One outcome of publish `sequence`.
    #[inline]
    pub(crate) fn settle(&mut self, sequence: u64, ok: bool) {
        let Some(state) = sequence
            .checked_sub(self.base)
            .and_then(|i| self.open.get_mut(i as usize))
        else {
            return;
        };
        if let State::Open(left, failed) = *state {
            let failed = failed || !ok;
            if left > 1 {
                *state = State::Open(left - 1, failed);
            } else {
                *state = State::Settled(!failed);
                self.fresh.push(sequence);
            }
        }
    }

    /// Writes what can be reported. Returns how many publishes that confirms.
    pub(crate) fn flush(&mut self, channel: u16, out: &mut Vec<u8>) -> u64 {
        if self.fresh.is_empty() {
            return 0;
        }
        let mut confirmed = 0;
        let fresh = std::mem::take(&mut self.fresh);
        let (floor, mut run) = (self.floor, Run { last: 0, count: 0 });
        while let Some(state) = self.open.front().copied() {
            match state {
                State::Open(..) => break,
                State::Settled(true) => {
                    confirmed += 1;
                    run = Run {
                        last: self.base - floor,
                        count: run.count + 1,
                    }
                }
                State::Reported(true) => {}
                State::Settled(false) | State::Reported(false) => {
                    run.ack(channel, out);
                    if state == State::Settled(false) {
                        answer(false, self.base - floor, false, channel, out);
                    }
                }
            }
            self.open.pop_front();
            self.base += 1;
        }
        run.ack(channel, out);
        for sequence in fresh {
            if let Some(state) = self.state(sequence)
                && let State::Settled(ok) = *state
            {
                *state = State::Reported(ok);
                confirmed += u64::from(ok);
                answer(ok, sequence - floor, false, channel, out);
            }
        }
        confirmed
    }

    fn state(&mut self, sequence: u64) -> Option<&mut State> {
        sequence
            .checked_sub(self.base)
            .and_then(|i| self.open.get_mut(i as usize))
    }
}

/// Publishes at the front that one ack tells of.
struct Run {
    last: u64,
    count: u64,
}

impl Run {
    fn ack(&mut self, channel: u16, out: &mut Vec<u8>) {
        if self.count > 0 {
            answer(true, self.last, self.count > 1, channel, out);
            self.count = 0;
        }
    }
}

fn answer(ok: bool, delivery_tag: u64, multiple: bool, channel: u16, out: &mut Vec<u8>) {
    if ok {
        Method::BasicAck(BasicAck {
            delivery_tag,
            multiple,
        })
        .write(channel, out);
    } else {
        Method::BasicNack(BasicNack {
            delivery_tag,
            multiple,
            requeue: false,
        })
        .write(channel, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_protocol::{FrameKind, parse_frame};

    #[expect(clippy::wildcard_enum_match_arm, reason = "a test")]
    fn flushed(confirms: &mut Confirms) -> Vec<(bool, u64, bool)> {
        let mut out = Vec::new();
        confirms.flush(1, &mut out);
        let (mut rest, mut seen) = (&out[..], Vec::new());
        while let Some(frame) = parse_frame(rest, 0).unwrap() {
            assert_eq!(frame.kind, FrameKind::Method);
            match Method::decode(frame.payload).unwrap() {
                Method::BasicAck(a) => seen.push((true, a.delivery_tag, a.multiple)),
                Method::BasicNack(n) => seen.push((false, n.delivery_tag, n.multiple)),
                other => panic!("{other:?}"),
            }
            rest = &rest[frame.payload.len() + 8..];
        }
        seen
    }

    #[test]
    fn the_settled_front_is_one_ack_and_what_is_ahead_is_acked_singly() {
        let mut c = Confirms::new(0);
        for outcomes in [1, 2, 1, 1, 0] {
            c.push(outcomes);
        }
        c.settle(1, true);
        c.settle(2, true);
        c.settle(4, true);
        assert_eq!(
            flushed(&mut c),
            [(true, 1, false), (true, 5, false), (true, 4, false)]
        );
        c.settle(2, true);
        c.settle(3, true);
        assert_eq!(flushed(&mut c), [(true, 3, true)]);
        assert_eq!(flushed(&mut c), []);
        assert_eq!(c.next(), 6);
    }

    #[test]
    fn no_multiple_ack_runs_over_a_nack() {
        let mut c = Confirms::new(0);
        for _ in 0..8 {
            c.push(1);
        }
        c.push_failed();
        for ok in [1, 2, 4, 5] {
            c.settle(ok, true);
        }
        c.settle(3, false);
        c.settle(7, false);
        assert_eq!(
            flushed(&mut c),
            [
                (true, 2, true),
                (false, 3, false),
                (true, 5, true),
                (false, 9, false),
                (false, 7, false)
            ]
        );
        c.settle(7, true);
        assert_eq!(flushed(&mut c), [], "an outcome too many changes nothing");
        c.settle(8, true);
        c.settle(6, true);
        assert_eq!(
            flushed(&mut c),
            [(true, 6, false), (true, 8, false)],
            "the ack of 8 stops short of the nacked 7"
        );
    }

    #[test]
    fn outcomes_of_an_earlier_channel_are_nobodys() {
        let mut c = Confirms::new(40);
        assert_eq!(c.next(), 41);
        c.push(1);
        c.settle(1, true);
        c.settle(40, false);
        assert_eq!(flushed(&mut c), []);
        c.settle(41, true);
        assert_eq!(flushed(&mut c), [(true, 1, false)]);
    }
}
