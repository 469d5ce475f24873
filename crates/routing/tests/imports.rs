//! Imports: all of it or nothing, and the same as the single commands.

#![allow(clippy::unwrap_used)]

mod world;

use warren_model::command::{
    ApplyTo, DeclareExchange, DeclareQueue, ParameterKey, PasswordHashing, Permission, Place,
    Policy, TopicPermission, User, UserLimit, VhostDetails, VhostLimit,
};
use warren_model::{
    Command, Definition, Incarnation, NodeId, Outcome, QueueId, Refusal, SessionId, ShardId,
};
use warren_routing::{Applied, Effect};
use world::{ME, World, args, binding, exchange, exchange_binding, queue, text};

fn import(definitions: &[Definition]) -> Command {
    Command::Import {
        definitions: definitions.to_vec(),
    }
}

fn user(name: &str, tags: &[&str]) -> Definition {
    Definition::User(User {
        name: name.into(),
        password_hash: b"x".to_vec(),
        hashing: PasswordHashing::SaltedSha256,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
    })
}

fn permission(user: &str, pattern: &str) -> Definition {
    Definition::Permission(Permission {
        user: user.into(),
        vhost: "/".into(),
        configure: pattern.into(),
        write: pattern.into(),
        read: pattern.into(),
    })
}

fn topic_permission(user: &str, pattern: &str) -> Definition {
    Definition::TopicPermission(TopicPermission {
        user: user.into(),
        vhost: "/".into(),
        exchange: "amq.topic".into(),
        write: pattern.into(),
        read: pattern.into(),
    })
}

fn policy(name: &str, alternate: &str) -> Definition {
    Definition::Policy(Policy {
        vhost: "/".into(),
        operator: false,
        name: name.into(),
        pattern: "^x".into(),
        apply_to: ApplyTo::Exchanges,
        priority: 0,
        definition: args([("alternate-exchange", text(alternate))]),
    })
}

fn global(value: &str) -> Definition {
    Definition::GlobalParameter {
        name: "g".into(),
        value: value.into(),
    }
}

fn parameter(value: &str) -> Definition {
    let parameter = ParameterKey {
        vhost: "/".into(),
        component: "c".into(),
        name: "p".into(),
    };
    Definition::Parameter {
        parameter,
        value: value.into(),
    }
}

fn details(description: &str) -> Definition {
    Definition::VhostDetails {
        vhost: "/".into(),
        details: VhostDetails {
            description: description.into(),
            ..VhostDetails::default()
        },
    }
}

fn queues_max(value: Option<i64>) -> Definition {
    Definition::VhostLimit {
        vhost: "/".into(),
        limit: VhostLimit::MaxQueues,
        value,
    }
}

fn channels_max(value: Option<i64>) -> Definition {
    Definition::UserLimit {
        user: "u".into(),
        limit: UserLimit::MaxChannels,
        value,
    }
}

fn auto_delete(name: &str) -> DeclareExchange {
    DeclareExchange {
        auto_delete: true,
        ..exchange(name, "topic")
    }
}

/// Everything that there is, new or in a first version.
fn all(version: &str) -> Vec<Definition> {
    let number = i64::try_from(version.len()).unwrap() + 100;
    let mut elsewhere = binding("amq.fanout", "", "far");
    elsewhere.vhost = "w".into();
    vec![
        Definition::Vhost { name: "w".into() },
        details(version),
        user("u", &[version]),
        permission("u", version),
        topic_permission("u", version),
        Definition::Exchange(auto_delete("x")),
        Definition::Exchange(exchange("y", "headers")),
        Definition::Queue(queue("q")),
        Definition::Queue(DeclareQueue {
            vhost: "w".into(),
            ..queue("far")
        }),
        Definition::Binding(binding("x", "a.#", "q")),
        Definition::Binding(exchange_binding("x", "b", "y")),
        Definition::Binding(elsewhere),
        policy("p", version),
        global(&number.to_string()),
        parameter(&number.to_string()),
        queues_max(Some(number)),
        channels_max(Some(number)),
    ]
}

