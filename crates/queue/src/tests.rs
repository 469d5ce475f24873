//! Tests against a list of what went out.

use super::*;
use warren_model::{Incarnation, NodeId};

#[derive(Default)]
struct Out {
    delivered: Vec<(u32, u64, u32, bool)>,
    asks: Vec<u32>,
    back: Vec<(u32, u32)>,
    cancelled: Vec<u32>,
}

impl Sink for Out {
    fn deliver(&mut self, to: ConsumerId, d: &Delivery<'_>) {
        assert!(d.offset as usize + d.len as usize <= d.block.len());
        self.delivered.push((
            to.number,
            d.position,
            u32::from(d.block[d.offset as usize]),
            d.redelivered,
        ));
    }
    fn ask(&mut self, to: ConsumerId) {
        self.asks.push(to.number);
    }
    fn give_back(&mut self, to: ConsumerId, unused: u32) {
        self.back.push((to.number, unused));
    }
    fn cancelled(&mut self, to: ConsumerId) {
        self.cancelled.push(to.number);
    }
}

fn id(number: u32) -> ConsumerId {
    ConsumerId {
        session: SessionId {
            node: NodeId(1),
            incarnation: Incarnation(1),
            number: 1,
        },
        number,
    }
}

fn subscription(prefetch: u32) -> Subscription {
    Subscription {
        no_ack: false,
        exclusive: false,
        prefetch,
        by_leave: false,
    }
}

/// Messages whose record is one byte: their number.
const FIRST: u64 = 1;

fn publish(queue: &mut Queue, numbers: std::ops::Range<u8>, out: &mut Out) {
    let block = Bytes::from(numbers.clone().collect::<Vec<u8>>());
    for i in 0..numbers.len() as u32 {
        queue.publish(&block, i, 1, out);
    }
    queue.seal(&block);
}

fn got(out: &mut Out) -> Vec<(u32, bool)> {
    std::mem::take(&mut out.delivered)
        .into_iter()
        .map(|d| (d.2, d.3))
        .collect()
}

#[test]
fn requeued_messages_keep_their_places() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    publish(&mut q, 1..7, &mut out);
    for _ in 0..5 {
        assert!(q.get(id(9), false, &mut out));
    }
    let held: Vec<u64> = out.delivered.iter().map(|d| d.1).collect();
    got(&mut out);
    assert_eq!(
        q.settle(id(9), &held[2..3], Settlement::Requeue, &mut out),
        1
    );
    assert_eq!(q.counts().ready, 2);
    q.get(id(9), false, &mut out);
    assert_eq!(got(&mut out), [(3, true)]);
    q.settle(id(9), &[held[1]], Settlement::Requeue, &mut out);
    q.settle(id(9), &[held[0]], Settlement::Requeue, &mut out);
    q.get(id(9), false, &mut out);
    q.get(id(9), false, &mut out);
    assert_eq!(got(&mut out), [(1, true), (2, true)]);
    assert_eq!(q.settle(id(9), &held, Settlement::Requeue, &mut out), 5);
    q.consume(id(1), subscription(0), &mut out).unwrap();
    assert_eq!(
        got(&mut out),
        [
            (1, true),
            (2, true),
            (3, true),
            (4, true),
            (5, true),
            (6, false)
        ]
    );
}

#[test]
fn prefetch_holds_back_and_settling_releases() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(2), &mut out).unwrap();
    q.consume(id(2), subscription(1), &mut out).unwrap();
    publish(&mut q, 0..6, &mut out);
    assert_eq!(
        out.delivered.iter().map(|d| (d.0, d.2)).collect::<Vec<_>>(),
        [(1, 0), (2, 1), (1, 2)]
    );
    assert_eq!(
        q.counts(),
        Counts {
            ready: 3,
            unacked: 3,
            bytes: 6,
            consumers: 2
        }
    );
    out.delivered.clear();
    // Positions that the consumer does not hold change nothing.
    assert_eq!(
        q.settle(id(2), &[FIRST, FIRST + 77], Settlement::Accept, &mut out),
        0
    );
    assert!(out.delivered.is_empty());
    assert_eq!(
        q.settle(id(1), &[FIRST, FIRST + 2], Settlement::Accept, &mut out),
        2
    );
    assert_eq!(got(&mut out), [(3, false), (4, false)]);
    assert_eq!(
        q.settle(id(1), &[FIRST], Settlement::Accept, &mut out),
        0,
        "settled once"
    );
}

