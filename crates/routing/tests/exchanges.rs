//! Where messages go: direct, fanout, topic and default exchanges, bindings between exchanges, alternate exchanges.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::Command;
use warren_model::command::{Binding, DeclareExchange};
use warren_protocol::OwnedValue;
use warren_routing::{RouteError, Via};
use world::{
    World, args, binding, delete_exchange, delete_queue, exchange, exchange_binding, text,
};

#[test]
fn direct_matches_equal_keys() {
    let mut world = World::new();
    world.exchange("x", "direct").queues(&["a", "b"]);
    world
        .bind("x", "k", "a")
        .bind("x", "k", "b")
        .bind("x", "other", "b");
    assert_eq!(world.route("x", "k"), ["a", "b"]);
    assert_eq!(world.route("x", "other"), ["b"]);
    assert!(world.route("x", "").is_empty());
    assert!(world.cacheable("x"));
    world.done(Command::Unbind(binding("x", "k", "a")));
    assert_eq!(world.route("x", "k"), ["b"]);
    world.check();
}

#[test]
fn each_queue_gets_a_message_once_however_many_bindings_and_keys_match() {
    let mut world = World::new();
    world
        .exchange("x", "direct")
        .exchange("t", "topic")
        .queues(&["a", "b"]);
    world
        .bind("x", "k", "a")
        .bind("x", "cc", "a")
        .bind("x", "bcc", "b");
    assert_eq!(
        world
            .route_raw("x", &[b"k", b"cc", b"bcc", b"k"], &[])
            .unwrap(),
        ["a", "b"]
    );
    world
        .bind("t", "#", "a")
        .bind("t", "a.*", "a")
        .bind("t", "a.b", "a");
    assert_eq!(world.route("t", "a.b"), ["a"]);
    assert_eq!(
        world
            .route_raw("", &[b"a", b"b", b"a", b"none"], &[])
            .unwrap(),
        ["a", "b"]
    );
}

#[test]
fn fanout_ignores_keys() {
    let mut world = World::new();
    world
        .queues(&["a", "b"])
        .bind("amq.fanout", "x", "a")
        .bind("amq.fanout", "y", "b");
    assert_eq!(world.route("amq.fanout", "anything"), ["a", "b"]);
}

#[test]
fn the_default_exchange_reaches_every_queue_by_name_without_bindings() {
    let mut world = World::new();
    world.queue("q1");
    assert_eq!(world.route("", "q1"), ["q1"]);
    assert!(world.route("", "q2").is_empty());
    assert_eq!(world.binding_count(), 0);
    world.run(delete_queue("q1"));
    assert!(world.route("", "q1").is_empty());
}

#[test]
fn missing_and_internal_exchanges_refuse() {
    let mut world = World::new();
    let missing = world.route_raw("x", &[b""], &[]).unwrap_err();
    assert_eq!(
        (missing.refusal().code, missing.refusal().text.as_str()),
        (404, "no exchange 'x' in vhost '/'")
    );
    world.done(Command::DeclareExchange(DeclareExchange {
        internal: true,
        ..exchange("i", "fanout")
    }));
    world
        .exchange("x", "fanout")
        .queue("q")
        .bind_exchange("x", "", "i")
        .bind("i", "", "q");
    let internal = world.route_raw("i", &[b""], &[]).unwrap_err();
    assert_eq!(
        (internal.refusal().code, internal.refusal().text.as_str()),
        (403, "cannot publish to internal exchange 'i' in vhost '/'")
    );
    assert_eq!(
        world.route("x", ""),
        ["q"],
        "bindings lead into internal exchanges"
    );
    // A27: an internal exchange can be deleted.
    world.done(delete_exchange("i"));
    assert!(matches!(
        world.route_raw("i", &[b""], &[]),
        Err(RouteError::NoExchange { .. })
    ));
}

