//! Publisher confirms of one channel: which publishes are still open, and which acks to send.
//!
//! Flow: each publish is pushed with the number of outcomes to wait for; outcomes settle it; [`Confirms::flush`] writes as few acks as tell it all:
//! one `multiple` ack for the settled front, single ones for what was settled ahead of it, a nack for each that failed.
//! Invariant: `base` is the first publish that is not yet reported; a reported one ahead of the front stays in `open` until the front reaches it.

use std::collections::VecDeque;
use warren_protocol::{BasicAck, BasicNack, Method};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// So many outcomes to come; the flag says that one has failed.
    Open(u32, bool),
    /// Settled, not reported yet.
    Settled(bool),
    Reported,
}

#[derive(Debug)]
pub(crate) struct Confirms {
    base: u64,
    open: VecDeque<State>,
    /// Settled since the last flush, in order of settlement, other than through the front.
    fresh: Vec<u64>,
}

impl Confirms {
    pub(crate) fn new() -> Self {
        Self { base: 1, open: VecDeque::new(), fresh: Vec::new() }
    }

    /// The number of the next publish.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.base + self.open.len() as u64
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
        let Some(state) = sequence.checked_sub(self.base).and_then(|i| self.open.get_mut(i as usize)) else { return };
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

    /// Writes what can be reported.
    pub(crate) fn flush(&mut self, channel: u16, out: &mut Vec<u8>) {
        if self.fresh.is_empty() {
            return;
        }
        let fresh = std::mem::take(&mut self.fresh);
        // Failures first, so that no `multiple` ack covers them.
        for &sequence in &fresh {
            if let Some(state) = self.state(sequence)
                && *state == State::Settled(false)
            {
                *state = State::Reported;
                Method::BasicNack(BasicNack { delivery_tag: sequence, multiple: false, requeue: false }).write(channel, out);
            }
        }
        let (mut count, mut last_ok) = (0, None);
        while let Some(state @ (State::Settled(true) | State::Reported)) = self.open.front().copied() {
            if state == State::Settled(true) {
                last_ok = Some(self.base);
                count += 1;
            }
            self.open.pop_front();
            self.base += 1;
        }
        if let Some(delivery_tag) = last_ok {
            Method::BasicAck(BasicAck { delivery_tag, multiple: count > 1 }).write(channel, out);
        }
        for sequence in fresh {
            if let Some(state) = self.state(sequence)
                && *state == State::Settled(true)
            {
                *state = State::Reported;
                Method::BasicAck(BasicAck { delivery_tag: sequence, multiple: false }).write(channel, out);
            }
        }
    }

    fn state(&mut self, sequence: u64) -> Option<&mut State> {
        sequence.checked_sub(self.base).and_then(|i| self.open.get_mut(i as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_protocol::{FrameKind, parse_frame};

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
        let mut c = Confirms::new();
        for outcomes in [1, 2, 1, 1, 0] {
            c.push(outcomes);
        }
        c.settle(1, true);
        c.settle(2, true);
        c.settle(4, true);
        assert_eq!(flushed(&mut c), [(true, 1, false), (true, 5, false), (true, 4, false)]);
        c.settle(2, true);
        c.settle(3, true);
        assert_eq!(flushed(&mut c), [(true, 3, true)]);
        assert_eq!(flushed(&mut c), []);
        assert_eq!(c.next(), 6);
    }

    #[test]
    fn a_failure_is_nacked_before_any_ack_could_cover_it() {
        let mut c = Confirms::new();
        for _ in 0..3 {
            c.push(1);
        }
        c.push_failed();
        c.settle(1, true);
        c.settle(2, false);
        c.settle(3, true);
        assert_eq!(flushed(&mut c), [(false, 4, false), (false, 2, false), (true, 3, true)]);
        c.settle(2, true);
        assert_eq!(flushed(&mut c), [], "an outcome too many changes nothing");
    }
}
