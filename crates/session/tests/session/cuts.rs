//! However the bytes are cut, into reads and bodies into frames, the session does the same.

use crate::peer::{
    Call, Peer, consume, frame, open_vhost, opening, publish, publish_in_pieces, short,
};
use crate::rng::Rng;
use std::collections::BTreeSet;
use warren_protocol as wire;
use warren_protocol::{BasicPublish, Method};
use warren_session::Limits;

/// A bit of everything on one channel, in parts: the client waits for what it is told before it sends the next.
fn script() -> [Vec<u8>; 3] {
    let mut bytes = opening(&["consumer_cancel_notify"], 4096);
    bytes.extend(frame(1, Method::ChannelOpen));
    bytes.extend(frame(1, wire::ConfirmSelect { no_wait: false }));
    bytes.extend(publish(1, "x", "k", true, b"hello"));
    bytes.extend(publish(1, "void", "", true, b""));
    let method = BasicPublish {
        exchange: short("fan"),
        routing_key: short("k"),
        ..Default::default()
    };
    bytes.extend(publish_in_pieces(
        1,
        method,
        &[0x10, 0, 2],
        b"in several frames",
        || 7,
    ));
    bytes.extend(frame(
        1,
        wire::QueueDeclare {
            queue: short("new"),
            durable: true,
            ..Default::default()
        },
    ));
    bytes.extend(frame(
        1,
        wire::QueueBind {
            queue: short(""),
            exchange: short("x1"),
            ..Default::default()
        },
    ));
    bytes.extend(frame(
        1,
        wire::QueueBind {
            queue: short("q1"),
            exchange: short("x1"),
            routing_key: short("b"),
            ..Default::default()
        },
    ));
    bytes.extend(frame(1, consume("t", false)));
    bytes.extend([8, 0, 0, 0, 0, 0, 0, 0xce]);
    bytes.extend(publish(1, "x", "after", false, b"body"));
    bytes.extend(frame(
        1,
        wire::BasicGet {
            queue: short("q1"),
            no_ack: true,
        },
    ));
    bytes.extend(frame(
        1,
        wire::BasicAck {
            delivery_tag: 9,
            multiple: false,
        },
    ));
    bytes.extend(publish(1, "x", "ignored", false, b"body"));
    // Close-ok means nothing before the server's close is there.
    let mut reopened = frame(1, Method::ChannelCloseOk);
    reopened.extend(frame(1, Method::ChannelOpen));
    reopened.extend(publish(1, "x", "again", false, b"body"));
    reopened.extend(frame(1, consume("t", false)));
    // The connection's close overtakes requests that wait for the host.
    [bytes, reopened, frame(0, wire::ConnectionClose::default())]
}

fn run(pieces: &[&[u8]]) -> (Vec<Call>, Vec<u8>) {
    let mut peer = Peer::accepted(Limits::default());
    for piece in pieces {
        peer.send(piece);
        peer.answer_all();
    }
    assert_eq!(peer.unread(), 0);
    (peer.calls(), std::mem::take(peer.session.out()))
}

#[test]
fn a_cut_at_any_byte_changes_nothing() {
    let parts = script();
    let whole = run(&parts.each_ref().map(Vec::as_slice));
    assert!(whole.0.len() > 15, "{:?}", whole.0);
    for (n, part) in parts.iter().enumerate() {
        for at in 0..part.len() {
            let (a, b) = part.split_at(at);
            let mut pieces: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            pieces.splice(n..=n, [a, b]);
            assert_eq!(run(&pieces), whole, "part {n} cut at {at}");
        }
    }
    let bytes: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(1)).collect();
    assert_eq!(run(&bytes), whole, "byte by byte");
}

/// A publish, good or bad, on one of three channels.
struct Sent {
    channel: u16,
    exchange: &'static str,
    key: &'static [u8],
    mandatory: bool,
    immediate: bool,
    properties: &'static [u8],
    body: Vec<u8>,
}

