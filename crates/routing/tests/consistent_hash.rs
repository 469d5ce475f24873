//! x-consistent-hash exchanges (A08, A09): balance, exact stability, weights, what is hashed.

#![allow(clippy::unwrap_used)]

mod world;

use std::collections::BTreeMap;
use warren_model::Command;
use warren_model::command::{Binding, DeclareExchange};
use warren_protocol::{OwnedValue, Properties, ShortStr};
use warren_routing::{Publish, Route, Table};
use world::{World, args, binding, delete_queue, exchange, headers, text};

const KEYS: usize = 10_000;

fn world(queues: &[(&str, &str)]) -> World {
    let mut world = World::new();
    world.exchange("x", "x-consistent-hash");
    for (queue, weight) in queues {
        world.queue(queue).bind("x", weight, queue);
    }
    world
}

/// Which queue each of many similar keys goes to.
fn assignment(table: &Table) -> Vec<String> {
    let mut route = Route::default();
    (0..KEYS)
        .map(|i| {
            let key = format!("user{i}");
            table
                .route(
                    &Publish {
                        vhost: "/",
                        exchange: b"x",
                        routing_keys: &[key.as_bytes()],
                        properties: &[],
                    },
                    &mut route,
                )
                .unwrap();
            assert_eq!(route.queues.len(), 1, "key {key} goes to exactly one queue");
            table
                .queue_by_id(route.queues[0].id)
                .unwrap()
                .name
                .to_owned()
        })
        .collect()
}

fn shares(assignment: &[String]) -> BTreeMap<&str, f64> {
    let mut shares = BTreeMap::new();
    for queue in assignment {
        *shares.entry(queue.as_str()).or_insert(0.0) += 1.0 / KEYS as f64;
    }
    shares
}

#[test]
fn shares_follow_the_weights() {
    for (weights, tolerance) in [
        (vec![1, 1], 0.02),
        (vec![1, 3], 0.02),
        (vec![1, 1, 1, 1, 1], 0.02),
        (vec![10_000, 5_000, 1], 0.02),
    ] {
        let queues: Vec<(String, String)> = weights
            .iter()
            .enumerate()
            .map(|(i, weight)| (format!("q{i}"), weight.to_string()))
            .collect();
        let queues: Vec<(&str, &str)> = queues
            .iter()
            .map(|(queue, weight)| (queue.as_str(), weight.as_str()))
            .collect();
        let total: i32 = weights.iter().sum();
        let assignment = assignment(&world(&queues).table);
        let shares = shares(&assignment);
        for (i, weight) in weights.iter().enumerate() {
            let (is, wanted) = (
                shares.get(format!("q{i}").as_str()).copied().unwrap_or(0.0),
                f64::from(*weight) / f64::from(total),
            );
            assert!(
                (is - wanted).abs() < tolerance,
                "{weights:?}: q{i} has {is}, wanted {wanted}"
            );
        }
    }
}

#[test]
fn keys_never_move_without_need() {
    let mut world = world(&[("a", "1"), ("b", "2"), ("c", "2"), ("d", "5")]);
    let before = assignment(&world.table);
    // Adding one moves only what it gains.
    world.queue("e").bind("x", "3", "e");
    let with = assignment(&world.table);
    for (was, is) in before.iter().zip(&with) {
        assert!(was == is || is == "e", "{was} became {is}");
    }
    // Removing one moves only what it had; declared anew, it gets the same keys back.
    world.run(delete_queue("c"));
    let without = assignment(&world.table);
    for (was, is) in with.iter().zip(&without) {
        assert!(was == is || was == "c", "{was} became {is}");
    }
    world.queue("c").bind("x", "2", "c");
    assert_eq!(assignment(&world.table), with);
    world.check();
}

#[test]
fn the_choice_is_a_function_of_the_bindings_alone() {
    let one = world(&[("a", "1"), ("b", "2"), ("c", "2")]);
    let mut other = world(&[("c", "2"), ("z", "9"), ("b", "2")]);
    other.run(delete_queue("z"));
    other.queue("a").bind("x", "1", "a");
    assert_eq!(assignment(&one.table), assignment(&other.table));
    let restored = Table::restore(other.table.records(), other.table.index()).unwrap();
    assert_eq!(assignment(&restored), assignment(&other.table));
}

#[test]
fn the_choice_is_the_same_in_every_release() {
    let world = world(&[("a", "1"), ("b", "2"), ("c", "2"), ("d", "7")]);
    let chosen: String = assignment(&world.table)[..64].concat();
    assert_eq!(
        chosen,
        "daddbdddadddbbdcdddbbdbddacddbdbdbdadddcdbdccdddddbdcabcbcddcdbd"
    );
}

