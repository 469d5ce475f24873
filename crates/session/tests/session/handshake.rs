//! The handshake in order, out of order, and refused.

use crate::peer::{
    Beat, Call, M, Peer, close_connection, frame, frames, open_vhost, short, start_ok, tune_ok,
};
use warren_protocol as wire;
use warren_protocol::{Method, PROTOCOL_HEADER};
use warren_session::{Limits, Phase, Request};

const PLAIN: &[u8] = b"\0guest\0secret";

/// A connection that waits for tune-ok.
fn logged_in(limits: Limits) -> Peer {
    let mut peer = Peer::accepted(limits);
    peer.send(&PROTOCOL_HEADER);
    peer.send(&start_ok("PLAIN", PLAIN, &[]));
    peer.session.out().clear();
    peer
}

#[test]
fn step_by_step_with_heartbeats_in_between() {
    let mut peer = Peer::accepted(Limits::default());
    peer.send(&PROTOCOL_HEADER);
    let out = std::mem::take(peer.session.out());
    let said = frames(&out);
    let [M(0, Method::ConnectionStart(start))] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(
        (start.version_major, start.version_minor, start.mechanisms),
        (0, 9, &b"PLAIN AMQPLAIN"[..])
    );
    let text = |key| match start.server_properties.get(key) {
        Some(wire::Value::LongStr(text)) => String::from_utf8_lossy(text).into_owned(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!(
        (
            text("version"),
            text("warren_version"),
            text("cluster_name"),
            text("node")
        ),
        ("4.2.0".into(), "0.1.0".into(), "c".into(), "n1".into())
    );
    let Some(wire::Value::Table(capabilities)) = start.server_properties.get("capabilities") else {
        panic!()
    };
    assert_eq!(
        capabilities.get("publisher_confirms"),
        Some(wire::Value::Bool(true))
    );

    let beat = [8, 0, 0, 0, 0, 0, 0, 0xce];
    peer.send(&beat);
    peer.send(&start_ok(
        "AMQPLAIN",
        b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x06secret",
        &[],
    ));
    peer.expect(&[M(
        0,
        wire::ConnectionTune {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 60,
        }
        .into(),
    )]);
    assert_eq!(
        (peer.session.user(), peer.session.client()),
        ("guest", "test")
    );
    peer.send(&beat);
    peer.send(&tune_ok(10, 4096, 2));
    peer.send(&beat);
    peer.send(&open_vhost("/"));
    peer.expect(&[M(0, Method::ConnectionOpenOk)]);
    assert_eq!(
        (
            peer.session.phase(),
            peer.session.vhost(),
            peer.session.heartbeat_s()
        ),
        (Phase::Running, "/", 2)
    );
    peer.session.heartbeat();
    peer.expect(&[Beat]);
    // The channel limit holds.
    peer.open_channel(10);
    peer.method(11, Method::ChannelOpen);
    peer.expect_connection_close(
        530,
        "NOT_ALLOWED - channel number 11 is beyond the negotiated channel_max (10)",
        (20, 10),
    );
}

#[test]
fn other_protocols_are_answered_with_the_header_as_soon_as_they_show() {
    for first in [
        &b"AMQP\0\x01\0\0"[..],
        b"AMQP\0\0\x08\0",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\0\x01",
        b"AMQX",
    ] {
        let mut peer = Peer::accepted(Limits::default());
        peer.send(first);
        assert_eq!(
            (peer.session.phase(), &peer.session.out()[..]),
            (Phase::Closed, &PROTOCOL_HEADER[..]),
            "{first:?}"
        );
        peer.send(b"more");
        assert_eq!((peer.unread(), peer.session.out().len()), (0, 8));
    }
    let mut peer = Peer::accepted(Limits::default());
    peer.send(b"AMQ");
    assert_eq!(
        (
            peer.session.phase(),
            peer.unread(),
            peer.session.out().len()
        ),
        (Phase::Header, 3, 0)
    );
    peer.session.force_close("shutdown", &mut peer.host);
    assert_eq!(
        (peer.session.phase(), peer.session.out().len()),
        (Phase::Closed, 0),
        "nobody there to understand a close"
    );
}

#[test]
fn methods_out_of_order_close_the_connection() {
    let steps: [&dyn Fn() -> Vec<u8>; 3] = [
        &|| start_ok("PLAIN", PLAIN, &[]),
        &|| tune_ok(0, 131_072, 0),
        &|| open_vhost("/"),
    ];
    for done in 0..3 {
        for wrong in 0..3 {
            if wrong == done {
                continue;
            }
            let mut peer = Peer::accepted(Limits {
                channel_max: 0,
                ..Limits::default()
            });
            peer.send(&PROTOCOL_HEADER);
            for step in &steps[..done] {
                peer.send(&step());
            }
            peer.session.out().clear();
            peer.send(&steps[wrong]());
            let state = ["StartOk", "TuneOk", "Open"][done];
            let (name, method) = [
                ("start-ok", (10, 11)),
                ("tune-ok", (10, 31)),
                ("open", (10, 40)),
            ][wrong];
            peer.expect_connection_close(503, &format!("COMMAND_INVALID - unexpected method 'connection.{name}' on channel 0 in state {state}"), method);
        }
    }
    let mut peer = logged_in(Limits::default());
    peer.method(1, Method::ChannelOpen);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - the connection is not open yet",
        (20, 10),
    );
}

#[test]
fn a_refused_login_is_told_only_to_who_understands() {
    for (response, why) in [
        (&b"\0guest\0wrong"[..], "wrong password"),
        (b"guest", "malformed response for mechanism PLAIN"),
    ] {
        let mut peer = Peer::accepted(Limits::default());
        peer.send(&PROTOCOL_HEADER);
        peer.session.out().clear();
        peer.send(&start_ok(
            "PLAIN",
            response,
            &["authentication_failure_close"],
        ));
        let text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.";
        peer.expect_connection_close(403, text, (0, 0));
        assert_eq!(peer.session.refused_login(), Some(why));
    }
    let mut peer = Peer::accepted(Limits::default());
    peer.send(&PROTOCOL_HEADER);
    peer.session.out().clear();
    peer.send(&start_ok("PLAIN", b"\0guest\0wrong", &[]));
    peer.expect(&[]);
    assert_eq!(peer.session.phase(), Phase::Closed);

    let mut peer = Peer::accepted(Limits::default());
    peer.send(&PROTOCOL_HEADER);
    peer.session.out().clear();
    peer.send(&start_ok("SCRAM", b"", &[]));
    peer.expect_connection_close(
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'SCRAM'",
        (10, 11),
    );
}

#[test]
fn tuned_values_beyond_what_was_offered() {
    let high = |name: &str, value: &str, most: u32| {
        format!(
            "NOT_ALLOWED - negotiated {name} = {value} is higher than the maximum allowed value ({most})"
        )
    };
    for (channel_max, frame_max, text) in [
        (0, 131_072, high("channel_max", "no limit (0)", 2047)),
        (2048, 131_072, high("channel_max", "2048", 2047)),
        (65535, 131_072, high("channel_max", "65535", 2047)),
        (2047, 0, high("frame_max", "no limit (0)", 131_072)),
        (2047, 131_073, high("frame_max", "131073", 131_072)),
        (2047, 100, "NOT_ALLOWED - negotiated frame_max = 100 is lower than the minimum allowed value (4096)".into()),
    ] {
        let mut peer = logged_in(Limits::default());
        peer.send(&tune_ok(channel_max, frame_max, 60));
        peer.expect_connection_close(530, &text, (10, 31));
        // What follows is ignored, and close-ok ends it.
        peer.send(&open_vhost("/"));
        peer.expect(&[]);
        peer.method(0, Method::ConnectionCloseOk);
        assert_eq!(peer.session.phase(), Phase::Closed);
    }
    for (channel_max, frame_max) in [(1, 4096), (2047, 131_072)] {
        let mut peer = logged_in(Limits::default());
        peer.send(&tune_ok(channel_max, frame_max, 0));
        peer.expect(&[]);
        assert_eq!(peer.session.phase(), Phase::Open);
    }
    for (channel_max, frame_max) in [(0, 0), (65535, 9), (3, 1 << 30)] {
        let mut peer = logged_in(Limits {
            channel_max: 0,
            frame_max: 0,
            ..Limits::default()
        });
        peer.send(&tune_ok(channel_max, frame_max, 0));
        assert_eq!(
            peer.session.phase(),
            if frame_max == 9 {
                Phase::Closing
            } else {
                Phase::Open
            }
        );
    }
}

#[test]
fn virtual_hosts_that_cannot_be_opened() {
    for (vhost, text) in [
        ("missing", "NOT_ALLOWED - vhost missing not found"),
        ("", "NOT_ALLOWED - vhost  not found"),
        ("%2F", "NOT_ALLOWED - vhost %2F not found"),
        (
            "forbidden",
            "NOT_ALLOWED - access to vhost 'forbidden' refused for user 'guest'",
        ),
    ] {
        let mut peer = logged_in(Limits::default());
        peer.send(&tune_ok(1, 4096, 0));
        peer.send(&open_vhost(vhost));
        peer.expect_connection_close(530, text, (10, 40));
    }
}

#[test]
fn either_side_closes_the_connection() {
    let mut peer = Peer::open();
    let consumer = peer.consume(1, "t", false);
    peer.method(
        0,
        wire::ConnectionClose {
            reply_code: 200,
            reply_text: short("bye"),
            class_id: 0,
            method_id: 0,
        },
    );
    peer.expect(&[M(0, Method::ConnectionCloseOk)]);
    assert_eq!(peer.session.phase(), Phase::Closed);
    assert_eq!(
        peer.calls(),
        [Call::Release(consumer), Call::Request(0, Request::Fence)]
    );

    let mut peer = Peer::open();
    peer.session.force_close("going down", &mut peer.host);
    peer.session.force_close("twice", &mut peer.host);
    peer.expect_connection_close(320, "CONNECTION_FORCED - going down", (0, 0));
    peer.method(
        1,
        Method::ConfirmSelect(wire::ConfirmSelect { no_wait: false }),
    );
    peer.expect(&[]);
    // Both at once.
    peer.send(&frame(0, close_connection(200, "bye", (0, 0))));
    peer.expect(&[M(0, Method::ConnectionCloseOk)]);
    assert_eq!(
        (peer.session.phase(), peer.calls()),
        (Phase::Closed, vec![])
    );
}

#[test]
fn frames_that_cannot_be_read_end_it_at_once() {
    for (bytes, text) in [
        (
            &[1, 0, 1, 0, 2, 0, 1][..],
            "FRAME_ERROR - frame of 131081 bytes is larger than the negotiated frame_max of 131072",
        ),
        (
            &[1, 0, 1, 0, 0, 0, 1, 7, 7],
            "FRAME_ERROR - frame ends with octet 0x07, expected 0xce",
        ),
        (b"junk", "FRAME_ERROR - unknown frame type 106"),
    ] {
        let mut peer = Peer::open();
        let consumer = peer.consume(1, "t", false);
        peer.send(bytes);
        peer.expect_connection_close(501, text, (0, 0));
        assert_eq!(
            (peer.session.phase(), peer.unread(), peer.calls()),
            (Phase::Closed, 0, vec![Call::Release(consumer)])
        );
    }
}

#[test]
fn channel_0_carries_the_connection_alone() {
    let mut peer = Peer::open();
    peer.method(
        0,
        wire::ConnectionUpdateSecret {
            new_secret: b"s",
            reason: short("r"),
        },
    );
    peer.expect(&[M(0, Method::ConnectionUpdateSecretOk)]);
    peer.method(0, wire::ConnectionBlocked { reason: short("r") });
    peer.method(0, Method::ConnectionUnblocked);
    peer.expect(&[]);
    peer.send(&[8, 0, 0, 0, 0, 0, 1, 9, 0xce]);
    peer.expect_connection_close(501, "FRAME_ERROR - heartbeat frame with a payload", (0, 0));

    let mut peer = Peer::open();
    peer.send(&[8, 0, 1, 0, 0, 0, 0, 0xce]);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - heartbeat frame on a channel other than 0",
        (0, 0),
    );
    let mut peer = Peer::open();
    peer.send(&[3, 0, 0, 0, 0, 0, 1, 1, 0xce]);
    peer.expect_connection_close(
        505,
        "UNEXPECTED_FRAME - expected method frame on channel 0, got non method frame instead",
        (0, 0),
    );
    let mut peer = Peer::open();
    peer.method(0, Method::ConnectionCloseOk);
    peer.expect_connection_close(
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (10, 51),
    );
    let mut peer = Peer::open();
    peer.method(0, Method::ChannelOpen);
    peer.expect_connection_close(
        504,
        "CHANNEL_ERROR - unexpected method in connection state running",
        (20, 10),
    );
}

