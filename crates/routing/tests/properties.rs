//! Random commands: routing against a naive matcher over the listed bindings, digests against restored tables, replicas against each other.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod world;

use proptest::prelude::*;
use std::collections::BTreeSet;
use warren_model::command::{
    Binding, DeclareExchange, DeclareQueue, Destination, ParameterKey, PasswordHashing, Place,
    User, UserLimit, VhostDetails, VhostLimit,
};
use warren_model::{Command, Incarnation, NodeId, ShardId};
use warren_protocol::{OwnedTable, OwnedValue, Table as FieldTable};
use warren_routing::{Applied, BindingView, Publish, Route, Table};
use world::{args, exchange, headers, node_down, node_up, queue, session, text};

const KINDS: [&str; 5] = ["direct", "fanout", "topic", "headers", "x-consistent-hash"];

fn exchange_name() -> impl Strategy<Value = String> {
    (0..6u8).prop_map(|i| format!("x{i}"))
}

fn queue_name() -> impl Strategy<Value = String> {
    (0..6u8).prop_map(|i| format!("q{i}"))
}

/// Keys that are weights, patterns and plain words at once, of a small alphabet so that they meet.
fn key() -> impl Strategy<Value = String> {
    let word = prop_oneof![3 => Just("a"), 3 => Just("b"), 2 => Just("#"), 2 => Just("*"), 1 => Just("1"), 1 => Just("")];
    prop_oneof![5 => prop::collection::vec(word, 0..4).prop_map(|words| words.join(".")), 2 => Just("2".to_owned())]
}

fn header_table() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        (0..2i32).prop_map(OwnedValue::I32),
        (0..2i64).prop_map(OwnedValue::I64),
        Just(text("s")),
        Just(OwnedValue::Void),
        Just(OwnedValue::Bool(true))
    ];
    let name = prop_oneof![Just("h"), Just("i"), Just("x-j")];
    prop::collection::vec((name, value), 0..3)
        .prop_map(|entries| entries.into_iter().collect::<OwnedTable>().to_bytes())
}

fn arguments() -> impl Strategy<Value = Vec<u8>> {
    let mode = prop_oneof![
        Just("all"),
        Just("any"),
        Just("all-with-x"),
        Just("any-with-x"),
        Just("bad")
    ];
    prop_oneof![
        4 => Just(Vec::new()),
        4 => (mode, header_table()).prop_map(|(mode, mut table)| {
            table.extend(args([("x-match", text(mode))]));
            table
        })
    ]
}

fn binding() -> impl Strategy<Value = Binding> {
    let destination = prop_oneof![3 => queue_name().prop_map(Destination::Queue), 2 => exchange_name().prop_map(Destination::Exchange)];
    (
        exchange_name(),
        destination,
        key(),
        arguments(),
        1..3u64,
        1..3u64,
    )
        .prop_map(
            |(source, destination, key, arguments, node, number)| Binding {
                vhost: "/".into(),
                source,
                destination,
                key: key.into_bytes(),
                arguments,
                session: session(node, number),
            },
        )
}

fn declare_exchange() -> impl Strategy<Value = Command> {
    (
        exchange_name(),
        prop::sample::select(&KINDS[..]),
        any::<[bool; 2]>(),
        prop::option::of(exchange_name()),
    )
        .prop_map(|(name, kind, flags, alternate)| {
            let arguments =
                alternate.map_or_else(Vec::new, |name| args([("alternate-exchange", text(&name))]));
            Command::DeclareExchange(DeclareExchange {
                durable: flags[0],
                auto_delete: flags[1],
                arguments,
                ..exchange(&name, kind)
            })
        })
}

fn declare_queue() -> impl Strategy<Value = Command> {
    let place = prop_oneof![
        (0..4u16).prop_map(|shard| Place::Shard(ShardId(shard))),
        (1..3u64, 1..3u64).prop_map(|(node, i)| Place::Node(NodeId(node), Incarnation(i)))
    ];
    (queue_name(), any::<bool>(), 1..3u64, 1..3u64, place).prop_map(
        |(name, exclusive, node, number, place)| {
            Command::DeclareQueue(DeclareQueue {
                exclusive,
                session: session(node, number),
                place,
                ..queue(&name)
            })
        },
    )
}

/// What makes a command that sets a limit.
fn limited() -> impl Strategy<Value = fn(Option<i64>) -> Command> {
    fn queues(value: Option<i64>) -> Command {
        Command::SetVhostLimit {
            vhost: "/".into(),
            limit: VhostLimit::MaxQueues,
            value,
        }
    }
    fn connections(value: Option<i64>) -> Command {
        Command::SetVhostLimit {
            vhost: "/".into(),
            limit: VhostLimit::MaxConnections,
            value,
        }
    }
    fn channels(value: Option<i64>) -> Command {
        Command::SetUserLimit {
            user: "u".into(),
            limit: UserLimit::MaxChannels,
            value,
        }
    }
    prop::sample::select(vec![
        queues as fn(Option<i64>) -> Command,
        connections,
        channels,
    ])
}

