//! Clusters whose nodes are upgraded one after the other.

use std::time::Duration;

use warren_model::{Command, Definition, Level};

use super::world::{World, eventually, seeds};
use crate::ProposeError;

const SHORT: Duration = Duration::from_secs(2);

fn import() -> Command {
    Command::Import {
        definitions: vec![Definition::Vhost {
            name: "imported".into(),
        }],
    }
}

fn level_at(world: &World, name: &str) -> Level {
    world.at(name).table().read().level()
}

/// A cluster whose nodes all run an older release.
async fn older(names: &[&str]) -> World {
    let mut world = World::new();
    for (at, name) in names.iter().enumerate() {
        world.create(name, at as u64 + 1, &seeds(names));
        world.nodes.get_mut(*name).unwrap().knows = Level::FIRST;
        world.start(name).await;
    }
    world.all_routable().await;
    world.all_up().await;
    world
}

async fn upgrade(world: &mut World, name: &str) {
    world.shutdown(name).await;
    world.nodes.get_mut(name).unwrap().knows = Level::NEWEST;
    world.start(name).await;
    world.all_routable().await;
    world.all_up().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_cluster_begins_at_what_all_its_founders_know() {
    let world = World::cluster(&["a", "b", "c"]).await;
    for name in ["a", "b", "c"] {
        assert_eq!(level_at(&world, name), Level::NEWEST);
    }
    let proposed = world.at("b").propose(import(), SHORT).await.unwrap();
    assert_eq!(proposed.outcome, warren_model::Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn the_level_rises_once_the_last_node_is_upgraded() {
    let names = ["a", "b", "c"];
    let mut world = older(&names).await;
    for name in ["a", "b"] {
        upgrade(&mut world, name).await;
        // Time enough for whoever leads to look around many times.
        tokio::time::sleep(SHORT).await;
        for name in names {
            assert_eq!(level_at(&world, name), Level::FIRST);
            assert!(world.at(name).may_route(), "{name} has stopped");
        }
        let refused = world.at("a").propose(import(), SHORT).await.unwrap_err();
        assert!(
            matches!(
                refused,
                ProposeError::Level {
                    needed: Level::IMPORTS,
                    level: Level::FIRST
                }
            ),
            "{refused}"
        );
    }
    upgrade(&mut world, "c").await;
    for name in names {
        eventually("the level rises", || {
            (level_at(&world, name) == Level::NEWEST).then_some(())
        })
        .await;
    }
    world.at("c").propose(import(), SHORT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_away_keeps_the_level_down() {
    let mut world = older(&["a", "b", "c"]).await;
    world.kill("c").await;
    upgrade(&mut world, "a").await;
    upgrade(&mut world, "b").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(level_at(&world, "a"), Level::FIRST);
    assert_eq!(level_at(&world, "b"), Level::FIRST);
    world.start("c").await;
    world.all_routable().await;
    assert_eq!(level_at(&world, "c"), Level::FIRST);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_knows_less_than_its_cluster_is_not_let_in() {
    let world = World::cluster(&["a"]).await;
    let older = warren_transport::Hello {
        cluster: None,
        node: warren_model::NodeId(9),
        name: "old".into(),
        incarnation: warren_model::Incarnation(1),
        address: "old:1".into(),
        version: 1,
        level: Level::FIRST,
    };
    let refused = world.at("a").admit(&older).unwrap_err();
    assert!(
        refused.contains("'old'") && refused.contains("level 2"),
        "{refused}"
    );
    let newer = warren_transport::Hello {
        level: Level(Level::NEWEST.0 + 1),
        ..older
    };
    assert_eq!(world.at("a").admit(&newer), Ok(()));
}