/// A08.
#[test]
fn several_bindings_of_one_queue_add_up_and_none_of_them_is_a_black_hole() {
    let mut world = world(&[("q1", "1"), ("q2", "1")]);
    let with_arguments = || Binding {
        arguments: args([("a", OwnedValue::I32(1))]),
        ..binding("x", "1", "q1")
    };
    world.bind("x", "10", "q1");
    world.done(Command::Bind(with_arguments()));
    let share = |world: &World| {
        shares(&assignment(&world.table))
            .get("q1")
            .copied()
            .unwrap_or(0.0)
    };
    let near = |is: f64, wanted: f64| assert!((is - wanted).abs() < 0.02, "{is}, wanted {wanted}");
    near(share(&world), 12.0 / 13.0);
    world.done(Command::Unbind(binding("x", "10", "q1")));
    near(share(&world), 2.0 / 3.0);
    world.done(Command::Unbind(with_arguments()));
    near(share(&world), 0.5);
    world.check();
    world.done(Command::Unbind(binding("x", "1", "q1")));
    near(share(&world), 0.0);
    world.done(Command::Unbind(binding("x", "1", "q2")));
    assert!(world.route("x", "k").is_empty());
    world.check();
}

/// A09.
#[test]
fn bad_weights_are_refused_and_recorded_nowhere() {
    let mut world = world(&[("q", "1")]);
    let digest = world.table.digest();
    for key in [
        "abc",
        "",
        "0",
        "-1",
        "1.5",
        " 1",
        "10001",
        "99999999999999999999",
        "100000000",
    ] {
        assert_eq!(
            world.refused(Command::Bind(binding("x", key, "q"))).code,
            406,
            "{key:?}"
        );
    }
    assert_eq!((world.binding_count(), world.table.digest()), (1, digest));
    assert_eq!(world.route("x", "k"), ["q"]);
}

fn hashing_on(name: &str, value: &str) -> Command {
    Command::DeclareExchange(DeclareExchange {
        arguments: args([(name, text(value))]),
        ..exchange("x", "x-consistent-hash")
    })
}

fn with_queues(command: Command) -> World {
    let mut world = World::new();
    world.done(command);
    for i in 0..16 {
        let queue = format!("q{i}");
        world.queue(&queue).bind("x", "1", &queue);
    }
    world
}

#[test]
fn a_header_can_be_hashed_instead_of_the_key() {
    let world = with_queues(hashing_on("hash-header", "user"));
    let goes_to = |value: OwnedValue, key: &[u8]| {
        world
            .route_raw("x", &[key], &headers(&args([("user", value)])))
            .unwrap()
    };
    let by_header: Vec<_> = (0..50).map(|i| goes_to(OwnedValue::I32(i), b"k")).collect();
    assert!(
        by_header.iter().any(|queue| *queue != by_header[0]),
        "values spread"
    );
    for (i, queue) in by_header.iter().enumerate() {
        assert_eq!(
            *queue,
            goes_to(OwnedValue::I64(i as i64), b"other key"),
            "neither the key nor the integer's width matters"
        );
        assert_eq!(*queue, goes_to(text(&i.to_string()), b"k"));
    }
    let missing = world.route_raw("x", &[b"k"], &headers(&[])).unwrap();
    assert_eq!(
        missing,
        goes_to(text(""), b"z"),
        "a missing header hashes as an empty one"
    );
    assert_eq!(missing, world.route_raw("x", &[b"k"], &[]).unwrap());
    assert!(!world.cacheable("x"));
}

#[test]
fn properties_can_be_hashed_instead_of_the_key() {
    for property in ["message_id", "correlation_id", "timestamp"] {
        let world = with_queues(hashing_on("hash-property", property));
        let goes_to = |i: u64, key: &[u8]| {
            let id = i.to_string();
            let id = ShortStr::new(id.as_bytes());
            let mut properties = Properties::default();
            match property {
                "message_id" => properties.message_id = id,
                "correlation_id" => properties.correlation_id = id,
                _ => properties.timestamp = Some(i),
            }
            let mut raw = Vec::new();
            properties.encode(&mut raw);
            world.route_raw("x", &[key], &raw).unwrap()
        };
        let chosen: Vec<_> = (0..50).map(|i| goes_to(i, b"k")).collect();
        assert!(
            chosen.iter().any(|queue| *queue != chosen[0]),
            "{property} spreads"
        );
        assert!((0..50).all(|i| goes_to(i, b"other key") == chosen[i as usize]));
    }
}

#[test]
fn bad_hash_arguments_are_refused() {
    let mut world = World::new();
    let both = args([
        ("hash-header", text("a")),
        ("hash-property", text("message_id")),
    ]);
    let both = Command::DeclareExchange(DeclareExchange {
        arguments: both,
        ..exchange("x", "x-consistent-hash")
    });
    assert_eq!(
        world.refused(both).text,
        "hash-header and hash-property are mutually exclusive"
    );
    assert_eq!(
        world.refused(hashing_on("hash-property", "priority")).text,
        "Unsupported property: priority"
    );
    let number = args([("hash-header", OwnedValue::I32(1))]);
    let number = Command::DeclareExchange(DeclareExchange {
        arguments: number,
        ..exchange("x", "x-consistent-hash")
    });
    assert_eq!(world.refused(number).code, 406);
}

#[test]
fn exchanges_are_destinations_too() {
    let mut world = World::new();
    world
        .exchange("x", "x-consistent-hash")
        .exchange("same", "fanout")
        .queues(&["same", "behind"]);
    world
        .bind("x", "1", "same")
        .bind_exchange("x", "1", "same")
        .bind("same", "", "behind");
    let shares = assignment(&world.table);
    let behind = shares.iter().filter(|queue| *queue == "behind").count();
    assert!(
        (4500..5500).contains(&behind),
        "a queue and an exchange of one name draw apart: {behind}"
    );
}
