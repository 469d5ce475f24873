//! Publishing: checks, returns, confirms, and hosts that cannot take a publish now.

use crate::peer::{B, Call, H, M, Peer, frame, frames, publish, publish_in_pieces, short};
use crate::rng::Rng;
use std::collections::BTreeMap;
use warren_protocol as wire;
use warren_protocol::{BasicPublish, Method, Properties};
use warren_session::Phase;

fn with_properties(properties: &[u8]) -> Vec<u8> {
    publish_in_pieces(
        1,
        BasicPublish {
            exchange: short("x"),
            routing_key: short("k"),
            ..Default::default()
        },
        properties,
        b"b",
        || usize::MAX,
    )
}

fn returned<'a>(channel: u16) -> crate::peer::Say<'a> {
    M(
        channel,
        wire::BasicReturn {
            reply_code: 312,
            reply_text: short("NO_ROUTE"),
            exchange: short("void"),
            routing_key: short("k"),
        }
        .into(),
    )
}

#[test]
fn a_return_is_complete_and_precedes_the_ack_that_covers_it() {
    let mut peer = Peer::open_with(&[], 4096);
    peer.send(&publish(1, "x", "before", false, b"does not count"));
    peer.method(1, wire::ConfirmSelect { no_wait: false });
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    let body = vec![5; 5000];
    let method = BasicPublish {
        exchange: short("void"),
        routing_key: short("k"),
        mandatory: true,
        immediate: false,
    };
    peer.send(&publish(1, "x", "k", true, b"1"));
    peer.send(&publish_in_pieces(1, method, &[0x10, 0, 2], &body, || 4000));
    peer.send(&publish(1, "void", "k", true, b""));
    peer.send(&publish(1, "void", "k", false, b"dropped"));
    peer.session.confirm(1, 1, true);
    peer.session.flush_confirms();
    peer.session.flush_confirms();
    peer.expect(&[
        M(1, Method::ConfirmSelectOk),
        returned(1),
        H(1, 5000, &[0x10, 0, 2]),
        B(1, &body[..4088]),
        B(1, &body[4088..]),
        returned(1),
        H(1, 0, &[0, 0]),
        M(
            1,
            wire::BasicAck {
                delivery_tag: 4,
                multiple: true,
            }
            .into(),
        ),
    ]);
}

/// Every publish gets exactly one answer, acks never overtake returns, and clients that sort answers come to the same as those that take them as they come.
#[test]
fn answers_to_a_thousand_publishes() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut peer = Peer::open();
        peer.method(1, wire::ConfirmSelect { no_wait: true });
        let mut expected = BTreeMap::new();
        let mut outcomes = Vec::new();
        let mut bytes = Vec::new();
        for number in 1..=1000u64 {
            let exchange = ["x", "x", "fan", "void", "down"][rng.below(5)];
            bytes.extend(publish(1, exchange, "k", true, &number.to_be_bytes()));
            let copies = match exchange {
                "x" => 1,
                "fan" => 2,
                _ => 0,
            };
            let mut ok = exchange != "down";
            for _ in 0..copies {
                let taken = !rng.one_in(10);
                ok &= taken;
                outcomes.push((number, taken));
            }
            expected.insert(number, ok);
        }
        let mut rest = &bytes[..];
        let (mut said, mut offered) = (Vec::new(), 0);
        while !rest.is_empty() || !outcomes.is_empty() {
            if !rest.is_empty() && rng.one_in(2) {
                let (read, others) = rest.split_at((1 + rng.below(4000)).min(rest.len()));
                peer.send(read);
                rest = others;
                offered = peer.host.offered as u64;
            }
            for _ in 0..rng.below(60) {
                let index = rng.below(outcomes.len().max(1)).min(40);
                if outcomes
                    .get(index)
                    .is_some_and(|(number, _)| *number <= offered)
                {
                    let (number, ok) = outcomes.remove(index);
                    peer.session.confirm(1, number, ok);
                }
            }
            peer.session.flush_confirms();
            said.append(peer.session.out());
        }
        check_answers(&frames(&said), &expected, seed);
    }
}