#[test]
fn blocked_is_told_once_an_edge_to_who_announced_it() {
    let mut peer = Peer::open();
    peer.session.set_blocked(Some("low on memory"));
    peer.session.set_blocked(Some("low on disk"));
    peer.expect(&[M(
        0,
        wire::ConnectionBlocked {
            reason: short("low on memory"),
        }
        .into(),
    )]);
    peer.session.set_blocked(None);
    peer.session.set_blocked(None);
    peer.expect(&[M(0, Method::ConnectionUnblocked)]);
    let mut peer = Peer::open_with(&[], 4096);
    peer.session.set_blocked(Some("low on memory"));
    peer.session.set_blocked(None);
    peer.expect(&[]);
}

#[test]
fn a_certificate_logs_in_without_a_password_and_only_with_one() {
    let say_external = start_ok("EXTERNAL", b"", &[]);
    let mut without = Peer::accepted(Limits::default());
    without.send(&PROTOCOL_HEADER);
    without.session.out().clear();
    without.send(&say_external);
    without.expect_connection_close(
        503,
        "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'",
        (10, 11),
    );

    for (user, phase) in [("CN=known", Phase::TuneOk), ("CN=else", Phase::Closed)] {
        let mut peer = Peer::accepted(Limits::default());
        peer.session.set_certified(user.into());
        peer.send(&PROTOCOL_HEADER);
        let out = std::mem::take(peer.session.out());
        let [M(0, Method::ConnectionStart(start))] = frames(&out)[..] else {
            panic!()
        };
        assert_eq!(start.mechanisms, b"PLAIN AMQPLAIN EXTERNAL");
        peer.send(&say_external);
        assert_eq!(peer.session.phase(), phase, "{user}");
        assert_eq!(
            peer.session.user(),
            if phase == Phase::TuneOk { user } else { "" }
        );
    }
}

