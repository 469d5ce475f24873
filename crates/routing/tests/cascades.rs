//! What goes along with what is deleted (A11, A29, A35), nodes and virtual hosts included.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{
    DeclareExchange, DeclareQueue, NodeUp, PasswordHashing, Permission, Place, User,
};
use warren_model::{Command, Incarnation, NodeId, Outcome, SessionId, ShardId};
use warren_routing::Event;
use world::{
    ME, OTHER, World, binding, delete_exchange, delete_queue, exchange, exchange_binding,
    node_down, node_up, queue, session,
};

fn auto_delete(name: &str, kind: &str) -> Command {
    Command::DeclareExchange(DeclareExchange {
        auto_delete: true,
        ..exchange(name, kind)
    })
}

fn exclusive(name: &str, session: SessionId) -> Command {
    Command::DeclareQueue(DeclareQueue {
        exclusive: true,
        session,
        place: Place::Node(session.node, session.incarnation),
        ..queue(name)
    })
}

fn exists(world: &World, exchange: &str) -> bool {
    world.table.exchange("/", exchange).is_some()
}

/// A11.
#[test]
fn auto_delete_exchanges_go_with_their_last_binding_along_the_chain() {
    let mut world = World::new();
    world.exchange("t1", "topic").queue("q1");
    world.done(auto_delete("h1", "headers"));
    world.bind_exchange("t1", "#", "h1").bind("h1", "", "q1");
    world.run(delete_queue("q1"));
    assert!(exists(&world, "t1") && !exists(&world, "h1"));
    assert_eq!(world.binding_count(), 0);
    world.done(auto_delete("h1", "headers"));
    assert!(
        world.route("t1", "k").is_empty(),
        "declared anew, it gets nothing"
    );

    // Only a destination, or never bound: stays.
    world.done(auto_delete("y1", "fanout"));
    world.bind_exchange("t1", "k", "y1");
    world.done(Command::Unbind(exchange_binding("t1", "k", "y1")));
    world.done(auto_delete("z1", "fanout"));
    assert!(exists(&world, "y1") && exists(&world, "z1"));

    // Two bindings: goes with the second, whichever way that goes.
    world.done(auto_delete("w1", "direct"));
    world.queue("q2");
    world.run(exclusive("q3", ME));
    world.bind("w1", "a", "q2").bind("w1", "b", "q3");
    world.done(Command::Unbind(binding("w1", "a", "q2")));
    assert!(exists(&world, "w1"));
    world.done(Command::SessionClosed { session: ME });
    assert!(!exists(&world, "w1"));
    assert!(world.table.queue("/", "q3").is_none());
    world.check();
}

#[test]
fn cascades_run_through_long_chains_and_cycles() {
    let mut world = World::new();
    world.queue("q");
    for i in 0..500 {
        world.done(auto_delete(&format!("x{i}"), "fanout"));
    }
    for i in 0..499 {
        world.bind_exchange(&format!("x{i}"), "", &format!("x{}", i + 1));
    }
    world.bind("x499", "", "q");
    let before = world.table.exchanges("/").count();
    world.run(delete_queue("q"));
    assert_eq!(world.table.exchanges("/").count(), before - 500);
    world.done(auto_delete("a", "fanout"));
    world.done(auto_delete("b", "fanout"));
    world
        .bind_exchange("a", "", "b")
        .bind_exchange("b", "", "a")
        .bind_exchange("a", "", "a");
    world.done(delete_exchange("a"));
    assert!(
        !exists(&world, "a") && !exists(&world, "b"),
        "b lost its last binding when a went"
    );
    world.check();
}

#[test]
fn if_unused_refuses_a_source_of_bindings() {
    let mut world = World::new();
    world
        .exchange("x", "direct")
        .exchange("y", "fanout")
        .bind_exchange("x", "k", "y");
    let delete = |name: &str| Command::DeleteExchange {
        vhost: "/".into(),
        name: name.into(),
        if_unused: true,
    };
    let refusal = world.refused(delete("x"));
    assert_eq!(
        (refusal.code, refusal.text.as_str()),
        (406, "exchange 'x' in vhost '/' in use")
    );
    world.done(delete("y"));
    world.done(delete("x"));
    world.done(delete("x"));
}

