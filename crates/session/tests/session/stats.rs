//! What is told of channels and consumers.

use crate::peer::{Peer, publish};
use warren_protocol as wire;
use warren_session::{ChannelStatus, MessageCounts, Reply};

fn channel(peer: &Peer, number: u16) -> ChannelStatus {
    let found = peer.session.channels().find(|c| c.number == number);
    found.expect("the channel is open")
}

#[test]
fn a_channel_counts_what_it_did_and_the_session_keeps_it() {
    let mut peer = Peer::open();
    peer.method(1, wire::ConfirmSelect { no_wait: true });
    peer.send(&publish(1, "x", "k", true, b"1"));
    peer.send(&publish(1, "void", "k", true, b"2"));
    peer.send(&publish(1, "void", "k", false, b"3"));
    assert_eq!(channel(&peer, 1).unconfirmed, 1);
    peer.session.confirm(1, 1, true);
    peer.session.flush_confirms();
    peer.session.out().clear();

    let (acks, no_ack) = (peer.consume(1, "a", false), peer.consume(1, "b", true));
    peer.deliver(acks, 1, false);
    peer.deliver(acks, 2, true);
    peer.deliver(no_ack, 0, false);
    peer.method(
        1,
        wire::BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    peer.method(
        1,
        wire::BasicGet {
            queue: crate::peer::short("q1"),
            no_ack: true,
        },
    );
    peer.answer(Reply::Empty);
    let counts = MessageCounts {
        publish: 3,
        confirm: 3,
        return_unroutable: 1,
        drop_unroutable: 1,
        deliver: 2,
        deliver_no_ack: 1,
        redeliver: 1,
        ack: 1,
        get_empty: 1,
        ..MessageCounts::default()
    };
    let status = channel(&peer, 1);
    assert_eq!(status.counts, counts);
    assert_eq!(
        (status.unacked, status.unconfirmed, status.consumers),
        (1, 0, 2)
    );
    assert!(status.confirm && !status.closing);

    peer.method(1, wire::ChannelClose::default());
    assert_eq!(peer.session.channels().count(), 0);
    assert_eq!(peer.session.counts(), counts, "closed channels count, too");
}

#[test]
fn what_is_recent_begins_at_the_mark_before_the_last() {
    let mut peer = Peer::open();
    let recent = |peer: &Peer| channel(peer, 1).recent.publish;
    for (marks, expected) in [(0, 1), (1, 2), (1, 2), (1, 2), (2, 1)] {
        for _ in 0..marks {
            peer.session.mark();
        }
        peer.send(&publish(1, "x", "k", false, b""));
        assert_eq!(recent(&peer), expected);
    }
}

#[test]
fn only_consumers_that_the_client_knows_of_are_told() {
    let mut peer = Peer::open();
    let tags = |peer: &Peer| -> Vec<(u16, Vec<u8>, bool)> {
        let all = peer.session.consumers();
        all.map(|c| (c.channel, c.tag.to_vec(), c.no_ack)).collect()
    };
    peer.consume(1, "a", true);
    peer.method(1, crate::peer::consume("b", false));
    assert_eq!(tags(&peer), [(1, b"a".to_vec(), true)]);
    peer.answer(Reply::Done);
    assert_eq!(
        tags(&peer),
        [(1, b"a".to_vec(), true), (1, b"b".to_vec(), false)]
    );
}
