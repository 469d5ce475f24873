//! Keeps a consistent-hash exchange with a few queues, changes its bindings now and then, and publishes: while a queue is bound, every key is routed.

use super::Worker;
use crate::client::{Client, Failure};

const QUEUES: usize = 6;

pub(super) async fn run(worker: &mut Worker) {
    let exchange = format!("h.{}", worker.host);
    worker
        .oracle
        .state()
        .messages
        .exchange(&exchange, "x-consistent-hash");
    while let Some(client) = worker.connect().await {
        let _ = keep(worker, client, &exchange).await;
        worker.think().await;
    }
}

async fn keep(worker: &mut Worker, mut client: Client, exchange: &str) -> Result<(), Failure> {
    client
        .declare_exchange(exchange, "x-consistent-hash", true)
        .await?;
    let queue = |number: usize| format!("{exchange}.q{number}");
    // The first queue stays bound for good.
    client.declare_queue(&queue(0), true, false).await?;
    client.bind(&queue(0), exchange, "2").await?;
    client.confirm().await?;
    for _ in 0..worker.below(100) + 10 {
        if worker.oracle.is_stopping() {
            break;
        }
        if worker.chance(0.1) {
            let changed = queue(worker.below(QUEUES - 1) + 1);
            change(worker, &mut client, exchange, &changed).await?;
        }
        let key = format!("key{}", worker.below(1000));
        let (returned, _) = client.publish_and_wait(exchange, &key).await?;
        if returned {
            worker.oracle.violated("read-your-declares", format_args!("exchange '{exchange}' has returned a message with key '{key}', although '{}' is bound to it", queue(0)));
        }
        worker.think().await;
    }
    client.close().await
}

/// A queue comes, changes its weight, or goes.
async fn change(
    worker: &mut Worker,
    client: &mut Client,
    exchange: &str,
    queue: &str,
) -> Result<(), Failure> {
    let weight = (worker.below(4) + 1).to_string();
    match worker.below(3) {
        0 => client.delete_queue(queue).await,
        1 => {
            client.declare_queue(queue, true, false).await?;
            client.bind(queue, exchange, &weight).await
        }
        _ => {
            client.declare_queue(queue, true, false).await?;
            client.unbind(queue, exchange, &weight).await
        }
    }
}
