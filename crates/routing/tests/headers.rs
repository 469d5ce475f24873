//! Headers exchanges (A07 and RabbitMQ's documentation).

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::Command;
use warren_model::command::Binding;
use warren_protocol::{OwnedTable, OwnedValue};
use warren_routing::RouteError;
use world::{World, args, binding, text};

fn world(bindings: &[(&str, Vec<u8>)]) -> World {
    let mut world = World::new();
    world.exchange("h", "headers");
    for (queue, arguments) in bindings {
        world.queue(queue);
        world.bind_with("h", "", queue, arguments.clone());
    }
    world
}

const ONE: OwnedValue = OwnedValue::I32(1);

#[test]
fn every_integer_width_is_one_class_and_other_types_are_not() {
    let world = world(&[("q", args([("x-match", text("all")), ("n", ONE)]))]);
    let integers = [
        OwnedValue::I8(1),
        OwnedValue::U8(1),
        OwnedValue::I16(1),
        OwnedValue::U16(1),
        OwnedValue::I32(1),
        OwnedValue::U32(1),
        OwnedValue::I64(1),
        OwnedValue::L64(1),
    ];
    for value in integers {
        assert_eq!(
            world.route_headers("h", &args([("n", value.clone())])),
            ["q"],
            "{value:?}"
        );
    }
    let others = [
        text("1"),
        OwnedValue::Bool(true),
        OwnedValue::F64(1.0),
        OwnedValue::Timestamp(1),
        OwnedValue::Void,
        OwnedValue::I64(2),
    ];
    for value in others {
        assert!(
            world
                .route_headers("h", &args([("n", value.clone())]))
                .is_empty(),
            "{value:?}"
        );
    }
    assert!(world.route_headers("h", &[]).is_empty());
    assert!(!world.cacheable("h"));
}

#[test]
fn a_missing_x_match_means_all() {
    let world = world(&[("q", args([("n", ONE), ("m", ONE)]))]);
    assert_eq!(
        world.route_headers("h", &args([("m", ONE), ("n", ONE), ("o", ONE)])),
        ["q"]
    );
    assert!(world.route_headers("h", &args([("n", ONE)])).is_empty());
}

#[test]
fn any_needs_one() {
    let world = world(&[(
        "q",
        args([
            ("x-match", text("any")),
            ("a", ONE),
            ("b", OwnedValue::I32(2)),
        ]),
    )]);
    assert_eq!(world.route_headers("h", &args([("a", ONE)])), ["q"]);
    assert_eq!(
        world.route_headers("h", &args([("b", OwnedValue::I32(2))])),
        ["q"]
    );
    assert!(
        world
            .route_headers("h", &args([("a", OwnedValue::I32(2)), ("b", ONE)]))
            .is_empty()
    );
    assert!(world.route_headers("h", &[]).is_empty());
}

#[test]
fn x_keys_count_only_where_asked_for() {
    let arguments = |mode: &str| args([("x-match", text(mode)), ("x-k", ONE), ("a", ONE)]);
    let world = world(&[
        ("all", arguments("all")),
        ("all-with-x", arguments("all-with-x")),
        (
            "any-with-x",
            args([("x-match", text("any-with-x")), ("x-k", ONE)]),
        ),
        ("any", args([("x-match", text("any")), ("x-k", ONE)])),
    ]);
    assert_eq!(world.route_headers("h", &args([("a", ONE)])), ["all"]);
    assert_eq!(
        world.route_headers("h", &args([("a", ONE), ("x-k", ONE)])),
        ["all", "all-with-x", "any-with-x"]
    );
    assert_eq!(
        world.route_headers("h", &args([("x-match", text("any")), ("x-k", ONE)])),
        ["any-with-x"],
        "x-match itself is never compared"
    );
}

#[test]
fn no_conditions_at_all_takes_everything_and_any_of_none_takes_nothing() {
    let world = world(&[
        ("all", Vec::new()),
        ("any", args([("x-match", text("any"))])),
    ]);
    assert_eq!(world.route_headers("h", &[]), ["all"]);
    assert_eq!(
        world.route_raw("h", &[b"k"], &[]).unwrap(),
        ["all"],
        "no properties at all"
    );
}