#[test]
fn a_login_that_takes_time_holds_the_client_up_until_its_verdict() {
    let begun = |capabilities: &[&str]| {
        let mut peer = Peer::accepted(Limits::default());
        peer.send(&PROTOCOL_HEADER);
        peer.session.out().clear();
        // All that follows is sent at once, and waits.
        let mut bytes = start_ok("PLAIN", b"\0slow\0secret", capabilities);
        bytes.extend(tune_ok(10, 4096, 2));
        bytes.extend(open_vhost("/"));
        peer.send(&bytes);
        assert_eq!(peer.session.phase(), Phase::Login);
        peer.expect(&[]);
        peer
    };
    let mut peer = begun(&[]);
    peer.session.login_checked(Ok(()), &mut peer.host);
    assert_eq!(
        (peer.session.phase(), peer.session.user()),
        (Phase::TuneOk, "slow")
    );
    peer.session.out().clear();
    peer.send(&[]);
    peer.expect(&[M(0, Method::ConnectionOpenOk)]);
    assert_eq!(peer.session.phase(), Phase::Running);
    // A verdict too many means nothing.
    peer.session
        .login_checked(Err("late".into()), &mut peer.host);
    assert_eq!(peer.session.phase(), Phase::Running);

    let mut peer = begun(&["authentication_failure_close"]);
    peer.session
        .login_checked(Err("wrong password".into()), &mut peer.host);
    peer.expect_connection_close(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        (0, 0),
    );
    assert_eq!(peer.session.refused_login(), Some("wrong password"));
    let mut peer = begun(&[]);
    peer.session
        .login_checked(Err("wrong password".into()), &mut peer.host);
    assert_eq!(peer.session.phase(), Phase::Closed);
    peer.expect(&[]);
}
