//! Opening and closing channels, and what is ignored meanwhile.

use crate::peer::{Call, M, Peer, close_channel, consume, frame, publish, short};
use warren_model::Refusal;
use warren_protocol as wire;
use warren_protocol::Method;
use warren_session::{Phase, Reply, Request};

#[test]
fn all_that_follows_a_bad_publish_is_ignored_until_the_close_is_done() {
    let mut peer = Peer::open();
    peer.open_channel(2);
    let other = peer.consume(2, "other", false);
    let consumer = peer.consume(1, "t", false);
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    let mut bytes = Vec::new();
    for _ in 0..10 {
        bytes.extend(publish(1, "x", "k", true, b"good"));
    }
    bytes.extend(publish(1, "missing", "k", true, b"bad"));
    for _ in 0..1000 {
        bytes.extend(publish(1, "x", "k", true, b"late"));
    }
    bytes.extend(frame(
        1,
        wire::QueueDeclare {
            queue: short("late"),
            ..Default::default()
        },
    ));
    bytes.extend(frame(
        1,
        wire::BasicAck {
            delivery_tag: 77,
            multiple: false,
        },
    ));
    peer.send(&bytes);
    for sequence in 1..=4 {
        peer.session.confirm(1, sequence, true);
    }
    peer.expect_channel_close(
        1,
        404,
        "NOT_FOUND - no exchange 'missing' in vhost '/'",
        (60, 40),
    );
    let calls = peer.calls();
    assert_eq!(
        calls
            .iter()
            .filter(|c| matches!(c, Call::Publish { .. }))
            .count(),
        11
    );
    assert_eq!(
        calls[calls.len() - 2..],
        [Call::Release(consumer), Call::Request(1, Request::Fence)]
    );
    peer.session.flush_confirms();
    peer.deliver(consumer, 1, false);
    peer.expect(&[]);
    // The other channel goes on.
    peer.deliver(other, 5, false);
    peer.method(
        2,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(
        peer.calls(),
        [Call::Settle(other, 5, warren_model::Settlement::Accept)]
    );
    peer.session.out().clear();

    // Closed by both at once, then opened anew: numbers start over, and nothing is left of before.
    peer.method(1, close_channel(200, "bye", (0, 0)));
    peer.expect(&[M(1, Method::ChannelCloseOk)]);
    peer.method(1, Method::ChannelOpen);
    peer.expect(&[]);
    peer.method(1, Method::ChannelCloseOk);
    peer.open_channel(1);
    peer.send(&publish(1, "void", "k", false, b""));
    peer.session.flush_confirms();
    peer.expect(&[]);
    let again = peer.consume(1, "t", false);
    assert!(again > consumer);
    peer.deliver(again, 9, false);
    peer.method(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(
        peer.calls().last(),
        Some(&Call::Settle(again, 9, warren_model::Settlement::Accept))
    );
    assert_eq!(peer.session.phase(), Phase::Running);
}

#[test]
fn after_close_ok_the_channel_must_be_opened() {
    for last in [
        publish(1, "x", "k", false, b"b"),
        frame(1, consume("t", false)),
        frame(1, close_channel(200, "", (0, 0))),
    ] {
        let mut peer = Peer::open();
        peer.send(&publish(1, "missing", "k", false, b""));
        peer.method(1, Method::ChannelCloseOk);
        peer.session.out().clear();
        peer.send(&last);
        let out = std::mem::take(peer.session.out());
        let [M(0, Method::ConnectionClose(close))] = crate::peer::frames(&out)[..] else {
            panic!()
        };
        assert_eq!(
            (close.reply_code, close.reply_text),
            (504, short("CHANNEL_ERROR - expected 'channel.open'"))
        );
    }
}

#[test]
fn outcomes_of_a_closed_channel_confirm_nothing_on_the_next_of_its_number() {
    let mut peer = Peer::open();
    let select = wire::ConfirmSelect { no_wait: true };
    peer.method(1, select);
    peer.send(
        &[
            publish(1, "x", "k", false, b"1"),
            publish(1, "x", "k", false, b"2"),
        ]
        .concat(),
    );
    let old: Vec<u64> = sequences(&mut peer);
    peer.method(1, close_channel(200, "", (0, 0)));
    peer.method(1, Method::ChannelOpen);
    peer.method(1, select);
    peer.send(&publish(1, "x", "k", false, b"3"));
    let new = sequences(&mut peer);
    peer.session.out().clear();
    for sequence in old {
        assert!(!new.contains(&sequence));
        peer.session.confirm(1, sequence, true);
    }
    peer.session.flush_confirms();
    peer.expect(&[]);
    peer.session.confirm(1, new[0], true);
    peer.session.flush_confirms();
    peer.expect(&[M(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        }
        .into(),
    )]);
}

fn sequences(peer: &mut Peer) -> Vec<u64> {
    peer.calls()
        .iter()
        .filter_map(|c| {
            if let Call::Publish { sequence, .. } = c {
                *sequence
            } else {
                None
            }
        })
        .collect()
}

#[test]
fn confirms_that_are_due_go_before_either_kind_of_close() {
    let ack = M(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        }
        .into(),
    );
    let mut peer = Peer::open();
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    peer.send(&publish(1, "void", "k", false, b""));
    peer.send(&publish(1, "missing", "k", false, b""));
    peer.expect(&[
        ack.clone(),
        M(
            1,
            close_channel(
                404,
                "NOT_FOUND - no exchange 'missing' in vhost '/'",
                (60, 40),
            ),
        ),
    ]);
    let mut peer = Peer::open();
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    peer.send(&publish(1, "void", "k", false, b""));
    peer.method(1, close_channel(200, "", (0, 0)));
    peer.expect(&[ack, M(1, Method::ChannelCloseOk)]);
}

