//! Records: their exact bytes, and what restoring refuses.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{
    Binding, DeclareExchange, DeclareQueue, PasswordHashing, Permission, Place, Placement, User,
};
use warren_model::{Command, Incarnation, NodeId, ShardId};
use warren_protocol::OwnedValue;
use warren_routing::{BadTable, Table};
use world::{ME, World, args, binding, exchange, exchange_binding, queue, text};

/// One of everything.
fn full() -> World {
    let mut world = World::new();
    world.done(Command::MoveShard {
        shard: ShardId(5),
        to: NodeId(1),
    });
    world.done(Command::PlaceShards {
        placements: vec![Placement {
            shard: ShardId(6),
            replicas: vec![NodeId(1)],
        }],
    });
    world.done(Command::PutUser(User {
        name: "u".into(),
        password_hash: vec![0xab, 0],
        hashing: PasswordHashing::SaltedSha256,
        tags: vec!["t".into()],
    }));
    world.done(Command::SetPermission(Permission {
        user: "u".into(),
        vhost: "/".into(),
        configure: "c".into(),
        write: "w".into(),
        read: String::new(),
    }));
    let arguments = args([("alternate-exchange", text("a"))]);
    world.done(Command::DeclareExchange(DeclareExchange {
        arguments,
        auto_delete: true,
        ..exchange("x", "topic")
    }));
    world.queue("q");
    let place = Place::Node(NodeId(1), Incarnation(1));
    let exclusive = DeclareQueue {
        exclusive: true,
        durable: false,
        place,
        arguments: args([("k", OwnedValue::Void)]),
        ..queue("e\0")
    };
    world.run(Command::DeclareQueue(exclusive));
    world.bind("x", "a.#", "q");
    let arguments = args([("b", OwnedValue::I32(0)), ("a", OwnedValue::Bool(true))]);
    world.done(Command::Bind(Binding {
        arguments,
        ..binding("x", "", "e\0")
    }));
    world.done(Command::Bind(Binding {
        session: ME,
        ..exchange_binding("x", "k", "amq.fanout")
    }));
    world.done(Command::RaiseLevel { level: 2 });
    world
}

#[test]
fn the_bytes_of_every_kind_of_record_are_fixed() {
    let world = full();
    world.check();
    let predeclared =
        |key: &[u8]| key.starts_with(&[8, b'/', 0, 0]) && !key.starts_with(&[8, b'/', 0, 0, b'x']);
    let lines: Vec<String> = world
        .table
        .records()
        .filter(|(key, _)| !predeclared(key))
        .map(|(key, value)| format!("{} = {}", key.escape_ascii(), value.escape_ascii()))
        .collect();
    let expected = include_str!("records.golden");
    assert_eq!(
        lines.join("\n"),
        expected.trim_end(),
        "stored records of this version may never change: add a version instead"
    );
}

#[test]
fn the_digest_of_a_table_is_fixed() {
    let digest: String = full()
        .table
        .digest()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        digest,
        "814bbcf9a40ddd80dfff5b8fb8397f227b963d865136dd88f2a28a46972597fe"
    );
}

fn restore(records: Vec<(Vec<u8>, Vec<u8>)>) -> Result<Table, BadTable> {
    Table::restore(records.into_iter(), 1)
}

#[test]
fn every_cut_and_every_other_version_is_refused() {
    let records: Vec<_> = full().table.records().collect();
    for at in 0..records.len() {
        let with = |key: &[u8], value: &[u8]| {
            let mut changed = records.clone();
            changed[at] = (key.to_vec(), value.to_vec());
            restore(changed)
        };
        let (key, value) = &records[at];
        let mut newer = value.clone();
        newer[0] = 2;
        assert!(matches!(
            with(key, &newer),
            Err(BadTable::Version { version: 2, .. })
        ));
        for end in 0..key.len() {
            assert!(
                with(&key[..end], value).is_err(),
                "key {} cut at {end}",
                key.escape_ascii()
            );
        }
        let mut longer = key.clone();
        longer.push(0);
        assert!(matches!(
            with(&longer, value),
            Err(BadTable::Damaged { .. })
        ));
        assert!(matches!(with(key, &[]), Err(BadTable::Damaged { .. })));
    }
}

#[test]
fn records_that_refer_to_missing_ones_or_come_twice_are_refused() {
    let records: Vec<_> = full().table.records().collect();
    let without = |kind: u8| {
        restore(
            records
                .iter()
                .filter(|(key, _)| key[0] != kind)
                .cloned()
                .collect(),
        )
    };
    for kind in [6, 8, 9] {
        assert!(
            matches!(without(kind), Err(BadTable::Unfit { .. })),
            "without kind {kind}"
        );
    }
    for at in 0..records.len() {
        let mut doubled = records.clone();
        doubled.insert(at, records[at].clone());
        assert!(
            matches!(restore(doubled), Err(BadTable::Unfit { .. })),
            "{}",
            records[at].0.escape_ascii()
        );
    }
}
