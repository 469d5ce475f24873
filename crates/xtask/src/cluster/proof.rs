//! The main job, once through all nodes: declared on one node, published on the next, consumed on the third, and all routing tables equal.
//!
//! What it declares is removed again, also when it fails; names are new each time, so that it may run on a cluster in use.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use warren_protocol::{ExchangeDeclare, ExchangeDelete, QueueBind, QueueDeclare, QueueDelete};

use super::health;
use super::nodes::Node;
use crate::amqp::{Connection, short};

const KEY: &str = "proof";
const DIGEST_DEADLINE: Duration = Duration::from_secs(15);

/// Proves it, printing each step with its time.
pub fn run(nodes: &[&Node]) -> Result<()> {
    let [first, .., last] = nodes else {
        let [only] = nodes else {
            bail!("there is no node to prove anything with")
        };
        return prove(only, only, only, nodes);
    };
    prove(first, nodes.get(1).copied().unwrap_or(last), last, nodes)
}

fn prove(declarer: &Node, publisher: &Node, consumer: &Node, all: &[&Node]) -> Result<()> {
    println!("\nproof of the main job:");
    let unique = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let name = format!("xtask.proof.{}.{unique}", std::process::id());
    let mut declaring = Connection::open(declarer.amqp)?;
    let carried = carry(&mut declaring, &name, declarer, publisher, consumer);
    // After a failure the channel may be gone, and the failure says more than what follows from it.
    let removed = remove(&mut declaring, &name);
    carried?;
    removed.context("the proof's exchange and queue cannot be removed")?;
    declaring.close()?;
    digests(all)
}

fn carry(
    declaring: &mut Connection,
    name: &str,
    declarer: &Node,
    publisher: &Node,
    consumer: &Node,
) -> Result<()> {
    let mut begin = Instant::now();
    let mut step = |text: String| {
        println!("  {text} in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
        begin = Instant::now();
    };
    declaring.call(
        ExchangeDeclare {
            exchange: short(name),
            kind: short("direct"),
            durable: true,
            ..ExchangeDeclare::default()
        },
        "exchange.declare-ok",
    )?;
    declaring.call(
        QueueDeclare {
            queue: short(name),
            durable: true,
            ..QueueDeclare::default()
        },
        "queue.declare-ok",
    )?;
    declaring.call(
        QueueBind {
            queue: short(name),
            exchange: short(name),
            routing_key: short(KEY),
            ..QueueBind::default()
        },
        "queue.bind-ok",
    )?;
    step(format!(
        "declared an exchange, a queue and a binding through {}",
        declarer.name
    ));

    let mut publishing = Connection::open(publisher.amqp)?;
    publishing.confirm()?;
    publishing.publish(name, KEY, name.as_bytes())?;
    publishing.close()?;
    step(format!(
        "published through {}, and had it confirmed",
        publisher.name
    ));

    let mut consuming = Connection::open(consumer.amqp)?;
    let body = consuming.receive(name)?;
    consuming.close()?;
    if body != name.as_bytes() {
        bail!(
            "{} delivered another message than the one published: {}",
            consumer.name,
            String::from_utf8_lossy(&body)
        );
    }
    step(format!("consumed it through {}", consumer.name));
    Ok(())
}

fn remove(declaring: &mut Connection, name: &str) -> Result<()> {
    declaring.call(
        QueueDelete {
            queue: short(name),
            ..QueueDelete::default()
        },
        "queue.delete-ok",
    )?;
    declaring.call(
        ExchangeDelete {
            exchange: short(name),
            ..ExchangeDelete::default()
        },
        "exchange.delete-ok",
    )
}

/// One node's routing table: the log index it stands for, and its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Digest {
    node: String,
    index: u64,
    digest: String,
}

/// Digests say something only at equal index, so the nodes are asked until they are there together.
fn digests(nodes: &[&Node]) -> Result<()> {
    let begin = Instant::now();
    loop {
        let digests: Vec<Digest> = nodes
            .iter()
            .map(|node| digest(node))
            .collect::<Result<_>>()?;
        if let Some((index, digest)) = agreed(&digests)? {
            println!(
                "  routing tables are equal on all {} at applied index {index}: digest {digest}",
                nodes.len()
            );
            return Ok(());
        }
        if begin.elapsed() > DIGEST_DEADLINE {
            bail!(
                "the nodes are not at the same applied index within {} s: {digests:?}",
                DIGEST_DEADLINE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Index and digest if all are equal, `None` if the indices are not yet, an error if two differ at the same index.
fn agreed(digests: &[Digest]) -> Result<Option<(u64, String)>> {
    for (position, one) in digests.iter().enumerate() {
        for other in digests.iter().skip(position + 1) {
            if one.index == other.index && one.digest != other.digest {
                bail!(
                    "{} and {} have different routing tables at applied index {}: {} and {}",
                    one.node,
                    other.node,
                    one.index,
                    one.digest,
                    other.digest
                );
            }
        }
    }
    let Some(first) = digests.first() else {
        bail!("no node was asked for its digest")
    };
    Ok(digests
        .iter()
        .all(|digest| digest.index == first.index)
        .then(|| (first.index, first.digest.clone())))
}

fn digest(node: &Node) -> Result<Digest> {
    const PATH: &str = "/api/routing/digest";
    let (status, body) = health::get(node.http, PATH)
        .with_context(|| format!("cannot ask {} for its digest", node.name))?;
    let answer: Value = serde_json::from_str(&body).unwrap_or_default();
    match (
        answer.get("applied_index").and_then(Value::as_u64),
        answer.get("digest").and_then(Value::as_str),
    ) {
        (Some(index), Some(digest)) if status == 200 => Ok(Digest {
            node: node.name.clone(),
            index,
            digest: digest.to_owned(),
        }),
        _ => bail!("{} answered {PATH} with {status}: {body}", node.name),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn at(node: &str, index: u64, digest: &str) -> Digest {
        Digest {
            node: node.to_owned(),
            index,
            digest: digest.to_owned(),
        }
    }

    #[test]
    fn digests_agree_only_at_equal_index() {
        assert_eq!(
            agreed(&[at("a", 3, "x"), at("b", 3, "x")]).unwrap(),
            Some((3, "x".to_owned()))
        );
        assert_eq!(agreed(&[at("a", 3, "x"), at("b", 4, "x")]).unwrap(), None);
        let text = agreed(&[at("a", 3, "x"), at("b", 4, "y"), at("c", 3, "z")])
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("a and c have different routing tables at applied index 3"),
            "{text}"
        );
    }
}
