//! Empties the shared traffic's queues at the end of a run, so that what was confirmed can be held against what came out.

use crate::client::{Client, Event, Failure};
use crate::invariants::Messages;
use crate::oracle::{Oracle, Phase};
use crate::workloads::traffic::QUEUES;
use std::time::Duration;

/// Its name in the timeline.
pub(crate) const HOST: &str = "drain";
/// A queue that delivers nothing for so long is empty.
const EMPTY: Duration = Duration::from_secs(2);
/// How long emptying a queue may be tried.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until all clients have finished, then empties the queues.
pub(crate) async fn run(oracle: Oracle) {
    while oracle.phase() < Phase::Checking {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for queue in QUEUES {
        let begun = oracle.now();
        while let Err(failure) = drain(&oracle, queue).await {
            // Through whichever node: the last faults may still have broken a connection.
            if oracle.now() > begun + PATIENCE {
                oracle.violated(
                    "serves-again",
                    format_args!("queue '{queue}' could not be emptied at the end: {failure}"),
                );
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let verdict = oracle.state().messages.check_drained(&QUEUES);
    oracle.judge(Messages::NAME, verdict);
    oracle.drained();
}

async fn drain(oracle: &Oracle, queue: &str) -> Result<(), Failure> {
    let node = usize::from(oracle.is_gone(0));
    let mut client = Client::connect(oracle, HOST, node, 0, None).await?;
    client.declare_queue(queue, true, false).await?;
    client.consume(queue, 100).await?;
    loop {
        match client.next_event(EMPTY).await? {
            Some(Event::Delivered(got)) => {
                client.check(queue, &got);
                client.ack(got.tag, false).await?;
            }
            Some(Event::Returned(_) | Event::Confirmed(..) | Event::Cancelled) => {}
            None => break,
        }
    }
    client.close().await
}
