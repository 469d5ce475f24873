//! Leaders come and go: by death, and in good order.

use std::time::Duration;

use tokio::time::Instant;

use super::world::{DEADLINE, World, declared, eventually, has_queue};

#[tokio::test(start_paused = true)]
async fn another_node_leads_when_the_leader_dies() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    declared(world.at(&leader), "before").await;
    let old = world.id(&leader);
    world.kill(&leader).await;
    let other = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    let began = Instant::now();
    declared(world.at(&other), "after").await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_ne!(world.leader().await, leader);
    eventually("it is marked down", || {
        (!world.at(&other).table().read().node(old).unwrap().up).then_some(())
    })
    .await;
    world.start(&leader).await;
    assert!(world.at(&leader).wait_routable(DEADLINE).await);
    assert!(has_queue(world.at(&leader), "before") && has_queue(world.at(&leader), "after"));
    eventually("it is up again", || {
        let known = world.at(&other).table().read().node(old).cloned().unwrap();
        (known.up && known.incarnation.0 == 2).then_some(())
    })
    .await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_is_not_waited_for() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    for _ in 0..2 {
        let leader = world.leader().await;
        let old = world.id(&leader);
        let other = world
            .names()
            .into_iter()
            .find(|name| *name != leader)
            .unwrap();
        let began = Instant::now();
        world.shutdown(&leader).await;
        let stopping = began.elapsed();
        assert!(
            stopping < Duration::from_secs(1),
            "stopping took {stopping:?}"
        );
        assert!(
            !world.at(&other).table().read().node(old).unwrap().up,
            "it is marked down at once"
        );
        let began = Instant::now();
        declared(world.at(&other), &format!("after {leader}")).await;
        assert!(
            began.elapsed() < Duration::from_millis(200),
            "a declare took {:?}",
            began.elapsed()
        );
        world.start(&leader).await;
        world.all_routable().await;
        eventually("it is up again", || {
            world
                .at(&other)
                .table()
                .read()
                .node(old)
                .unwrap()
                .up
                .then_some(())
        })
        .await;
    }
    world.assert_equal().await;
}