#[test]
fn void_asks_for_presence() {
    let world = world(&[("q", args([("a", OwnedValue::Void)]))]);
    for value in [ONE, text("x"), OwnedValue::Void, OwnedValue::Bool(false)] {
        assert_eq!(world.route_headers("h", &args([("a", value)])), ["q"]);
    }
    assert!(world.route_headers("h", &args([("b", ONE)])).is_empty());
}

#[test]
fn every_type_compares_by_value() {
    let nested = |n: i32| {
        OwnedValue::Table(
            [("k", OwnedValue::Array(vec![OwnedValue::I32(n), text("s")]))]
                .into_iter()
                .collect::<OwnedTable>(),
        )
    };
    let pairs = [
        (text("a"), text("b")),
        (OwnedValue::Bytes(vec![1]), OwnedValue::LongStr(vec![1])),
        (OwnedValue::Bool(true), OwnedValue::Bool(false)),
        (OwnedValue::F64(1.5), OwnedValue::F64(1.25)),
        (OwnedValue::Timestamp(5), OwnedValue::I64(5)),
        (
            OwnedValue::Decimal { scale: 1, value: 2 },
            OwnedValue::Decimal { scale: 2, value: 2 },
        ),
        (nested(1), nested(2)),
        (
            OwnedValue::Array(vec![]),
            OwnedValue::Array(vec![OwnedValue::Void]),
        ),
    ];
    for (wanted, other) in pairs {
        let world = world(&[("q", args([("a", wanted.clone())]))]);
        assert_eq!(
            world.route_headers("h", &args([("a", wanted.clone())])),
            ["q"],
            "{wanted:?}"
        );
        assert!(
            world
                .route_headers("h", &args([("a", other.clone())]))
                .is_empty(),
            "{wanted:?} is not {other:?}"
        );
    }
    let world = world(&[("q", args([("a", OwnedValue::F32(1.5))]))]);
    assert_eq!(
        world.route_headers("h", &args([("a", OwnedValue::F64(1.5))])),
        ["q"],
        "both floats are one class"
    );
}

#[test]
fn criteria_are_kept_apart_and_go_with_their_binding() {
    let mut world = world(&[
        ("a", args([("k", text("a"))])),
        ("b", args([("k", text("b"))])),
        ("c", args([("k", text("c"))])),
    ]);
    for queue in ["a", "b", "c"] {
        assert_eq!(
            world.route_headers("h", &args([("k", text(queue))])),
            [queue]
        );
    }
    world.done(Command::Unbind(Binding {
        arguments: args([("k", text("a"))]),
        ..binding("h", "", "a")
    }));
    assert!(
        world
            .route_headers("h", &args([("k", text("a"))]))
            .is_empty()
    );
    for queue in ["b", "c"] {
        assert_eq!(
            world.route_headers("h", &args([("k", text(queue))])),
            [queue]
        );
    }
    world.check();
}

#[test]
fn bad_x_match_is_refused_and_recorded_nowhere() {
    let mut world = world(&[("q", Vec::new())]);
    let mut refusal = |value: OwnedValue| {
        let refused = world.refused(Command::Bind(Binding {
            arguments: args([("x-match", value)]),
            ..binding("h", "", "q")
        }));
        assert_eq!(refused.code, 406);
        refused.text
    };
    assert_eq!(
        refusal(text("some")),
        "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x"
    );
    assert_eq!(
        refusal(ONE),
        "Invalid x-match field type signedint (value 1); expected longstr"
    );
    assert_eq!(world.binding_count(), 1);
}

#[test]
fn malformed_properties_are_an_error_only_where_they_matter() {
    let mut world = world(&[("q", Vec::new())]);
    world.bind("amq.direct", "k", "q");
    let broken = [0x20, 0x00, 0, 0, 0, 9];
    assert_eq!(
        world.route_raw("h", &[b"k"], &broken),
        Err(RouteError::BadProperties)
    );
    assert_eq!(
        world.route_raw("amq.direct", &[b"k"], &broken).unwrap(),
        ["q"]
    );
}
