//! Replicas are added, replaced and removed.

use warren_model::NodeId;

use super::world::{SHARD, World, eventually, ids, texts};
use crate::ChangeError;

async fn voters(world: &World, node: u64, expected: &[u64]) {
    eventually("the replicas are these", || {
        let status = world.at(node).status(SHARD)?;
        (status.voters == ids(expected) && status.learners.is_empty() && !status.changing)
            .then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn from_one_replica_to_three_and_to_three_others() {
    let mut world = World::founded(&[1]).await;
    for n in 0..20 {
        world.propose(&format!("m{n}")).await;
    }
    // New ones must be sent a view.
    world.at(1).release(SHARD, 10);
    for node in 2..=6 {
        world.start(node, None).await;
    }
    world
        .at(1)
        .set_replicas(SHARD, ids(&[1, 2, 3]))
        .await
        .unwrap();
    for node in 1..=3 {
        voters(&world, node, &[1, 2, 3]).await;
    }
    world.propose("by three").await;
    world.equal(&[1, 2, 3]).await;
    // Now the first is one of three: it may go.
    let began = tokio::time::Instant::now();
    world
        .at(1)
        .set_replicas(SHARD, ids(&[4, 5, 6]))
        .await
        .unwrap();
    let (leader, term) = eventually("one of the others leads", || {
        let leading = (4..=6).filter_map(|node| Some((node, world.leading(node)?)));
        leading.max_by_key(|(_, term)| *term)
    })
    .await;
    println!("replaced in {:?}", began.elapsed());
    for node in 1..=3 {
        world.at(node).close(SHARD).await;
        assert!(!world.at(node).is_open(SHARD));
        assert_eq!(world.at(node).status(SHARD), None);
    }
    assert!(world.at(leader).propose(SHARD, term, "by others".into()));
    eventually("it is applied", || {
        let entries = world.seen(leader).entries;
        (entries.last().unwrap().2 == "by others").then_some(())
    })
    .await;
    let entries = world.equal(&[4, 5, 6]).await;
    assert_eq!(entries.len(), 22);
    for node in 4..=6 {
        voters(&world, node, &[4, 5, 6]).await;
    }
    // A node that was a replica once becomes one again, with an empty log.
    world.reopen(1).await;
    assert_eq!(world.at(1).read(SHARD, 15).unwrap(), None);
    let (leader, _) = world.leader_among(&[4, 5, 6]).await;
    world
        .at(leader)
        .set_replicas(SHARD, ids(&[1, leader]))
        .await
        .unwrap();
    let mut both = vec![1, leader];
    both.sort();
    for node in &both {
        voters(&world, *node, &both).await;
    }
    let entries = world.equal(&both).await;
    assert_eq!(texts(&entries).last().unwrap(), "by others");
    // And after a restart its log is read as it is.
    world.power_off(1).await;
    world.start(1, None).await;
    let (leader, term) = world.leader_among(&both).await;
    assert!(world.at(leader).propose(SHARD, term, "by both".into()));
    eventually("both have it", || {
        let has = |node: &u64| world.seen(*node).entries.last().unwrap().2 == "by both";
        both.iter().all(has).then_some(())
    })
    .await;
    world.equal(&both).await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_cannot_be_are_refused() {
    let mut world = World::founded(&[1, 2, 3]).await;
    let (leader, _) = world.leader().await;
    let other = leader % 3 + 1;
    assert_eq!(
        world.at(other).set_replicas(SHARD, ids(&[1])).await,
        Err(ChangeError::NotLeading {
            shard: SHARD,
            leader: Some(NodeId(leader))
        })
    );
    assert_eq!(
        world.at(leader).set_replicas(SHARD, Vec::new()).await,
        Err(ChangeError::NoReplicas { shard: SHARD })
    );
    let nowhere = warren_model::ShardId(9);
    assert_eq!(
        world.at(leader).set_replicas(nowhere, ids(&[1])).await,
        Err(ChangeError::NotOpen { shard: nowhere })
    );
    // The same again changes nothing.
    world
        .at(leader)
        .set_replicas(SHARD, ids(&[3, 2, 1, 2]))
        .await
        .unwrap();
    // A replica that never answers: given up in time, and undone by the next change.
    let shards = world.at(leader).clone();
    let change = tokio::spawn(async move { shards.set_replicas(SHARD, ids(&[1, 2, 3, 9])).await });
    let error = change.await.unwrap().unwrap_err();
    assert!(matches!(error, ChangeError::TimedOut { .. }), "{error}");
    world.propose("goes on").await;
    let (leader, _) = world.leader().await;
    world
        .at(leader)
        .set_replicas(SHARD, ids(&[1, 2, 3]))
        .await
        .unwrap();
    for node in 1..=3 {
        voters(&world, node, &[1, 2, 3]).await;
    }
    // A dead one is replaced.
    let dead = leader % 3 + 1;
    world.power_off(dead).await;
    world.start(4, None).await;
    let mut three: Vec<u64> = (1..=4).filter(|node| *node != dead).collect();
    three.sort();
    world
        .at(leader)
        .set_replicas(SHARD, ids(&three))
        .await
        .unwrap();
    for node in &three {
        voters(&world, *node, &three).await;
    }
    world.propose("after").await;
    assert_eq!(texts(&world.equal(&three).await), ["goes on", "after"]);
}
