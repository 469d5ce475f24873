//! What is said of virtual hosts, and the type that they give to queues.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{DeclareQueue, VhostDetails};
use warren_model::{Command, Outcome};
use warren_routing::{Check, Table};
use world::{World, args, queue, text};

fn set(details: VhostDetails) -> Command {
    Command::SetVhostDetails {
        vhost: "/".into(),
        details,
    }
}

fn default_type(kind: Option<&str>) -> Command {
    set(VhostDetails {
        default_queue_type: kind.map(Into::into),
        ..VhostDetails::default()
    })
}

fn kind(world: &World, name: &str) -> &'static str {
    world.table.queue("/", name).unwrap().kind
}

#[test]
fn queues_that_name_no_type_are_of_the_default_one() {
    let mut world = World::new();
    world.queue("old");
    world.done(default_type(Some("quorum")));
    world.queue("new");
    assert_eq!(kind(&world, "new"), "quorum");
    let typed = args([("x-queue-type", text("quorum"))]);
    assert_eq!(world.table.queue("/", "new").unwrap().arguments, typed);
    // One that cannot be of that type is not.
    for (name, durable, exclusive, auto_delete) in [
        ("transient", false, false, false),
        ("exclusive", true, true, false),
        ("passing", true, false, true),
    ] {
        let declare = DeclareQueue {
            durable,
            exclusive,
            auto_delete,
            ..queue(name)
        };
        let outcome = world.run(Command::DeclareQueue(declare));
        assert!(matches!(outcome, Outcome::Queue { created: true, .. }));
        assert_eq!(kind(&world, name), "classic");
    }
    let named = DeclareQueue {
        arguments: args([
            ("x-queue-type", text("classic")),
            ("x-max-length", 5.into()),
        ]),
        ..queue("named")
    };
    world.run(Command::DeclareQueue(named));
    assert_eq!(kind(&world, "named"), "classic");
    // The other type's arguments are the other type's.
    let priorities = DeclareQueue {
        arguments: args([("x-max-priority", 5.into())]),
        ..queue("priorities")
    };
    let refusal = world.refused(Command::DeclareQueue(priorities));
    assert!(
        refusal.text.contains("rabbit_quorum_queue"),
        "{}",
        refusal.text
    );
}

#[test]
fn a_queue_that_is_there_is_compared_with_the_default_of_now() {
    let mut world = World::new();
    world.queue("old");
    world.done(default_type(Some("quorum")));
    let refusal = world.refused(Command::DeclareQueue(queue("old")));
    assert_eq!(
        refusal.text,
        "inequivalent arg 'x-queue-type' for queue 'old' in vhost '/': received the value 'quorum' of type 'longstr' but current is none"
    );
    assert_eq!(
        world.table.check_queue(&queue("old")),
        Check::Refused(refusal)
    );
    world.queue("new");
    let again = world.run(Command::DeclareQueue(queue("new")));
    assert!(matches!(again, Outcome::Queue { created: false, .. }));
    // As it is exported, it can be declared again.
    let view = world.table.queue("/", "old").unwrap();
    let arguments = world.table.redeclarable_arguments(&view).into_owned();
    assert_eq!(arguments, args([("x-queue-type", text("classic"))]));
    let old = DeclareQueue {
        arguments,
        ..queue("old")
    };
    let again = world.run(Command::DeclareQueue(old));
    assert!(matches!(again, Outcome::Queue { created: false, .. }));
    world.done(default_type(Some("classic")));
    let view = world.table.queue("/", "old").unwrap();
    assert!(world.table.redeclarable_arguments(&view).is_empty());
}

#[test]
fn what_is_said_is_kept_and_gone_with_the_virtual_host() {
    let mut world = World::new();
    let empty = world.table.digest();
    let said = VhostDetails {
        description: "Orders".into(),
        tags: vec!["a".into(), "b".into()],
        default_queue_type: Some("quorum".into()),
    };
    world.done(set(said.clone()));
    let table = &world.table;
    assert_eq!(table.vhost_details("/"), Some(&said));
    let restored = Table::restore(table.records(), table.index()).unwrap();
    assert_eq!(restored.vhost_details("/"), Some(&said));
    assert_eq!(restored.digest(), table.digest());
    let refusal = world.refused(default_type(Some("stream")));
    assert!(refusal.text.contains("'stream'"), "{}", refusal.text);
    world.done(set(VhostDetails::default()));
    assert_eq!(world.table.digest(), empty);
    world.done(set(said));
    world.done(Command::DeleteVhost { name: "/".into() });
    world.done(Command::PutVhost { name: "/".into() });
    assert_eq!(world.table.digest(), empty);
    assert_eq!(
        world.table.vhost_details("/"),
        Some(&VhostDetails::default())
    );
}
