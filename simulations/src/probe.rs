//! The cluster serves again: soon after the last fault, each node takes declares and routes, confirms and delivers a message.

use crate::client::{Client, Event, Failure};
use crate::cluster::Cluster;
use crate::options::node_name;
use crate::oracle::{Oracle, Phase};
use std::time::Duration;

/// How soon.
pub(crate) const SOON: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Name in the timeline of what looks at a node.
pub(crate) fn host(node: usize) -> String {
    format!("p{}", node + 1)
}

/// Waits until all faults are over, then until the node serves.
pub(crate) async fn run(oracle: Oracle, cluster: Cluster, node: usize) {
    while oracle.phase() < Phase::Healing {
        tokio::time::sleep(PAUSE).await;
    }
    if !cluster.members().contains(&node) {
        return;
    }
    let healed = oracle.now();
    for attempt in 0.. {
        let last = match serves(&oracle, node, attempt).await {
            Ok(None) => break,
            Ok(Some(why)) => why,
            Err(failure) => failure.to_string(),
        };
        if oracle.now() > healed + SOON {
            oracle.violated(
                "serves-again",
                format_args!(
                    "{} does not serve {SOON:?} after the last fault: {last}",
                    node_name(node)
                ),
            );
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    oracle.note(
        &host(node),
        format_args!(
            "{} serves again after {:?}",
            node_name(node),
            oracle.now().saturating_sub(healed)
        ),
    );
}

/// Has a message go through the node. What is wrong, if anything is.
async fn serves(oracle: &Oracle, node: usize, attempt: u32) -> Result<Option<String>, Failure> {
    let mut client = Client::connect(oracle, &host(node), node, 0, None).await?;
    let queue = format!("probe.{}.{attempt}", node + 1);
    client.declare_queue(&queue, true, false).await?;
    client
        .bind(&queue, "amq.topic", &format!("{queue}.*"))
        .await?;
    oracle.state().messages.exchange("amq.topic", "topic");
    client.confirm().await?;
    let key = format!("{queue}.x");
    match client.publish_and_wait("amq.topic", &key).await? {
        (false, true) => {}
        (returned, ok) => {
            return Ok(Some(format!(
                "a publish was {}",
                if returned {
                    "returned"
                } else if ok {
                    "confirmed"
                } else {
                    "refused"
                }
            )));
        }
    }
    client.consume(&queue, 1).await?;
    loop {
        match client.next_event(SOON).await? {
            Some(Event::Delivered(got)) => {
                client.check(&queue, &got);
                client.ack(got.tag, false).await?;
                client.delete_queue(&queue).await?;
                client.close().await?;
                return Ok(None);
            }
            Some(_) => {}
            None => return Ok(Some("a confirmed message was not delivered".into())),
        }
    }
}