#[test]
fn a_gone_session_gives_everything_back_and_a_cancelled_consumer_keeps_what_it_holds() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(2), &mut out).unwrap();
    publish(&mut q, 0..3, &mut out);
    assert!(q.cancel(id(1)), "last consumer");
    assert_eq!(
        q.counts(),
        Counts {
            ready: 1,
            unacked: 2,
            bytes: 3,
            consumers: 0
        }
    );
    assert_eq!(q.settle(id(1), &[FIRST], Settlement::Accept, &mut out), 1);
    assert!(
        !q.session_gone(id(1).session, &mut out),
        "it had no consumer any more"
    );
    assert_eq!(
        q.counts(),
        Counts {
            ready: 2,
            unacked: 0,
            bytes: 2,
            consumers: 0
        }
    );
    assert_eq!(q.purge(), 2);
    assert_eq!(q.counts(), Counts::default());
}

#[test]
fn credit_bounds_what_a_session_must_buffer() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    let no_ack = Subscription {
        no_ack: true,
        ..subscription(0)
    };
    q.consume(id(1), no_ack, &mut out).unwrap();
    let len = 64 * 1024;
    let block = Bytes::from(vec![7u8; len]);
    for _ in 0..100 {
        q.publish(&block, 0, len as u32, &mut out);
    }
    let sent = out.delivered.len();
    assert!(
        (30..=33).contains(&sent),
        "{sent} messages of 64 KiB in a window of 2 MiB"
    );
    q.credit(
        id(1),
        Credit {
            bytes: 3 * (len as u32 + Credit::OVERHEAD),
        },
        &mut out,
    );
    assert_eq!(out.delivered.len(), sent + 3);
    assert_eq!(q.counts().ready, 100 - sent as u64 - 3);
}

#[test]
fn leave_is_asked_for_once_and_what_is_unused_goes_back() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(
        id(1),
        Subscription {
            by_leave: true,
            ..subscription(2)
        },
        &mut out,
    )
    .unwrap();
    assert!(out.asks.is_empty(), "nothing to deliver yet");
    publish(&mut q, 0..4, &mut out);
    assert_eq!(out.asks, [1]);
    q.grant(id(1), 3, &mut out);
    assert_eq!(got(&mut out).len(), 2, "its own prefetch is 2");
    assert_eq!(out.back, [(1, 1)]);
    assert_eq!(out.asks, [1], "it could not use more leave");
    q.settle(id(1), &[FIRST], Settlement::Accept, &mut out);
    assert_eq!(out.asks, [1, 1]);
    q.grant(id(1), 1, &mut out);
    assert_eq!(got(&mut out), [(2, false)]);
    q.grant(id(5), 4, &mut out);
    assert_eq!(
        out.back[1],
        (5, 4),
        "leave for a consumer that is gone goes back"
    );
}

#[test]
fn exclusive_consumers_are_alone() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(0), &mut out).unwrap();
    let exclusive = Subscription {
        exclusive: true,
        ..subscription(0)
    };
    assert_eq!(
        q.consume(id(2), exclusive, &mut out),
        Err(ConsumeError::ExclusiveUse)
    );
    q.cancel(id(1));
    q.consume(id(2), exclusive, &mut out).unwrap();
    assert_eq!(
        q.consume(id(3), subscription(0), &mut out),
        Err(ConsumeError::ExclusiveUse)
    );
    assert_eq!(q.delete(&mut out), 0);
    assert_eq!(out.cancelled, [2]);
}