fn single() -> impl Strategy<Value = Command> {
    prop_oneof![
        8 => declare_exchange(),
        8 => declare_queue(),
        24 => binding().prop_map(Command::Bind),
        8 => binding().prop_map(Command::Unbind),
        2 => (exchange_name(), any::<bool>()).prop_map(|(name, if_unused)| Command::DeleteExchange { vhost: "/".into(), name, if_unused }),
        2 => (queue_name(), 1..3u64).prop_map(|(name, number)| Command::DeleteQueue { vhost: "/".into(), name, only: None, session: session(1, number) }),
        1 => (1..3u64, 1..3u64).prop_map(|(node, number)| Command::SessionClosed { session: session(node, number) }),
        2 => (1..4u64, 1..4u64).prop_map(|(node, incarnation)| node_up(node, incarnation)),
        1 => (1..4u64, 1..4u64).prop_map(|(node, incarnation)| node_down(node, incarnation)),
        1 => (1..4u64).prop_map(|node| Command::NodeForgotten { node: NodeId(node) }),
        1 => (1..4u64, any::<bool>()).prop_map(|(node, draining)| Command::DrainNode { node: NodeId(node), draining }),
        1 => (0..5u16, 1..4u64).prop_map(|(shard, node)| Command::MoveShard { shard: ShardId(shard), to: NodeId(node) }),
        1 => (0..5u16, proptest::collection::vec((1..4u64).prop_map(NodeId), 1..4)).prop_map(|(shard, replicas)| Command::PlaceShards {
            placements: vec![warren_model::command::Placement { shard: ShardId(shard), replicas }]
        }),
        2 => (limited(), prop::option::of(-1..5i64)).prop_map(|(limit, value)| limit(value)),
        1 => Just(Command::PutUser(User { name: "u".into(), password_hash: vec![], hashing: PasswordHashing::SaltedSha256, tags: vec![] })),
        1 => Just(Command::DeleteUser { name: "u".into() }),
        1 => prop_oneof![Just(None), Just(Some("quorum")), Just(Some("classic")), Just(Some("none"))].prop_map(|kind| Command::SetVhostDetails {
            vhost: "/".into(),
            details: VhostDetails { default_queue_type: kind.map(Into::into), ..VhostDetails::default() }
        }),
        1 => (0..3u8, prop::option::of(0..3u8)).prop_map(|(name, value)| {
            let parameter = ParameterKey { vhost: "/".into(), component: "c".into(), name: name.to_string() };
            match value {
                Some(value) => Command::PutParameter { parameter, value: value.to_string() },
                None => Command::DeleteParameter(parameter),
            }
        }),
        1 => Just(Command::DeleteVhost { name: "/".into() }),
        2 => Just(Command::PutVhost { name: "/".into() }),
        1 => (1..4u8).prop_map(|level| Command::RaiseLevel { level }),
    ]
}

/// Single commands, and imports, of which most are refused somewhere in the middle.
fn command() -> impl Strategy<Value = Command> {
    let definitions = prop::collection::vec(single(), 1..12).prop_map(|commands| Command::Import {
        definitions: commands
            .into_iter()
            .filter_map(|command| command.try_into().ok())
            .collect(),
    });
    prop_oneof![12 => single(), 1 => definitions]
}

fn founded() -> Table {
    let mut table = Table::new();
    let found = Command::FoundCluster {
        cluster: 1,
        shards: 4,
    };
    table.apply(
        1,
        &[found, node_up(1, 1), node_up(2, 1)],
        &mut Applied::default(),
    );
    table
}

/// The plainest reading of the rules, over what the table lists.
mod naive {
    use super::*;