/// What no table takes.
fn bad() -> Definition {
    Definition::Binding(binding("none", "", "q"))
}

type State = (Vec<(Vec<u8>, Vec<u8>)>, [u8; 32]);

fn state(world: &World) -> State {
    (world.table.records().collect(), world.table.digest())
}

#[test]
fn what_is_refused_leaves_nothing_of_the_whole() {
    // In an empty cluster, and where everything is there in another version or as it is.
    for before in [None, Some("old"), Some("newer")] {
        let mut world = World::new();
        if let Some(version) = before {
            world.done(import(&all(version)));
            world.check();
        }
        let untouched = state(&world);
        let whole = all("newer");
        for cut in 0..=whole.len() {
            let part = [&whole[..cut], &[bad()]].concat();
            let Refusal { code, text } = world.refused(import(&part));
            assert_eq!(code, 404);
            assert_eq!(
                text,
                "the binding from 'none' to 'q' in vhost '/' would be refused: no exchange 'none' in vhost '/'"
            );
            assert_eq!(state(&world), untouched, "{cut} of {before:?}");
            world.check();
        }
        world.done(import(&whole));
        world.check();
        assert_eq!(world.route("x", "a.b"), ["q"]);
        let done = state(&world);
        world.done(import(&whole));
        assert_eq!(state(&world), done, "once more");
        assert!(world.events.is_empty());
    }
}

/// Taking back an import's only binding of an exchange must not take the exchange along.
#[test]
fn an_auto_delete_exchange_outlives_an_import_that_fails() {
    let mut world = World::new();
    world.queue("q");
    world.done(Command::DeclareExchange(auto_delete("x")));
    let before = state(&world);
    world.refused(import(&[
        Definition::Binding(binding("x", "k", "q")),
        bad(),
    ]));
    assert_eq!(state(&world), before);
    world.done(import(&[Definition::Binding(binding("x", "k", "q"))]));
    assert_eq!(world.route("x", "k"), ["q"]);
}

#[test]
fn an_import_does_what_its_commands_do() {
    let (mut one, mut other) = (World::new(), World::new());
    one.done(import(&all("v")));
    for definition in all("v") {
        let command = match definition {
            Definition::Vhost { name } => Command::PutVhost { name },
            Definition::VhostDetails { vhost, details } => {
                Command::SetVhostDetails { vhost, details }
            }
            Definition::User(user) => Command::PutUser(user),
            Definition::Permission(permission) => Command::SetPermission(permission),
            Definition::TopicPermission(permission) => Command::SetTopicPermission(permission),
            Definition::Exchange(declare) => Command::DeclareExchange(declare),
            Definition::Queue(declare) => Command::DeclareQueue(declare),
            Definition::Binding(binding) => Command::Bind(binding),
            Definition::Policy(policy) => Command::PutPolicy(policy),
            Definition::GlobalParameter { name, value } => {
                Command::PutGlobalParameter { name, value }
            }
            Definition::Parameter { parameter, value } => {
                Command::PutParameter { parameter, value }
            }
            Definition::VhostLimit {
                vhost,
                limit,
                value,
            } => Command::SetVhostLimit {
                vhost,
                limit,
                value,
            },
            Definition::UserLimit { user, limit, value } => {
                Command::SetUserLimit { user, limit, value }
            }
        };
        other.run(command);
    }
    let known = |world: &World| -> Vec<Vec<u8>> {
        // A queue's value has its id, which is another one.
        world.table.records().map(|(key, _)| key).collect()
    };
    assert_eq!(known(&one), known(&other));
    assert_eq!(one.route("x", "a"), other.route("x", "a"));
    assert_eq!(one.table.binding_count(), other.table.binding_count());
}