#[test]
fn one_straggler_does_not_pin_the_positions_that_pass_it() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(0), &mut out).unwrap();
    let block = Bytes::from_static(b"x");
    for _ in 0..100_000u32 {
        q.publish(&block, 0, 1, &mut out);
        q.credit(
            id(1),
            Credit {
                bytes: 1 + Credit::OVERHEAD,
            },
            &mut out,
        );
    }
    let all: Vec<u64> = out.delivered.iter().map(|d| d.1).collect();
    out.delivered.clear();
    assert_eq!(
        q.settle(id(1), &all[1..], Settlement::Accept, &mut out),
        99_999
    );
    assert_eq!(q.counts().unacked, 1);
    assert!(
        q.messages.span() < 5_000,
        "{} slots for one message",
        q.messages.span()
    );
    assert_eq!(q.settle(id(1), &all[..1], Settlement::Requeue, &mut out), 1);
    assert_eq!(
        got(&mut out),
        [(u32::from(b'x'), true)],
        "it is delivered again"
    );
    assert_eq!(q.settle(id(1), &all[..1], Settlement::Accept, &mut out), 1);
    assert_eq!(
        q.counts(),
        Counts {
            consumers: 1,
            ..Counts::default()
        }
    );
}

#[test]
fn a_block_of_which_little_is_kept_is_let_go() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    let mut bytes = vec![0u8; 100_000];
    bytes[70_000] = 42;
    let block = Bytes::from(bytes);
    q.publish(&block, 70_000, 10, &mut out);
    q.seal(&block);
    assert!(block.is_unique(), "the queue copied its 10 bytes out");
    q.get(id(1), true, &mut out);
    assert_eq!(got(&mut out), [(42, false)]);
    assert_eq!(q.counts(), Counts::default());
}

#[test]
fn a_block_that_comes_in_two_runs_stays_whole() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    let mut bytes = vec![7u8; 100_000];
    bytes[90_000] = 42;
    let block = Bytes::from(bytes);
    for (position, offset, len) in [(1, 0, 80_000), (2, 90_000, 10)] {
        let record = Delivery {
            position,
            redelivered: false,
            block: &block,
            offset,
            len,
        };
        q.feed(position, &record, None, &mut out);
        q.seal(&block);
    }
    q.consume(id(1), subscription(0), &mut out).unwrap();
    assert_eq!(got(&mut out), [(7, false), (42, false)]);
}

fn feed(queue: &mut Queue, position: u64, number: u8, held: Option<ConsumerId>, out: &mut Out) {
    let block = Bytes::from(vec![number]);
    let record = Delivery {
        position,
        redelivered: number >= 128,
        block: &block,
        offset: 0,
        len: 1,
    };
    queue.feed(position, &record, held, out);
}

#[test]
fn a_consumer_that_comes_back_keeps_what_it_says_it_has() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(4), &mut out).unwrap();
    for number in 1..=6 {
        feed(&mut q, 10 + u64::from(number), number, None, &mut out);
    }
    assert_eq!(got(&mut out).len(), 4);
    // 12 and 14 were lost on their way; 40 is not here yet, 5 went long ago.
    let attached = q.reattach(id(1), Some(subscription(4)), &[5, 11, 13, 40], &mut out);
    let (ahead, lost) = (vec![40], vec![5]);
    assert_eq!(attached, Ok(Attached { ahead, lost }));
    assert_eq!(got(&mut out), [(2, true), (4, true)]);
    assert_eq!(
        q.counts(),
        Counts {
            ready: 2,
            unacked: 4,
            bytes: 6,
            consumers: 1
        }
    );
    assert_eq!(
        q.settle(id(1), &[11, 12, 13, 14], Settlement::Accept, &mut out),
        4
    );
    assert_eq!(got(&mut out), [(5, false), (6, false)]);
    // With another leader: the queue is new, and fed with what is there.
    let mut q = Queue::new();
    assert_eq!(
        q.reattach(id(1), Some(subscription(4)), &[15], &mut out),
        Ok(Attached {
            ahead: vec![15],
            lost: vec![]
        })
    );
    assert!(q.is_hungry());
    feed(&mut q, 15, 5, Some(id(1)), &mut out);
    feed(&mut q, 16, 6, None, &mut out);
    assert_eq!(got(&mut out), [(6, false)]);
    assert_eq!(q.settle(id(1), &[15, 16], Settlement::Accept, &mut out), 2);
    assert_eq!(
        q.counts(),
        Counts {
            consumers: 1,
            ..Counts::default()
        }
    );
}

