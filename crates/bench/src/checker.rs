//! What was received, against what was sent: lost, duplicated, reordered, misrouted.
//!
//! Flow: each consumer notes its deliveries in a [`Received`] of its own, without locks; at the end they are put together
//! ([`Received::merge`]) and compared with the streams' ends ([`Received::judge`]).
//!
//! A bit per message and queue says that it came. Reordering is seen per stream, queue and consumer, which is what AMQP promises: a message
//! that stands before one that has already come, for the first time and not marked as redelivered.

use std::sync::Arc;

use crate::bitmap::Bitmap;
use crate::body::Stamp;
use crate::confirms::Confirms;
use crate::plan::Plan;

/// What one consumer, or all of them, received.
#[derive(Debug)]
pub struct Received {
    plan: Arc<Plan>,
    size: u64,
    /// By queue, then stream; allocated when the first message comes.
    lanes: Vec<Lane>,
    counts: Counts,
}

/// One stream in one queue.
#[derive(Clone, Debug, Default)]
struct Lane {
    seen: Bitmap,
    next: u64,
}

/// Deliveries that are not simply right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Came more than once.
    pub duplicated: u64,
    /// Came after a later one.
    pub reordered: u64,
    /// Marked as perhaps delivered before.
    pub redelivered: u64,
    /// Came to a queue where they do not belong.
    pub misrouted: u64,
    /// Of another run, or damaged: wrong size, or no such stream.
    pub foreign: u64,
}

/// What was sent in one stream.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Messages written.
    pub count: u64,
    /// The broker's answers, if it was asked for any.
    pub confirms: Option<&'a Confirms>,
}

/// The result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Deliveries that are due.
    pub expected: u64,
    /// Different deliveries that came.
    pub received: u64,
    /// Deliveries that did not come.
    pub missing: u64,
    /// Of those, of messages that the broker had confirmed.
    pub missing_confirmed: u64,
    /// What came otherwise than it should.
    pub counts: Counts,
}

impl Received {
    /// Nothing yet. `size` is the bodies' size.
    pub fn new(plan: Arc<Plan>, size: u32) -> Self {
        let lanes = vec![Lane::default(); plan.queues.len() * usize::from(plan.streams)];
        Self {
            plan,
            size: u64::from(size),
            lanes,
            counts: Counts::default(),
        }
    }

    /// A delivery from a queue.
    #[inline]
    pub fn note(&mut self, queue: u32, stamp: Stamp, size: u64, redelivered: bool) {
        if stamp.run != self.plan.run || size != self.size || stamp.stream >= self.plan.streams {
            self.counts.foreign += 1;
            return;
        }
        let Some(place) = self.plan.place(queue, stamp.seq) else {
            self.counts.misrouted += 1;
            return;
        };
        self.counts.redelivered += u64::from(redelivered);
        let lane = &mut self.lanes
            [queue as usize * usize::from(self.plan.streams) + usize::from(stamp.stream)];
        if !lane.seen.insert(place) {
            self.counts.duplicated += 1;
        } else if place >= lane.next {
            lane.next = place + 1;
        } else if !redelivered {
            self.counts.reordered += 1;
        }
    }

    /// How many of `deliveries`, all that were noted, are certainly no repetition of another one.
    pub fn fresh(&self, deliveries: u64) -> u64 {
        let counts = &self.counts;
        deliveries
            - (counts.duplicated + counts.redelivered + counts.misrouted + counts.foreign)
                .min(deliveries)
    }

