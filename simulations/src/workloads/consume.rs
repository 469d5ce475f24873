//! Consumes from the shared traffic's queues, acknowledges in various ways, puts some back, and moves on to another node now and then, with or without goodbye.

use super::{Worker, traffic};
use crate::client::{Client, Event, Failure};
use std::time::Duration;

pub(super) async fn run(worker: &mut Worker) {
    while let Some(client) = worker.connect().await {
        // Failures are judged where they happen; here they only mean another connection.
        let _ = consume(worker, client).await;
        worker.think().await;
    }
}

async fn consume(worker: &mut Worker, mut client: Client) -> Result<(), Failure> {
    traffic::declare(&worker.oracle, &mut client).await?;
    let queue = if worker.chance(0.15) {
        traffic::MEMORY_QUEUE
    } else {
        worker.pick(&traffic::QUEUES)
    };
    let prefetch = *worker.pick(&[1, 5, 50, 0]);
    client.consume(queue, prefetch).await?;
    let until = worker.oracle.now() + Duration::from_millis(worker.below(15_000) as u64 + 200);
    let together = *worker.pick(&[1, 1, 4]);
    let mut waiting = 0;
    while worker.oracle.now() < until && !worker.oracle.is_stopping() {
        let got = match client.next_event(Duration::from_millis(500)).await? {
            Some(Event::Delivered(got)) => got,
            Some(Event::Cancelled) => break,
            Some(Event::Returned(_) | Event::Confirmed(..)) => continue,
            None => {
                if waiting > 0 {
                    waiting = 0;
                    client.ack(0, true).await?;
                }
                continue;
            }
        };
        client.check(queue, &got);
        waiting += 1;
        if worker.chance(0.02) {
            client.requeue(got.tag).await?;
            waiting -= 1;
        } else if waiting >= together.min(usize::from(prefetch).max(1)) {
            waiting = 0;
            client.ack(got.tag, together > 1).await?;
        }
    }
    if worker.chance(0.5) {
        client.close().await
    } else {
        Ok(())
    }
}