fn check_answers(said: &[crate::peer::Say<'_>], expected: &BTreeMap<u64, bool>, seed: u64) {
    let mut at_once = BTreeMap::new();
    let (mut sorted, mut ahead, mut next) = (BTreeMap::new(), BTreeMap::new(), 1);
    let mut returned = Vec::new();
    for say in said {
        match say {
            M(
                1,
                Method::BasicAck(wire::BasicAck {
                    delivery_tag,
                    multiple: true,
                }),
            ) => {
                for number in 1..=*delivery_tag {
                    at_once.entry(number).or_insert(true);
                }
                while next <= *delivery_tag {
                    sorted.insert(next, true);
                    next += 1;
                }
            }
            M(
                1,
                Method::BasicAck(wire::BasicAck {
                    delivery_tag,
                    multiple: false,
                }),
            ) => {
                assert_eq!(
                    at_once.insert(*delivery_tag, true),
                    None,
                    "answered twice, seed {seed}"
                );
                ahead.insert(*delivery_tag, true);
            }
            M(
                1,
                Method::BasicNack(wire::BasicNack {
                    delivery_tag,
                    multiple: false,
                    ..
                }),
            ) => {
                assert_eq!(
                    at_once.insert(*delivery_tag, false),
                    None,
                    "answered twice, seed {seed}"
                );
                ahead.insert(*delivery_tag, false);
            }
            M(1, Method::BasicReturn(_)) | H(1, 8, _) => {}
            B(1, body) => {
                let number = u64::from_be_bytes((*body).try_into().unwrap());
                assert!(
                    !at_once.contains_key(&number),
                    "acked before it was returned, seed {seed}"
                );
                returned.push(number);
            }
            other => panic!("{other:?}"),
        }
        while let Some(ok) = ahead.remove(&next) {
            sorted.insert(next, ok);
            next += 1;
        }
    }
    assert_eq!(&at_once, expected, "seed {seed}");
    assert_eq!(&sorted, expected, "seed {seed}");
    assert!(!returned.is_empty() && returned.is_sorted());
}

#[test]
fn what_a_publish_may_not_carry_closes_the_channel() {
    let expiration = |text: &str| {
        let mut properties = Vec::new();
        Properties {
            expiration: Some(short(text)),
            ..Default::default()
        }
        .encode(&mut properties);
        properties
    };
    for text in ["1000", "0", "+5", "4294967296", "315360000000"] {
        let mut peer = Peer::open();
        peer.send(&with_properties(&expiration(text)));
        assert!(
            matches!(&peer.calls()[..], [Call::Publish { .. }]),
            "{text}"
        );
        peer.expect(&[]);
    }
    let far = "9".repeat(60);
    for (text, reason) in [
        ("", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", "{leftover_string,\".5\"}"),
        ("abc", "no_integer"),
        (" 1", "no_integer"),
        ("315360000001", "{value_too_large,315360000001}"),
        (&far, &format!("{{value_too_large,{far}}}")),
    ] {
        let mut peer = Peer::open();
        peer.send(&with_properties(&expiration(text)));
        peer.expect_channel_close(
            1,
            406,
            &format!("PRECONDITION_FAILED - invalid expiration '{text}': {reason}"),
            (60, 40),
        );
        assert_eq!(peer.calls(), []);
    }
    let mut properties = Vec::new();
    Properties {
        user_id: Some(short("eve")),
        ..Default::default()
    }
    .encode(&mut properties);
    let mut peer = Peer::open();
    peer.send(&with_properties(&properties));
    peer.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - user_id property set to 'eve' but authenticated user was 'guest'",
        (60, 40),
    );
    let mut peer = Peer::open();
    peer.send(&with_properties(&[0x80, 0, 9, b'a']));
    assert_eq!(peer.session.phase(), Phase::Closing);
    // A second word of flags, empty or not, whatever else is there.
    for properties in [
        &[0, 1, 0, 0][..],
        &[0, 1, 0x80, 0, 1, b'a'],
        &[0x11, 1, 0, 0, 2, 1, b'5'],
        &[0x10, 1],
    ] {
        let mut peer = Peer::open();
        peer.send(&with_properties(properties));
        peer.expect_connection_close(
            502,
            "SYNTAX_ERROR - property flags beyond those of class basic",
            (60, 40),
        );
        assert_eq!(peer.calls(), []);
    }
}

#[test]
fn a_body_is_as_long_as_announced_and_no_longer_than_allowed() {
    let header = |size: u64| {
        let mut header = vec![2, 0, 1, 0, 0, 0, 14, 0, 60, 0, 0];
        header.extend(size.to_be_bytes());
        header.extend([0, 0, 0xce]);
        header
    };
    let mut peer = Peer::open();
    peer.method(
        1,
        BasicPublish {
            exchange: short("x"),
            ..Default::default()
        },
    );
    peer.send(&header(16 * 1024 * 1024 + 1));
    peer.expect_channel_close(
        1,
        406,
        "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216",
        (60, 40),
    );
    // Its body is on its way all the same.
    peer.send(&[3, 0, 1, 0, 0, 0, 2, 1, 2, 0xce]);
    peer.expect(&[]);
    let mut peer = Peer::open();
    peer.method(
        1,
        BasicPublish {
            exchange: short("x"),
            ..Default::default()
        },
    );
    peer.send(&header(3));
    peer.send(&header(3));
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected content body, got non content body frame instead",
        (60, 40),
    );
    let mut peer = Peer::open();
    peer.method(
        1,
        BasicPublish {
            exchange: short("x"),
            ..Default::default()
        },
    );
    peer.send(&header(3));
    peer.send(&[3, 0, 1, 0, 0, 0, 2, 1, 2, 0xce, 3, 0, 1, 0, 0, 0, 0, 0xce]);
    peer.expect(&[]);
    peer.send(&[3, 0, 1, 0, 0, 0, 2, 3, 4, 0xce]);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - content body is larger than the 3 bytes that its header announced",
        (60, 40),
    );
    let mut peer = Peer::open();
    peer.method(
        1,
        BasicPublish {
            exchange: short("x"),
            ..Default::default()
        },
    );
    peer.send(&header(u64::MAX)[..7]);
    peer.send(&[0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xce]);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 40 instead",
        (60, 40),
    );
}

