//! Limits: how many queues a virtual host may have, what is kept of limits, and what goes with their owner.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{PasswordHashing, User, UserLimit, VhostLimit};
use warren_model::{Command, Outcome};
use warren_routing::{Event, Table};
use world::{World, delete_queue, queue};

fn vhost_limit(limit: VhostLimit, value: Option<i64>) -> Command {
    Command::SetVhostLimit {
        vhost: "/".into(),
        limit,
        value,
    }
}

fn user_limit(user: &str, limit: UserLimit, value: Option<i64>) -> Command {
    Command::SetUserLimit {
        user: user.into(),
        limit,
        value,
    }
}

fn user() -> Command {
    Command::PutUser(User {
        name: "u".into(),
        password_hash: vec![],
        hashing: PasswordHashing::SaltedSha256,
        tags: vec![],
    })
}

fn declare(name: &str) -> Command {
    Command::DeclareQueue(queue(name))
}

#[test]
fn a_queue_too_many_is_refused_and_one_that_is_there_is_not() {
    let mut world = World::new();
    world.done(vhost_limit(VhostLimit::MaxQueues, Some(2)));
    world.queues(&["a", "b"]);
    let refusal = world.refused(declare("c"));
    assert_eq!(refusal.code, 406);
    assert_eq!(
        refusal.text,
        "cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    );
    let again = world.run(declare("a"));
    assert!(matches!(again, Outcome::Queue { created: false, .. }));
    world.run(delete_queue("a"));
    world.queue("c");
    world.refused(declare("a"));
    // A lower limit takes nothing away, a negative one is none, and neither is a missing one.
    world.done(vhost_limit(VhostLimit::MaxQueues, Some(0)));
    assert_eq!(world.table.queue_count_of("/"), 2);
    assert!(world.refused(declare("d")).text.contains("(0) is reached"));
    world.done(vhost_limit(VhostLimit::MaxQueues, Some(-1)));
    world.queue("d");
    world.done(vhost_limit(VhostLimit::MaxQueues, Some(1)));
    world.refused(declare("e"));
    world.done(vhost_limit(VhostLimit::MaxQueues, None));
    world.queue("e");
}

#[test]
fn what_is_set_is_shown_kept_and_gone_with_its_owner() {
    let mut world = World::new();
    let empty = world.table.digest();
    world.done(vhost_limit(VhostLimit::MaxConnections, Some(5)));
    assert!(world.events.contains(&Event::LimitsChanged));
    world.done(vhost_limit(VhostLimit::MaxQueues, Some(7)));
    world.done(user());
    let without = world.table.digest();
    world.done(user_limit("u", UserLimit::MaxChannels, Some(3)));
    world.done(user_limit("u", UserLimit::MaxConnections, Some(-1)));
    let table = &world.table;
    assert_eq!(table.vhost_bound("/", VhostLimit::MaxConnections), Some(5));
    assert_eq!(table.user_bound("u", UserLimit::MaxChannels), Some(3));
    assert_eq!(table.user_bound("u", UserLimit::MaxConnections), None);
    assert_eq!(table.user_limits("u").unwrap().len(), 2);
    assert_eq!(table.vhost_bound("none", VhostLimit::MaxQueues), None);
    let restored = Table::restore(table.records(), table.index()).unwrap();
    assert_eq!(restored.digest(), table.digest());
    assert_eq!(restored.vhost_limits("/"), table.vhost_limits("/"));
    assert_eq!(restored.user_limits("u"), table.user_limits("u"));

    for limit in [UserLimit::MaxChannels, UserLimit::MaxConnections] {
        world.done(user_limit("u", limit, None));
    }
    assert_eq!(world.table.user_limits("u"), None);
    assert_eq!(world.table.digest(), without, "nothing of them stays");
    world.done(user_limit("u", UserLimit::MaxChannels, Some(3)));
    world.done(Command::DeleteUser { name: "u".into() });
    world.done(user());
    assert_eq!(world.table.user_limits("u"), None);
    world.done(Command::DeleteUser { name: "u".into() });
    world.done(Command::DeleteVhost { name: "/".into() });
    world.done(Command::PutVhost { name: "/".into() });
    assert_eq!(world.table.vhost_limits("/"), None);
    assert_eq!(world.table.digest(), empty);
    assert!(
        world
            .refused(user_limit("u", UserLimit::MaxChannels, Some(1)))
            .text
            .contains("no user 'u'")
    );
}
