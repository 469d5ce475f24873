//! Proposals, and leaders that come and go.

use std::time::Duration;

use tokio::time::Instant;
use warren_model::NodeId;
use warren_transport::Lane;

use super::world::{SHARD, World, bytes, eventually, texts};
use crate::{ChangeError, Leadership};

#[tokio::test(start_paused = true)]
async fn what_is_proposed_is_applied_everywhere_in_order() {
    let world = World::founded(&[1, 2, 3]).await;
    let (leader, term) = world.leader().await;
    let expected: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
    for payload in &expected {
        assert!(world.at(leader).propose(SHARD, term, bytes(payload)));
    }
    eventually("all is applied", || {
        let all = |node: &u64| world.seen(*node).entries.len() == expected.len();
        [1, 2, 3].iter().all(all).then_some(())
    })
    .await;
    let entries = world.equal(&[1, 2, 3]).await;
    assert_eq!(texts(&entries), expected);
    assert!(entries.iter().all(|(_, of, _)| *of == term));
    for node in [1, 2, 3] {
        let led = world.leading(node);
        assert_eq!(led, (node == leader).then_some(term), "node {node}");
        assert!(!world.at(node).propose(SHARD, term + 1, bytes("x")));
        assert_eq!(
            world.at(node).propose(SHARD, term, bytes("y")),
            node == leader
        );
    }
    let (index, _, payload) = &entries[7];
    assert_eq!(
        world.at(leader).read(SHARD, *index).unwrap().as_ref(),
        Some(payload)
    );
    assert_eq!(world.at(leader).read(SHARD, 100_000).unwrap(), None);
    let status = world.at(leader).status(SHARD).unwrap();
    assert_eq!(status.leading, Some(term));
    assert_eq!(status.voters, [NodeId(1), NodeId(2), NodeId(3)]);
    assert_eq!(status.failure, None);
    assert!(world.net.bytes(Lane::ShardPulse) > 0 && world.net.bytes(Lane::Shard) > 0);
}

#[tokio::test(start_paused = true)]
async fn large_entries_go_whole() {
    let world = World::founded(&[1, 2, 3]).await;
    let (leader, term) = world.leader().await;
    let sizes = [3 << 20, 10, 256 << 10, 256 << 10, 1, 70_000, 5 << 20, 100];
    for (at, size) in sizes.into_iter().enumerate() {
        let payload = vec![at as u8 + 1; size];
        assert!(world.at(leader).propose(SHARD, term, payload.into()));
    }
    eventually("all is applied", || {
        let all = |node: &u64| world.seen(*node).entries.len() == sizes.len();
        [1, 2, 3].iter().all(all).then_some(())
    })
    .await;
    for (at, (_, _, payload)) in world.equal(&[1, 2, 3]).await.iter().enumerate() {
        assert_eq!(payload.len(), sizes[at]);
        assert!(payload.iter().all(|byte| *byte == at as u8 + 1));
    }
}