#[test]
fn a_consumer_whose_link_is_broken_takes_nothing_until_it_comes_back() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(2), &mut out).unwrap();
    for number in 1..=6 {
        feed(&mut q, 10 + u64::from(number), number, None, &mut out);
    }
    assert_eq!(got(&mut out), [(1, false), (2, false)]);
    q.session_away(id(1).session);
    // Its acknowledgement comes over the new link before it is attached again.
    assert_eq!(q.settle(id(1), &[11], Settlement::Accept, &mut out), 1);
    assert_eq!(got(&mut out), []);
    assert_eq!(
        q.reattach(id(1), Some(subscription(2)), &[12], &mut out),
        Ok(Attached::default())
    );
    assert_eq!(got(&mut out), [(3, false)]);
    assert_eq!(q.settle(id(1), &[12, 13], Settlement::Accept, &mut out), 2);
    assert_eq!(got(&mut out), [(4, false), (5, false)]);
}

#[test]
fn a_consumer_that_was_given_up_while_its_link_was_broken_goes_with_the_next_one() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    let other = ConsumerId { number: 2, ..id(1) };
    q.consume(id(1), subscription(1), &mut out).unwrap();
    q.consume(other, subscription(1), &mut out).unwrap();
    for number in 1..=3 {
        feed(&mut q, 10 + u64::from(number), number, None, &mut out);
    }
    assert_eq!(got(&mut out), [(1, false), (2, false)]);
    q.session_away(id(1).session);
    // The other one was cancelled meanwhile; what it held is for the one that is left.
    assert_eq!(
        q.reattach(id(1), Some(subscription(2)), &[11], &mut out),
        Ok(Attached::default())
    );
    assert_eq!(got(&mut out), [(3, false)]);
    assert!(!q.session_back(id(1).session, &mut out));
    assert_eq!((q.counts().ready, q.counts().consumers), (1, 1));
    assert_eq!(q.settle(id(1), &[11], Settlement::Accept, &mut out), 1);
    assert_eq!(got(&mut out), [(2, true)]);
    assert!(!q.session_back(id(1).session, &mut out), "nobody is away");
    q.session_away(id(1).session);
    assert!(q.session_back(id(1).session, &mut out));
    assert_eq!((q.counts().ready, q.counts().unacked), (2, 0));
}

#[test]
fn who_asks_again_over_a_new_link_begins_anew() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(1), &mut out).unwrap();
    for number in 1..=2 {
        feed(&mut q, 10 + u64::from(number), number, None, &mut out);
    }
    assert!(q.get(id(2), false, &mut out));
    assert_eq!(got(&mut out), [(1, false), (2, false)]);
    for session in [id(1).session, id(2).session] {
        q.session_away(session);
    }
    // Neither has heard that it was given something.
    q.consume(id(1), subscription(1), &mut out).unwrap();
    assert_eq!(got(&mut out), [(1, true)]);
    assert!(q.get(id(2), false, &mut out));
    assert_eq!(got(&mut out), [(2, true)]);
    for session in [id(1).session, id(2).session] {
        assert!(!q.session_back(session, &mut out));
    }
    assert_eq!((q.counts().ready, q.counts().unacked), (0, 2));
}

