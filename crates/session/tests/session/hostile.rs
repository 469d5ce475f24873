//! Valid streams with random damage, and a host whose answers come at any time: never a panic, and always whole frames to the client.

use crate::peer::{
    B, H, M, Peer, consume, frame, frames, message, opening, publish, publish_in_pieces, queue_ref,
    short,
};
use crate::rng::Rng;
use warren_model::{Outcome, Refusal};
use warren_protocol as wire;
use warren_protocol::Method;
use warren_session::{Delivered, Got, Limits, Phase, Reply, Request};

fn stream(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut frames = vec![opening(
        &["consumer_cancel_notify", "connection.blocked"],
        4096,
    )];
    for channel in 1..=3 {
        frames.push(frame(channel, Method::ChannelOpen));
    }
    for _ in 0..10 + rng.below(40) {
        let channel = 1 + rng.below(3) as u16;
        let queue = short(["q1", "q2", "", "none", "new"][rng.below(5)]);
        let flag = rng.one_in(2);
        let tag = short(["t", "u", ""][rng.below(3)]);
        let exchange = short(["x1", "void", "missing", "down", ""][rng.below(5)]);
        let number = rng.below(6) as u64;
        frames.push(match rng.below(80) {
            0..=4 | 22..=40 => publish(
                channel,
                ["x1", "void", "fan", "missing"][rng.below(4)],
                "k",
                flag,
                b"body",
            ),
            5 => publish_in_pieces(
                channel,
                wire::BasicPublish {
                    exchange,
                    mandatory: flag,
                    ..Default::default()
                },
                &[0x10, 0, 2],
                &[9; 40],
                || 1 + rng.below(30),
            ),
            6 => frame(channel, wire::ConfirmSelect { no_wait: flag }),
            7 => frame(
                channel,
                wire::QueueDeclare {
                    queue,
                    passive: flag,
                    no_wait: rng.one_in(3),
                    ..Default::default()
                },
            ),
            8 => frame(
                channel,
                wire::QueueBind {
                    queue,
                    exchange: short("x1"),
                    no_wait: flag,
                    ..Default::default()
                },
            ),
            9 => frame(
                channel,
                wire::QueueUnbind {
                    queue,
                    exchange: short("x1"),
                    ..Default::default()
                },
            ),
            10 => frame(
                channel,
                wire::BasicConsume {
                    queue: short("q1"),
                    consumer_tag: tag,
                    no_ack: flag,
                    no_wait: rng.one_in(3),
                    ..Default::default()
                },
            ),
            11 => frame(
                channel,
                wire::BasicCancel {
                    consumer_tag: tag,
                    no_wait: flag,
                },
            ),
            12 => frame(
                channel,
                wire::BasicGet {
                    queue: short("q2"),
                    no_ack: flag,
                },
            ),
            13 => frame(
                channel,
                wire::BasicAck {
                    delivery_tag: number,
                    multiple: flag,
                },
            ),
            // A channel that is closed and opened anew, by one who waits for neither.
            21 => [
                frame(channel, wire::ChannelClose::default()),
                frame(channel, Method::ChannelOpen),
            ]
            .concat(),
            14 => frame(
                channel,
                wire::BasicNack {
                    delivery_tag: number,
                    multiple: flag,
                    requeue: rng.one_in(2),
                },
            ),
            15 => frame(
                channel,
                wire::BasicQos {
                    prefetch_size: 0,
                    prefetch_count: number as u16,
                    global: flag,
                },
            ),
            16 | 41..=50 => frame(channel, wire::BasicRecover { requeue: true }),
            17 => frame(
                channel,
                wire::ChannelClose {
                    reply_code: 200,
                    ..Default::default()
                },
            ),
            18 => frame(channel, Method::ChannelCloseOk),
            19 => frame(channel, Method::ChannelOpen),
            20 => frame(
                channel,
                wire::QueueDelete {
                    queue,
                    if_empty: flag,
                    ..Default::default()
                },
            ),
            _ => frame(
                channel,
                wire::ExchangeDeclare {
                    exchange,
                    kind: short("direct"),
                    ..Default::default()
                },
            ),
        });
    }
    if rng.one_in(4) {
        frames.push(frame(0, wire::ConnectionClose::default()));
    }
    frames
}

fn damage(frames: &mut Vec<Vec<u8>>, rng: &mut Rng) {
    for _ in 0..rng.below(4) {
        let (at, other) = (rng.below(frames.len()), rng.below(frames.len()));
        match rng.below(8) {
            0 => frames.swap(at, other),
            1 => {
                let copy = frames[at].clone();
                frames.insert(other, copy);
            }
            2 => drop(frames.remove(at)),
            3 => {
                let len = frames[at].len();
                frames[at].truncate(rng.below(len + 1));
            }
            4 => frames[at].insert(0, rng.next() as u8),
            _ => {
                if !frames[at].is_empty() {
                    let len = frames[at].len();
                    let byte = rng.below(len);
                    frames[at][byte] ^= 1 << rng.below(8);
                }
            }
        }
        if frames.is_empty() {
            return;
        }
    }
}

