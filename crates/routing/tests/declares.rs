//! Declaring, redeclaring and what refuses it, with RabbitMQ's texts (A01, A02, A27).

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{DeclareExchange, DeclareQueue, Place};
use warren_model::{Command, Incarnation, NodeId, Outcome, SessionId, ShardId};
use warren_protocol::OwnedValue;
use warren_routing::{Check, Event, Table};
use world::{
    ME, OTHER, World, args, binding, delete_exchange, exchange, exchange_binding, queue, text,
};

fn ttl(value: OwnedValue) -> DeclareQueue {
    DeclareQueue {
        arguments: args([("x-message-ttl", value)]),
        ..queue("q1")
    }
}

/// A01.
#[test]
fn redeclaring_compares_integers_by_value_and_everything_else_by_type() {
    let mut world = World::new();
    let created = world.run(Command::DeclareQueue(ttl(OwnedValue::I32(100))));
    let Outcome::Queue {
        id,
        place,
        created: true,
    } = created
    else {
        panic!("{created:?}")
    };
    assert_eq!(world.events, [Event::QueueCreated { id, place }]);
    let digest = world.table.digest();
    let widths = [
        OwnedValue::I8(100),
        OwnedValue::U8(100),
        OwnedValue::I16(100),
        OwnedValue::U16(100),
        OwnedValue::U32(100),
        OwnedValue::I64(100),
        OwnedValue::L64(100),
    ];
    for value in widths {
        assert_eq!(
            world.table.check_queue(&ttl(value.clone())),
            Check::Equivalent(Outcome::Queue {
                id,
                place,
                created: false
            })
        );
        assert_eq!(
            world.run(Command::DeclareQueue(ttl(value))),
            Outcome::Queue {
                id,
                place,
                created: false
            }
        );
        assert!(world.events.is_empty());
    }
    let current = "but current is the value '100' of type 'signedint'";
    let cases = [
        (ttl(text("100")), format!("inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': received the value '100' of type 'longstr' {current}")),
        (ttl(OwnedValue::I64(101)), format!("inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': received the value '101' of type 'long' {current}")),
        (ttl(OwnedValue::F64(100.0)), format!("inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': received the value '100.0' of type 'double' {current}")),
        (queue("q1"), format!("inequivalent arg 'x-message-ttl' for queue 'q1' in vhost '/': received none {current}")),
        (
            DeclareQueue { durable: false, ..ttl(OwnedValue::I32(100)) },
            "inequivalent arg 'durable' for queue 'q1' in vhost '/': received 'false' but current is 'true'".to_owned(),
        ),
        (
            DeclareQueue { auto_delete: true, ..ttl(OwnedValue::I32(100)) },
            "inequivalent arg 'auto_delete' for queue 'q1' in vhost '/': received 'true' but current is 'false'".to_owned(),
        ),
    ];
    for (declare, expected) in cases {
        let Check::Refused(checked) = world.table.check_queue(&declare) else {
            panic!("{declare:?}")
        };
        let refusal = world.refused(Command::DeclareQueue(declare));
        assert_eq!(
            (refusal.code, refusal.text.as_str()),
            (406, expected.as_str())
        );
        assert_eq!(
            checked, refusal,
            "what a session checks and what is applied agree"
        );
    }
    assert_eq!(world.table.digest(), digest);
    world.queue("plain");
    let declare = DeclareQueue {
        name: "plain".into(),
        ..ttl(OwnedValue::I64(1))
    };
    assert_eq!(
        world.refused(Command::DeclareQueue(declare)).text,
        "inequivalent arg 'x-message-ttl' for queue 'plain' in vhost '/': received the value '1' of type 'long' but current is none"
    );
}

#[test]
fn arguments_that_no_queue_type_knows_are_kept_and_not_compared() {
    let mut world = World::new();
    let with = |value: i32| DeclareQueue {
        arguments: args([("my-own", OwnedValue::I32(value))]),
        ..queue("q")
    };
    world.run(Command::DeclareQueue(with(1)));
    assert!(matches!(
        world.table.check_queue(&with(2)),
        Check::Equivalent(_)
    ));
    assert_eq!(
        world.table.queue("/", "q").unwrap().arguments,
        args([("my-own", OwnedValue::I32(1))])
    );
}

