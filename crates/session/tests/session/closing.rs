//! A close is told when the queues have back what was held: what waits for that, and what happens meanwhile.

use crate::peer::{
    B, Call, H, M, Peer, close_channel, close_connection, consume, frame, message, publish, short,
};
use warren_model::Refusal;
use warren_protocol as wire;
use warren_protocol::{Method, PROTOCOL_HEADER};
use warren_session::{Got, Limits, Phase, Reply, Request};

const NOT_FOUND: &str = "NOT_FOUND - no exchange 'missing' in vhost '/'";

/// A peer whose channel 1 has one consumer that holds a message, and whose queues are slow to hear of a close.
fn with_consumer() -> (Peer, u32) {
    let mut peer = Peer::open();
    peer.host.hold_fences = true;
    let consumer = peer.consume(1, "t", false);
    peer.deliver(consumer, 11, false);
    peer.session.out().clear();
    (peer, consumer)
}

fn bye() -> Method<'static> {
    close_channel(200, "bye", (0, 0))
}

/// Frames on channel 1 that would all have an effect, or be a fault, on an open channel or on none.
fn noise() -> Vec<u8> {
    let mut bytes = publish(1, "x", "late", true, b"late");
    bytes.extend(frame(
        1,
        wire::QueueDeclare {
            queue: short("late"),
            ..Default::default()
        },
    ));
    bytes.extend(frame(1, consume("late", false)));
    bytes.extend(frame(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    ));
    bytes.extend(frame(
        1,
        wire::BasicAck {
            delivery_tag: 77,
            multiple: false,
        },
    ));
    bytes.extend(frame(1, wire::BasicQos::default()));
    bytes.extend(frame(1, Method::ChannelOpen));
    // A body of nothing.
    bytes.extend([3, 0, 1, 0, 0, 0, 1, 9, 0xce]);
    bytes
}