fn some_reply(rng: &mut Rng, request: &Request) -> Reply {
    if rng.one_in(8) {
        return Reply::Refused(Refusal::new([403, 404, 406, 541][rng.below(4)], "no"));
    }
    if rng.one_in(60) {
        return [
            Reply::Done,
            Reply::Empty,
            Reply::Counted(1),
            Reply::Outcome(Outcome::Retry),
        ][rng.below(4)]
        .clone();
    }
    match request {
        Request::Propose(warren_model::Command::DeclareQueue(_)) if rng.one_in(5) => {
            Reply::Outcome(Outcome::Retry)
        }
        Request::Propose(warren_model::Command::DeclareQueue(_)) => {
            let queue = queue_ref(rng.below(5) as u64);
            Reply::Outcome(Outcome::Queue {
                id: queue.id,
                place: queue.place,
                created: rng.one_in(2),
            })
        }
        Request::Propose(_) => Reply::Outcome(Outcome::Done),
        Request::Count(_) => Reply::Counts {
            messages: 1,
            consumers: 1,
        },
        Request::Consume { .. } | Request::Cancel { .. } | Request::Fence => Reply::Done,
        Request::Get { .. } => Reply::Empty,
        Request::Purge(_) | Request::Delete { .. } => Reply::Counted(2),
    }
}

/// Something that the host does of itself.
fn event(peer: &mut Peer, rng: &mut Rng) {
    let (session, host) = (&mut peer.session, &mut peer.host);
    let consumer = 1 + rng.below(8) as u32;
    let number = 1 + rng.below(4) as u16;
    match rng.below(12) {
        0..=3 => {
            if !host.asked.is_empty() {
                let (channel, id, request) =
                    host.asked.remove(rng.below(host.asked.len())).unwrap();
                if matches!(request, Request::Get { .. }) && rng.one_in(2) {
                    session.got(
                        channel,
                        id,
                        &Got {
                            position: 4,
                            redelivered: false,
                            remaining: 1,
                            message: message(b"got"),
                        },
                        host,
                    );
                } else {
                    let reply = some_reply(rng, &request);
                    session.reply(channel, id, reply, host);
                }
            }
        }
        4 | 5 => {
            let delivered = Delivered {
                consumer,
                position: rng.next(),
                redelivered: false,
                message: message(&[1; 20]),
            };
            session.deliver(&delivered, host);
        }
        6 => session.wants_leave(consumer, host),
        7 => session.leave_back(consumer, rng.next() as u32, host),
        8 => session.cancelled(consumer, host),
        9 => session.confirm(number, rng.below(10) as u64, rng.one_in(2)),
        10 => session.flush_confirms(),
        _ => {
            host.hold = rng.one_in(4);
            session.resume(host);
        }
    }
}

/// Contents follow their methods at once, whole.
fn check(out: &[u8], seed: u64) {
    let said = frames(out);
    let mut said = said.iter();
    while let Some(say) = said.next() {
        match say {
            M(
                channel,
                Method::BasicDeliver(_) | Method::BasicGetOk(_) | Method::BasicReturn(_),
            ) => {
                let Some(H(same, size, _)) = said.next() else {
                    panic!("no header, seed {seed}")
                };
                assert_eq!(channel, same);
                let mut left = *size as usize;
                while left > 0 {
                    let Some(B(same, body)) = said.next() else {
                        panic!("no body, seed {seed}")
                    };
                    assert_eq!(channel, same);
                    left -= body.len();
                }
            }
            M(..) | crate::peer::Beat => {}
            H(..) | B(..) => panic!("content of nothing, seed {seed}"),
        }
    }
}

#[test]
fn damaged_streams_never_break_the_session() {
    let (mut ran_through, mut refused) = (0, 0);
    for seed in 0..6000 {
        let mut rng = Rng(seed);
        let mut frames = stream(&mut rng);
        damage(&mut frames, &mut rng);
        let bytes = frames.concat();
        let mut peer = Peer::accepted(Limits::default());
        peer.host.hold_fences = true;
        let mut out = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (read, others) = rest.split_at((1 + rng.below(300)).min(rest.len()));
            rest = others;
            peer.send(read);
            for _ in 0..rng.below(6) {
                event(&mut peer, &mut rng);
            }
            peer.send(&[]);
            out.append(peer.session.out());
        }
        // In the end the host answers everything and takes everything.
        peer.host.hold = false;
        peer.session.resume(&mut peer.host);
        peer.send(&[]);
        while let Some((channel, id, request)) = peer.host.asked.pop_front() {
            let reply = some_reply(&mut rng, &request);
            peer.session.reply(channel, id, reply, &mut peer.host);
            peer.send(&[]);
        }
        assert!(!peer.session.has_backlog(), "seed {seed}");
        peer.session.flush_confirms();
        out.append(peer.session.out());
        if out == wire::PROTOCOL_HEADER {
            continue;
        }
        check(&out, seed);
        match peer.session.phase() {
            Phase::Running => ran_through += 1,
            Phase::Closing | Phase::Closed => {
                refused += 1;
                assert_eq!(peer.session.channel_count(), 0, "seed {seed}");
                // What the host was told to serve is released, all of it.
                peer.send(&frame(1, consume("late", false)));
                assert!(peer.host.asked.is_empty());
            }
            Phase::Ending => panic!("its fence is answered, seed {seed}"),
            Phase::Header | Phase::StartOk | Phase::Login | Phase::TuneOk | Phase::Open => {}
        }
    }
    assert!(
        ran_through > 300 && refused > 300,
        "{ran_through} ran through, {refused} were refused"
    );
}
