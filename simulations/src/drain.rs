//! Empties the shared traffic's queues at the end of a run, so that what was confirmed can be held against what came out.

use crate::client::{Client, Event, Failure};
use crate::invariants::Messages;
use crate::oracle::{Oracle, Phase};
use crate::workloads::traffic::QUEUES;
use std::time::Duration;

/// Name of its host.
pub(crate) const HOST: &str = "drain";
/// A queue that delivers nothing for so long is empty.
const EMPTY: Duration = Duration::from_secs(2);

/// Waits until all clients have finished, then empties the queues.
pub(crate) async fn run(oracle: Oracle) {
    while oracle.phase() < Phase::Checking {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    match drain(&oracle).await {
        Ok(()) => {
            let disturbed = oracle.last_disturbed();
            let verdict = oracle.state().messages.check_drained(&QUEUES, disturbed);
            oracle.judge(Messages::NAME, verdict);
        }
        Err(failure) => oracle.violated(
            "serves-again",
            format_args!("the queues could not be emptied at the end: {failure}"),
        ),
    }
}

async fn drain(oracle: &Oracle) -> Result<(), Failure> {
    for queue in QUEUES {
        let mut client = Client::connect(oracle, HOST, 0, 0).await?;
        client.declare_queue(queue, true, false).await?;
        client.consume(queue, 100).await?;
        loop {
            match client.next_event(EMPTY).await? {
                Some(Event::Delivered(got)) => {
                    crate::workloads::check(oracle, client.publisher(), queue, &got);
                    client.ack(got.tag, false).await?;
                }
                Some(Event::Returned(_) | Event::Confirmed(..) | Event::Cancelled) => {}
                None => break,
            }
        }
        client.close().await?;
    }
    Ok(())
}
