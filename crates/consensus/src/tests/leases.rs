//! Leases: nobody routes by a table that lacks what was answered, whatever the network does.

use std::time::Duration;

use warren_model::NodeId;

use super::world::{DEADLINE, World, declare, declared, eventually, has_queue};

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_routing_before_another_answers() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    for round in 0..5 {
        let old = world.leader().await;
        let other = world.names().into_iter().find(|name| *name != old).unwrap();
        world.isolate(&old);
        let queue = format!("q{round}");
        let answer = tokio::spawn(world.at(&other).propose(declare(&queue), DEADLINE));
        let mut routed_until = None;
        while !answer.is_finished() {
            if world.at(&old).may_route() {
                assert!(!has_queue(world.at(&old), &queue));
                routed_until = Some(tokio::time::Instant::now());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            !world.at(&old).may_route(),
            "round {round}: it routes without {queue}"
        );
        assert!(
            routed_until.is_some(),
            "it routed for a while after the cut"
        );
        answer.await.unwrap().unwrap();
        assert!(world.at(&other).wait_routable(DEADLINE).await);
        assert_ne!(world.at(&other).status().leader, Some(world.id(&old)));
        world.net.heal();
        world.revive().await;
        world.assert_equal().await;
    }
}

/// At every instant: whoever may route has applied everything that was answered anywhere. Nodes are cut off in turn.
#[tokio::test(start_paused = true)]
async fn whoever_may_route_knows_everything_answered() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let answered = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut tasks = Vec::new();
    for (name, metadata) in world.running() {
        let (name, metadata, answered) = (name.clone(), metadata.clone(), answered.clone());
        tasks.push(tokio::spawn(async move {
            let mut count = 0u32;
            for n in 0..400 {
                if let Ok(proposed) = metadata
                    .propose(declare(&format!("{name}{n}")), Duration::from_secs(1))
                    .await
                {
                    answered.fetch_max(proposed.index, std::sync::atomic::Ordering::SeqCst);
                    count += 1;
                }
            }
            count
        }));
    }
    let mut stopped = 0u32;
    let mut round = 0u64;
    while tasks.iter().any(|task| !task.is_finished()) {
        round += 1;
        if round.is_multiple_of(3000) {
            world.net.heal();
            world.revive().await;
        } else if round.is_multiple_of(1500) {
            let node = NodeId(round / 1500 % 3 + 1);
            for other in [1, 2, 3]
                .map(NodeId)
                .into_iter()
                .filter(|other| *other != node)
            {
                world.net.cut(node, other);
            }
        }
        // Read first: what is answered later need not be known yet.
        let known = answered.load(std::sync::atomic::Ordering::SeqCst);
        for (name, metadata) in world.running() {
            if metadata.may_route() {
                assert!(
                    metadata.table().version() >= known,
                    "{name} routes at {} after {known} was answered",
                    metadata.table().version()
                );
            } else {
                stopped += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(stopped > 0, "nobody ever lost a lease: nothing was tested");
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    assert!(count > 300, "only {count} answers: nothing was tested");
    world.net.heal();
    world.revive().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_holds_answers_back_but_not_the_cluster() {
    let world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    let lagging = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    world
        .net
        .slow_down(world.id(&lagging), Duration::from_millis(50));
    for n in 0..20 {
        let queue = format!("q{n}");
        declared(world.at(&leader), &queue).await;
        assert!(has_queue(world.at(&lagging), &queue));
    }
    // Cut off, it is waited for once, until its lease has run out.
    world.isolate(&lagging);
    let began = tokio::time::Instant::now();
    declared(world.at(&leader), "first").await;
    let waited = began.elapsed();
    assert!(!world.at(&lagging).may_route());
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    let began = tokio::time::Instant::now();
    declared(world.at(&leader), "second").await;
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "{:?}",
        began.elapsed()
    );
    // It routes again only with everything applied.
    world.net.heal();
    assert!(world.at(&lagging).wait_routable(DEADLINE).await);
    assert!(has_queue(world.at(&lagging), "second"));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_silent_for_long_is_marked_down_and_comes_up_again() {
    let world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    let silent = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    let (id, metadata) = (world.id(&silent), world.at(&silent).clone());
    world.isolate(&silent);
    eventually("it is marked down", || {
        (!world.at(&leader).table().read().node(id).unwrap().up).then_some(())
    })
    .await;
    world.net.heal();
    eventually("it learns so", || metadata.is_marked_down().then_some(())).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(
        metadata.is_marked_down() && !metadata.may_route(),
        "it waits for its owner"
    );
    metadata.renew_incarnation(warren_model::Incarnation(2));
    eventually("it is up", || {
        let known = world.at(&leader).table().read().node(id).cloned().unwrap();
        (known.up && known.incarnation.0 == 2).then_some(())
    })
    .await;
    eventually("it knows", || (!metadata.is_marked_down()).then_some(())).await;
    assert!(metadata.wait_routable(DEADLINE).await);
}

/// A leader that is cut off hears of nobody; it must not take that for everybody's end.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_cut_off_marks_nobody_down() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let old = world.leader().await;
    world.isolate(&old);
    tokio::time::sleep(Duration::from_secs(8)).await;
    let other = world
        .leader_among(
            &world
                .names()
                .into_iter()
                .filter(|name| *name != old)
                .collect::<Vec<_>>(),
        )
        .await;
    world.net.heal();
    world.revive().await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let incarnations: Vec<_> = world
        .at(&other)
        .table()
        .read()
        .nodes()
        .filter(|known| known.name != old)
        .map(|known| (known.incarnation.0, known.up))
        .collect();
    assert_eq!(incarnations, vec![(1, true), (1, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_shows_what_was_answered_before() {
    let world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    let cut = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    world.isolate(&cut);
    declared(world.at(&leader), "q").await;
    assert!(
        world
            .at(&cut)
            .barrier(Duration::from_secs(1))
            .await
            .is_err(),
        "cut off, it can know nothing"
    );
    world.net.heal();
    let index = world.at(&cut).barrier(DEADLINE).await.unwrap();
    assert!(has_queue(world.at(&cut), "q"));
    assert!(world.at(&cut).table().version() >= index);
}