#[test]
fn a_refused_request_closes_the_channel_and_its_backlog_is_ignored() {
    let mut peer = Peer::open();
    peer.method(
        1,
        wire::ExchangeDelete {
            exchange: short("x1"),
            if_unused: true,
            no_wait: false,
        },
    );
    peer.send(&publish(1, "x", "late", false, b"late"));
    peer.method(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: true,
        },
    );
    peer.method(1, Method::ChannelCloseOk);
    peer.method(1, Method::ChannelOpen);
    peer.send(&publish(1, "x", "new", false, b"new"));
    assert!(peer.session.has_backlog());
    peer.expect(&[]);
    peer.calls();
    // A pipelined close-ok answers a close that the client cannot have seen; the order of things is what counts here.
    peer.answer(Reply::Refused(Refusal::precondition_failed(
        "exchange 'x1' in vhost '/' in use",
    )));
    peer.expect(&[
        M(
            1,
            close_channel(
                406,
                "PRECONDITION_FAILED - exchange 'x1' in vhost '/' in use",
                (40, 20),
            ),
        ),
        M(1, Method::ChannelOpenOk),
    ]);
    assert!(matches!(&peer.calls()[..], [Call::Publish { key, .. }] if key == b"new"));
    assert!(!peer.session.has_backlog());
}

#[test]
fn a_refusal_that_is_the_connections_closes_that() {
    let mut peer = Peer::open();
    peer.open_channel(2);
    peer.method(
        1,
        wire::ExchangeDeclare {
            exchange: short("x"),
            kind: short("odd"),
            ..Default::default()
        },
    );
    peer.method(1, wire::BasicQos::default());
    peer.answer(Reply::Refused(Refusal::new(
        503,
        "unknown exchange type 'odd'",
    )));
    peer.expect_connection_close(
        503,
        "COMMAND_INVALID - unknown exchange type 'odd'",
        (40, 10),
    );
    assert_eq!(peer.session.channel_count(), 0);
}

#[test]
fn an_answer_after_the_close_is_nobodys() {
    let mut peer = Peer::open();
    peer.method(
        1,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: false,
        },
    );
    peer.method(2, Method::ChannelOpen);
    peer.session.out().clear();
    let (channel, id, _) = peer.host.asked.pop_front().unwrap();
    peer.session
        .reply(channel, id + 1, Reply::Counted(3), &mut peer.host);
    peer.session.reply(2, id, Reply::Counted(3), &mut peer.host);
    peer.session.reply(9, id, Reply::Counted(3), &mut peer.host);
    peer.expect(&[]);
    peer.session
        .reply(channel, id, Reply::Counted(3), &mut peer.host);
    peer.session
        .reply(channel, id, Reply::Counted(3), &mut peer.host);
    peer.expect(&[M(1, wire::QueuePurgeOk { message_count: 3 }.into())]);
    peer.method(
        1,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: false,
        },
    );
    peer.session.force_close("now", &mut peer.host);
    peer.session.out().clear();
    peer.answer(Reply::Counted(1));
    peer.expect(&[]);
}