    /// Adds what another consumer received; what both did is duplicated.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.lanes.iter_mut().zip(&other.lanes) {
            self.counts.duplicated += mine.seen.absorb(&theirs.seen);
        }
        self.counts.duplicated += other.counts.duplicated;
        self.counts.reordered += other.counts.reordered;
        self.counts.redelivered += other.counts.redelivered;
        self.counts.misrouted += other.counts.misrouted;
        self.counts.foreign += other.counts.foreign;
    }

    /// Compares with what was sent, stream by stream.
    pub fn judge(mut self, streams: &[Sent<'_>]) -> Verdict {
        if self.plan.is_free() {
            self.pool_queues();
        }
        let mut verdict = Verdict {
            counts: self.counts,
            ..Verdict::default()
        };
        for (stream, sent) in streams.iter().enumerate() {
            verdict.expected += sent.count * self.plan.copies();
            verdict.received += self
                .lanes
                .iter()
                .skip(stream)
                .step_by(streams.len())
                .map(|lane| lane.seen.count())
                .sum::<u64>();
        }
        // Messages of a write that failed half-way may come without having been counted as sent, so equal counts alone prove nothing.
        for (stream, sent) in streams.iter().enumerate() {
            for seq in 0..sent.count {
                let missing = self.missing(stream, seq);
                verdict.missing += missing;
                if missing > 0 && sent.confirms.is_some_and(|confirms| confirms.is_acked(seq)) {
                    verdict.missing_confirmed += missing;
                }
            }
        }
        verdict
    }

    /// How many of a message's deliveries did not come.
    #[inline]
    fn missing(&self, stream: usize, seq: u64) -> u64 {
        let streams = usize::from(self.plan.streams);
        let queues = if self.plan.is_free() {
            0..1
        } else {
            self.plan.expected(seq)
        };
        let came = |queue: u32| {
            let lane = &self.lanes[queue as usize * streams + stream];
            self.plan
                .place(queue, seq)
                .is_some_and(|place| lane.seen.contains(place))
        };
        queues.map(|queue| u64::from(!came(queue))).sum()
    }

    /// Where the broker chooses the queue, a message must be in one of them: puts all into the first, and counts what is in several.
    fn pool_queues(&mut self) {
        let streams = usize::from(self.plan.streams);
        for index in streams..self.lanes.len() {
            let lane = std::mem::take(&mut self.lanes[index]);
            self.counts.duplicated += self.lanes[index % streams].seen.absorb(&lane.seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;

    fn stamp(stream: u16, seq: u64) -> Stamp {
        Stamp {
            run: 7,
            stream,
            sent_us: 0,
            seq,
        }
    }

    fn received(arguments: &str) -> Received {
        Received::new(Arc::new(plan(arguments)), 16)
    }

    const fn sent(count: u64) -> Sent<'static> {
        Sent {
            count,
            confirms: None,
        }
    }

    #[test]
    fn all_that_was_sent_and_in_order() {
        let mut checker = received("--queues 2 --producers 2");
        for seq in 0..100 {
            for stream in [0, 1] {
                checker.note(
                    u32::try_from(seq % 2).unwrap(),
                    stamp(stream, seq),
                    16,
                    false,
                );
            }
        }
        let verdict = checker.judge(&[sent(100), sent(100)]);
        assert_eq!(
            verdict,
            Verdict {
                expected: 200,
                received: 200,
                ..Verdict::default()
            }
        );
    }

    #[test]
    fn lost_and_confirmed() {
        let mut checker = received("");
        for seq in [0, 1, 3, 4] {
            checker.note(0, stamp(0, seq), 16, false);
        }
        let mut confirms = Confirms::default();
        confirms.settle(3, true, true, 7).unwrap();
        confirms.settle(6, false, false, 7).unwrap();
        let verdict = checker.judge(&[Sent {
            count: 7,
            confirms: Some(&confirms),
        }]);
        assert_eq!(
            (verdict.missing, verdict.missing_confirmed),
            (3, 1),
            "2 is confirmed, 5 refused, 6 unanswered"
        );
        assert_eq!((verdict.expected, verdict.received), (7, 4));
    }

    #[test]
    fn duplicated_is_not_reordered() {
        let mut checker = received("");
        for seq in [0, 1, 0, 2] {
            checker.note(0, stamp(0, seq), 16, false);
        }
        let counts = checker.judge(&[sent(3)]).counts;
        assert_eq!(
            counts,
            Counts {
                duplicated: 1,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn reordered_unless_it_was_held_before() {
        let mut checker = received("");
        for (seq, redelivered) in [
            (0, false),
            (2, false),
            (1, false),
            (5, false),
            (3, true),
            (4, true),
        ] {
            checker.note(0, stamp(0, seq), 16, redelivered);
        }
        let verdict = checker.judge(&[sent(6)]);
        assert_eq!(
            verdict.counts,
            Counts {
                reordered: 1,
                redelivered: 2,
                ..Counts::default()
            }
        );
        assert_eq!(verdict.missing, 0);
    }

    #[test]
    fn streams_have_orders_of_their_own() {
        let mut checker = received("--producers 2");
        for (stream, seq) in [(0, 5), (1, 0), (0, 6), (1, 1)] {
            checker.note(0, stamp(stream, seq), 16, false);
        }
        assert_eq!(checker.counts, Counts::default());
    }

    #[test]
    fn wrong_queue_run_stream_and_size() {
        let mut checker = received("--queues 2");
        checker.note(1, stamp(0, 0), 16, false);
        checker.note(
            0,
            Stamp {
                run: 8,
                ..stamp(0, 0)
            },
            16,
            false,
        );
        checker.note(0, stamp(1, 0), 16, false);
        checker.note(0, stamp(0, 0), 15, false);
        let verdict = checker.judge(&[sent(1)]);
        assert_eq!(
            verdict.counts,
            Counts {
                misrouted: 1,
                foreign: 3,
                ..Counts::default()
            }
        );
        assert_eq!(verdict.missing, 1);
    }

    #[test]
    fn two_consumers_of_a_queue() {
        let (mut first, mut second) = (received(""), received(""));
        for seq in [0, 2, 4] {
            first.note(0, stamp(0, seq), 16, false);
        }
        for seq in [1, 3, 4] {
            second.note(0, stamp(0, seq), 16, false);
        }
        first.merge(&second);
        let verdict = first.judge(&[sent(5)]);
        assert_eq!((verdict.missing, verdict.received), (0, 5));
        assert_eq!(
            verdict.counts,
            Counts {
                duplicated: 1,
                ..Counts::default()
            }
        );
    }

    #[test]
    fn fanout_wants_a_copy_in_every_queue() {
        let mut checker = received("--queues 3 --exchange-type fanout");
        for (queue, seq) in [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1)] {
            checker.note(queue, stamp(0, seq), 16, false);
        }
        let verdict = checker.judge(&[sent(2)]);
        assert_eq!((verdict.expected, verdict.missing), (6, 1));
    }

    #[test]
    fn a_hash_wants_one_copy_in_any_queue() {
        let mut checker = received("--queues 3 --exchange-type x-consistent-hash");
        for (queue, seq) in [(0, 0), (2, 1), (1, 1)] {
            checker.note(queue, stamp(0, seq), 16, false);
        }
        let verdict = checker.judge(&[sent(3)]);
        assert_eq!((verdict.missing, verdict.received), (1, 2));
        assert_eq!(verdict.counts.duplicated, 1);
    }
}
