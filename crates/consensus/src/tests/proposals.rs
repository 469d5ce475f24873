//! Proposals: from every node, seen on every node, in order, once.

use std::time::Duration;

use warren_model::{Command, NodeId, Outcome};

use super::world::{DEADLINE, World, bind, declare, declared, eventually, has_queue, seeds};
use crate::ProposeError;

#[tokio::test(start_paused = true)]
async fn a_single_node_founds_a_cluster_and_orders_changes() {
    let mut world = World::adjusted(|config| {
        config.first_commands = vec![Command::PutVhost {
            name: "first".into(),
        }]
    });
    world.create("a", 1, &seeds(&["a"]));
    world.start("a").await;
    world.all_routable().await;
    let a = world.at("a");
    eventually("the first commands are applied", || {
        a.table().read().vhost_exists("first").then_some(())
    })
    .await;
    declared(a, "q").await;
    assert!(has_queue(a, "q"));
    eventually("it is up", || {
        a.status()
            .members
            .iter()
            .all(|member| member.up)
            .then_some(())
    })
    .await;
    let applied = world.nodes["a"].hooks.applied.lock().clone();
    assert!(
        applied.is_sorted() && applied.last() == Some(&a.table().version()),
        "{applied:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_is_seen_on_every_node() {
    let world = World::cluster(&["a", "b", "c"]).await;
    let names = world.names();
    for round in 0..500 {
        let proposer = world.at(&names[round % 3]);
        let queue = format!("q{round}");
        let proposed = declared(proposer, &queue).await;
        for (name, metadata) in world.running() {
            assert!(
                metadata.may_route(),
                "{name} may not route in round {round}"
            );
            assert!(
                has_queue(metadata, &queue),
                "{name} lacks {queue} after the answer"
            );
            assert!(metadata.table().version() >= proposed.index);
        }
        if round % 2 == 0 {
            let unbound = proposer.propose(bind(&queue, "k"), DEADLINE).await.unwrap();
            assert_eq!(unbound.outcome, Outcome::Done);
            for (name, metadata) in world.running() {
                let bindings = metadata
                    .table()
                    .read()
                    .bindings_of_source("/", "amq.direct")
                    .count();
                assert_eq!(bindings, round / 2 + 1, "at {name}");
            }
        }
    }
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn proposals_keep_the_order_of_the_calls() {
    let world = World::cluster(&["a", "b", "c"]).await;
    for name in world.names() {
        let metadata = world.at(&name);
        let mut answers = Vec::new();
        for n in 0..1000 {
            answers.push(metadata.propose(declare(&format!("{name}{n}")), DEADLINE));
        }
        // Polled backwards: the calls alone count.
        let mut ids = Vec::new();
        for answer in answers.into_iter().rev() {
            match answer.await.unwrap().outcome {
                Outcome::Queue {
                    id, created: true, ..
                } => ids.push(id),
                outcome @ (Outcome::Done
                | Outcome::Queue { .. }
                | Outcome::Refused(_)
                | Outcome::Retry) => panic!("{outcome:?}"),
            }
        }
        ids.reverse();
        assert!(ids.is_sorted(), "at {name}");
    }
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_burst_becomes_few_entries() {
    let world = World::cluster(&["a", "b", "c"]).await;
    let metadata = world.at("b");
    let before = metadata.table().version();
    let answers: Vec<_> = (0..2000)
        .map(|n| metadata.propose(declare(&format!("q{n}")), DEADLINE))
        .collect();
    for answer in answers {
        answer.await.unwrap();
    }
    let entries = metadata.table().version() - before;
    assert!(entries < 40, "{entries} entries for 2000 proposals");
}

/// Proposals are made from all nodes while links break and the leader dies: each is applied once, although many are sent again.
#[tokio::test(start_paused = true)]
async fn a_proposal_that_is_sent_again_is_applied_once() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    let follower = world
        .names()
        .into_iter()
        .find(|name| *name != leader)
        .unwrap();
    let mut tasks = Vec::new();
    for (name, metadata) in world.running().filter(|(name, _)| **name != leader) {
        let (name, metadata) = (name.clone(), metadata.clone());
        tasks.push(tokio::spawn(async move {
            for n in 0..300 {
                let queue = format!("{name}{n}");
                let proposed = metadata.propose(declare(&queue), DEADLINE).await.unwrap();
                assert!(
                    matches!(proposed.outcome, Outcome::Queue { created: true, .. }),
                    "{queue}: {proposed:?}"
                );
            }
        }));
    }
    for round in 0..5 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        if round == 2 {
            world.kill(&leader).await;
        } else {
            // The link breaks with requests and answers under way.
            world.net.cut(NodeId(1), NodeId(2));
            world.net.cut(NodeId(1), NodeId(3));
            tokio::time::sleep(Duration::from_millis(450)).await;
            world.net.heal();
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.at(&follower).table().read().queue_count(), 600);
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_a_proposal_ends_at_its_deadline() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let leader = world.leader().await;
    let (first, last) = {
        let mut others = world.names().into_iter().filter(|name| *name != leader);
        (others.next().unwrap(), others.next().unwrap())
    };
    world.kill(&leader).await;
    world.kill(&first).await;
    let began = tokio::time::Instant::now();
    let error = world
        .at(&last)
        .propose(declare("q"), Duration::from_secs(3))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            ProposeError::NoQuorum { .. } | ProposeError::TimedOut { .. }
        ),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_millis(3100));
    assert!(!has_queue(world.at(&last), "q"));
}