/// A35.
#[test]
fn thousands_of_bindings_go_in_one_command() {
    let mut world = World::new();
    world.exchange("x1", "topic");
    for i in 0..50 {
        let name = format!("q{i}");
        world.queue(&name).bind("x1", "common.#", &name);
    }
    for i in 0..10_000 {
        world.bind("x1", &format!("key.{i}"), "q1");
    }
    world.run(delete_queue("q1"));
    assert_eq!(world.binding_count(), 49);
    assert!(world.route("x1", "key.17").is_empty());
    // A session with many exclusive queues.
    for i in 0..2_000 {
        let name = format!("e{i}");
        world.run(exclusive(&name, ME));
        world
            .bind("x1", &name, &name)
            .bind("amq.direct", "k", &name);
    }
    world.done(Command::SessionClosed { session: ME });
    assert_eq!((world.table.queue_count(), world.binding_count()), (49, 49));
    assert_eq!(world.events.len(), 2_000);
    world.check();
}

/// A29.
#[test]
fn a_nodes_end_takes_its_exclusive_and_in_memory_queues_and_no_later_ones() {
    let mut world = World::new();
    world.done(node_up(2, 1));
    world.exchange("x1", "topic");
    let (mine, elsewhere) = (session(2, 7), session(1, 7));
    world.run(exclusive("e", mine));
    // Exclusive but replicated, and ordinary but in that node's memory.
    world.run(Command::DeclareQueue(DeclareQueue {
        exclusive: true,
        session: mine,
        ..queue("r")
    }));
    world.run(Command::DeclareQueue(DeclareQueue {
        durable: false,
        place: Place::Node(NodeId(2), Incarnation(1)),
        ..queue("m")
    }));
    world.run(exclusive("other", elsewhere));
    world.queue("durable");
    for name in ["r", "e"] {
        world.done(Command::Bind(warren_model::command::Binding {
            session: mine,
            ..binding("x1", name, name)
        }));
    }
    world.bind("x1", "m", "m").bind("x1", "durable", "durable");
    let epoch = world.table.epoch();
    world.done(node_down(2, 1));
    let deleted: Vec<&str> = world
        .events
        .iter()
        .filter_map(|event| {
            if let Event::QueueDeleted { name, .. } = event {
                Some(name.as_str())
            } else {
                None
            }
        })
        .collect();
    assert_eq!(deleted, ["e", "r", "m"], "in the order of their ids");
    assert_eq!(
        world.events.last(),
        Some(&Event::MembersChanged { epoch: epoch + 1 })
    );
    let left: Vec<&str> = world.table.queues("/").map(|queue| queue.name).collect();
    assert_eq!(left, ["durable", "other"]);
    assert_eq!(world.binding_count(), 1);
    world.done(node_down(2, 1));
    assert_eq!(
        (world.table.epoch(), world.events.len()),
        (epoch + 1, 0),
        "it is down already"
    );
    // The name is free; the new queue does not belong to the old clean-up.
    world.run(exclusive("e", elsewhere));
    world.done(Command::SessionClosed { session: mine });
    world.done(node_up(2, 2));
    world.done(node_down(2, 1));
    assert!(world.table.queue("/", "e").is_some());
    assert!(
        world.table.node(NodeId(2)).unwrap().up,
        "that was the incarnation before"
    );
    world.check();
}

#[test]
fn a_later_incarnation_ends_the_earlier_one() {
    let mut world = World::new();
    world.done(node_up(2, 1));
    world.run(exclusive("e", session(2, 1)));
    world.done(node_up(2, 3));
    assert!(world.table.queue("/", "e").is_none());
    let refusal = world.refused(node_up(2, 2));
    assert!(refusal.text.contains("has ended"), "{}", refusal.text);
    let epoch = world.table.epoch();
    world.done(node_up(2, 3));
    assert_eq!(world.table.epoch(), epoch, "nothing new");
    world.check();
}

#[test]
fn a_name_belongs_to_one_node_that_is_up() {
    let mut world = World::new();
    world.done(node_up(2, 1));
    let Command::NodeUp(up) = node_up(2, 1) else {
        unreachable!()
    };
    let replacement = Command::NodeUp(NodeUp {
        node: NodeId(22),
        ..up
    });
    let refusal = world.refused(replacement.clone());
    assert!(
        refusal
            .text
            .starts_with("node name 'n2' is in use by node 0000000000000002"),
        "{}",
        refusal.text
    );
    world.done(node_down(2, 1));
    world.done(replacement);
    assert!(
        world.table.node(NodeId(2)).is_none(),
        "the old identity is forgotten"
    );
    assert_eq!(world.table.node(NodeId(22)).unwrap().name, "n2");
    world.check();
}

