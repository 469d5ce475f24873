//! Consumes from the shared traffic's queues, acknowledges in various ways, puts some back, and moves on to another node now and then, with or without goodbye.

use super::{Worker, traffic};
use crate::client::{Client, Event, Failure};
use std::collections::VecDeque;
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
    // Some keep messages for a while, so that there is something to hold on to when leaders change.
    let most = if prefetch == 0 {
        30
    } else {
        usize::from(prefetch) / 2
    };
    let kept = *worker.pick(&[0, 0, most]);
    let mut waiting = VecDeque::new();
    while worker.oracle.now() < until && !worker.oracle.is_stopping() {
        let got = match client.next_event(Duration::from_millis(500)).await? {
            Some(Event::Delivered(got)) => got,
            Some(Event::Cancelled) => break,
            Some(Event::Returned(_) | Event::Confirmed(..)) => continue,
            None => {
                if kept == 0 && !waiting.is_empty() {
                    waiting.clear();
                    client.ack(0, true).await?;
                }
                continue;
            }
        };
        client.check(queue, &got);
        if worker.chance(0.02) {
            client.requeue(got.tag).await?;
            continue;
        }
        waiting.push_back(got.tag);
        let least = together.min(usize::from(prefetch).max(1));
        if waiting.len() < kept + least {
            continue;
        }
        // The oldest ones, and those alone.
        let last = waiting.drain(..least).next_back().unwrap_or(got.tag);
        client.ack(last, together > 1).await?;
    }
    if worker.chance(0.5) {
        client.close().await
    } else {
        Ok(())
    }
}