    pub fn topic(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            ([], []) => true,
            (["#", rest @ ..], key) => (0..=key.len()).any(|skip| topic(rest, &key[skip..])),
            (["*", rest @ ..], [_, key @ ..]) => topic(rest, key),
            ([word, rest @ ..], [first, key @ ..]) => word == first && topic(rest, key),
            (_, _) => false,
        }
    }

    fn words(key: &[u8]) -> Vec<&str> {
        let key = std::str::from_utf8(key).unwrap();
        if key.is_empty() {
            Vec::new()
        } else {
            key.split('.').collect()
        }
    }

    fn header_holds(key: &str, wanted: &OwnedValue, message: &FieldTable<'_>) -> bool {
        let Some(value) = message.get(key) else {
            return false;
        };
        if *wanted == OwnedValue::Void {
            return true;
        }
        let integer = |value: &OwnedValue| match value {
            OwnedValue::I32(value) => Some(i64::from(*value)),
            OwnedValue::I64(value) => Some(*value),
            _ => None,
        };
        let value = value.to_owned_value();
        integer(&value).map_or(value == *wanted, |value| integer(wanted) == Some(value))
    }

    fn headers(arguments: &[u8], message: &FieldTable<'_>) -> bool {
        let arguments = FieldTable::parse(arguments).unwrap().to_owned_table();
        let mode = match arguments.get("x-match") {
            Some(OwnedValue::LongStr(mode)) => std::str::from_utf8(mode).unwrap(),
            _ => "all",
        };
        let mut conditions = arguments
            .entries
            .iter()
            .map(|(key, value)| (std::str::from_utf8(key).unwrap(), value))
            .filter(|(key, _)| {
                *key != "x-match" && (mode.ends_with("with-x") || !key.starts_with("x-"))
            });
        if mode.starts_with("any") {
            conditions.any(|(key, value)| header_holds(key, value, message))
        } else {
            conditions.all(|(key, value)| header_holds(key, value, message))
        }
    }

    fn takes(kind: &str, binding: &BindingView<'_>, key: &[u8], message: &FieldTable<'_>) -> bool {
        match kind {
            "direct" => binding.key == key,
            "fanout" => true,
            "topic" => topic(&words(binding.key), &words(key)),
            "headers" => headers(binding.arguments, message),
            kind => panic!("{kind}"),
        }
    }

    /// Names of the queues; `hash` is what routing over consistent-hash exchanges alone is asked for, whose choice has its own tests.
    pub fn route(
        table: &Table,
        exchange: &str,
        key: &[u8],
        message: &FieldTable<'_>,
    ) -> BTreeSet<String> {
        let (mut queues, mut visited, mut waiting) = (
            BTreeSet::new(),
            BTreeSet::from([exchange.to_owned()]),
            vec![exchange.to_owned()],
        );
        while let Some(name) = waiting.pop() {
            let Some(view) = table.exchange("/", &name) else {
                continue;
            };
            let bindings: Vec<_> = table
                .bindings("/")
                .filter(|binding| binding.source == name)
                .collect();
            let mut found = Vec::new();
            if view.kind == "x-consistent-hash" {
                found.extend(chosen(table, &name, key, &bindings));
            } else {
                found.extend(
                    bindings
                        .iter()
                        .filter(|binding| takes(view.kind, binding, key, message))
                        .map(|binding| binding.destination.clone()),
                );
            }
            if found.is_empty()
                && let Some(OwnedValue::LongStr(alternate)) = FieldTable::parse(view.arguments)
                    .unwrap()
                    .to_owned_table()
                    .get("alternate-exchange")
            {
                found.push(Destination::Exchange(
                    String::from_utf8(alternate.clone()).unwrap(),
                ));
            }
            for destination in found {
                match destination {
                    Destination::Queue(name) => {
                        queues.insert(name);
                    }
                    Destination::Exchange(name) => {
                        // An alternate that is missing now may not be marked as visited: it cannot be.
                        if visited.insert(name.clone()) {
                            waiting.push(name);
                        }
                    }
                }
            }
        }
        queues
    }

    /// The one destination that a consistent-hash exchange chooses, according to its explanation.
    fn chosen(
        table: &Table,
        exchange: &str,
        key: &[u8],
        bindings: &[BindingView<'_>],
    ) -> Option<Destination> {
        let explanation = table.explain(&Publish {
            vhost: "/",
            exchange: exchange.as_bytes(),
            routing_keys: &[key],
            properties: &[],
        });
        let matched: BTreeSet<_> = explanation.steps[0]
            .bindings
            .iter()
            .filter(|binding| binding.matched)
            .map(|binding| binding.destination.clone())
            .collect();
        assert_eq!(
            matched.len(),
            usize::from(!bindings.is_empty()),
            "exactly one destination"
        );
        matched.into_iter().next()
    }
}