#[tokio::test(start_paused = true)]
async fn another_leads_soon_when_the_leader_dies() {
    let mut world = World::founded(&[1, 2, 3]).await;
    let mut slowest = Duration::ZERO;
    for round in 0..12 {
        let (leader, term) = world.leader().await;
        world.propose(&format!("before {round}")).await;
        let flying: Vec<String> = (0..8).map(|n| format!("flying {round} {n}")).collect();
        for payload in &flying {
            assert!(world.at(leader).propose(SHARD, term, bytes(payload)));
        }
        tokio::time::sleep(Duration::from_micros(round * 300)).await;
        world.kill(leader).await;
        let killed = Instant::now();
        world.propose(&format!("after {round}")).await;
        slowest = slowest.max(killed.elapsed());
        let others = world.running();
        let texts = texts(&world.equal(&others).await);
        let taken = flying.iter().filter(|payload| texts.contains(payload));
        let taken: Vec<_> = taken.collect();
        assert_eq!(
            taken,
            flying.iter().take(taken.len()).collect::<Vec<_>>(),
            "what is applied is a beginning"
        );
        world.start(leader, None).await;
        world.equal(&[1, 2, 3]).await;
        // Until then it does not vote.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("from the kill to the next entry: at most {slowest:?}");
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_is_told_and_what_it_proposed_is_lost() {
    let world = World::founded(&[1, 2, 3]).await;
    let (old, term) = world.leader().await;
    let lease = Duration::from_millis(200);
    world.propose("before").await;
    assert!(world.at(old).confirmed_within(SHARD, lease));
    let others: Vec<u64> = [1, 2, 3].into_iter().filter(|node| *node != old).collect();
    for other in &others {
        assert!(!world.at(*other).confirmed_within(SHARD, lease));
    }
    world.isolate(old);
    assert!(world.at(old).propose(SHARD, term, bytes("lost")));
    let mut confirmed = true;
    let elected = eventually("another leads", || {
        let still = world.at(old).confirmed_within(SHARD, lease);
        assert!(confirmed || !still, "what is not confirmed stays so");
        confirmed = still;
        let led = |node: &&u64| world.leading(**node).is_some();
        others.iter().find(led).copied()
    })
    .await;
    assert!(!world.at(old).confirmed_within(SHARD, lease));
    let newer = world.leading(elected).unwrap();
    assert!(newer > term);
    assert!(world.at(elected).propose(SHARD, newer, bytes("kept")));
    world.net.heal();
    eventually("it is told that it follows", || {
        let last = world.seen(old).leadership.last().copied();
        let follows = Leadership::Following {
            term: newer,
            leader: Some(NodeId(elected)),
        };
        (last == Some(follows)).then_some(())
    })
    .await;
    world.propose("after").await;
    let entries = world.equal(&[1, 2, 3]).await;
    assert_eq!(texts(&entries), ["before", "kept", "after"]);
}

/// openraft refuses entries once no majority has answered for a lease, but leads on: the replica must hear of it, and what comes
/// behind what was refused must not be stored, though a majority is there again.
#[tokio::test(start_paused = true)]
async fn a_term_in_which_an_entry_was_refused_is_given_up() {
    let world = World::founded(&[1, 2, 3]).await;
    for round in 0..5 {
        let (old, term) = world.leader().await;
        assert!(
            world
                .at(old)
                .propose(SHARD, term, bytes(&format!("{round} 0")))
        );
        eventually("it is applied", || {
            let (_, keeper) = world.nodes[&old].running.as_ref().unwrap();
            (keeper.seen.lock().entries.len() == round + 1).then_some(())
        })
        .await;
        world.isolate(old);
        let lease = Duration::from_millis(200);
        eventually("no majority has answered for a lease", || {
            (!world.at(old).confirmed_within(SHARD, lease)).then_some(())
        })
        .await;
        assert_eq!(world.leading(old), Some(term), "nobody was elected yet");
        for n in 1..=50 {
            assert!(
                world
                    .at(old)
                    .propose(SHARD, term, bytes(&format!("{round} {n}")))
            );
        }
        world.net.heal();
        eventually("it hears of it", || {
            world.leading(old).is_none().then_some(())
        })
        .await;
        assert!(!world.at(old).propose(SHARD, term, bytes("refused")));
        let (_, newer) = world.leader().await;
        assert!(newer > term);
        let entries = world.equal(&[1, 2, 3]).await;
        assert_eq!(entries.len(), round + 1, "{:?}", texts(&entries));
    }
}

/// A replica that has confirmed a leader and was restarted at once must not help another to be elected while the leader counts
/// on it.
#[tokio::test(start_paused = true)]
async fn a_restarted_replica_keeps_to_the_lease_that_it_gave() {
    let mut world = World::founded(&[1, 2, 3]).await;
    let lease = Duration::from_millis(200);
    let mut elections = 0;
    for round in 0..10 {
        let (leader, term) = world.leader().await;
        let (second, third) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        // The third waits for a leader only; the second alone confirms this one.
        world.net.cut(NodeId(leader), NodeId(third));
        tokio::time::sleep(Duration::from_millis(300 + round * 7)).await;
        world.kill(second).await;
        world.net.cut(NodeId(leader), NodeId(second));
        world.start(second, None).await;
        let until = Instant::now() + lease * 4;
        while Instant::now() < until {
            let other = [second, third]
                .into_iter()
                .any(|node| world.leading(node).is_some_and(|newer| newer > term));
            assert!(
                !(other && world.at(leader).confirmed_within(SHARD, lease)),
                "round {round}: two lead"
            );
            elections += usize::from(other);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        world.net.heal();
        world.leader().await;
    }
    assert!(
        elections > 0,
        "nobody else was ever elected: nothing was tested"
    );
}

#[tokio::test(start_paused = true)]
async fn leadership_is_handed_over_under_load() {
    let world = World::founded(&[1, 2, 3]).await;
    let mut number = 0;
    for round in 0..9 {
        let (leader, term) = world.leader().await;
        let to = leader % 3 + 1;
        let shards = world.at(leader).clone();
        let transfer = tokio::spawn(async move { shards.transfer(SHARD, NodeId(to)).await });
        let began = Instant::now();
        let newer = eventually("the other one leads", || {
            if world
                .at(leader)
                .propose(SHARD, term, bytes(&format!("m{number}")))
            {
                number += 1;
            }
            world.leading(to)
        })
        .await;
        let took = began.elapsed();
        assert!(took < Duration::from_millis(100), "round {round}: {took:?}");
        assert!(newer > term);
        transfer.await.unwrap().unwrap();
        let entries = world.equal(&[1, 2, 3]).await;
        let of_term = entries.iter().filter(|(_, of, _)| *of == term).count();
        assert!(of_term > 0, "round {round} proposed nothing");
        let gone = (0..number).filter(|n| {
            let payload = format!("m{n}");
            !entries.iter().any(|(_, _, p)| *p == payload)
        });
        // The last ones may have come too late; the next round begins behind them.
        let gone: Vec<_> = gone.collect();
        assert!(
            gone.is_empty() || entries.last().unwrap().2 == format!("m{}", gone[0] - 1),
            "{gone:?}"
        );
        number = 0;
        for node in [1, 2, 3] {
            world.nodes[&node]
                .running
                .as_ref()
                .unwrap()
                .1
                .seen
                .lock()
                .entries
                .clear();
        }
    }
    let (leader, _) = world.leader().await;
    assert_eq!(
        world.at(leader).transfer(SHARD, NodeId(9)).await,
        Err(ChangeError::NotAReplica {
            shard: SHARD,
            to: NodeId(9)
        })
    );
    let other = leader % 3 + 1;
    assert_eq!(
        world.at(other).transfer(SHARD, NodeId(other)).await,
        Err(ChangeError::NotLeading {
            shard: SHARD,
            leader: Some(NodeId(leader))
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_disk_fails_stops_alone() {
    let world = World::founded(&[1, 2, 3]).await;
    let (leader, _) = world.leader().await;
    world.propose("before").await;
    world.nodes[&leader].disk.fail_syncs(1);
    let term = world.leading(leader).unwrap();
    assert!(world.at(leader).propose(SHARD, term, bytes("lost or not")));
    let failure = eventually("it says so", || {
        world.at(leader).status(SHARD).unwrap().failure
    })
    .await;
    assert!(!failure.is_empty());
    eventually("it is told that it leads no more", || {
        world.leading(leader).is_none().then_some(())
    })
    .await;
    assert!(!world.at(leader).propose(SHARD, term, bytes("refused")));
    let others: Vec<u64> = [1, 2, 3]
        .into_iter()
        .filter(|node| *node != leader)
        .collect();
    let (next, term) = world.leader_among(&others).await;
    assert!(world.at(next).propose(SHARD, term, bytes("after")));
    eventually("it is applied", || {
        let entries = world.seen(next).entries;
        entries.iter().any(|(_, _, p)| p == "after").then_some(())
    })
    .await;
    world.equal(&others).await;
}