/// Channel 1 is not open, and opens as a new one.
fn expect_reopens(peer: &mut Peer, before: u32) {
    peer.open_channel(1);
    peer.calls();
    let again = peer.consume(1, "t", false);
    assert!(again > before);
    peer.deliver(again, 30, false);
    peer.session.out().clear();
    peer.method(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(
        peer.calls(),
        [Call::Settle(again, 30, warren_model::Settlement::Accept)]
    );
    peer.expect(&[]);
}

#[test]
fn close_ok_waits_until_the_queues_know() {
    let (mut peer, consumer) = with_consumer();
    peer.open_channel(2);
    let other = peer.consume(2, "other", false);
    peer.method(1, bye());
    assert_eq!(
        peer.calls(),
        [Call::Release(consumer), Call::Request(1, Request::Fence)]
    );

    peer.send(&noise());
    // The client closes once more, and answers what it was never sent.
    peer.method(1, bye());
    peer.method(1, Method::ChannelCloseOk);
    peer.deliver(consumer, 12, false);
    peer.session.cancelled(consumer, &mut peer.host);
    assert_eq!(
        (peer.calls(), peer.unread(), peer.session.has_backlog()),
        (vec![], 0, false)
    );
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
    assert_eq!(peer.calls().len(), 1);
    peer.session.out().clear();

    // An answer to something else is not the fence's.
    let (channel, id, request) = peer.host.asked.pop_front().unwrap();
    assert_eq!(
        (channel, request, peer.host.asked.len()),
        (1, Request::Fence, 0)
    );
    peer.session.reply(1, id + 1, Reply::Done, &mut peer.host);
    peer.session.reply(2, id, Reply::Done, &mut peer.host);
    peer.session.reply(0, id, Reply::Done, &mut peer.host);
    peer.expect(&[]);
    peer.session.reply(1, id, Reply::Done, &mut peer.host);
    peer.expect(&[M(1, Method::ChannelCloseOk)]);
    peer.session.reply(1, id, Reply::Done, &mut peer.host);
    peer.expect(&[]);
    assert_eq!(
        (peer.session.channel_count(), peer.session.phase()),
        (1, Phase::Running)
    );
    expect_reopens(&mut peer, other);
}

#[test]
fn the_servers_close_waits_until_the_queues_know() {
    let (mut peer, consumer) = with_consumer();
    peer.send(&publish(1, "missing", "k", false, b""));
    peer.send(&noise());
    assert!(
        matches!(&peer.calls()[..], [Call::Publish { .. }, Call::Release(c), Call::Request(1, Request::Fence)] if *c == consumer)
    );
    peer.deliver(consumer, 12, false);
    // The client cannot have seen the close: this is not the answer to it.
    peer.method(1, Method::ChannelCloseOk);
    peer.send(&noise());
    peer.expect(&[]);
    peer.answer(Reply::Done);
    peer.expect_channel_close(1, 404, NOT_FOUND, (60, 40));
    // Nor has the close-ok of before ended it.
    peer.send(&noise());
    assert_eq!((peer.calls(), peer.session.channel_count()), (vec![], 1));
    peer.expect(&[]);
    peer.method(1, Method::ChannelCloseOk);
    assert_eq!(peer.session.channel_count(), 0);
    expect_reopens(&mut peer, consumer);
}

#[test]
fn a_close_that_crosses_the_servers_is_answered_behind_it() {
    for early_close_ok in [false, true] {
        let (mut peer, consumer) = with_consumer();
        peer.send(&publish(1, "missing", "k", false, b""));
        peer.method(1, bye());
        peer.method(1, bye());
        if early_close_ok {
            peer.method(1, Method::ChannelCloseOk);
        }
        peer.send(&noise());
        peer.expect(&[]);
        peer.answer(Reply::Done);
        peer.expect(&[
            M(1, close_channel(404, NOT_FOUND, (60, 40))),
            M(1, Method::ChannelCloseOk),
        ]);
        // Both must be done.
        peer.method(1, Method::ChannelOpen);
        peer.expect(&[]);
        peer.method(1, Method::ChannelCloseOk);
        expect_reopens(&mut peer, consumer);
    }
    // After it, as without any consumer.
    let (mut peer, consumer) = with_consumer();
    peer.send(&publish(1, "missing", "k", false, b""));
    peer.answer(Reply::Done);
    peer.expect_channel_close(1, 404, NOT_FOUND, (60, 40));
    peer.method(1, bye());
    peer.expect(&[M(1, Method::ChannelCloseOk)]);
    peer.method(1, Method::ChannelCloseOk);
    expect_reopens(&mut peer, consumer);
}

#[test]
fn confirms_that_are_due_do_not_wait_and_later_outcomes_are_nobodys() {
    for fault in [false, true] {
        let (mut peer, consumer) = with_consumer();
        peer.method(1, wire::ConfirmSelect { no_wait: true });
        peer.send(&publish(1, "void", "k", false, b""));
        peer.send(&publish(1, "x", "k", false, b""));
        peer.send(&if fault {
            publish(1, "missing", "k", false, b"")
        } else {
            frame(1, bye())
        });
        peer.expect(&[M(
            1,
            wire::BasicAck {
                delivery_tag: 1,
                multiple: false,
            }
            .into(),
        )]);
        peer.session.confirm(1, 2, true);
        peer.session.flush_confirms();
        peer.expect(&[]);
        peer.answer(Reply::Done);
        if fault {
            peer.method(1, Method::ChannelCloseOk);
        }
        peer.session.out().clear();
        expect_reopens(&mut peer, consumer);
        peer.method(1, wire::ConfirmSelect { no_wait: true });
        peer.send(&publish(1, "x", "k", false, b""));
        let [
            Call::Publish {
                sequence: Some(sequence),
                ..
            },
        ] = peer.calls()[..]
        else {
            panic!()
        };
        assert!(sequence > 2, "{sequence}");
        peer.session.confirm(1, 2, true);
        peer.session.flush_confirms();
        peer.expect(&[]);
        peer.session.confirm(1, sequence, true);
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
}

#[test]
fn messages_that_were_got_are_waited_for_too() {
    let mut peer = Peer::open();
    peer.host.hold_fences = true;
    peer.method(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: false,
        },
    );
    let (_, id, _) = peer.host.asked.pop_front().unwrap();
    peer.session.got(
        1,
        id,
        &Got {
            position: 3,
            redelivered: false,
            remaining: 0,
            message: message(b"m"),
        },
        &mut peer.host,
    );
    let out = std::mem::take(peer.session.out());
    assert!(matches!(
        crate::peer::frames(&out)[..],
        [M(1, Method::BasicGetOk(_)), H(1, 1, _), B(1, b"m")]
    ));
    peer.method(1, bye());
    peer.expect(&[]);
    peer.answer(Reply::Done);
    peer.expect(&[M(1, Method::ChannelCloseOk)]);
}

#[test]
fn a_channel_that_holds_nothing_closes_at_once() {
    let (mut peer, _) = with_consumer();
    peer.open_channel(2);
    peer.calls();
    peer.method(2, bye());
    peer.expect(&[M(2, Method::ChannelCloseOk)]);
    peer.open_channel(2);
    peer.send(&publish(2, "missing", "k", false, b""));
    peer.expect_channel_close(2, 404, NOT_FOUND, (60, 40));
    assert!(matches!(peer.calls()[..], [Call::Publish { .. }]) && peer.host.asked.is_empty());
}

#[test]
fn a_refusal_waits_too_and_what_came_behind_the_request_is_ignored() {
    let (mut peer, consumer) = with_consumer();
    peer.method(
        1,
        wire::ExchangeDelete {
            exchange: short("x1"),
            if_unused: true,
            no_wait: false,
        },
    );
    peer.send(&noise());
    peer.method(1, Method::ChannelCloseOk);
    peer.method(1, bye());
    peer.calls();
    peer.answer(Reply::Refused(Refusal::precondition_failed(
        "exchange 'x1' in vhost '/' in use",
    )));
    assert_eq!(
        peer.calls(),
        [Call::Release(consumer), Call::Request(1, Request::Fence)]
    );
    assert!(!peer.session.has_backlog());
    peer.expect(&[]);
    peer.answer(Reply::Done);
    let close = close_channel(
        406,
        "PRECONDITION_FAILED - exchange 'x1' in vhost '/' in use",
        (40, 20),
    );
    peer.expect(&[M(1, close), M(1, Method::ChannelCloseOk)]);
    peer.method(1, Method::ChannelCloseOk);
    expect_reopens(&mut peer, consumer);
}

#[test]
fn a_close_behind_a_request_waits_for_both() {
    let (mut peer, consumer) = with_consumer();
    peer.method(
        1,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: false,
        },
    );
    peer.method(1, bye());
    peer.send(&noise());
    assert!(peer.session.has_backlog());
    peer.calls();
    peer.answer(Reply::Counted(3));
    peer.expect(&[M(1, wire::QueuePurgeOk { message_count: 3 }.into())]);
    assert_eq!(
        peer.calls(),
        [Call::Release(consumer), Call::Request(1, Request::Fence)]
    );
    assert!(!peer.session.has_backlog());
    peer.answer(Reply::Done);
    peer.expect(&[M(1, Method::ChannelCloseOk)]);
    expect_reopens(&mut peer, consumer);
}