#[test]
fn naming_the_default_type_is_naming_none() {
    let mut world = World::new();
    let typed = |name: &str, kind: &str| DeclareQueue {
        arguments: args([("x-queue-type", text(kind))]),
        ..queue(name)
    };
    world.queue("q");
    assert!(matches!(
        world.table.check_queue(&typed("q", "classic")),
        Check::Equivalent(_)
    ));
    let Check::Refused(refusal) = world.table.check_queue(&typed("q", "quorum")) else {
        panic!()
    };
    assert_eq!(
        refusal.text,
        "inequivalent arg 'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none"
    );
    world.run(Command::DeclareQueue(typed("c", "classic")));
    assert!(matches!(
        world.table.check_queue(&queue("c")),
        Check::Equivalent(_)
    ));
    world.run(Command::DeclareQueue(typed("r", "quorum")));
    assert_eq!(world.table.queue("/", "r").unwrap().kind, "quorum");
    assert_eq!(world.table.queue("/", "c").unwrap().kind, "classic");
}

/// A02.
#[test]
fn an_exclusive_queue_is_locked_before_anything_else() {
    let mut world = World::new();
    world.exchange("x", "direct");
    let exclusive = DeclareQueue {
        exclusive: true,
        ..queue("q1")
    };
    assert!(matches!(
        world.run(Command::DeclareQueue(exclusive.clone())),
        Outcome::Queue { created: true, .. }
    ));
    let locked = "cannot obtain exclusive access to locked queue 'q1' in vhost '/'. It could be originally declared on another connection \
                  or the exclusive property value does not match that of the original declaration.";
    let by_other = |binding| warren_model::command::Binding {
        session: OTHER,
        ..binding
    };
    let commands = [
        Command::DeclareQueue(DeclareQueue {
            durable: false,
            session: OTHER,
            ..exclusive.clone()
        }),
        Command::DeclareQueue(DeclareQueue {
            session: OTHER,
            ..exclusive.clone()
        }),
        Command::DeclareQueue(DeclareQueue {
            session: OTHER,
            ..queue("q1")
        }),
        Command::DeclareQueue(queue("q1")),
        Command::Bind(by_other(binding("x", "k", "q1"))),
        Command::Bind(by_other(binding("missing", "k", "q1"))),
        Command::Unbind(by_other(binding("x", "k", "q1"))),
        Command::DeleteQueue {
            vhost: "/".into(),
            name: "q1".into(),
            only: None,
            session: OTHER,
        },
    ];
    for command in commands {
        let refusal = world.refused(command);
        assert_eq!((refusal.code, refusal.text.as_str()), (405, locked));
    }
    assert_eq!(
        world
            .table
            .check_passive_queue("/", "q1", OTHER)
            .unwrap_err()
            .code,
        405
    );
    assert_eq!(
        world.table.check_passive_queue("/", "q1", ME).unwrap().name,
        "q1"
    );
    assert!(matches!(
        world.table.check_queue(&exclusive),
        Check::Equivalent(_)
    ));
    // The other way round: an ordinary queue is not exclusive to anybody.
    world.queue("q2");
    assert_eq!(
        world
            .refused(Command::DeclareQueue(DeclareQueue {
                exclusive: true,
                ..queue("q2")
            }))
            .code,
        405
    );
    assert!(world.table.check_passive_queue("/", "q2", OTHER).is_ok());
    assert_eq!(
        world
            .table
            .check_passive_queue("/", "q3", OTHER)
            .unwrap_err()
            .text,
        "no queue 'q3' in vhost '/'"
    );
}

