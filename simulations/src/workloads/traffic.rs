//! The shared traffic: exchanges, queues and bindings that publishers and consumers agree on.

use crate::client::{Client, Failure};
use crate::oracle::Oracle;

/// Durable queues: nobody deletes them.
pub(crate) const QUEUES: [&str; 3] = ["w.a", "w.b", "w.c"];
/// A queue that lives in a node's memory, and goes with it.
pub(crate) const MEMORY_QUEUE: &str = "w.memory";
const EXCHANGES: [(&str, &str); 3] = [
    ("x.direct", "direct"),
    ("x.topic", "topic"),
    ("x.fanout", "fanout"),
];
const BINDINGS: [(&str, &str, &str); 7] = [
    ("w.a", "x.direct", "a"),
    ("w.b", "x.direct", "b"),
    ("w.a", "x.topic", "t.*.a"),
    ("w.b", "x.topic", "t.#"),
    ("w.c", "x.topic", "#.c"),
    ("w.b", "x.fanout", ""),
    ("w.c", "x.fanout", ""),
];
/// Where messages are published: exchange and key.
pub(crate) const TARGETS: [(&str, &str); 9] = [
    ("x.direct", "a"),
    ("x.direct", "b"),
    ("x.topic", "t.1.a"),
    ("x.topic", "t.c"),
    ("x.topic", "t"),
    ("x.fanout", "any"),
    ("", "w.a"),
    ("", "w.c"),
    ("", MEMORY_QUEUE),
];

/// The one queue of runs that have only one, and the way to it.
pub(crate) const ONE_QUEUE: &str = "w.b";
pub(crate) const TO_ONE_QUEUE: (&str, &str) = ("x.direct", "b");

/// Whether a message that is published so goes to the shared queues only.
pub(crate) fn is_drained(exchange: &str, key: &str) -> bool {
    let shared = EXCHANGES.iter().any(|(name, _)| *name == exchange);
    shared || (exchange.is_empty() && (QUEUES.contains(&key) || key == MEMORY_QUEUE))
}

/// Declares everything; what is there already is fine.
pub(crate) async fn declare(oracle: &Oracle, client: &mut Client) -> Result<(), Failure> {
    for (exchange, kind) in EXCHANGES {
        oracle.state().messages.exchange(exchange, kind);
        client.declare_exchange(exchange, kind, true).await?;
    }
    for queue in QUEUES {
        client.declare_queue(queue, true, false).await?;
    }
    client.declare_queue(MEMORY_QUEUE, false, false).await?;
    for (queue, exchange, key) in BINDINGS {
        client.bind(queue, exchange, key).await?;
    }
    Ok(())
}