/// A05.
#[test]
fn topic_wildcards_take_zero_words_where_they_should() {
    let mut world = World::new();
    world.exchange("t", "topic");
    for pattern in [
        "#", "#.#", "*", "#.*", "*.#", "a.#", "#.a", "a.#.b", "a.*.c.#", "a.*.#.b", "",
    ] {
        world
            .queue(pattern_queue(pattern))
            .bind("t", pattern, pattern_queue(pattern));
    }
    let always = ["#", "#.#"];
    let some = ["#", "#.#", "#.*", "*.#"];
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("", &always, &[""]),
        ("a", &some, &["*", "a.#", "#.a"]),
        ("a.b", &some, &["a.#", "a.#.b"]),
        ("a.x.b", &some, &["a.#", "a.#.b", "a.*.#.b"]),
        ("a.x.y.b", &some, &["a.#", "a.#.b", "a.*.#.b"]),
        ("a.b.c", &some, &["a.#", "a.*.c.#"]),
        ("a.b.c.d", &some, &["a.#", "a.*.c.#"]),
        ("b", &some, &["*"]),
    ];
    for (key, first, second) in cases {
        let mut expected: Vec<&str> = first
            .iter()
            .chain(second)
            .map(|pattern| pattern_queue(pattern))
            .collect();
        expected.sort_unstable();
        assert_eq!(world.route("t", key), expected, "key '{key}'");
    }
    world.check();
}

/// A queue needs a name where a pattern may be empty.
fn pattern_queue(pattern: &str) -> &str {
    if pattern.is_empty() { "empty" } else { pattern }
}

#[test]
fn empty_words_are_words_and_wildcards_need_not_be_words_of_their_own() {
    let mut world = World::new();
    world
        .exchange("t", "topic")
        .queues(&["dot", "trail", "lit", "two"]);
    world
        .bind("t", ".", "dot")
        .bind("t", "a.", "trail")
        .bind("t", "a*.b#", "lit")
        .bind("t", "*.*", "two");
    assert_eq!(world.route("t", "."), ["dot", "two"]);
    assert_eq!(world.route("t", "a."), ["trail", "two"]);
    assert_eq!(world.route("t", "a*.b#"), ["lit", "two"]);
    assert_eq!(
        world.route("t", "*.*"),
        ["two"],
        "a message's wildcards are plain words"
    );
    assert!(world.route("t", "").is_empty());
}

#[test]
fn many_hashes_stay_cheap() {
    let mut world = World::new();
    world.exchange("t", "topic").queue("q");
    let hashes = vec!["#"; 100].join(".");
    world.bind("t", &format!("{hashes}.x"), "q");
    let key = vec!["w"; 120].join(".");
    assert!(world.route("t", &key).is_empty());
    assert_eq!(world.route("t", &format!("{key}.x")), ["q"]);
    world.done(Command::Unbind(binding("t", &format!("{hashes}.x"), "q")));
    assert!(world.route("t", &format!("{key}.x")).is_empty());
}

/// A06.
#[test]
fn an_empty_key_stays_inside_its_exchange() {
    let mut world = World::new();
    world
        .exchange("x1", "topic")
        .exchange("x2", "topic")
        .exchange("x3", "direct");
    for (source, queue) in [("x1", "q1"), ("x2", "q2"), ("x3", "q3")] {
        world
            .queue(queue)
            .bind(source, "", queue)
            .bind(source, "*", queue);
    }
    for (source, queue) in [("x1", "q1"), ("x2", "q2"), ("x3", "q3")] {
        assert_eq!(world.route(source, ""), [queue]);
        world.done(Command::Unbind(binding(source, "", queue)));
        assert!(world.route(source, "").is_empty());
    }
    world.check();
}