#[test]
fn the_owners_node_may_clean_up_one_life_of_an_exclusive_queue() {
    let mut world = World::new();
    let Outcome::Queue { id, .. } = world.run(Command::DeclareQueue(DeclareQueue {
        exclusive: true,
        ..queue("q")
    })) else {
        panic!()
    };
    let node = SessionId { number: 0, ..ME };
    let delete = |only| Command::DeleteQueue {
        vhost: "/".into(),
        name: "q".into(),
        only,
        session: node,
    };
    assert_eq!(world.refused(delete(None)).code, 405);
    assert!(
        matches!(world.run(delete(Some(id))), Outcome::Queue { id: gone, created: false, .. } if gone == id)
    );
    assert_eq!(
        world.run(delete(Some(id))),
        Outcome::Done,
        "deleting what is missing is fine"
    );
    world.queue("q");
    assert_eq!(
        world.run(delete(Some(id))),
        Outcome::Done,
        "another life of the queue is left alone"
    );
    assert!(world.table.queue("/", "q").is_some());
}

#[test]
fn exchanges_compare_their_properties_and_only_the_alternate_of_their_arguments() {
    let mut world = World::new();
    let arguments = args([("alternate-exchange", text("a")), ("other", text("1"))]);
    let declare = DeclareExchange {
        arguments,
        ..exchange("x", "topic")
    };
    world.done(Command::DeclareExchange(declare.clone()));
    let same = DeclareExchange {
        arguments: args([("alternate-exchange", text("a"))]),
        ..declare.clone()
    };
    assert_eq!(
        world.table.check_exchange(&same),
        Check::Equivalent(Outcome::Done)
    );
    let cases = [
        (
            DeclareExchange {
                kind: "direct".into(),
                ..same.clone()
            },
            "inequivalent arg 'type' for exchange 'x' in vhost '/': received 'direct' but current is 'topic'",
        ),
        (
            DeclareExchange {
                durable: false,
                ..same.clone()
            },
            "inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true'",
        ),
        (
            DeclareExchange {
                auto_delete: true,
                ..same.clone()
            },
            "inequivalent arg 'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            DeclareExchange {
                internal: true,
                ..same.clone()
            },
            "inequivalent arg 'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (
            DeclareExchange {
                arguments: Vec::new(),
                ..same.clone()
            },
            "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received none but current is the value 'a' of type 'longstr'",
        ),
    ];
    for (declare, expected) in cases {
        let refusal = world.refused(Command::DeclareExchange(declare));
        assert_eq!((refusal.code, refusal.text.as_str()), (406, expected));
    }
    let bad = DeclareExchange {
        arguments: args([("alternate-exchange", OwnedValue::I32(1))]),
        ..exchange("y", "topic")
    };
    assert_eq!(
        world.refused(Command::DeclareExchange(bad)).text,
        "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'y' in vhost '/'"
    );
    let unknown = world.refused(Command::DeclareExchange(exchange("y", "x-unheard-of")));
    assert_eq!(
        (unknown.code, unknown.text.as_str()),
        (406, "unknown exchange type 'x-unheard-of'")
    );
}