fn some_publishes(rng: &mut Rng) -> Vec<Sent> {
    let rare = |rng: &mut Rng| rng.one_in(12);
    (0..40)
        .map(|_| Sent {
            channel: 1 + rng.below(3) as u16,
            exchange: if rare(rng) {
                ["missing", "internal", "down"][rng.below(3)]
            } else {
                ["x", "fan", "void"][rng.below(3)]
            },
            key: if rng.one_in(150) {
                b"\xff"
            } else {
                [&b"a"[..], b"", "é".as_bytes()][rng.below(3)]
            },
            mandatory: rng.one_in(2),
            immediate: rng.one_in(150),
            properties: if rare(rng) {
                // Bad expiration, another's user id, own user id, cut short, a second word of flags.
                let kinds = if rng.one_in(4) { 5 } else { 3 };
                [
                    &b"\x01\0\x03abc"[..],
                    b"\0\x10\x01x",
                    b"\0\x10\x05guest",
                    b"\x01\0\x01",
                    b"\0\x01\0\0",
                ][rng.below(kinds)]
            } else {
                [
                    &b"\0\0"[..],
                    b"\x10\0\x02",
                    b"\x01\0\x0260",
                    b"\x90\0\x01t\x02",
                ][rng.below(4)]
            },
            body: (0..[0, 1, 50, 300][rng.below(4)])
                .map(|_| rng.next() as u8)
                .collect(),
        })
        .collect()
}

fn encode(sent: &Sent, piece: impl FnMut() -> usize) -> Vec<u8> {
    let routing_key = wire::ShortStr::new(sent.key).unwrap();
    let method = BasicPublish {
        exchange: short(sent.exchange),
        routing_key,
        mandatory: sent.mandatory,
        immediate: sent.immediate,
    };
    publish_in_pieces(sent.channel, method, sent.properties, &sent.body, piece)
}

fn publish_all(reads: &[&[u8]], hold_once: BTreeSet<usize>) -> (Vec<Call>, Vec<u8>) {
    let mut peer = Peer::open();
    for channel in 2..=3 {
        peer.open_channel(channel);
        peer.method(channel, wire::ConfirmSelect { no_wait: true });
    }
    peer.host.hold_once = hold_once;
    for read in reads {
        peer.send(read);
        // Held ones come again when the host is asked anew.
        while peer.unread() > 0 && peer.host.held > 0 {
            peer.host.held = 0;
            peer.session.resume(&mut peer.host);
            peer.send(&[]);
        }
    }
    assert_eq!(peer.unread(), 0);
    peer.session.flush_confirms();
    (peer.calls(), std::mem::take(peer.session.out()))
}

#[test]
fn whole_publishes_and_those_in_pieces_come_to_the_same() {
    let mut taken = 0;
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let sent = some_publishes(&mut rng);
        let whole: Vec<u8> = sent.iter().flat_map(|s| encode(s, || usize::MAX)).collect();
        let expected = publish_all(&[&whole], BTreeSet::new());
        taken += expected.0.len();

        let pieces: Vec<u8> = sent
            .iter()
            .flat_map(|s| encode(s, || 1 + rng.below(200)))
            .collect();
        for bytes in [&whole, &pieces] {
            let mut reads = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (read, others) = rest.split_at((1 + rng.below(900)).min(rest.len()));
                reads.push(read);
                rest = others;
            }
            let holds = (0..20).map(|_| rng.below(40)).collect();
            assert_eq!(publish_all(&reads, holds), expected, "seed {seed}");
        }
    }
    assert!(taken > 3000, "{taken}");
}

#[test]
fn bytes_after_open_may_come_with_it() {
    let mut bytes = opening(&[], 4096);
    bytes.extend(frame(1, Method::ChannelOpen));
    bytes.extend(publish(1, "x", "k", false, b"b"));
    let mut peer = Peer::accepted(Limits::default());
    peer.send(&bytes);
    assert_eq!((peer.unread(), peer.calls().len()), (0, 1));
    peer.send(&open_vhost("/"));
    assert_eq!(peer.session.phase(), warren_session::Phase::Closing);
}