/// A03.
#[test]
fn arguments_are_part_of_a_bindings_identity() {
    for kind in ["direct", "fanout", "topic"] {
        let mut world = World::new();
        world.exchange("x1", kind).queue("q1");
        let one = || args([("a", OwnedValue::I32(1)), ("b", text("z"))]);
        let one_turned = args([("b", text("z")), ("a", OwnedValue::I32(1))]);
        let two = args([("a", OwnedValue::I32(2))]);
        world.bind_with("x1", "k", "q1", one());
        world.bind_with("x1", "k", "q1", two.clone());
        world.bind_with("x1", "k", "q1", one_turned.clone());
        assert_eq!(world.binding_count(), 2);
        assert_eq!(world.route("x1", "k"), ["q1"]);
        let unbind = |arguments| {
            Command::Unbind(Binding {
                arguments,
                ..binding("x1", "k", "q1")
            })
        };
        world.done(unbind(one_turned));
        assert_eq!(world.route("x1", "k"), ["q1"]);
        world.done(unbind(Vec::new()));
        assert_eq!(
            (world.binding_count(), world.route("x1", "k").len()),
            (1, 1)
        );
        world.done(unbind(two));
        assert!(world.route("x1", "k").is_empty());
        world.check();
    }
}

/// A10.
#[test]
fn deleting_an_exchange_takes_its_bindings_from_both_sides() {
    let mut world = World::new();
    let sources = [
        ("direct", "k"),
        ("topic", "#"),
        ("headers", ""),
        ("fanout", ""),
        ("x-consistent-hash", "1"),
    ];
    world
        .exchange("y1", "fanout")
        .exchange("y2", "fanout")
        .queues(&["q1", "q2"])
        .bind("y1", "", "q1")
        .bind("y2", "", "q2");
    for (kind, key) in sources {
        let source = format!("from-{kind}");
        world
            .exchange(&source, kind)
            .bind_exchange(&source, key, "y1")
            .bind_exchange(&source, key, "y2");
    }
    world.done(delete_exchange("y1"));
    assert_eq!(world.binding_count(), 6);
    world.exchange("y1", "fanout").bind("y1", "", "q1");
    for (kind, _) in sources {
        assert_eq!(world.route(&format!("from-{kind}"), "k"), ["q2"], "{kind}");
    }
    world.done(delete_exchange("from-direct"));
    assert_eq!(world.route("y2", ""), ["q2"]);
    world.check();
}

#[test]
fn cycles_of_bindings_end() {
    let mut world = World::new();
    world
        .exchange("a", "fanout")
        .exchange("b", "topic")
        .exchange("c", "direct")
        .queues(&["qa", "qb", "qc"]);
    world
        .bind_exchange("a", "", "b")
        .bind_exchange("b", "#", "c")
        .bind_exchange("c", "k", "a")
        .bind_exchange("a", "", "a");
    world
        .bind("a", "", "qa")
        .bind("b", "k", "qb")
        .bind("c", "k", "qc");
    for entrance in ["a", "b", "c"] {
        assert_eq!(world.route(entrance, "k"), ["qa", "qb", "qc"]);
    }
    world.check();
}

fn with_alternate(name: &str, kind: &str, alternate: &str) -> Command {
    let arguments = args([("alternate-exchange", text(alternate))]);
    Command::DeclareExchange(DeclareExchange {
        arguments,
        ..exchange(name, kind)
    })
}

