//! Declares exclusive queues, uses them, loses the connection with or without goodbye, and takes the same name again through some node: it must become free.

use super::Worker;
use crate::client::{Client, Failure};
use crate::invariants::Exclusives;
use std::time::Duration;

pub(super) async fn run(worker: &mut Worker) {
    let mut round = 0;
    while let Some(client) = worker.connect().await {
        round += 1;
        let queue = format!("e.{}.{round}", worker.host);
        let _ = one_life(worker, client, &queue).await;
        worker.think().await;
        if worker.chance(0.8) {
            take_again(worker, &queue).await;
        }
    }
}

/// Ends with the connection gone.
async fn one_life(worker: &mut Worker, mut client: Client, queue: &str) -> Result<(), Failure> {
    client.declare_queue(queue, false, true).await?;
    if worker.chance(0.5) {
        worker
            .oracle
            .state()
            .messages
            .exchange("amq.fanout", "fanout");
        client.bind(queue, "amq.fanout", "").await?;
    }
    client.confirm().await?;
    // Nobody but this connection can take the queue away, and it is there.
    let (returned, _) = client.publish_and_wait("", queue).await?;
    if returned {
        worker.oracle.violated(
            "read-your-declares",
            format_args!(
                "a message for exclusive queue '{queue}' was returned to the connection that has it"
            ),
        );
    }
    worker.think().await;
    if worker.chance(0.5) {
        client.close().await
    } else {
        Ok(())
    }
}

/// Asks for the name until it is free.
async fn take_again(worker: &mut Worker, queue: &str) {
    let lost = worker.oracle.now();
    while let Some(mut client) = worker.connect().await {
        match client.declare_queue(queue, false, true).await {
            Ok(()) => {
                worker.oracle.state().exclusives.taken_over();
                return;
            }
            Err(Failure::ChannelClosed(405, _)) => {
                let (waited, calm) = (
                    worker.oracle.now() - lost,
                    worker.oracle.now() - worker.oracle.last_disturbed(),
                );
                let verdict = worker
                    .oracle
                    .state()
                    .exclusives
                    .still_taken(queue, waited, calm);
                worker.oracle.judge(Exclusives::NAME, verdict);
            }
            Err(Failure::ChannelClosed(code, text)) => {
                worker.oracle.violated(Exclusives::NAME, format_args!("the name of exclusive queue '{queue}' of a lost connection is refused with {code} {text}"));
            }
            Err(
                Failure::TimedOut | Failure::Lost(_) | Failure::Cut | Failure::ConnectionClosed(..),
            ) => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