#[test]
fn a_held_publish_is_taken_once_when_the_host_can() {
    for whole in [true, false] {
        let mut peer = Peer::open();
        peer.open_channel(2);
        let two = publish(1, "x", "k", false, b"one")
            .into_iter()
            .chain(publish(1, "x", "k", false, b""))
            .collect::<Vec<u8>>();
        peer.host.hold = true;
        if whole {
            peer.send(&two);
            assert_eq!(peer.unread(), two.len(), "nothing is consumed");
        } else {
            two.iter().for_each(|b| peer.send(&[*b]));
            assert!(peer.unread() > 0);
        }
        // Behind a held publish, nothing is read; what else the session does goes on.
        peer.method(2, wire::BasicQos::default());
        peer.expect(&[]);
        for _ in 0..3 {
            peer.session.resume(&mut peer.host);
            peer.send(&[]);
        }
        assert_eq!(peer.calls(), []);
        peer.host.hold = false;
        peer.send(&[]);
        let bodies: Vec<usize> = peer
            .calls()
            .iter()
            .map(|c| {
                if let Call::Publish { body, .. } = c {
                    body.len()
                } else {
                    99
                }
            })
            .collect();
        assert_eq!(bodies, [3, 0]);
        peer.expect(&[M(2, Method::BasicQosOk)]);
    }
}