/// A12.
#[test]
fn alternate_exchanges_chain_cycle_and_may_be_missing() {
    let mut world = World::new();
    for (name, alternate) in [("x1", "x2"), ("x2", "x3"), ("x3", "x1")] {
        world.done(with_alternate(name, "direct", alternate));
    }
    assert!(
        world.route("x1", "k").is_empty(),
        "a cycle without queues ends"
    );
    world.queues(&["q1", "q3"]).bind("x3", "k", "q3");
    assert_eq!(world.route("x1", "k"), ["q3"]);
    world.bind("x1", "k", "q1");
    assert_eq!(world.route("x1", "k"), ["q1"]);
    assert!(world.cacheable("x1"));

    world.done(with_alternate("x4", "direct", "later"));
    assert!(world.route("x4", "k").is_empty());
    world.exchange("later", "fanout").bind("later", "", "q1");
    assert_eq!(world.route("x4", "k"), ["q1"], "works as soon as it exists");

    world.done(with_alternate("x5", "direct", "x6"));
    world.exchange("x6", "direct").bind("x6", "other", "q1");
    assert!(
        world.route("x5", "k").is_empty(),
        "the original key is used"
    );

    world.done(with_alternate("x7", "direct", ""));
    assert!(
        world.route("x7", "q3").is_empty(),
        "the default exchange has no bindings to follow, as in RabbitMQ"
    );
    world.check();
}

#[test]
fn long_chains_of_alternates_and_bindings_work() {
    let mut world = World::new();
    world.queue("end");
    for i in 0..300 {
        world.done(with_alternate(
            &format!("a{i}"),
            "direct",
            &format!("a{}", i + 1),
        ));
        world.exchange(&format!("e{i}"), "fanout");
    }
    for i in 0..299 {
        world.bind_exchange(&format!("e{i}"), "", &format!("e{}", i + 1));
    }
    world.bind("a299", "k", "end").bind("e299", "", "end");
    assert_eq!(world.route("a0", "k"), ["end"]);
    assert_eq!(world.route("e0", "k"), ["end"]);
}

#[test]
fn an_alternate_is_for_the_exchange_that_found_nothing_itself() {
    let mut world = World::new();
    world.queues(&["own", "other"]);
    world.done(with_alternate("x", "direct", "amq.fanout"));
    world
        .exchange("dead-end", "direct")
        .bind_exchange("x", "k", "dead-end")
        .bind("amq.fanout", "", "other");
    assert!(
        world.route("x", "k").is_empty(),
        "x found a binding; where it led to is not its business"
    );
    assert_eq!(world.route("x", "z"), ["other"]);
}

#[test]
fn an_explanation_tells_every_step() {
    let mut world = World::new();
    world.done(with_alternate("x", "topic", "amq.fanout"));
    world
        .queues(&["a", "b"])
        .bind("x", "a.*.c", "a")
        .bind("amq.fanout", "", "b");
    let publish = warren_routing::Publish {
        vhost: "/",
        exchange: b"x",
        routing_keys: &[b"a.b"],
        properties: &[],
    };
    let explanation = world.table.explain(&publish);
    let [first, second] = &explanation.steps[..] else {
        panic!("{explanation:#?}")
    };
    assert_eq!(
        (first.exchange.as_str(), first.kind, &first.via),
        ("x", "topic", &Via::Publish)
    );
    assert!(!first.bindings[0].matched);
    assert_eq!(
        first.bindings[0].why,
        "the pattern's word 3 ('c') finds nothing that fits"
    );
    assert_eq!(first.alternate_outcome, Some("used: no binding matched"));
    assert_eq!(second.via, Via::Alternate { of: "x".into() });
    assert_eq!(explanation.queues[0].1, "b");
}

#[test]
fn a_binding_to_a_missing_end_is_refused() {
    let mut world = World::new();
    world.exchange("x", "direct").queue("q");
    let text = |world: &mut World, binding| world.refused(Command::Bind(binding)).text;
    assert_eq!(
        text(&mut world, binding("none", "", "q")),
        "no exchange 'none' in vhost '/'"
    );
    assert_eq!(
        text(&mut world, binding("x", "", "none")),
        "no queue 'none' in vhost '/'"
    );
    assert_eq!(
        text(&mut world, exchange_binding("x", "", "none")),
        "no exchange 'none' in vhost '/'"
    );
    // Unbinding what is not there needs nothing to be there.
    world.done(Command::Unbind(binding("none", "", "q")));
    world.done(Command::Unbind(binding("x", "", "none")));
}