/// A27.
#[test]
fn the_default_exchange_and_reserved_names_are_off_limits() {
    let mut world = World::new();
    world.exchange("x", "direct").queue("q");
    let default = "operation not permitted on the default exchange";
    let commands = [
        Command::DeclareExchange(exchange("", "direct")),
        delete_exchange(""),
        Command::Bind(binding("", "k", "q")),
        Command::Unbind(binding("", "k", "q")),
        Command::Bind(exchange_binding("", "k", "x")),
        Command::Bind(exchange_binding("x", "k", "")),
    ];
    for command in commands {
        let refusal = world.refused(command);
        assert_eq!((refusal.code, refusal.text.as_str()), (403, default));
    }
    assert_eq!(
        world
            .table
            .check_passive_exchange("/", "")
            .unwrap_err()
            .code,
        403
    );
    assert_eq!(
        world
            .table
            .check_passive_exchange("/", "y")
            .unwrap_err()
            .text,
        "no exchange 'y' in vhost '/'"
    );
    assert_eq!(world.table.check_passive_exchange("/", "amq.topic"), Ok(()));
    let cases = [
        (
            delete_exchange("amq.direct"),
            "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
        ),
        (
            Command::DeclareExchange(exchange("amq.mine", "direct")),
            "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (
            Command::DeclareQueue(queue("amq.mine")),
            "queue name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
    ];
    for (command, expected) in cases {
        let refusal = world.refused(command);
        assert_eq!((refusal.code, refusal.text.as_str()), (403, expected));
    }
    assert_eq!(
        world
            .table
            .check_exchange(&exchange("amq.direct", "direct")),
        Check::Equivalent(Outcome::Done)
    );
    assert_eq!(
        world
            .refused(Command::DeclareExchange(exchange("amq.direct", "fanout")))
            .code,
        406
    );
    let server_named = DeclareQueue {
        server_named: true,
        ..queue("amq.gen-1")
    };
    assert!(matches!(
        world.run(Command::DeclareQueue(server_named)),
        Outcome::Queue { created: true, .. }
    ));
    let kinds: Vec<(&str, &str)> = world
        .table
        .exchanges("/")
        .map(|exchange| (exchange.name, exchange.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("", "direct"),
            ("amq.direct", "direct"),
            ("amq.fanout", "fanout"),
            ("amq.headers", "headers"),
            ("amq.match", "headers"),
            ("amq.topic", "topic"),
            ("x", "direct")
        ]
    );
}

#[test]
fn known_queue_arguments_are_validated() {
    let mut world = World::new();
    let quorum = || ("x-queue-type", text("quorum"));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            args([("x-expires", OwnedValue::I32(0))]),
            "invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}",
        ),
        (
            args([("x-expires", text("1"))]),
            "invalid arg 'x-expires' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
        ),
        (
            args([("x-message-ttl", OwnedValue::I32(-1))]),
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}",
        ),
        (
            args([("x-message-ttl", OwnedValue::I64(315_360_000_001))]),
            "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_too_large,315360000001}",
        ),
        (
            args([("x-max-length", OwnedValue::I32(-5))]),
            "invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-5}",
        ),
        (
            args([("x-max-length-bytes", OwnedValue::Bool(true))]),
            "invalid arg 'x-max-length-bytes' for queue 'q' in vhost '/': \"expected integer, got bool\"",
        ),
        (
            args([("x-max-priority", OwnedValue::I32(256))]),
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,256}",
        ),
        (
            args([("x-dead-letter-routing-key", text("k"))]),
            "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined",
        ),
        (
            args([("x-dead-letter-exchange", OwnedValue::I32(1))]),
            "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'",
        ),
        (
            args([("x-overflow", text("explode"))]),
            "invalid arg 'x-overflow' for queue 'q' in vhost '/': invalid_overflow",
        ),
        (
            args([("x-single-active-consumer", text("true"))]),
            "invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': {unacceptable_type,longstr}",
        ),
        (
            args([("x-queue-type", text("heap"))]),
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'heap'\"",
        ),
        (
            args([("x-queue-type", text("stream"))]),
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'stream'\"",
        ),
        (
            args([("x-queue-leader-locator", text("moon"))]),
            "invalid arg 'x-queue-leader-locator' for queue 'q' in vhost '/': invalid_queue_locator_arg",
        ),
        (
            args([("x-delivery-limit", OwnedValue::I32(1))]),
            "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
        ),
        (
            args([quorum(), ("x-max-priority", OwnedValue::I32(1))]),
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
        ),
    ];
    for (arguments, expected) in cases {
        let refusal = world.refused(Command::DeclareQueue(DeclareQueue {
            arguments,
            ..queue("q")
        }));
        assert_eq!((refusal.code, refusal.text.as_str()), (406, expected));
    }
    let quorum = DeclareQueue {
        arguments: args([quorum()]),
        ..queue("q")
    };
    let transient = world.refused(Command::DeclareQueue(DeclareQueue {
        durable: false,
        ..quorum.clone()
    }));
    assert_eq!(
        transient.text,
        "invalid property 'non-durable' for queue 'q' in vhost '/'"
    );
    assert_eq!(
        world
            .refused(Command::DeclareQueue(DeclareQueue {
                exclusive: true,
                ..quorum
            }))
            .code,
        406
    );
    let good = args([
        ("x-message-ttl", OwnedValue::I32(0)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("k")),
        ("x-max-priority", OwnedValue::U8(255)),
        ("x-overflow", text("reject-publish")),
    ]);
    assert!(matches!(
        world.run(Command::DeclareQueue(DeclareQueue {
            arguments: good,
            ..queue("q")
        })),
        Outcome::Queue { created: true, .. }
    ));
    world.check();
}