#[test]
fn a_shard_keeps_its_founders_whatever_replicas_it_gets_later() {
    let mut world = World::new();
    world.done(node_up(2, 1));
    world.done(node_up(3, 1));
    let place = |shard, nodes: &[u64]| Command::PlaceShards {
        placements: vec![warren_model::command::Placement {
            shard: ShardId(shard),
            replicas: nodes.iter().copied().map(NodeId).collect(),
        }],
    };
    let epoch = world.table.epoch();
    world.done(place(1, &[1]));
    assert_eq!(world.events, [Event::ShardsPlaced]);
    world.done(place(1, &[1]));
    assert!(world.events.is_empty());
    world.done(place(1, &[3, 1, 2]));
    assert_eq!(world.table.epoch(), epoch + 2);
    let placed = world.table.placement(ShardId(1)).unwrap();
    assert_eq!(placed.founders, [NodeId(1)]);
    assert_eq!(placed.replicas, [NodeId(3), NodeId(1), NodeId(2)]);
    world.check();
    for bad in [
        place(1, &[]),
        place(1, &[1, 1]),
        place(1, &[9]),
        place(900, &[1]),
    ] {
        assert_eq!(world.refused(bad).code, 406);
    }
    assert_eq!(world.table.placement(ShardId(2)), None);
}

