//! Whatever the network does: all replicas apply the same, and of what a leader proposed in a term a beginning.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warren_model::NodeId;

use super::world::{SHARD, World, bytes};

/// Proposes on every node that leads, and notes what was taken in which term.
fn propose(world: &World, proposed: &mut BTreeMap<u64, u64>) {
    for node in world.running() {
        let Some(term) = world.leading(node) else {
            continue;
        };
        let number = proposed.entry(term).or_default();
        if world
            .at(node)
            .propose(SHARD, term, bytes(&format!("{term} {number}")))
        {
            *number += 1;
        }
    }
}

async fn run(seed: u64) -> (usize, u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut world = World::new();
    world.seed = seed;
    for node in 1..=3 {
        world.start(node, Some(&[1, 2, 3])).await;
    }
    world.leader().await;
    let mut proposed: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..12 {
        let fault = rng.random_range(0..5);
        let node = rng.random_range(1..=3);
        let other = node % 3 + 1;
        match fault {
            0 => world.isolate(node),
            1 => world.net.cut(NodeId(node), NodeId(other)),
            2 => {
                world.kill(node).await;
                world.start(node, None).await;
            }
            3 => {
                world.power_off(node).await;
                world.start(node, None).await;
            }
            _ => {
                let last = world.seen(node).last.unwrap_or(0);
                world
                    .at(node)
                    .release(SHARD, last.saturating_sub(rng.random_range(0..20)));
            }
        }
        // Around the lease, where a leader is refused and another is not elected yet.
        for _ in 0..rng.random_range(10..120) {
            propose(&world, &mut proposed);
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..6))).await;
        }
        world.net.heal();
        for _ in 0..rng.random_range(1..100) {
            propose(&world, &mut proposed);
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..4))).await;
        }
    }
    world.propose("end").await;
    let entries = world.equal(&[1, 2, 3]).await;
    let mut applied: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, term, payload) in &entries {
        if payload == "end" {
            continue;
        }
        let number = applied.entry(*term).or_default();
        assert_eq!(*payload, format!("{term} {number}"), "seed {seed}: a gap");
        *number += 1;
    }
    // What was taken in the last term is applied, unless the replica heard that it lost it.
    let (_, last) = world.leader().await;
    assert_eq!(applied.get(&last), proposed.get(&last), "seed {seed}");
    let lost = proposed
        .iter()
        .map(|(term, number)| number - applied.get(term).copied().unwrap_or(0));
    (entries.len(), lost.sum())
}

#[tokio::test(start_paused = true)]
async fn all_apply_the_same_and_of_each_term_a_beginning() {
    let (mut applied, mut lost) = (0, 0);
    for seed in 1..=5 {
        let (more, less) = run(seed).await;
        applied += more;
        lost += less;
    }
    println!("{applied} entries applied, {lost} lost");
    assert!(
        applied > 1_000 && lost > 10,
        "nothing was tested: {applied} applied, {lost} lost"
    );
}

#[tokio::test(start_paused = true)]
async fn one_seed_is_one_story() {
    assert_eq!(run(77).await, run(77).await);
}
