//! Declarations: names, what may follow before an answer, the order of answers, and what waits.

use crate::peer::{Call, M, Peer, frame, publish, queue_ref, short};
use warren_model::command::{Binding, DeclareQueue, Destination};
use warren_model::{Command, Outcome, Refusal};
use warren_protocol as wire;
use warren_protocol::{Method, QueueBind, QueueDeclare, QueueDeclareOk};
use warren_session::{Phase, Reply, Request};

fn declare(name: &str) -> QueueDeclare<'_> {
    QueueDeclare {
        queue: short(name),
        ..Default::default()
    }
}

fn bind<'a>(queue: &'a str, key: &'a str) -> QueueBind<'a> {
    QueueBind {
        queue: short(queue),
        exchange: short("x1"),
        routing_key: short(key),
        ..Default::default()
    }
}

fn declare_ok(name: &str, message_count: u32, consumer_count: u32) -> Method<'_> {
    QueueDeclareOk {
        queue: short(name),
        message_count,
        consumer_count,
    }
    .into()
}

fn created(id: u64) -> Reply {
    Reply::Outcome(Outcome::Queue {
        id: queue_ref(id).id,
        place: queue_ref(id).place,
        created: true,
    })
}

#[test]
fn declares_follow_each_other_and_are_answered_in_order() {
    let mut peer = Peer::open();
    for name in ["a", "b", "c"] {
        peer.method(1, declare(name));
    }
    assert_eq!(peer.host.asked.len(), 3, "one does not wait for the other");
    peer.answer_nth(2, created(3));
    peer.answer_nth(1, created(2));
    peer.expect(&[]);
    // The first turns out to be there already: its numbers are asked for first.
    peer.answer(Reply::Outcome(Outcome::Queue {
        id: queue_ref(1).id,
        place: queue_ref(1).place,
        created: false,
    }));
    peer.expect(&[]);
    assert_eq!(peer.host.asked[0].2, Request::Count(queue_ref(1)));
    peer.answer(Reply::Counts {
        messages: u64::MAX,
        consumers: 1,
    });
    peer.expect(&[
        M(1, declare_ok("a", u32::MAX, 1)),
        M(1, declare_ok("b", 0, 0)),
        M(1, declare_ok("c", 0, 0)),
    ]);
}

#[test]
fn what_could_collide_waits() {
    let mut peer = Peer::open();
    // The same name twice; a queue that the client then binds; a refusal that the first may yet lift.
    for (first, second) in [
        (frame(1, declare("a")), frame(1, declare("a"))),
        (frame(1, declare("a")), frame(1, bind("a", "k"))),
        (frame(1, declare("a")), frame(1, declare("amq.no"))),
        (frame(1, declare("a")), frame(1, declare(""))),
        (
            frame(1, declare("a")),
            frame(
                1,
                QueueDeclare {
                    passive: true,
                    ..declare("q1")
                },
            ),
        ),
        (frame(1, bind("q1", "k")), frame(1, declare("a"))),
        (frame(1, bind("q1", "k")), frame(1, bind("none", "k"))),
        (frame(1, bind("q1", "k")), publish(1, "x", "k", false, b"")),
        (
            frame(
                1,
                wire::BasicGet {
                    queue: short("q1"),
                    no_ack: true,
                },
            ),
            frame(
                1,
                wire::BasicGet {
                    queue: short("q1"),
                    no_ack: true,
                },
            ),
        ),
    ] {
        peer.send(&first);
        peer.send(&second);
        assert_eq!(
            (peer.host.asked.len(), peer.calls().len()),
            (1, 1),
            "{second:?}"
        );
        assert!(peer.session.has_backlog());
        peer = Peer::open();
    }
    // Binds follow each other, and an equivalent one is not answered ahead of its turn.
    peer.method(1, bind("q1", "k"));
    peer.method(
        1,
        wire::QueueUnbind {
            queue: short("q1"),
            exchange: short("x1"),
            routing_key: short("z"),
            ..Default::default()
        },
    );
    peer.method(
        1,
        wire::ExchangeBind {
            destination: short("d"),
            source: short("x1"),
            no_wait: true,
            ..Default::default()
        },
    );
    peer.method(
        1,
        wire::ExchangeUnbind {
            destination: short("d"),
            source: short("x1"),
            ..Default::default()
        },
    );
    assert_eq!(peer.host.asked.len(), 4);
    for n in [3, 1, 1] {
        peer.answer_nth(n, Reply::Outcome(Outcome::Done));
    }
    peer.expect(&[]);
    peer.answer(Reply::Outcome(Outcome::Done));
    peer.expect(&[
        M(1, Method::QueueBindOk),
        M(1, Method::QueueUnbindOk),
        M(1, Method::ExchangeUnbindOk),
    ]);
}