#[test]
fn the_connections_close_ok_waits_and_nothing_counts_meanwhile() {
    let (mut peer, consumer) = with_consumer();
    peer.open_channel(2);
    let other = peer.consume(2, "other", false);
    peer.method(2, wire::ConfirmSelect { no_wait: true });
    peer.send(&publish(2, "void", "k", false, b""));
    // Channel 1 waits for its own fence, channel 2 for a reply.
    peer.method(1, bye());
    peer.method(
        2,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: false,
        },
    );
    peer.calls();
    let close = frame(0, close_connection(200, "bye", (0, 0)));
    // What comes in the same read as the close is ignored, as is what comes later.
    peer.send(&[&close[..], &close, &noise()].concat());
    peer.expect(&[M(
        2,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        }
        .into(),
    )]);
    assert_eq!(
        peer.calls(),
        [Call::Release(other), Call::Request(0, Request::Fence)]
    );
    assert_eq!(
        (
            peer.session.phase(),
            peer.unread(),
            peer.session.channel_count()
        ),
        (Phase::Ending, 0, 0)
    );

    peer.send(&close);
    peer.method(0, Method::ConnectionCloseOk);
    peer.method(3, Method::ChannelOpen);
    peer.send(b"no frame at all");
    peer.session.force_close("shutdown", &mut peer.host);
    peer.session.set_blocked(Some("low on memory"));
    peer.session.confirm(2, 1, true);
    peer.session.flush_confirms();
    peer.session.resume(&mut peer.host);
    peer.deliver(consumer, 12, false);
    peer.deliver(other, 13, false);
    // Channel 1's fence and channel 2's purge.
    peer.answer(Reply::Done);
    peer.answer(Reply::Counted(2));
    let (channel, id, _) = peer.host.asked.pop_front().unwrap();
    peer.session.reply(0, id - 1, Reply::Done, &mut peer.host);
    peer.session.reply(1, id, Reply::Done, &mut peer.host);
    peer.expect(&[]);
    assert_eq!(
        (peer.session.phase(), peer.unread(), peer.calls()),
        (Phase::Ending, 0, vec![])
    );
    // Heartbeats go on.
    peer.session.heartbeat();
    peer.expect(&[crate::peer::Beat]);

    peer.session.reply(channel, id, Reply::Done, &mut peer.host);
    peer.session.reply(channel, id, Reply::Done, &mut peer.host);
    peer.send(&close);
    peer.expect(&[M(0, Method::ConnectionCloseOk)]);
    assert_eq!(
        (peer.session.phase(), peer.host.asked.len()),
        (Phase::Closed, 0)
    );
}

