//! Policies: which one applies, what operators say to it, and alternate exchanges that follow at once.
#![allow(clippy::unwrap_used)]

mod world;

use warren_model::Command;
use warren_model::command::{ApplyTo, Policy};
use warren_protocol::{OwnedValue, Table as FieldTable};
use warren_routing::{Applied, Table};
use world::{World, args, delete_exchange, text};

fn policy(name: &str, pattern: &str, priority: i64, definition: Vec<u8>) -> Policy {
    Policy {
        vhost: "/".into(),
        operator: false,
        name: name.into(),
        pattern: pattern.into(),
        apply_to: ApplyTo::All,
        priority,
        definition,
    }
}

fn alternate(name: &str, pattern: &str, priority: i64, exchange: &str) -> Command {
    let definition = args([("alternate-exchange", text(exchange))]);
    Command::PutPolicy(policy(name, pattern, priority, definition))
}

fn delete(name: &str, operator: bool) -> Command {
    Command::DeletePolicy {
        vhost: "/".into(),
        operator,
        name: name.into(),
    }
}

fn restored(world: &World) -> Table {
    Table::restore(world.table.records(), world.table.index()).unwrap()
}

#[test]
fn an_alternate_exchange_by_policy_follows_at_once() {
    let mut w = World::new();
    w.exchange("x", "direct")
        .exchange("lost", "fanout")
        .queue("q");
    w.bind("lost", "", "q");
    assert!(w.route("x", "k").is_empty());
    w.done(alternate("p", "^x", 0, "lost"));
    assert_eq!(w.route("x", "k"), ["q"]);
    w.exchange("x2", "direct");
    assert_eq!(
        w.route("x2", "k"),
        ["q"],
        "of exchanges that come later, too"
    );
    assert!(
        w.route("amq.direct", "k").is_empty(),
        "its name does not match"
    );

    w.done(alternate("p", "^y", 0, "lost"));
    assert!(w.route("x", "k").is_empty(), "another pattern");
    w.done(alternate("p", "^x", 0, "missing"));
    assert!(w.route("x", "k").is_empty(), "passed over");
    w.exchange("missing", "fanout").bind("missing", "", "q");
    assert_eq!(w.route("x", "k"), ["q"], "as soon as it exists");
    w.done(delete("p", false));
    assert!(w.route("x", "k").is_empty());
    w.done(delete("p", false));
    w.check();
}

#[test]
fn the_definition_goes_before_policies() {
    let mut w = World::new();
    w.exchange("a", "fanout")
        .exchange("b", "fanout")
        .queues(&["qa", "qb"]);
    w.bind("a", "", "qa").bind("b", "", "qb");
    let mut own = world::exchange("x", "direct");
    own.arguments = args([("alternate-exchange", text("a"))]);
    w.done(Command::DeclareExchange(own));
    w.done(alternate("p", ".*", 9, "b"));
    assert_eq!(w.route("x", "k"), ["qa"]);
    w.done(delete_exchange("x"));
    w.exchange("x", "direct");
    assert_eq!(w.route("x", "k"), ["qb"]);
}

#[test]
fn the_greatest_priority_applies_whole_and_then_the_first_name() {
    let mut w = World::new();
    let number = |key| args([(key, OwnedValue::I64(1))]);
    w.done(Command::PutPolicy(policy("c", "q", 1, number("expires"))));
    w.done(Command::PutPolicy(policy(
        "b",
        "q",
        1,
        number("max-length"),
    )));
    w.done(Command::PutPolicy(policy(
        "a",
        "q",
        0,
        number("message-ttl"),
    )));
    let of = |w: &World, queue: &str| {
        let found = w.table.policy_of_queue("/", queue, "classic");
        (found.policy.map(str::to_owned), found.definition)
    };
    assert_eq!(of(&w, "q"), (Some("b".into()), number("max-length")));
    assert_eq!(of(&w, "other"), (None, vec![]));
    w.done(delete("b", false));
    assert_eq!(of(&w, "q").0.as_deref(), Some("c"));
    w.done(delete("c", false));
    assert_eq!(of(&w, "q").0.as_deref(), Some("a"));
}

#[test]
fn a_policy_applies_to_what_it_says() {
    let mut w = World::new();
    let applies = |w: &mut World, apply_to| {
        w.done(Command::PutPolicy(Policy {
            apply_to,
            ..policy("p", ".*", 0, args([("alternate-exchange", text("a"))]))
        }));
        let queue = |kind| w.table.policy_of_queue("/", "n", kind).policy.is_some();
        [
            w.table.policy_of_exchange("/", "n").policy.is_some(),
            queue("classic"),
            queue("quorum"),
            queue("stream"),
        ]
    };
    for (apply_to, expected) in [
        (ApplyTo::All, [true; 4]),
        (ApplyTo::Exchanges, [true, false, false, false]),
        (ApplyTo::Queues, [false, true, true, true]),
        (ApplyTo::ClassicQueues, [false, true, false, false]),
        (ApplyTo::QuorumQueues, [false, false, true, false]),
        (ApplyTo::Streams, [false, false, false, true]),
    ] {
        assert_eq!(applies(&mut w, apply_to), expected, "{apply_to:?}");
    }
    assert_eq!(w.table.policy_of_exchange("/", "").policy, None);
}

