//! Checkpoints, purges, restarts, and views for those who lack what was purged.

use super::world::{SHARD, World, bytes, eventually, texts};

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_from_the_checkpoint() {
    let mut world = World::founded(&[1, 2, 3]).await;
    for n in 0..50 {
        world.propose(&format!("m{n}")).await;
    }
    let entries = world.equal(&[1, 2, 3]).await;
    let through = entries[29].0;
    for node in [1, 2, 3] {
        world.at(node).release(SHARD, through);
        let status = eventually("it is purged", || {
            let status = world.at(node).status(SHARD).unwrap();
            (status.purged == Some(through)).then_some(status)
        })
        .await;
        assert_eq!(status.checkpointed, Some(entries[49].0));
        assert_eq!(world.seen(node).checkpoints, 1);
        assert_eq!(world.at(node).read(SHARD, through).unwrap(), None);
        assert_eq!(
            world.at(node).read(SHARD, through + 1).unwrap(),
            Some(bytes("m30"))
        );
    }
    for n in 50..60 {
        world.propose(&format!("m{n}")).await;
    }
    world.equal(&[1, 2, 3]).await;
    for node in [1, 2, 3] {
        world.power_off(node).await;
    }
    for node in [1, 2, 3] {
        world.start(node, Some(&[1, 2, 3])).await;
        assert_eq!(world.seen(node).began_at, Some(entries[49].0));
        assert_eq!(world.seen(node).entries.len(), 50);
    }
    world.propose("m60").await;
    let entries = world.equal(&[1, 2, 3]).await;
    let expected: Vec<String> = (0..=60).map(|n| format!("m{n}")).collect();
    assert_eq!(texts(&entries), expected);
    assert!((1..=3).all(|node| world.seen(node).installs == 0));
}

#[tokio::test(start_paused = true)]
async fn a_single_replica_that_loses_power_has_everything_applied() {
    let mut world = World::founded(&[1]).await;
    for round in 0..5 {
        for n in 0..10 {
            world.propose(&format!("{round} {n}")).await;
        }
        if round == 2 {
            world.at(1).release(SHARD, 10);
        }
        world.power_off(1).await;
        world.start(1, Some(&[1])).await;
        world.leader().await;
        assert_eq!(world.seen(1).entries.len(), (round + 1) * 10);
    }
}

#[tokio::test(start_paused = true)]
async fn who_lacks_purged_entries_gets_a_view() {
    let mut world = World::founded(&[1, 2, 3]).await;
    let (leader, _) = world.leader().await;
    let away = leader % 3 + 1;
    world.propose("early").await;
    world.equal(&[1, 2, 3]).await;
    world.power_off(away).await;
    // A view of more than one part.
    for n in 0..20 {
        world.propose(&format!("{n} {}", "x".repeat(50_000))).await;
    }
    let (leader, _) = world.leader().await;
    let last = world.seen(leader).last.unwrap();
    for node in world.running() {
        world.at(node).release(SHARD, last);
    }
    for node in world.running() {
        eventually("it is purged", || {
            let status = world.at(node).status(SHARD).unwrap();
            (status.purged == Some(last)).then_some(())
        })
        .await;
    }
    world.start(away, None).await;
    world.propose("late").await;
    let entries = world.equal(&[1, 2, 3]).await;
    assert_eq!(entries.len(), 22);
    assert_eq!(world.seen(away).installs, 1);
    eventually("the leader knows that it has it", || {
        let replicas = world.at(leader).status(SHARD).unwrap().replicas;
        let away = replicas.iter().find(|replica| replica.node.0 == away)?;
        (away.matched == world.seen(leader).last).then_some(())
    })
    .await;
    // What it got is durable, and the log goes on behind it.
    world.power_off(away).await;
    world.start(away, None).await;
    world.propose("later").await;
    assert_eq!(world.equal(&[1, 2, 3]).await.len(), 23);
    assert_eq!(world.seen(away).installs, 0);
}

#[tokio::test(start_paused = true)]
async fn a_state_that_does_not_fit_its_log_is_refused() {
    let mut world = World::founded(&[1]).await;
    for n in 0..10 {
        world.propose(&format!("m{n}")).await;
    }
    world.at(1).release(SHARD, 5);
    eventually("it is purged", || {
        let status = world.at(1).status(SHARD).unwrap();
        (status.purged == Some(5)).then_some(())
    })
    .await;
    world.kill(1).await;
    let storage = std::sync::Arc::new(world.nodes[&1].disk.open());
    let config = crate::ShardsConfig::new(warren_model::NodeId(1), 1);
    let shards = crate::Shards::new(config, storage);
    // A keeper of nothing.
    let other = warren_storage::memory::Disk::new();
    let empty = warren_storage::Storage::state(&other.open());
    let keeper = super::keeper::Keeper::open(SHARD, empty);
    let error = shards.open(SHARD, keeper, None).await.unwrap_err();
    assert!(
        error.to_string().contains("its log begins behind"),
        "{error}"
    );
}
