//! Restarts: in any order, after loss of power, and from a snapshot.

use std::time::Duration;

use super::world::{
    DEADLINE, World, bind, declared, eventually, has_exchange, has_queue, seeds, transient_exchange,
};

#[tokio::test(start_paused = true)]
async fn all_may_stop_and_start_in_any_order() {
    let orders = [
        ["a", "b", "c"],
        ["a", "c", "b"],
        ["b", "a", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["c", "b", "a"],
    ];
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let cluster = world.at("a").status().cluster.unwrap();
    for (round, order) in orders.iter().enumerate() {
        declared(world.at("a"), &format!("q{round}")).await;
        for name in ["b", "a", "c"] {
            if round % 2 == 0 {
                world.power_off(name).await;
            } else {
                world.kill(name).await;
            }
        }
        world.start(order[0]).await;
        assert!(
            !world
                .at(order[0])
                .wait_routable(Duration::from_secs(10))
                .await,
            "alone it must wait"
        );
        world.start(order[1]).await;
        world.all_routable().await;
        assert!(has_queue(world.at(order[0]), &format!("q{round}")));
        world.start(order[2]).await;
        world.all_routable().await;
        for (_, metadata) in world.running() {
            assert_eq!(metadata.status().cluster, Some(cluster));
            assert!((0..=round).all(|n| has_queue(metadata, &format!("q{n}"))));
        }
    }
    world.assert_equal().await;
}

/// An exchange that is not durable outlives nodes that restart one after the other, or two at once, but not a stop of all, in whatever order and
/// number they come back.
#[tokio::test(start_paused = true)]
async fn exchanges_that_are_not_durable_end_with_the_cluster() {
    let names = ["a", "b", "c"];
    let mut world = World::cluster(&names).await;
    let declare = || transient_exchange("fleeting");
    for round in 0..3 {
        world.at("a").propose(declare(), DEADLINE).await.unwrap();
        for name in names {
            world.power_off(name).await;
            world.start(name).await;
            world.all_routable().await;
            assert!(has_exchange(world.at(name), "fleeting"));
        }
        let (away, rest) = (
            names[round],
            [names[(round + 1) % 3], names[(round + 2) % 3]],
        );
        for name in rest {
            world.power_off(name).await;
        }
        for name in rest {
            world.start(name).await;
        }
        world.all_routable().await;
        assert!(
            has_exchange(world.at(rest[0]), "fleeting"),
            "one node was up all the time"
        );
        for name in names {
            world.power_off(name).await;
        }
        for name in rest {
            world.start(name).await;
        }
        for name in rest {
            assert!(world.at(name).wait_routable(DEADLINE).await);
            assert!(
                !has_exchange(world.at(name), "fleeting"),
                "at {name} without {away}"
            );
        }
        // What is declared now stays.
        world
            .at(rest[0])
            .propose(declare(), DEADLINE)
            .await
            .unwrap();
        world.start(away).await;
        world.all_routable().await;
        assert!(has_exchange(world.at(away), "fleeting"));
        for name in names {
            world.power_off(name).await;
        }
        for name in names {
            world.start(name).await;
        }
        world.all_routable().await;
        assert!(!has_exchange(world.at(away), "fleeting"));
    }
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_single_node_that_loses_power_has_everything_answered() {
    let mut world = World::new();
    world.create("a", 1, &seeds(&["a"]));
    for round in 0..5 {
        world.start("a").await;
        world.all_routable().await;
        for n in 0..round * 10 {
            assert!(has_queue(world.at("a"), &format!("q{n}")));
        }
        for n in round * 10..round * 10 + 10 {
            declared(world.at("a"), &format!("q{n}")).await;
        }
        world.power_off("a").await;
    }
}

/// The log is purged behind snapshots: a node that was away for long, and one that is new, get a snapshot.
#[tokio::test(start_paused = true)]
async fn who_lacks_purged_entries_gets_a_snapshot() {
    let mut world = World::adjusted_cluster(&["a", "b", "c"], |config| {
        config.snapshot_every = 200;
        config.log_kept = 20;
    })
    .await;
    let leader = world.leader().await;
    let away = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    declared(world.at(&leader), "early").await;
    world.power_off(&away).await;
    for n in 0..1000 {
        declared(world.at(&leader), &format!("q{n}")).await;
        world
            .at(&leader)
            .propose(bind(&format!("q{n}"), "k"), DEADLINE)
            .await
            .unwrap();
    }
    eventually("the log is purged", || {
        world
            .at(&leader)
            .status()
            .purged_index
            .filter(|index| *index > 1000)
    })
    .await;
    world.start(&away).await;
    assert!(world.at(&away).wait_routable(DEADLINE).await);
    assert_eq!(
        world.nodes[&away].hooks.replaced.lock().len(),
        1,
        "it got a snapshot"
    );
    assert!(has_queue(world.at(&away), "early") && has_queue(world.at(&away), "q999"));
    world.assert_equal().await;
    // What it got is durable.
    world.power_off(&away).await;
    world.start(&away).await;
    // Before it can have heard anything of the others.
    assert!(has_queue(world.at(&away), "q999"));
    assert!(world.nodes[&away].hooks.replaced.lock().is_empty());
    world.all_routable().await;
    // A new node joins by snapshot, and votes in the end.
    world.create("d", 4, &seeds(&["a", "b", "c"]));
    world.start("d").await;
    assert!(world.at("d").wait_routable(DEADLINE).await);
    assert_eq!(
        world.nodes["d"].hooks.replaced.lock().len(),
        1,
        "it got a snapshot"
    );
    eventually("it votes", || {
        world
            .at(&leader)
            .status()
            .members
            .iter()
            .all(|member| member.voter && member.up)
            .then_some(())
    })
    .await;
    assert_eq!(world.at(&leader).status().members.len(), 4);
    declared(world.at("d"), "of d").await;
    world.assert_equal().await;
}