#[test]
fn methods_that_close_the_connection() {
    let text = |t: &'static str| t;
    for (method, code, text) in [
        (
            Method::ChannelOpen,
            504,
            text("CHANNEL_ERROR - second 'channel.open' seen"),
        ),
        (
            wire::ChannelFlow { active: false }.into(),
            540,
            "NOT_IMPLEMENTED - active=false",
        ),
        (
            wire::BasicQos {
                prefetch_size: 1,
                ..Default::default()
            }
            .into(),
            540,
            "NOT_IMPLEMENTED - prefetch_size!=0 (1)",
        ),
        (
            wire::BasicRecover { requeue: false }.into(),
            540,
            "NOT_IMPLEMENTED - requeue=false",
        ),
        (
            wire::BasicPublish {
                immediate: true,
                ..Default::default()
            }
            .into(),
            540,
            "NOT_IMPLEMENTED - immediate=true",
        ),
        (
            Method::BasicGetEmpty,
            503,
            "COMMAND_INVALID - method 'basic.get-empty' is not for a server, or not on this channel",
        ),
        (
            wire::BasicGet {
                queue: wire::ShortStr::new(b"\xff").unwrap(),
                no_ack: true,
            }
            .into(),
            501,
            "FRAME_ERROR - malformed UTF-8 in shortstr",
        ),
        (
            wire::BasicPublish {
                routing_key: wire::ShortStr::new(b"\xff").unwrap(),
                ..Default::default()
            }
            .into(),
            501,
            "FRAME_ERROR - malformed UTF-8 in shortstr",
        ),
        (
            wire::BasicConsume {
                queue: short("q1"),
                consumer_tag: wire::ShortStr::new(b"\xff").unwrap(),
                ..Default::default()
            }
            .into(),
            501,
            "FRAME_ERROR - malformed UTF-8 in shortstr",
        ),
        (
            wire::QueueBind {
                queue: short("q1"),
                exchange: short("x1"),
                routing_key: wire::ShortStr::new(b"\xff").unwrap(),
                ..Default::default()
            }
            .into(),
            501,
            "FRAME_ERROR - malformed UTF-8 in shortstr",
        ),
    ] {
        let mut peer = Peer::open();
        peer.method(1, method);
        peer.expect_connection_close(code, text, method.class_method());
    }
    for (then, text) in [
        (
            &[1, 0, 1, 0, 0, 0, 4, 0, 20, 0, 10, 0xce][..],
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
        (
            &[3, 0, 1, 0, 0, 0, 1, 9, 0xce],
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
    ] {
        let mut peer = Peer::open();
        peer.method(
            1,
            wire::BasicPublish {
                exchange: short("x"),
                ..Default::default()
            },
        );
        peer.send(then);
        let out = std::mem::take(peer.session.out());
        let said = crate::peer::frames(&out);
        assert!(
            matches!(&said[..], [M(0, Method::ConnectionClose(c))] if c.reply_code == 505 && c.reply_text == short(text)),
            "{said:?}"
        );
    }
    let mut peer = Peer::open();
    peer.send(&[3, 0, 1, 0, 0, 0, 1, 9, 0xce]);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        (60, 40),
    );
}

#[test]
fn small_answers() {
    let mut peer = Peer::open();
    peer.method(1, wire::AccessRequest::default());
    peer.method(1, wire::ChannelFlow { active: true });
    peer.method(
        1,
        wire::BasicCancelOk {
            consumer_tag: short("t"),
        },
    );
    peer.method(1, wire::BasicRecover { requeue: true });
    peer.method(1, wire::BasicRecoverAsync { requeue: true });
    peer.method(
        1,
        wire::BasicCancel {
            consumer_tag: short("none"),
            no_wait: false,
        },
    );
    peer.expect(&[
        M(1, wire::AccessRequestOk { ticket: 1 }.into()),
        M(1, wire::ChannelFlowOk { active: true }.into()),
        M(1, Method::BasicRecoverOk),
        M(
            1,
            wire::BasicCancelOk {
                consumer_tag: short("none"),
            }
            .into(),
        ),
    ]);
}

#[test]
fn a_channel_too_many_closes_the_connection_and_closed_ones_do_not_count() {
    let mut peer = Peer::open();
    peer.host.channels_max = Some(2);
    peer.open_channel(2);
    peer.method(2, close_channel(200, "bye", (0, 0)));
    peer.expect(&[M(2, Method::ChannelCloseOk)]);
    assert_eq!(peer.session.channel_count(), 1);
    peer.open_channel(3);
    peer.method(4, Method::ChannelOpen);
    peer.expect_connection_close(530, "NOT_ALLOWED - 2 channels are open", (0, 0));
    assert_eq!(peer.session.channel_count(), 0);
}
