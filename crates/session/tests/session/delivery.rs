//! Consumers, gets and settlement.

use crate::peer::{B, Call, H, M, Peer, consume, message, queue_ref, short};
use warren_model::{Refusal, Settlement, Subscription};
use warren_protocol as wire;
use warren_protocol::{BasicAck, BasicNack, BasicReject, Method};
use warren_session::{Delivered, Got, Reply, Request};

const UNKNOWN: &str = "PRECONDITION_FAILED - unknown delivery tag ";

/// A consumer that holds the deliveries with tags 1 to 5, at positions 11 to 15.
fn with_five() -> (Peer, u32) {
    let mut peer = Peer::open();
    let consumer = peer.consume(1, "t", false);
    for position in 11..=15 {
        peer.deliver(consumer, position, false);
    }
    peer.session.out().clear();
    (peer, consumer)
}

#[test]
fn a_delivery_is_cut_to_the_clients_frames() {
    let mut peer = Peer::open_with(&[], 4096);
    let consumer = peer.consume(1, "t", false);
    for len in [0, 1, 4087, 4088, 4089, 8176] {
        let body = vec![3; len];
        peer.session.deliver(
            &Delivered {
                consumer,
                position: 1,
                redelivered: true,
                message: message(&body),
            },
            &mut peer.host,
        );
        assert!(
            crate::peer::frames(peer.session.out())
                .iter()
                .all(|s| if let B(_, body) = s {
                    body.len() <= 4088
                } else {
                    true
                })
        );
        let out = std::mem::take(peer.session.out());
        let said = crate::peer::frames(&out);
        assert!(
            matches!(said[0], M(1, Method::BasicDeliver(d)) if d.redelivered && d.consumer_tag == short("t"))
        );
        assert_eq!(said[1], H(1, len as u64, &[0, 0]));
        assert_eq!(said.len() - 2, len.div_ceil(4088));
    }
}

#[test]
fn acks_nacks_and_rejects_settle_what_they_name() {
    type Case = (Method<'static>, &'static [u64], Settlement);
    let cases: [Case; 8] = [
        (
            Method::BasicAck(BasicAck {
                delivery_tag: 3,
                multiple: false,
            }),
            &[13],
            Settlement::Accept,
        ),
        (
            Method::BasicAck(BasicAck {
                delivery_tag: 3,
                multiple: true,
            }),
            &[11, 12, 13],
            Settlement::Accept,
        ),
        (
            Method::BasicAck(BasicAck {
                delivery_tag: 0,
                multiple: true,
            }),
            &[11, 12, 13, 14, 15],
            Settlement::Accept,
        ),
        (
            Method::BasicNack(BasicNack {
                delivery_tag: 0,
                multiple: true,
                requeue: true,
            }),
            &[11, 12, 13, 14, 15],
            Settlement::Requeue,
        ),
        (
            Method::BasicNack(BasicNack {
                delivery_tag: 2,
                multiple: true,
                requeue: false,
            }),
            &[11, 12],
            Settlement::Discard,
        ),
        (
            Method::BasicReject(BasicReject {
                delivery_tag: 5,
                requeue: true,
            }),
            &[15],
            Settlement::Requeue,
        ),
        (
            Method::BasicReject(BasicReject {
                delivery_tag: 5,
                requeue: false,
            }),
            &[15],
            Settlement::Discard,
        ),
        (
            Method::BasicRecoverAsync(wire::BasicRecoverAsync { requeue: true }),
            &[11, 12, 13, 14, 15],
            Settlement::Requeue,
        ),
    ];
    for (method, positions, settlement) in cases {
        let (mut peer, consumer) = with_five();
        peer.method(1, method);
        let expected: Vec<Call> = positions
            .iter()
            .map(|&p| Call::Settle(consumer, p, settlement))
            .collect();
        assert_eq!(peer.calls(), expected, "{method:?}");
        peer.expect(&[]);
    }
}