#[test]
fn a_node_is_drained_only_while_others_can_take_what_it_holds() {
    let mut world = World::new();
    let drain = |node, draining| Command::DrainNode {
        node: NodeId(node),
        draining,
    };
    assert_eq!(world.refused(drain(9, true)).code, 404);
    let alone = world.refused(drain(1, true));
    assert!(alone.code == 406 && alone.text.contains("no other node"));
    world.done(node_up(2, 1));
    world.done(node_up(3, 1));
    let before = (world.table.digest(), world.table.epoch());
    world.done(drain(1, true));
    assert!(world.table.is_draining(NodeId(1)) && !world.table.is_draining(NodeId(2)));
    assert_eq!(
        world.events,
        [Event::MembersChanged {
            epoch: before.1 + 1
        }]
    );
    let key = [15, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(
        world.mirror[&key[..]],
        [1],
        "a stored form, never to change"
    );
    world.check();
    world.done(drain(1, true));
    assert!(world.events.is_empty(), "nothing has changed");
    world.done(drain(2, true));
    assert_eq!(world.refused(drain(3, true)).code, 406);
    world.done(drain(2, false));
    world.done(node_down(3, 1));
    let down = world.refused(drain(2, true));
    assert!(down.code == 406 && down.text.contains("'n3' is down"));
    // It is drained across restarts, until it is revived or forgotten.
    world.done(node_down(1, 1));
    world.done(node_up(1, 2));
    assert!(world.table.is_draining(NodeId(1)));
    world.check();
    world.done(Command::NodeForgotten { node: NodeId(1) });
    assert!(!world.table.is_draining(NodeId(1)) && !world.mirror.contains_key(&key[..]));
    world.check();
}

#[test]
fn shards_move_to_nodes_that_are_up_and_come_back_when_those_go() {
    let mut world = World::new();
    let to = |shard, node| Command::MoveShard {
        shard: ShardId(shard),
        to: NodeId(node),
    };
    assert_eq!(world.run(to(3, 2)), Outcome::Retry);
    world.done(node_up(2, 1));
    let epoch = world.table.epoch();
    world.done(to(3, 2));
    assert_eq!(
        world.events,
        [Event::ShardMoved {
            shard: ShardId(3),
            from: None,
            to: NodeId(2)
        }]
    );
    world.done(to(3, 2));
    assert!(world.events.is_empty());
    world.done(to(3, 1));
    assert_eq!(
        world.events,
        [Event::ShardMoved {
            shard: ShardId(3),
            from: Some(NodeId(2)),
            to: NodeId(1)
        }]
    );
    assert_eq!(world.table.epoch(), epoch + 2);
    world.done(to(4, 2));
    assert_eq!(
        world.table.shard_overrides().collect::<Vec<_>>(),
        [(ShardId(3), NodeId(1)), (ShardId(4), NodeId(2))]
    );
    assert_eq!(world.refused(to(8, 1)).code, 406);
    world.check();
    // One that comes back to where the ring puts it is not given to anybody any more.
    let replicas = vec![NodeId(2), NodeId(1)];
    world.done(Command::PlaceShards {
        placements: vec![warren_model::command::Placement {
            shard: ShardId(3),
            replicas,
        }],
    });
    world.done(to(3, 2));
    assert_eq!(
        world.events,
        [Event::ShardMoved {
            shard: ShardId(3),
            from: Some(NodeId(1)),
            to: NodeId(2)
        }]
    );
    assert_eq!(world.table.shard_override(ShardId(3)), None);
    world.check();
    world.done(to(3, 2));
    assert!(world.events.is_empty());
    world.done(to(3, 1));
    assert_eq!(world.table.shard_override(ShardId(3)), Some(NodeId(1)));
    world.check();
    world.done(node_down(2, 1));
    assert_eq!(world.table.shard_override(ShardId(4)), None);
    world.check();
    world.done(Command::NodeForgotten { node: NodeId(1) });
    assert_eq!(
        (
            world.table.shard_overrides().count(),
            world.table.nodes().count()
        ),
        (0, 1)
    );
    world.check();
}

#[test]
fn what_is_not_durable_goes_when_the_whole_cluster_has_stopped() {
    let mut world = World::new();
    world.done(node_up(2, 1));
    world.done(Command::DeclareExchange(DeclareExchange {
        durable: false,
        ..exchange("t", "fanout")
    }));
    world
        .exchange("d", "fanout")
        .queue("q")
        .bind("t", "", "q")
        .bind_exchange("d", "", "t");
    world.done(node_up(1, 2));
    world.done(node_up(2, 2));
    assert!(
        exists(&world, "t"),
        "one after the other: some node was up at all times"
    );
    world.done(node_down(2, 2));
    world.done(node_down(1, 2));
    assert!(exists(&world, "t"));
    world.done(node_up(1, 3));
    assert!(!exists(&world, "t") && exists(&world, "d"));
    assert_eq!(world.binding_count(), 0);
    world.check();
}

#[test]
fn deleting_a_virtual_host_takes_all_that_is_in_it() {
    let mut world = World::new();
    world.done(Command::PutVhost { name: "v".into() });
    world.done(Command::PutUser(User {
        name: "u".into(),
        password_hash: vec![1],
        hashing: PasswordHashing::SaltedSha256,
        tags: vec!["administrator".into()],
    }));
    let all = |vhost: &str| Permission {
        user: "u".into(),
        vhost: vhost.into(),
        configure: ".*".into(),
        write: ".*".into(),
        read: ".*".into(),
    };
    world.done(Command::SetPermission(all("v")));
    world.done(Command::SetPermission(all("/")));
    world.queue("q").bind("amq.fanout", "", "q");
    let in_v = |name: &str| DeclareQueue {
        vhost: "v".into(),
        ..queue(name)
    };
    world.run(Command::DeclareQueue(in_v("q")));
    world.done(Command::Bind(warren_model::command::Binding {
        vhost: "v".into(),
        ..binding("amq.fanout", "", "q")
    }));
    world.check();
    world.done(Command::DeleteVhost { name: "v".into() });
    assert!(matches!(world.events.last(), Some(Event::VhostDeleted { name }) if name == "v"));
    assert!(!world.table.vhost_exists("v"));
    assert_eq!((world.table.queue_count(), world.binding_count()), (1, 1));
    assert!(
        world.table.permission("u", "v").is_none() && world.table.permission("u", "/").is_some()
    );
    world.done(Command::DeleteVhost { name: "v".into() });
    world.check();
}

#[test]
fn users_and_permissions_come_and_go() {
    let mut world = World::new();
    let user = User {
        name: "u".into(),
        password_hash: Vec::new(),
        hashing: PasswordHashing::SaltedSha512,
        tags: Vec::new(),
    };
    let permission = Permission {
        user: "u".into(),
        vhost: "/".into(),
        configure: String::new(),
        write: "^a".into(),
        read: ".*".into(),
    };
    assert_eq!(
        world
            .refused(Command::SetPermission(permission.clone()))
            .code,
        404
    );
    world.done(Command::PutUser(user.clone()));
    assert_eq!(world.events, [Event::UserChanged { name: "u".into() }]);
    world.done(Command::PutUser(user.clone()));
    assert!(world.events.is_empty());
    world.done(Command::SetPermission(permission.clone()));
    assert_eq!(world.table.permission("u", "/"), Some(&permission));
    world.done(Command::SetPermission(Permission {
        read: String::new(),
        ..permission
    }));
    world.check();
    world.done(Command::ClearPermission {
        user: "u".into(),
        vhost: "/".into(),
    });
    assert_eq!(world.table.permission("u", "/"), None);
    world.done(Command::DeleteUser { name: "u".into() });
    assert_eq!(world.table.user("u"), None);
    world.check();
}

#[test]
fn another_sessions_end_touches_nothing() {
    let mut world = World::new();
    world.run(exclusive("q", ME));
    world.done(Command::SessionClosed { session: OTHER });
    assert!(world.table.queue("/", "q").is_some() && world.events.is_empty());
    world.done(Command::SessionClosed { session: ME });
    assert!(world.table.queue("/", "q").is_none());
}

#[test]
fn a_cluster_is_founded_once() {
    let mut world = World::new();
    assert!(
        world
            .refused(Command::FoundCluster {
                cluster: 9,
                shards: 3
            })
            .text
            .contains("is founded already")
    );
    assert_eq!(world.table.cluster(), Some((7, 8)));
}