#[test]
fn operators_bound_what_policies_set() {
    let mut w = World::new();
    let i = OwnedValue::I64;
    w.done(Command::PutPolicy(policy(
        "p",
        ".*",
        0,
        args([
            ("max-length", i(10)),
            ("expires", i(500)),
            ("target-group-size", i(5)),
            ("overflow", text("drop-head")),
            ("dead-letter-exchange", text("d")),
        ]),
    )));
    w.done(Command::PutPolicy(Policy {
        operator: true,
        ..policy(
            "o",
            ".*",
            0,
            args([
                ("max-length", i(100)),
                ("expires", i(50)),
                ("target-group-size", i(3)),
                ("overflow", text("reject-publish")),
                ("delivery-limit", i(3)),
            ]),
        )
    }));
    let found = w.table.policy_of_queue("/", "q", "quorum");
    assert_eq!(
        (found.policy, found.operator_policy),
        (Some("p"), Some("o"))
    );
    let merged = args([
        ("dead-letter-exchange", text("d")),
        ("delivery-limit", i(3)),
        ("expires", i(50)),
        ("max-length", i(10)),
        ("overflow", text("reject-publish")),
        ("target-group-size", i(5)),
    ]);
    assert_eq!(
        FieldTable::parse(&found.definition)
            .unwrap()
            .to_owned_table(),
        FieldTable::parse(&merged).unwrap().to_owned_table()
    );
}

#[test]
fn policies_survive_as_records_and_go_with_their_virtual_host() {
    let mut w = World::new();
    let empty = w.table.digest();
    w.done(Command::PutVhost { name: "v".into() });
    for operator in [false, true] {
        w.done(Command::PutPolicy(Policy {
            vhost: "v".into(),
            operator,
            priority: -5,
            apply_to: ApplyTo::Exchanges,
            ..policy("p", "^amq", 0, args([("alternate-exchange", text("a"))]))
        }));
    }
    w.done(Command::PutGlobalParameter {
        name: "g".into(),
        value: "{\"a\":1}".into(),
    });
    let again = restored(&w);
    assert_eq!(again.digest(), w.table.digest());
    assert_eq!(again.policy("v", true, "p"), w.table.policy("v", true, "p"));
    assert_eq!(again.policies("v", false).count(), 1);
    assert_eq!(
        again.global_parameters().collect::<Vec<_>>(),
        [("g", "{\"a\":1}")]
    );
    w.check();
    w.done(Command::DeleteVhost { name: "v".into() });
    w.done(Command::DeleteGlobalParameter { name: "g".into() });
    assert_eq!(w.table.digest(), empty, "nothing is left");
    w.check();
}

#[test]
fn topic_permissions_are_records_that_go_with_their_user_and_virtual_host() {
    use warren_model::command::{PasswordHashing, TopicPermission, User};
    let mut w = World::new();
    let user = |name: &str| {
        Command::PutUser(User {
            name: name.into(),
            password_hash: vec![],
            hashing: PasswordHashing::SaltedSha256,
            tags: vec![],
        })
    };
    let permission = |user: &str, vhost: &str, exchange: &str| {
        Command::SetTopicPermission(TopicPermission {
            user: user.into(),
            vhost: vhost.into(),
            exchange: exchange.into(),
            write: "w".into(),
            read: "r".into(),
        })
    };
    let clear = |exchange: Option<&str>| Command::ClearTopicPermissions {
        user: "u".into(),
        vhost: "/".into(),
        exchange: exchange.map(str::to_owned),
    };
    assert_eq!(w.refused(permission("u", "/", "x")).code, 404);
    w.done(user("u"));
    w.done(user("o"));
    assert_eq!(w.refused(permission("u", "none", "x")).code, 530);
    let empty = w.table.digest();
    w.done(Command::PutVhost { name: "v".into() });
    for (user, vhost, exchange) in [
        ("u", "/", "x"),
        ("u", "/", "y"),
        ("u", "v", "x"),
        ("o", "/", "x"),
    ] {
        w.done(permission(user, vhost, exchange));
    }
    let again = restored(&w);
    assert_eq!(again.digest(), w.table.digest());
    assert_eq!(again.topic_permissions().count(), 4);
    w.check();
    w.done(clear(Some("y")));
    assert!(w.table.topic_permission("u", "/", "y").is_none());
    assert_eq!(w.table.topic_permission("u", "/", "x").unwrap().write, "w");
    w.done(clear(None));
    assert_eq!(w.table.topic_permissions().count(), 2);
    w.done(Command::DeleteVhost { name: "v".into() });
    assert_eq!(w.table.topic_permissions().count(), 1);
    w.done(Command::DeleteUser { name: "o".into() });
    w.done(user("o"));
    assert_eq!(w.table.digest(), empty, "nothing is left");
    w.check();
}

/// A restored table routes by its policies, too.
#[test]
fn a_restored_table_routes_alike() {
    let mut w = World::new();
    w.exchange("x", "direct")
        .exchange("lost", "fanout")
        .queue("q");
    w.bind("lost", "", "q")
        .done(alternate("p", "^x$", 0, "lost"));
    let mut again = World {
        table: restored(&w),
        ..w
    };
    assert_eq!(again.route("x", "k"), ["q"]);
    again.done(delete("p", false));
    assert!(again.route("x", "k").is_empty());
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut w = World::new();
    let before = w.table.digest();
    let refused = w.refused(alternate("p", "(", 0, "a"));
    assert!(refused.text.contains("regular expression"), "{refused:?}");
    let elsewhere = Policy {
        vhost: "none".into(),
        ..policy("p", ".*", 0, vec![])
    };
    assert_eq!(w.refused(Command::PutPolicy(elsewhere)).code, 530);
    assert_eq!(w.table.digest(), before);
    // The same again is no change.
    w.done(alternate("p", ".*", 0, "a"));
    let mut applied = Applied::default();
    let index = w.table.index() + 1;
    w.table
        .apply(index, &[alternate("p", ".*", 0, "a")], &mut applied);
    assert!(applied.changes.is_empty());
}