#[test]
fn ids_are_given_once_in_an_entry() {
    let mut world = World::new();
    let declare = |name: &str| Command::DeclareQueue(queue(name));
    let many = |names: &[&str]| {
        let queues = names.iter().map(|name| Definition::Queue(queue(name)));
        Command::Import {
            definitions: queues.collect(),
        }
    };
    let (index, mut applied) = (world.table.index() + 1, Applied::default());
    let commands = [
        declare("a"),
        many(&["b", "c", "d"]),
        declare("e"),
        many(&["f"]),
        declare("g"),
    ];
    world.table.apply(index, &commands, &mut applied);
    let mut ids: Vec<QueueId> = ["a", "b", "c", "d", "e", "f", "g"]
        .map(|name| world.table.queue("/", name).unwrap().id)
        .to_vec();
    assert_eq!(
        ids[0],
        QueueId::new(index, 0),
        "as it was before there were imports"
    );
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7);
    assert!(ids.iter().all(|id| id.created_at() == index));
}

#[test]
fn imports_that_do_not_fit_in_an_entry_are_asked_for_again() {
    let mut world = World::new();
    let many = |prefix: &str| Command::Import {
        definitions: (0..40_000)
            .map(|number| Definition::Queue(queue(&format!("{prefix}{number}"))))
            .collect(),
    };
    let index = world.table.index() + 1;
    let commands = [many("a"), many("b"), Command::DeclareQueue(queue("last"))];
    let outcomes = world.table.apply(index, &commands, &mut Applied::default());
    assert_eq!(outcomes[..2], [Outcome::Done, Outcome::Retry]);
    assert_eq!(world.table.queue_count(), 40_001);
    let mut ids: Vec<QueueId> = world.table.queues("/").map(|queue| queue.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 40_001);
}

#[test]
fn a_place_that_is_gone_is_chosen_anew() {
    let mut world = World::new();
    let before = state(&world);
    let lost = Definition::Queue(DeclareQueue {
        durable: false,
        place: Place::Node(NodeId(9), Incarnation(1)),
        ..queue("q")
    });
    let outcome = world.run(import(&[Definition::Queue(queue("first")), lost]));
    assert_eq!(outcome, Outcome::Retry);
    assert_eq!(state(&world), before);
    assert!(world.events.is_empty());
}

#[test]
fn limits_and_default_types_hold_within_an_import() {
    let mut world = World::new();
    let two = [Definition::Queue(queue("a")), Definition::Queue(queue("b"))];
    let refusal = world.refused(import(&[&[queues_max(Some(1))], &two[..]].concat()));
    assert!(
        refusal
            .text
            .starts_with("queue 'b' in vhost '/' would be refused: ")
            && refusal.text.contains("queue limit"),
        "{refusal:?}"
    );
    let quorum = Definition::VhostDetails {
        vhost: "/".into(),
        details: VhostDetails {
            default_queue_type: Some("quorum".into()),
            ..VhostDetails::default()
        },
    };
    world.done(import(
        &[&[quorum], &two[..], &[queues_max(Some(1))]].concat(),
    ));
    let known = world.table.queue("/", "a").unwrap();
    assert_eq!(known.arguments, args([("x-queue-type", text("quorum"))]));
    let locked = Definition::Queue(DeclareQueue {
        exclusive: true,
        session: SessionId { number: 9, ..ME },
        place: Place::Shard(ShardId(0)),
        ..queue("a")
    });
    assert_eq!(world.refused(import(&[locked])).code, 405);
}

#[test]
fn what_an_import_would_do_is_known_before() {
    let mut world = World::new();
    let effects = |world: &World, version: &str| -> Vec<Effect> {
        let all = all(version);
        all.iter().map(|one| world.table.effect(one)).collect()
    };
    let new = effects(&world, "v");
    assert!(
        new.iter().enumerate().all(|(at, effect)| match at {
            1 => *effect == Effect::Changes,
            _ => *effect == Effect::Creates,
        }),
        "{new:?}"
    );
    world.done(import(&all("v")));
    let same = effects(&world, "v");
    assert!(
        same.iter().all(|effect| *effect == Effect::Nothing),
        "{same:?}"
    );
    let other = effects(&world, "other");
    let changed = other.iter().filter(|e| **e == Effect::Changes).count();
    assert_eq!(
        (changed, other[0], other[7]),
        (9, Effect::Nothing, Effect::Nothing)
    );
    assert_eq!(
        world.table.effect(&queues_max(None)),
        Effect::Changes,
        "a limit that goes"
    );
}