#[test]
fn a_connection_that_holds_nothing_may_still_have_queues_of_its_own() {
    let mut peer = Peer::open();
    peer.host.hold_fences = true;
    peer.method(0, close_connection(200, "bye", (0, 0)));
    peer.expect(&[]);
    assert_eq!(
        (peer.session.phase(), peer.calls()),
        (Phase::Ending, vec![Call::Request(0, Request::Fence)])
    );
    peer.answer(Reply::Done);
    peer.expect(&[M(0, Method::ConnectionCloseOk)]);

    // During the handshake it has none.
    let mut peer = Peer::accepted(Limits::default());
    peer.host.hold_fences = true;
    peer.send(&PROTOCOL_HEADER);
    peer.session.out().clear();
    peer.method(0, close_connection(200, "bye", (0, 0)));
    peer.expect(&[M(0, Method::ConnectionCloseOk)]);
    assert_eq!(
        (peer.session.phase(), peer.calls()),
        (Phase::Closed, vec![])
    );
}

#[test]
fn the_servers_connection_close_waits_for_no_channel() {
    let (mut peer, consumer) = with_consumer();
    peer.send(&publish(1, "missing", "k", false, b""));
    peer.session.force_close("going down", &mut peer.host);
    peer.expect_connection_close(320, "CONNECTION_FORCED - going down", (0, 0));
    peer.answer(Reply::Done);
    peer.expect(&[]);
    assert_eq!(
        peer.calls()
            .iter()
            .filter(|c| **c == Call::Release(consumer))
            .count(),
        1
    );
    peer.method(0, Method::ConnectionCloseOk);
    assert_eq!(peer.session.phase(), Phase::Closed);
}