#[test]
fn tags_that_are_not_open_close_the_channel_and_settle_nothing() {
    let ack = |delivery_tag, multiple| {
        Method::BasicAck(BasicAck {
            delivery_tag,
            multiple,
        })
    };
    let cases: [(&[Method<'static>], u64, (u16, u16)); 8] = [
        (&[ack(0, false)], 0, (60, 80)),
        (&[ack(3, false), ack(3, false)], 3, (60, 80)),
        (&[ack(3, false), ack(3, true)], 3, (60, 80)),
        (&[ack(99, false)], 99, (60, 80)),
        (&[ack(99, true)], 99, (60, 80)),
        (&[ack(2, true), ack(1, true)], 1, (60, 80)),
        (
            &[Method::BasicNack(BasicNack {
                delivery_tag: 6,
                multiple: true,
                requeue: true,
            })],
            6,
            (60, 120),
        ),
        (
            &[Method::BasicReject(BasicReject {
                delivery_tag: u64::MAX,
                requeue: true,
            })],
            u64::MAX,
            (60, 90),
        ),
    ];
    for (methods, tag, method) in cases {
        let (mut peer, consumer) = with_five();
        peer.open_channel(2);
        let (last, first) = methods.split_last().unwrap();
        for method in first {
            peer.method(1, *method);
        }
        peer.calls();
        peer.method(1, *last);
        peer.expect_channel_close(1, 406, &format!("{UNKNOWN}{tag}"), method);
        assert_eq!(
            peer.calls(),
            [Call::Release(consumer), Call::Request(1, Request::Fence)]
        );
        peer.method(2, wire::BasicQos::default());
        peer.expect(&[M(2, Method::BasicQosOk)]);
    }
    // Nothing outstanding: all of nothing is settled.
    let mut peer = Peer::open();
    peer.method(1, ack(0, true));
    peer.method(
        1,
        Method::BasicNack(BasicNack {
            delivery_tag: 0,
            multiple: true,
            requeue: true,
        }),
    );
    peer.expect(&[]);
    let consumer = peer.consume(1, "t", true);
    peer.deliver(consumer, 0, false);
    peer.session.out().clear();
    peer.method(1, ack(1, false));
    peer.expect_channel_close(1, 406, &format!("{UNKNOWN}1"), (60, 80));
}

#[test]
fn get_says_how_many_remain() {
    let mut peer = Peer::open();
    peer.method(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: false,
        },
    );
    let (_, id, request) = peer.host.asked.pop_front().unwrap();
    let Request::Get {
        consumer,
        queue,
        no_ack: false,
    } = request
    else {
        panic!("{request:?}")
    };
    assert_eq!(queue, queue_ref(1));
    let got = Got {
        position: 30,
        redelivered: true,
        remaining: 7,
        message: message(b"m"),
    };
    peer.session.got(1, id + 1, &got, &mut peer.host);
    peer.expect(&[]);
    peer.session.got(1, id, &got, &mut peer.host);
    peer.session.got(1, id, &got, &mut peer.host);
    let ok = wire::BasicGetOk {
        delivery_tag: 1,
        redelivered: true,
        exchange: short("x"),
        routing_key: short("k"),
        message_count: 7,
    };
    peer.expect(&[M(1, ok.into()), H(1, 1, &[0, 0]), B(1, b"m")]);
    peer.calls();
    // The next one comes under the same number; one without acknowledgement has none to settle.
    peer.method(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: true,
        },
    );
    let (_, id, request) = peer.host.asked.pop_front().unwrap();
    assert_eq!(
        request,
        Request::Get {
            consumer,
            queue,
            no_ack: true
        }
    );
    peer.session.got(
        1,
        id,
        &Got {
            remaining: u64::MAX,
            ..got
        },
        &mut peer.host,
    );
    let ok = wire::BasicGetOk {
        delivery_tag: 2,
        message_count: u32::MAX,
        ..ok
    };
    peer.expect(&[M(1, ok.into()), H(1, 1, &[0, 0]), B(1, b"m")]);
    peer.method(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: false,
        },
    );
    peer.answer(Reply::Empty);
    peer.expect(&[M(1, Method::BasicGetEmpty)]);
    peer.calls();
    peer.method(
        1,
        BasicReject {
            delivery_tag: 1,
            requeue: true,
        },
    );
    assert_eq!(
        peer.calls(),
        [Call::Settle(consumer, 30, Settlement::Requeue)]
    );
    peer.method(1, crate::peer::close_channel(200, "", (0, 0)));
    assert_eq!(
        peer.calls(),
        [Call::Release(consumer), Call::Request(1, Request::Fence)]
    );
}