#[test]
fn what_has_arrived_of_publishes_is_counted_and_waits_without_room() {
    let mut peer = Peer::open();
    for channel in 2..=4 {
        peer.open_channel(channel);
    }
    let (mut parts, half) = (Vec::new(), 1000);
    for channel in 1..=4 {
        let all = publish_in_pieces(
            channel,
            BasicPublish::default(),
            &[0, 0],
            &[7; 2000],
            || half,
        );
        let last = all.len() - (half + 8);
        peer.send(&all[..last]);
        parts.push(all[last..].to_vec());
    }
    assert_eq!(peer.session.unfinished_bytes(), 4 * 1002);
    peer.send(&parts[0]);
    assert_eq!(peer.session.unfinished_bytes(), 3 * 1002, "one is whole");
    peer.host.is_full = true;
    peer.send(&parts[1]);
    assert_eq!(peer.unread(), parts[1].len(), "it waits");
    assert_eq!(peer.session.unfinished_bytes(), 3 * 1002);
    peer.host.is_full = false;
    peer.send(&[]);
    assert_eq!(peer.session.unfinished_bytes(), 2 * 1002);
    assert_eq!(peer.calls().len(), 2);
    // One that the host holds back is kept as far as it was before its last frame.
    peer.host.hold = true;
    peer.send(&parts[2]);
    assert_eq!(peer.session.unfinished_bytes(), 2 * 1002);
    peer.host.hold = false;
    peer.send(&parts[3]);
    assert_eq!(peer.session.unfinished_bytes(), 0);
    assert_eq!(peer.calls().len(), 2);
}

#[test]
fn a_publish_held_in_the_backlog_goes_on_with_resume() {
    let mut peer = Peer::open();
    peer.method(
        1,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: false,
        },
    );
    peer.send(
        &[
            publish(1, "x", "k", false, b"one"),
            publish(1, "x", "k", false, b"two"),
            frame(1, wire::BasicQos::default()),
        ]
        .concat(),
    );
    peer.host.hold = true;
    peer.answer_all();
    peer.expect(&[M(1, wire::QueuePurgeOk { message_count: 4 }.into())]);
    peer.send(&publish(1, "x", "k", false, b"three"));
    assert!(peer.session.has_backlog() && peer.unread() == 0);
    peer.host.hold = false;
    peer.host.calls.clear();
    peer.session.resume(&mut peer.host);
    let bodies: Vec<Vec<u8>> = peer
        .calls()
        .into_iter()
        .map(|c| {
            if let Call::Publish { body, .. } = c {
                body
            } else {
                vec![]
            }
        })
        .collect();
    assert_eq!(bodies, [&b"one"[..], b"two", b"three"]);
    peer.expect(&[M(1, Method::BasicQosOk)]);
    assert!(!peer.session.has_backlog());
}

#[test]
fn without_routing_confirmed_publishes_are_nacked_and_others_end_the_connection() {
    let mut peer = Peer::open();
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    peer.send(&publish(1, "down", "k", true, b"1"));
    peer.session.flush_confirms();
    peer.expect(&[M(
        1,
        wire::BasicNack {
            delivery_tag: 1,
            multiple: false,
            requeue: false,
        }
        .into(),
    )]);
    let mut peer = Peer::open();
    peer.send(&publish(1, "down", "k", false, b"1"));
    peer.expect_connection_close(320, "CONNECTION_FORCED - no routing now", (60, 40));
}

#[test]
fn no_agreed_limit_still_bounds_a_frame_by_the_largest_message() {
    let limits = warren_session::Limits {
        frame_max: 0,
        message_max: 1_000_000,
        ..Default::default()
    };
    let mut peer = Peer::accepted(limits);
    peer.send(&crate::peer::opening(&[], 0));
    peer.method(1, Method::ChannelOpen);
    peer.session.out().clear();
    peer.send(&publish(1, "x", "k", false, &vec![1; 1_000_000]));
    assert_eq!(peer.calls().len(), 1);
    peer.send(&[3, 0, 1, 0x7f, 0, 0, 0]);
    assert_eq!(peer.session.phase(), Phase::Closed);
}