#[test]
fn a_message_that_two_say_they_hold_is_the_first_ones() {
    let (mut q, mut out) = (Queue::new(), Out::default());
    q.consume(id(1), subscription(1), &mut out).unwrap();
    feed(&mut q, 11, 1, None, &mut out);
    assert_eq!(got(&mut out), [(1, false)]);
    let attached = q.reattach(id(2), Some(subscription(1)), &[11], &mut out);
    let lost = Attached {
        ahead: vec![],
        lost: vec![11],
    };
    assert_eq!(attached, Ok(lost));
    assert_eq!(q.settle(id(1), &[11], Settlement::Accept, &mut out), 1);
}

/// Random calls against a naive model: order, counts and flags agree.
#[test]
fn random_calls_agree_with_a_naive_queue() {
    for seed in 0..400u64 {
        // The second half is fed at given positions, as replicated queues are.
        let replicated = seed >= 200;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
        let mut random = |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let (mut q, mut out) = (Queue::new(), Out::default());
        // (position, number, redelivered) and what is held.
        let mut ready: std::collections::BTreeMap<u64, (u8, bool)> = Default::default();
        let mut held: std::collections::BTreeMap<u64, (u8, bool)> = Default::default();
        let (mut next, mut number) = (1u64, 0u8);
        for _ in 0..300 {
            match random(6) {
                0 | 1 if replicated => {
                    next += random(4);
                    let redelivered = random(2) == 0;
                    number = number % 128 + if redelivered { 128 } else { 0 };
                    if random(4) == 0 {
                        feed(&mut q, next, number, Some(id(1)), &mut out);
                        held.insert(next, (number, redelivered));
                    } else {
                        feed(&mut q, next, number, None, &mut out);
                        ready.insert(next, (number, redelivered));
                    }
                    (next, number) = (next + 1, number.wrapping_add(1) % 128);
                }
                0 | 1 => {
                    let n = random(4) as u8 + 1;
                    let block: Bytes = (0..n)
                        .map(|i| number.wrapping_add(i))
                        .collect::<Vec<u8>>()
                        .into();
                    for i in 0..n {
                        q.publish(&block, u32::from(i), 1, &mut out);
                        ready.insert(next, (number.wrapping_add(i), false));
                        next += 1;
                    }
                    number = number.wrapping_add(n);
                    q.seal(&block);
                }
                2 | 3 => {
                    let no_ack = random(3) == 0;
                    let got = q.get(id(1), no_ack, &mut out);
                    let expected = ready.pop_first();
                    assert_eq!(got, expected.is_some());
                    if let Some((position, (n, redelivered))) = expected {
                        assert_eq!(
                            out.delivered.pop(),
                            Some((1, position, u32::from(n), redelivered))
                        );
                        if !no_ack {
                            held.insert(position, (n, redelivered));
                        }
                    }
                }
                4 => {
                    let Some(&position) =
                        held.keys().nth(random(held.len().max(1) as u64) as usize)
                    else {
                        continue;
                    };
                    let settlement = [Settlement::Accept, Settlement::Discard, Settlement::Requeue]
                        [random(3) as usize];
                    assert_eq!(q.settle(id(1), &[position], settlement, &mut out), 1);
                    let (n, _) = held.remove(&position).unwrap();
                    if settlement == Settlement::Requeue {
                        ready.insert(position, (n, true));
                    }
                }
                _ => {
                    if random(10) == 0 {
                        assert_eq!(q.purge(), ready.len() as u64);
                        ready.clear();
                    }
                }
            }
            let counts = q.counts();
            assert_eq!(
                (counts.ready, counts.unacked, counts.bytes),
                (
                    ready.len() as u64,
                    held.len() as u64,
                    (ready.len() + held.len()) as u64
                ),
                "seed {seed}"
            );
        }
    }
}
