//! Takes from the shared traffic's queues, as a consumer with acknowledgements of various ways or without, or message by message; puts some back, and moves on to
//! another node now and then, with or without goodbye.

use super::{Take, Worker, traffic};
use crate::client::{Client, Event, Failure, Incoming};
use std::collections::VecDeque;
use std::time::Duration;

/// A delivery that was not open was settled, or a queue declared otherwise.
const PRECONDITION_FAILED: u16 = 406;
/// A consumer that got nothing for so long acknowledges what it has.
const IDLE: Duration = Duration::from_millis(500);
/// Before it looks again into a queue that was empty.
const EMPTY: Duration = Duration::from_millis(50);

pub(super) async fn run(worker: &mut Worker) {
    while let Some(client) = worker.connect().await {
        // Other failures are judged where they happen; here they only mean another connection.
        if let Err(Failure::ChannelClosed(code @ PRECONDITION_FAILED, text)) =
            consume(worker, client).await
        {
            worker.oracle.violated(
                "no-internal-error",
                format_args!("{} was told {code} {text}", worker.host),
            );
        }
        worker.think().await;
    }
}

async fn consume(worker: &mut Worker, mut client: Client) -> Result<(), Failure> {
    traffic::declare(&worker.oracle, &mut client).await?;
    let queue = worker.source();
    match worker.take() {
        Take::Acknowledged => acknowledge(worker, client, queue).await,
        Take::Given => be_given(worker, client, queue).await,
        Take::OneByOne => get(worker, client, queue).await,
    }
}

/// How long it stays with this connection.
fn stay(worker: &mut Worker) -> Duration {
    worker.oracle.now() + Duration::from_millis(worker.below(15_000) as u64 + 200)
}

async fn acknowledge(worker: &mut Worker, mut client: Client, queue: &str) -> Result<(), Failure> {
    let slow = worker.slowness();
    let prefetch = match *worker.pick(&[1, 5, 50, 0]) {
        // It would take the whole queue, and leave nothing to others.
        0 if !slow.is_zero() => 5,
        prefetch => prefetch,
    };
    client.consume(queue, prefetch).await?;
    let until = stay(worker);
    let together = *worker.pick(&[1, 1, 4]);
    // Some keep messages for a while, so that there is something to hold on to when leaders change.
    let most = if prefetch == 0 {
        30
    } else {
        usize::from(prefetch) / 2
    };
    let kept = *worker.pick(&[0, 0, most]);
    let (mut come, mut waiting) = (VecDeque::new(), VecDeque::new());
    while worker.oracle.now() < until && !worker.oracle.is_stopping() {
        if let Some(Event::Cancelled) = look(worker, &mut client, queue, slow, &mut come).await? {
            break;
        }
        let Some(got) = come.pop_front() else {
            // Not all there are, by tag 0: something may be on its way, and would be acknowledged unseen.
            if kept == 0
                && let Some(last) = waiting.drain(..).next_back()
            {
                client.ack(last, true).await?;
            }
            continue;
        };
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
    if !worker.chance(0.5) {
        return Ok(());
    }
    if together > 1 && !waiting.is_empty() {
        // All there are: nothing more comes behind the answer to this.
        client.cancel().await?;
        while let Some(event) = client.next_event(Duration::ZERO).await? {
            if let Event::Delivered(got) = event {
                client.check(queue, &got);
            }
        }
        client.ack(0, true).await?;
    }
    client.close().await
}

/// Puts what comes within this time behind what has come, and checks it at once; waits for something if nothing has come and it is in no hurry.
/// Returns what ends that.
async fn look(
    worker: &Worker,
    client: &mut Client,
    queue: &str,
    slow: Duration,
    come: &mut VecDeque<Incoming>,
) -> Result<Option<Event>, Failure> {
    let end = worker.oracle.now() + slow;
    loop {
        let left = end.saturating_sub(worker.oracle.now());
        let wait = match come.is_empty() {
            true => left.max(IDLE),
            false => left,
        };
        match client.next_event(wait).await? {
            Some(Event::Delivered(got)) => {
                client.check(queue, &got);
                come.push_back(got);
            }
            Some(Event::Cancelled) => return Ok(Some(Event::Cancelled)),
            Some(Event::Returned(_) | Event::Confirmed(..)) => {}
            None => return Ok(None),
        }
        if worker.oracle.now() >= end {
            return Ok(None);
        }
    }
}

/// Consumes without acknowledgements.
async fn be_given(worker: &mut Worker, mut client: Client, queue: &str) -> Result<(), Failure> {
    client.consume_no_ack(queue).await?;
    let until = stay(worker);
    while worker.oracle.now() < until && !worker.oracle.is_stopping() {
        match client.next_event(Duration::from_millis(500)).await? {
            Some(Event::Delivered(got)) => client.check_given(queue, &got),
            Some(Event::Cancelled) => break,
            Some(Event::Returned(_) | Event::Confirmed(..)) | None => {}
        }
    }
    if worker.chance(0.1) {
        return Ok(());
    }
    client.cancel().await?;
    while let Some(event) = client.next_event(Duration::ZERO).await? {
        if let Event::Delivered(got) = event {
            client.check_given(queue, &got);
        }
    }
    client.close().await
}

/// Takes message by message, some without acknowledgement; the others are acknowledged later, put back, or left for the connection's end.
async fn get(worker: &mut Worker, mut client: Client, queue: &str) -> Result<(), Failure> {
    let (until, no_ack) = (stay(worker), *worker.pick(&[0.0, 0.5, 1.0]));
    let kept = *worker.pick(&[0, 0, 3, 20]);
    let mut waiting = VecDeque::new();
    while worker.oracle.now() < until && !worker.oracle.is_stopping() {
        let no_ack = worker.chance(no_ack);
        match client.get(queue, no_ack).await? {
            None => tokio::time::sleep(EMPTY).await,
            Some(got) if no_ack => client.check_given(queue, &got),
            Some(got) => {
                client.check(queue, &got);
                waiting.push_back(got.tag);
            }
        }
        if waiting.len() > kept
            && let Some(tag) = waiting.pop_front()
        {
            if worker.chance(0.05) {
                client.requeue(tag).await?;
            } else {
                client.ack(tag, false).await?;
            }
        }
    }
    if worker.chance(0.5) {
        client.close().await
    } else {
        Ok(())
    }
}
