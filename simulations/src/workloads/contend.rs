//! Changes a few names that all clients of this sort share, in conflict with each other: only how it is refused is known, not whether.

use super::Worker;
use crate::client::{Client, Failure};

const NAMES: usize = 4;
/// Refusals that a conflict may end in: something is gone (404), or is another's (405), or is different (406).
const CONFLICTS: [u16; 3] = [404, 405, 406];

pub(super) async fn run(worker: &mut Worker) {
    while let Some(mut client) = worker.connect().await {
        for _ in 0..worker.below(200) + 10 {
            if worker.oracle.is_stopping() {
                break;
            }
            match one(worker, &mut client).await {
                Ok(()) => {}
                Err(Failure::ChannelClosed(code, text)) if !CONFLICTS.contains(&code) => {
                    worker.oracle.violated(
                        "no-internal-error",
                        format_args!("a conflict over a name ended in {code} {text}"),
                    );
                }
                Err(failure) if failure.is_fatal() => break,
                Err(_) => {}
            }
            worker.think().await;
        }
    }
}

async fn one(worker: &mut Worker, client: &mut Client) -> Result<(), Failure> {
    let (queue, exchange) = (
        format!("s.q{}", worker.below(NAMES)),
        format!("s.x{}", worker.below(NAMES)),
    );
    let key = (*worker.pick(&["a", "b", "#"])).to_owned();
    match worker.below(10) {
        0 | 1 => {
            let (durable, exclusive) = (worker.chance(0.7), worker.chance(0.2));
            client
                .declare_queue(&queue, durable && !exclusive, exclusive)
                .await
        }
        2 | 3 => {
            let kind = *worker.pick(&["direct", "fanout", "topic"]);
            client
                .declare_exchange(&exchange, kind, worker.chance(0.7))
                .await
        }
        4..=6 => client.bind(&queue, &exchange, &key).await,
        7 => client.unbind(&queue, &exchange, &key).await,
        8 => client.delete_queue(&queue).await,
        _ => client.delete_exchange(&exchange).await,
    }
}
