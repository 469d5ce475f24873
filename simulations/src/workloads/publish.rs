//! Publishes to the shared traffic in bursts, with confirms, and moves on to another node now and then.

use super::{Worker, traffic};
use crate::client::{Client, Event, Failure};
use std::time::Duration;

/// After so long without a disturbance, no publish is refused.
const CALM: Duration = Duration::from_secs(22);
/// Between bursts at least: more than a few hundred messages a second show nothing new.
const PAUSE: Duration = Duration::from_millis(10);
/// Publishes without a confirm at most.
const WINDOW: usize = 200;

pub(super) async fn run(worker: &mut Worker) {
    while let Some(client) = worker.connect().await {
        let bursts = worker.below(400) + 20;
        // Failures are judged where they happen; here they only mean another connection.
        let _ = publish(worker, client, bursts).await;
        worker.think().await;
    }
}

async fn publish(worker: &mut Worker, mut client: Client, bursts: usize) -> Result<(), Failure> {
    traffic::declare(&worker.oracle, &mut client).await?;
    client.confirm().await?;
    for _ in 0..bursts {
        if worker.oracle.is_stopping() {
            break;
        }
        let burst = worker.below(8) + 1;
        let (exchange, key) = worker.target();
        for _ in 0..burst {
            client.publish(exchange, key, false).await?;
        }
        settle(worker, &mut client, WINDOW).await?;
        worker.think().await;
        tokio::time::sleep(PAUSE).await;
    }
    settle(worker, &mut client, 0).await?;
    client.close().await
}

/// Waits until at most so many publishes are unconfirmed.
async fn settle(worker: &Worker, client: &mut Client, most: usize) -> Result<(), Failure> {
    while client.unconfirmed() > most || most > 0 {
        let wait = if client.unconfirmed() > most {
            Duration::from_secs(30)
        } else {
            Duration::ZERO
        };
        match client.next_event(wait).await? {
            Some(Event::Confirmed(ids, true)) => worker.oracle.confirmed(&ids),
            Some(Event::Confirmed(ids, false)) => {
                worker.oracle.refused(&ids);
                if worker.oracle.is_calm_for(CALM) {
                    let what = format!(
                        "{} had {} publishes refused, although nothing has happened since {:?}",
                        worker.host,
                        ids.len(),
                        worker.oracle.last_disturbed()
                    );
                    worker.oracle.violated("calm", what);
                }
            }
            Some(Event::Delivered(_) | Event::Returned(_) | Event::Cancelled) => {}
            None if client.unconfirmed() > most => {
                // A connection that says nothing for so long is given up; whether it may is judged by what was asked for.
                return client.hung("confirms");
            }
            None => return Ok(()),
        }
    }
    Ok(())
}