#[test]
fn other_channels_go_on_while_one_waits() {
    let mut peer = Peer::open();
    peer.open_channel(2);
    peer.method(1, declare("a"));
    peer.send(&publish(1, "x", "waits", false, b"1"));
    peer.send(&publish(2, "x", "goes", false, b"2"));
    peer.send(&publish(1, "x", "waits", false, b"3"));
    peer.method(2, declare("b"));
    peer.answer_nth(1, created(2));
    peer.expect(&[M(2, declare_ok("b", 0, 0))]);
    peer.answer(created(1));
    peer.expect(&[M(1, declare_ok("a", 0, 0))]);
    let bodies: Vec<Vec<u8>> = peer
        .calls()
        .into_iter()
        .filter_map(|c| {
            if let Call::Publish { body, .. } = c {
                Some(body)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(bodies, [b"2", b"1", b"3"]);
}

#[test]
fn the_backlog_is_bounded_and_nothing_of_it_is_lost() {
    let mut peer = Peer::open();
    peer.method(1, declare("a"));
    let body = vec![7; 100_000];
    for _ in 0..30 {
        peer.send(&publish(1, "x", "k", false, &body));
    }
    assert!(
        peer.unread() > 1_000_000,
        "{} bytes are not taken",
        peer.unread()
    );
    assert_eq!(peer.host.offered, 0);
    peer.method(0, wire::ConnectionUpdateSecret::default());
    peer.expect(&[]);
    peer.answer(created(1));
    assert_eq!(
        (peer.unread(), peer.host.offered, peer.session.has_backlog()),
        (0, 30, false)
    );
    peer.expect(&[
        M(1, declare_ok("a", 0, 0)),
        M(0, Method::ConnectionUpdateSecretOk),
    ]);
    // Room is counted anew: a second round of the same.
    peer.method(1, declare("b"));
    for _ in 0..9 {
        peer.send(&publish(1, "x", "k", false, &body));
    }
    assert_eq!((peer.unread(), peer.session.has_backlog()), (0, true));
    peer.answer(created(2));
    assert_eq!(peer.host.offered, 39);
}

#[test]
fn the_pipeline_is_bounded() {
    let mut peer = Peer::open();
    let names: Vec<String> = (0..3000).map(|n| format!("q-{n}")).collect();
    let bytes: Vec<u8> = names
        .iter()
        .flat_map(|name| {
            frame(
                1,
                QueueDeclare {
                    no_wait: true,
                    ..declare(name)
                },
            )
        })
        .collect();
    peer.send(&bytes);
    assert_eq!((peer.host.asked.len(), peer.unread()), (2048, 0));
    peer.answer_all();
    assert!(!peer.session.has_backlog());
    assert_eq!(peer.host.queues.len(), 3003);
    // Room that a channel took is free again when it is closed, whatever it still waited for.
    for round in 0..3 {
        let bytes: Vec<u8> = (0..2048)
            .flat_map(|n| frame(1, declare(&format!("r-{round}-{n}"))))
            .collect();
        peer.send(&bytes);
        assert_eq!(peer.host.asked.len(), 2048, "round {round}");
        peer.answer(Reply::Refused(Refusal::precondition_failed("no")));
        peer.host.asked.clear();
        peer.method(1, Method::ChannelCloseOk);
        peer.session.out().clear();
        peer.open_channel(1);
    }
    // Large arguments go one at a time.
    let mut large = wire::OwnedTable::new();
    large.put("x", vec![b'v'; 5000].as_slice());
    let large = large.to_bytes();
    for name in ["l1", "l2"] {
        peer.method(
            1,
            QueueDeclare {
                arguments: wire::Table::parse(&large).unwrap(),
                ..declare(name)
            },
        );
    }
    assert_eq!(peer.host.asked.len(), 1);
    peer.answer_all();
    peer.expect(&[M(1, declare_ok("l1", 0, 0)), M(1, declare_ok("l2", 0, 0))]);
}

#[test]
fn a_place_that_went_down_is_chosen_anew() {
    let mut peer = Peer::open();
    peer.method(1, declare("a"));
    peer.method(1, declare("b"));
    let place = |request: &Request| match request {
        Request::Propose(Command::DeclareQueue(DeclareQueue { name, place, .. })) => {
            (name.clone(), *place)
        }
        other => panic!("{other:?}"),
    };
    let first = place(&peer.host.asked[0].2);
    peer.answer_nth(1, created(2));
    peer.answer(Reply::Outcome(Outcome::Retry));
    let second = place(&peer.host.asked[0].2);
    assert!(
        first.0 == "a" && second.0 == "a" && first.1 != second.1,
        "{first:?} {second:?}"
    );
    peer.answer(created(1));
    peer.expect(&[M(1, declare_ok("a", 0, 0)), M(1, declare_ok("b", 0, 0))]);
}

#[test]
fn an_empty_name_is_the_last_declared_queue() {
    let bound = |peer: &mut Peer| -> (Destination, Vec<u8>) {
        let (_, _, request) = peer.host.asked.back().unwrap();
        let Request::Propose(
            Command::Bind(Binding {
                destination, key, ..
            })
            | Command::Unbind(Binding {
                destination, key, ..
            }),
        ) = request
        else {
            panic!("{request:?}")
        };
        let found = (destination.clone(), key.clone());
        peer.answer_all();
        found
    };
    let queue = |name: &str| Destination::Queue(name.into());
    let mut peer = Peer::open();
    peer.method(1, declare("a"));
    peer.answer_all();
    for (name, key, expected) in [
        ("", "", ("a", "a")),
        ("", "k2", ("a", "k2")),
        ("q1", "", ("q1", "")),
    ] {
        peer.method(1, bind(name, key));
        assert_eq!(bound(&mut peer), (queue(expected.0), expected.1.into()));
        peer.method(
            1,
            wire::QueueUnbind {
                queue: short(name),
                exchange: short("x1"),
                routing_key: short(key),
                ..Default::default()
            },
        );
        assert_eq!(bound(&mut peer), (queue(expected.0), expected.1.into()));
    }
    // A passive declare counts; so does a server-made name.
    peer.method(
        1,
        QueueDeclare {
            passive: true,
            ..declare("q2")
        },
    );
    peer.answer_all();
    peer.method(1, bind("", ""));
    assert_eq!(bound(&mut peer), (queue("q2"), b"q2".to_vec()));
    peer.session.out().clear();
    peer.method(1, declare(""));
    let Request::Propose(Command::DeclareQueue(DeclareQueue {
        name,
        server_named: true,
        ..
    })) = &peer.host.asked[0].2
    else {
        panic!()
    };
    let name = name.clone();
    assert!(name.starts_with("amq.gen-") && name.len() == 30, "{name}");
    peer.answer_all();
    peer.expect(&[M(1, declare_ok(&name, 0, 0))]);
    peer.method(1, bind("", "k"));
    assert_eq!(bound(&mut peer).0, queue(&name));
    peer.session.out().clear();
    peer.open_channel(2);
    peer.method(2, bind("", ""));
    peer.expect_channel_close(2, 404, "NOT_FOUND - no previously declared queue", (50, 20));
}

#[test]
fn declares_of_what_is_there() {
    let mut peer = Peer::open();
    for (declare, request) in [
        (
            QueueDeclare {
                passive: true,
                ..declare("q1")
            },
            Some(Request::Count(queue_ref(1))),
        ),
        (declare("q2"), Some(Request::Count(queue_ref(2)))),
        (
            QueueDeclare {
                passive: true,
                no_wait: true,
                ..declare("q1")
            },
            None,
        ),
        (
            QueueDeclare {
                no_wait: true,
                ..declare("q1")
            },
            None,
        ),
    ] {
        peer.method(1, declare);
        assert_eq!(peer.host.asked.front().map(|(_, _, r)| r), request.as_ref());
        peer.answer_all();
        let name = String::from_utf8(declare.queue.as_bytes().to_vec()).unwrap();
        peer.expect(
            if request.is_some() {
                vec![M(1, declare_ok(&name, 3, 2))]
            } else {
                vec![]
            }
            .as_slice(),
        );
    }
    peer.method(
        1,
        wire::ExchangeDeclare {
            exchange: short("x1"),
            kind: short("direct"),
            passive: true,
            ..Default::default()
        },
    );
    peer.method(
        1,
        wire::ExchangeDeclare {
            exchange: short("x1"),
            kind: short("direct"),
            no_wait: true,
            ..Default::default()
        },
    );
    peer.method(
        1,
        wire::QueueDelete {
            queue: short("none"),
            ..Default::default()
        },
    );
    peer.method(
        1,
        wire::QueueDelete {
            queue: short("q1"),
            if_unused: true,
            ..Default::default()
        },
    );
    peer.answer_all();
    peer.method(
        1,
        wire::QueuePurge {
            queue: short("q1"),
            no_wait: true,
        },
    );
    peer.answer_all();
    peer.expect(&[
        M(1, Method::ExchangeDeclareOk),
        M(1, wire::QueueDeleteOk { message_count: 0 }.into()),
        M(1, wire::QueueDeleteOk { message_count: 4 }.into()),
    ]);
    peer.host.locked.insert("mine".into());
    let missing = "NOT_FOUND - no queue 'none' in vhost '/'";
    let locked =
        "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'";
    let reserved = "ACCESS_REFUSED - queue name 'amq.no' contains reserved prefix 'amq.*'";
    let default = "ACCESS_REFUSED - operation not permitted on the default exchange";
    for (method, code, text) in [
        (
            Method::from(QueueDeclare {
                passive: true,
                no_wait: true,
                ..declare("none")
            }),
            404,
            missing,
        ),
        (
            QueueDeclare {
                passive: true,
                ..declare("mine")
            }
            .into(),
            405,
            locked,
        ),
        (
            wire::QueueDelete {
                queue: short("mine"),
                ..Default::default()
            }
            .into(),
            405,
            locked,
        ),
        (
            wire::QueuePurge {
                queue: short("none"),
                no_wait: true,
            }
            .into(),
            404,
            missing,
        ),
        (declare("amq.no").into(), 403, reserved),
        (
            wire::ExchangeDeclare {
                kind: short("direct"),
                ..Default::default()
            }
            .into(),
            403,
            default,
        ),
        (
            QueueBind {
                queue: short("q1"),
                ..Default::default()
            }
            .into(),
            403,
            default,
        ),
        (
            wire::ExchangeDeclare {
                exchange: short("no"),
                passive: true,
                ..Default::default()
            }
            .into(),
            404,
            "NOT_FOUND - no exchange 'no' in vhost '/'",
        ),
    ] {
        peer.method(1, method);
        peer.expect_channel_close(1, code, text, method.class_method());
        peer.method(1, Method::ChannelCloseOk);
        peer.open_channel(1);
    }
    assert!(peer.host.asked.is_empty());
}

#[test]
fn a_refusal_in_the_pipeline_comes_after_the_answers_before_it() {
    let mut peer = Peer::open();
    for key in ["1", "2", "3"] {
        peer.method(1, bind("q1", key));
    }
    peer.answer_nth(
        1,
        Reply::Outcome(Outcome::Refused(Refusal::not_found(
            "no exchange 'x1' in vhost '/'",
        ))),
    );
    peer.answer_nth(1, Reply::Outcome(Outcome::Done));
    peer.expect(&[]);
    peer.answer(Reply::Outcome(Outcome::Done));
    peer.expect(&[
        M(1, Method::QueueBindOk),
        M(
            1,
            crate::peer::close_channel(404, "NOT_FOUND - no exchange 'x1' in vhost '/'", (50, 20)),
        ),
    ]);
    assert_eq!(peer.session.phase(), Phase::Running);
}

#[test]
fn an_answer_that_does_not_fit_is_an_internal_error() {
    for reply in [Reply::Done, Reply::Empty, Reply::Outcome(Outcome::Retry)] {
        let mut peer = Peer::open();
        peer.method(1, bind("q1", "k"));
        peer.answer(reply);
        let out = std::mem::take(peer.session.out());
        let said = crate::peer::frames(&out);
        assert!(
            matches!(&said[..], [M(0, Method::ConnectionClose(c))] if c.reply_code == 541),
            "{said:?}"
        );
    }
}
