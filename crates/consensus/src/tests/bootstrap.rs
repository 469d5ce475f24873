//! How clusters begin: once, by all, and never again.

use std::time::Duration;

use super::world::{DEADLINE, World, declared, eventually, has_queue, seeds};

#[tokio::test(start_paused = true)]
async fn a_cluster_is_founded_only_when_all_are_there() {
    let mut world = World::new();
    let all = seeds(&["a", "b", "c"]);
    for (at, name) in ["a", "b", "c"].into_iter().enumerate() {
        world.create(name, at as u64 + 1, &all);
    }
    world.start("b").await;
    world.start("a").await;
    assert!(!world.at("a").wait_routable(Duration::from_secs(10)).await);
    assert_eq!(world.at("a").status().cluster, None);
    world.start("c").await;
    world.all_routable().await;
    let clusters: Vec<_> = world
        .running()
        .map(|(_, metadata)| metadata.status().cluster.unwrap())
        .collect();
    assert!(clusters.iter().all(|cluster| *cluster == clusters[0]));
    for (_, metadata) in world.running() {
        let status = eventually("all are up", || {
            Some(metadata.status()).filter(|status| status.members.iter().all(|member| member.up))
        })
        .await;
        assert_eq!(status.members.len(), 3);
        assert!(status.members.iter().all(|member| member.voter));
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_configured_differently_found_nothing() {
    let mut world = World::new();
    world.create("a", 1, &seeds(&["a", "b", "c"]));
    world.create("b", 2, &seeds(&["b", "c"]));
    world.create("c", 3, &seeds(&["a", "b", "c"]));
    for name in ["a", "b", "c"] {
        world.start(name).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    for (name, metadata) in world.running() {
        assert_eq!(metadata.status().cluster, None, "{name}");
        assert_eq!(metadata.status().leader, None, "{name}");
    }
}

/// The node with the least name founds; having lost its data, it must not found again, not even when it starts first.
#[tokio::test(start_paused = true)]
async fn a_wiped_node_comes_back_as_another_and_founds_nothing() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let cluster = world.at("a").status().cluster.unwrap();
    declared(world.at("a"), "q").await;
    for name in ["a", "b", "c"] {
        world.kill(name).await;
    }
    world.create("a", 11, &seeds(&["a", "b", "c"]));
    world.start("a").await;
    assert!(!world.at("a").wait_routable(Duration::from_secs(5)).await);
    world.start("b").await;
    assert!(
        !world.at("a").wait_routable(Duration::from_secs(5)).await,
        "one of three that remember is no majority"
    );
    assert_eq!(world.at("a").status().cluster, None);
    world.start("c").await;
    world.all_routable().await;
    assert_eq!(world.at("a").status().cluster, Some(cluster));
    assert!(has_queue(world.at("a"), "q"));
    let members = eventually("the old identity is gone", || {
        let members = world.at("b").status().members;
        (members.len() == 3 && members.iter().all(|member| member.voter && member.up))
            .then_some(members)
    })
    .await;
    assert!(
        members
            .iter()
            .any(|member| member.node.0 == 11 && member.name == "a")
    );
    // The new identity counts: with it and one other there is a majority.
    world.kill("c").await;
    declared(world.at("a"), "after").await;
}

#[tokio::test(start_paused = true)]
async fn a_namesake_of_a_running_node_is_not_taken_in() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    let mut impostor = World::new();
    impostor.net = world.net.clone();
    impostor.create("b", 12, &seeds(&["a", "b", "c"]));
    impostor.start("b").await;
    assert!(
        !impostor
            .at("b")
            .wait_routable(Duration::from_secs(10))
            .await
    );
    assert_eq!(world.at("a").status().members.len(), 3);
    // Once the rightful one is gone for long, its name is free.
    world.kill("b").await;
    assert!(impostor.at("b").wait_routable(DEADLINE).await);
    eventually("it has replaced the other", || {
        let members = world.at("a").status().members;
        (members.len() == 3
            && members
                .iter()
                .any(|member| member.node.0 == 12 && member.voter))
        .then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_two_clusters_refuse_each_other() {
    let mut world = World::new();
    world.create("a", 1, &seeds(&["a"]));
    world.create("b", 2, &seeds(&["b"]));
    world.start("a").await;
    world.start("b").await;
    world.all_routable().await;
    let stranger = warren_transport::Hello {
        cluster: world.at("b").status().cluster,
        node: world.id("b"),
        name: "b".into(),
        incarnation: warren_model::Incarnation(1),
        address: "b:1".into(),
        version: 1,
        level: warren_model::Level::NEWEST,
    };
    let refusal = world.at("a").admit(&stranger).unwrap_err();
    assert!(refusal.contains("belongs to cluster"), "{refusal}");
    let kin = warren_transport::Hello {
        cluster: world.at("a").status().cluster,
        ..stranger.clone()
    };
    assert_eq!(world.at("a").admit(&kin), Ok(()));
    assert_eq!(
        world.at("a").admit(&warren_transport::Hello {
            cluster: None,
            ..stranger
        }),
        Ok(())
    );
}

#[tokio::test(start_paused = true)]
async fn at_most_five_nodes_vote() {
    let mut world = World::cluster(&["a", "b", "c"]).await;
    for (at, name) in ["d", "e", "f", "g"].into_iter().enumerate() {
        world.create(name, at as u64 + 4, &seeds(&["a", "b", "c"]));
        world.start(name).await;
    }
    world.all_routable().await;
    let members = eventually("five vote", || {
        let members = world.at("a").status().members;
        let voters = members.iter().filter(|member| member.voter).count();
        (members.len() == 7 && voters == 5 && members.iter().all(|member| member.up))
            .then_some(members)
    })
    .await;
    assert_eq!(members.len(), 7);
    declared(world.at("g"), "q").await;
    for (name, metadata) in world.running() {
        assert!(metadata.may_route() && has_queue(metadata, "q"), "{name}");
    }
    world.assert_equal().await;
}