#[test]
fn gets_from_ever_new_queues_do_not_add_up() {
    let mut peer = Peer::open();
    for n in 0..2000u64 {
        peer.host.queues.insert("q".into(), queue_ref(1000 + n));
        peer.method(
            1,
            wire::BasicGet {
                queue: short("q"),
                no_ack: false,
            },
        );
        if n == 5 {
            let (_, id, _) = peer.host.asked.pop_front().unwrap();
            peer.session.got(
                1,
                id,
                &Got {
                    position: 1,
                    redelivered: false,
                    remaining: 0,
                    message: message(b"m"),
                },
                &mut peer.host,
            );
        } else {
            peer.answer(Reply::Empty);
        }
    }
    let calls = peer.calls();
    let (mut known, mut holder) = (std::collections::BTreeSet::new(), None);
    let mut most = 0;
    for call in calls {
        match call {
            Call::Request(
                1,
                Request::Get {
                    consumer, queue, ..
                },
            ) => {
                known.insert(consumer);
                most = most.max(known.len());
                if queue == queue_ref(1005) {
                    holder = Some(consumer);
                }
            }
            Call::Release(consumer) => assert!(
                known.remove(&consumer) && Some(consumer) != holder,
                "{consumer}"
            ),
            other => panic!("{other:?}"),
        }
    }
    assert!(most <= 64, "{most}");
    // What holds a message is kept, and can be settled.
    peer.method(
        1,
        BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(
        peer.calls(),
        [Call::Settle(holder.unwrap(), 1, Settlement::Accept)]
    );
}

#[test]
fn consumers_are_told_of_a_queue_that_goes() {
    for notify in [true, false] {
        let mut peer = Peer::open_with(
            if notify {
                &["consumer_cancel_notify"]
            } else {
                &[]
            },
            4096,
        );
        let consumer = peer.consume(1, "t", false);
        peer.deliver(consumer, 8, false);
        peer.session.out().clear();
        peer.session.cancelled(consumer, &mut peer.host);
        peer.session.cancelled(consumer, &mut peer.host);
        let cancel = [M(
            1,
            wire::BasicCancel {
                consumer_tag: short("t"),
                no_wait: true,
            }
            .into(),
        )];
        peer.expect(if notify { &cancel } else { &[] });
        peer.method(
            1,
            wire::BasicCancelOk {
                consumer_tag: short("t"),
            },
        );
        // The tag is free, and late acks are no error.
        let again = peer.consume(1, "t", false);
        assert_ne!(again, consumer);
        peer.method(
            1,
            BasicAck {
                delivery_tag: 1,
                multiple: false,
            },
        );
        assert_eq!(
            peer.calls(),
            [Call::Settle(consumer, 8, Settlement::Accept)]
        );
        peer.deliver(again, 9, false);
        assert!(!peer.session.out().is_empty());
        peer.session.out().clear();
        // The client cancels what is already gone.
        peer.session.cancelled(again, &mut peer.host);
        peer.session.out().clear();
        peer.method(
            1,
            wire::BasicCancel {
                consumer_tag: short("t"),
                no_wait: false,
            },
        );
        peer.expect(&[M(
            1,
            wire::BasicCancelOk {
                consumer_tag: short("t"),
            }
            .into(),
        )]);
        assert!(peer.host.asked.is_empty());
    }
}

#[test]
fn a_queue_that_goes_before_consume_ok_is_told_after_it() {
    let mut peer = Peer::open();
    peer.method(1, consume("t", false));
    let Request::Consume { consumer, .. } = peer.host.asked[0].2 else {
        panic!()
    };
    peer.session.cancelled(consumer, &mut peer.host);
    peer.expect(&[]);
    peer.answer(Reply::Done);
    peer.expect(&[
        M(
            1,
            wire::BasicConsumeOk {
                consumer_tag: short("t"),
            }
            .into(),
        ),
        M(
            1,
            wire::BasicCancel {
                consumer_tag: short("t"),
                no_wait: true,
            }
            .into(),
        ),
    ]);
    peer.consume(1, "t", false);
}

#[test]
fn a_queue_that_goes_while_the_client_cancels_is_no_news() {
    let mut peer = Peer::open();
    let consumer = peer.consume(1, "t", false);
    peer.method(
        1,
        wire::BasicCancel {
            consumer_tag: short("t"),
            no_wait: false,
        },
    );
    peer.session.cancelled(consumer, &mut peer.host);
    peer.expect(&[]);
    peer.answer(Reply::Done);
    peer.expect(&[M(
        1,
        wire::BasicCancelOk {
            consumer_tag: short("t"),
        }
        .into(),
    )]);
}

#[test]
fn the_client_cancels_and_keeps_what_it_holds() {
    let (mut peer, consumer) = with_five();
    peer.method(
        1,
        wire::BasicCancel {
            consumer_tag: short("t"),
            no_wait: false,
        },
    );
    assert_eq!(peer.host.asked[0].2, Request::Cancel { consumer });
    // What was on its way still comes.
    peer.deliver(consumer, 16, false);
    assert!(!peer.session.out().is_empty());
    peer.session.out().clear();
    peer.answer(Reply::Done);
    peer.expect(&[M(
        1,
        wire::BasicCancelOk {
            consumer_tag: short("t"),
        }
        .into(),
    )]);
    peer.calls();
    peer.method(
        1,
        BasicAck {
            delivery_tag: 6,
            multiple: true,
        },
    );
    assert_eq!(peer.calls().len(), 6);
    peer.deliver(consumer, 17, false);
    peer.expect(&[]);
    peer.method(1, crate::peer::close_channel(200, "", (0, 0)));
    assert_eq!(peer.calls(), [], "it is long gone");
}

#[test]
fn tags_are_the_channels_and_in_use_once() {
    let mut peer = Peer::open();
    peer.open_channel(2);
    peer.consume(1, "t", false);
    peer.consume(2, "t", false);
    peer.method(
        1,
        wire::BasicConsume {
            queue: short("none"),
            ..consume("t", false)
        },
    );
    peer.expect_connection_close(
        530,
        "NOT_ALLOWED - attempt to reuse consumer tag 't'",
        (60, 20),
    );

    let mut peer = Peer::open();
    peer.method(
        1,
        wire::BasicConsume {
            exclusive: true,
            ..consume("", true)
        },
    );
    let Request::Consume {
        consumer,
        queue,
        subscription,
        tag,
    } = peer.host.asked[0].2.clone()
    else {
        panic!()
    };
    assert_eq!(
        (queue, subscription),
        (
            queue_ref(1),
            Subscription {
                no_ack: true,
                exclusive: true,
                prefetch: 0,
                by_leave: false
            }
        )
    );
    assert!(tag.starts_with(b"amq.ctag-") && tag.len() == 31);
    peer.answer(Reply::Refused(Refusal::access_refused(
        "queue 'q1' in vhost '/' in exclusive use",
    )));
    peer.expect_channel_close(
        1,
        403,
        "ACCESS_REFUSED - queue 'q1' in vhost '/' in exclusive use",
        (60, 20),
    );
    peer.calls();
    peer.deliver(consumer, 1, false);
    peer.expect(&[]);
    // It has left nothing behind.
    peer.method(1, Method::ChannelCloseOk);
    peer.open_channel(1);
    peer.consume(1, std::str::from_utf8(&tag).unwrap(), false);
}

#[test]
fn credit_comes_back_in_pieces_for_what_was_written() {
    let mut peer = Peer::open();
    let consumer = peer.consume(1, "t", false);
    let body = vec![1; 10_000];
    let mut written = 0u64;
    for position in 0..200 {
        let delivered = Delivered {
            consumer,
            position,
            redelivered: false,
            message: message(&body),
        };
        written += delivered.message.record_len() as u64 + 64;
        peer.session.deliver(&delivered, &mut peer.host);
    }
    let credits: Vec<u32> = peer
        .calls()
        .into_iter()
        .map(|c| {
            if let Call::Credit(n, bytes) = c
                && n == consumer
            {
                bytes
            } else {
                0
            }
        })
        .collect();
    assert!(
        credits.iter().all(|&c| c >= 256 * 1024) && credits.len() <= 8,
        "{credits:?}"
    );
    let total: u64 = credits.iter().map(|&c| u64::from(c)).sum();
    assert!(written - total < 256 * 1024, "{written} {total}");
}