#[test]
fn a_place_that_is_gone_has_to_be_chosen_anew() {
    let mut world = World::new();
    let at = |place| {
        Command::DeclareQueue(DeclareQueue {
            place,
            ..queue("q")
        })
    };
    let digest = world.table.digest();
    assert_eq!(
        world.run(at(Place::Node(NodeId(1), Incarnation(2)))),
        Outcome::Retry
    );
    assert_eq!(
        world.run(at(Place::Node(NodeId(9), Incarnation(1)))),
        Outcome::Retry
    );
    assert_eq!(world.run(at(Place::Shard(ShardId(8)))), Outcome::Retry);
    let gone = SessionId {
        incarnation: Incarnation(0),
        ..ME
    };
    let orphan = DeclareQueue {
        exclusive: true,
        session: gone,
        ..queue("q")
    };
    assert_eq!(
        world.run(Command::DeclareQueue(orphan)),
        Outcome::Retry,
        "nobody would delete it any more"
    );
    assert_eq!(world.table.digest(), digest);
    assert!(matches!(
        world.run(at(Place::Node(NodeId(1), Incarnation(1)))),
        Outcome::Queue { created: true, .. }
    ));
    // An equivalent redeclare is answered whatever place it proposes.
    assert!(matches!(
        world.run(at(Place::Node(NodeId(9), Incarnation(1)))),
        Outcome::Queue { created: false, .. }
    ));
}

#[test]
fn a_missing_virtual_host_refuses_everything_in_it() {
    let mut world = World::new();
    let refusal = world.refused(Command::DeclareQueue(DeclareQueue {
        vhost: "v".into(),
        ..queue("q")
    }));
    assert_eq!(
        (refusal.code, refusal.text.as_str()),
        (530, "vhost v not found")
    );
    assert_eq!(
        world
            .refused(Command::DeclareExchange(DeclareExchange {
                vhost: "v".into(),
                ..exchange("x", "direct")
            }))
            .code,
        530
    );
    assert_eq!(world.table.queues("v").count(), 0);
    world.done(Command::PutVhost { name: "v".into() });
    assert_eq!(world.table.exchanges("v").count(), 6);
    assert!(matches!(
        world.run(Command::DeclareQueue(DeclareQueue {
            vhost: "v".into(),
            ..queue("q")
        })),
        Outcome::Queue { created: true, .. }
    ));
    world.check();
}

#[test]
fn a_shard_has_the_replicas_that_the_most_demanding_of_its_queues_asks_for() {
    let mut world = World::new();
    let declare = |name: &str, shard, size: i64| {
        Command::DeclareQueue(DeclareQueue {
            place: Place::Shard(ShardId(shard)),
            arguments: args([
                ("x-queue-type", text("quorum")),
                ("x-quorum-initial-group-size", OwnedValue::I64(size)),
            ]),
            ..queue(name)
        })
    };
    let sizes = |world: &World| [0, 1, 2].map(|shard| world.table.group_size(ShardId(shard)));
    assert_eq!(sizes(&world), [0, 0, 0]);
    for (name, shard, size) in [("a", 1, 5), ("b", 1, 7), ("c", 1, 7), ("d", 2, i64::MAX)] {
        assert!(matches!(
            world.run(declare(name, shard, size)),
            Outcome::Queue { created: true, .. }
        ));
    }
    // Declared again it counts once.
    world.run(declare("a", 1, 5));
    assert_eq!(sizes(&world), [0, 7, u32::MAX]);
    world.check();
    let restored = Table::restore(world.table.records(), world.table.index()).unwrap();
    assert_eq!(restored.group_size(ShardId(1)), 7);
    for (name, left) in [("b", 7), ("c", 5), ("a", 0)] {
        world.run(Command::DeleteQueue {
            vhost: "/".into(),
            name: name.into(),
            only: None,
            session: ME,
        });
        assert_eq!(sizes(&world), [0, left, u32::MAX], "without {name}");
    }
}