fn routed(table: &Table, publish: &Publish<'_>) -> BTreeSet<String> {
    let mut route = Route::default();
    table.route(publish, &mut route).unwrap();
    assert!(
        route.queues.windows(2).all(|pair| pair[0].id < pair[1].id),
        "each once, in order"
    );
    route
        .queues
        .iter()
        .map(|target| table.queue_by_id(target.id).unwrap().name.to_owned())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn routing_agrees_with_a_naive_matcher(
        commands in prop::collection::vec(command(), 1..120),
        publishes in prop::collection::vec((exchange_name(), key(), header_table()), 12),
    ) {
        let mut table = founded();
        for (at, command) in commands.iter().enumerate() {
            table.apply(2 + at as u64, std::slice::from_ref(command), &mut Applied::default());
        }
        for (exchange, key, message) in &publishes {
            if table.exchange("/", exchange).is_none() {
                continue;
            }
            let properties = headers(message);
            let publish = Publish { vhost: "/", exchange: exchange.as_bytes(), routing_keys: &[key.as_bytes()], properties: &properties };
            let expected = naive::route(&table, exchange, key.as_bytes(), &FieldTable::parse(message).unwrap());
            prop_assert_eq!(&routed(&table, &publish), &expected);
            let explained: BTreeSet<String> = table.explain(&publish).queues.into_iter().map(|(_, name)| name).collect();
            prop_assert_eq!(&explained, &expected);
        }
    }

    #[test]
    fn replicas_and_restored_tables_stay_equal(
        commands in prop::collection::vec(command(), 2..120),
        cut in any::<prop::sample::Index>(),
        entry in 1..5usize,
    ) {
        let (mut one, mut other) = (founded(), founded());
        let entries: Vec<&[Command]> = commands.chunks(entry).collect();
        let cut = cut.index(entries.len());
        let mut mirror: std::collections::BTreeMap<Vec<u8>, Vec<u8>> = one.records().collect();
        for (at, commands) in entries.into_iter().enumerate() {
            if at == cut {
                // From here on, the other one is a table that was restored.
                other = Table::restore(other.records(), other.index()).unwrap();
            }
            let (mut left, mut right) = (Applied::default(), Applied::default());
            let outcomes = one.apply(2 + at as u64, commands, &mut left);
            prop_assert_eq!(&outcomes, &other.apply(2 + at as u64, commands, &mut right));
            prop_assert_eq!(&left.events, &right.events);
            for change in left.changes {
                match change.value {
                    Some(value) => mirror.insert(change.key, value),
                    None => mirror.remove(&change.key),
                };
            }
            prop_assert_eq!(one.digest(), other.digest());
        }
        let records: Vec<_> = one.records().collect();
        prop_assert_eq!(&records, &other.records().collect::<Vec<_>>());
        prop_assert_eq!(&records, &mirror.into_iter().collect::<Vec<_>>());
        let restored = Table::restore(records.into_iter(), one.index()).unwrap();
        prop_assert_eq!(restored.digest(), one.digest());
    }

    #[test]
    fn what_a_check_says_is_what_applying_does(commands in prop::collection::vec(command(), 1..80)) {
        use warren_model::Outcome;
        use warren_routing::Check;
        let mut table = founded();
        for (at, command) in commands.iter().enumerate() {
            let check = match command {
                Command::DeclareExchange(declare) => Some(table.check_exchange(declare)),
                Command::DeclareQueue(declare) => Some(table.check_queue(declare)),
                Command::Bind(binding) => Some(table.check_bind(binding)),
                Command::Unbind(binding) => Some(table.check_unbind(binding)),
                _ => None,
            };
            let before = table.digest();
            let outcome = table.apply(2 + at as u64, std::slice::from_ref(command), &mut Applied::default()).remove(0);
            match check {
                None => {}
                Some(Check::Equivalent(expected)) => {
                    prop_assert_eq!(&outcome, &expected);
                    prop_assert_eq!(table.digest(), before);
                }
                Some(Check::Refused(refusal)) => {
                    prop_assert_eq!(&outcome, &Outcome::Refused(refusal));
                    prop_assert_eq!(table.digest(), before);
                }
                Some(Check::New) => prop_assert!(outcome == Outcome::Retry || table.digest() != before),
            }
        }
    }

    #[test]
    fn topics_agree_on_long_patterns(
        patterns in prop::collection::vec(prop::collection::vec(prop::sample::select(&["a", "b", "#", "*", ""][..]), 0..7), 1..12),
        keys in prop::collection::vec(prop::collection::vec(prop::sample::select(&["a", "b", "c", ""][..]), 0..8), 8),
    ) {
        let mut world = world::World::new();
        world.exchange("t", "topic");
        let patterns: BTreeSet<String> = patterns.iter().map(|words| words.join(".")).collect();
        for pattern in &patterns {
            let queue = format!("[{pattern}]");
            world.queue(&queue).bind("t", pattern, &queue);
        }
        for key in &keys {
            let key = key.join(".");
            let words = |text: &str| if text.is_empty() { Vec::new() } else { text.split('.').map(str::to_owned).collect::<Vec<_>>() };
            let matches = |pattern: &&String| {
                let (pattern, key) = (words(pattern), words(&key));
                naive::topic(&pattern.iter().map(String::as_str).collect::<Vec<_>>(), &key.iter().map(String::as_str).collect::<Vec<_>>())
            };
            let mut expected: Vec<String> = patterns.iter().filter(matches).map(|pattern| format!("[{pattern}]")).collect();
            expected.sort();
            prop_assert_eq!(world.route("t", &key), expected);
        }
        for pattern in &patterns {
            world.done(Command::Unbind(world::binding("t", pattern, &format!("[{pattern}]"))));
        }
        world.check();
    }
}
