//! What is delivered was published: with this exchange, key and body, by a way that was once bound, not twice without saying so, and, while nothing happens to
//! the cluster, in the order in which its publisher sent it.
//!
//! Order is held against each consumer's own deliveries that are not marked as redelivered: two consumers of one queue share it out as they like.

use super::matches;
use crate::message::MessageId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After a disturbance, messages that were under way may come late for so long.
const SETTLED: Duration = Duration::from_secs(4);

/// A delivery as a consumer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Number of the consumer.
    pub consumer: u32,
    /// The queue that it consumes.
    pub queue: &'a str,
    /// Exchange that the message is said to be published to.
    pub exchange: &'a str,
    /// Routing key that it is said to have.
    pub key: &'a str,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// Its body.
    pub body: &'a [u8],
}

#[derive(Debug)]
struct Sent {
    exchange: String,
    key: String,
    at: Duration,
    confirmed: bool,
}

/// Messages and ways.
#[derive(Debug, Default)]
pub struct Messages {
    sent: BTreeMap<MessageId, Sent>,
    /// Types of exchanges by name.
    kinds: BTreeMap<String, &'static str>,
    /// Bindings that were ever asked for: queue, exchange, key.
    ways: BTreeSet<(String, String, String)>,
    delivered: BTreeSet<(String, MessageId)>,
    /// The latest number delivered, by consumer and publisher.
    latest: BTreeMap<(u32, u32), MessageId>,
    deliveries: u64,
}

impl Messages {
    /// Its name.
    pub const NAME: &str = "messages";

    /// An exchange of this name is declared with this type, always.
    pub fn exchange(&mut self, name: &str, kind: &'static str) {
        self.kinds.insert(name.to_owned(), kind);
    }

    /// A binding is asked for.
    pub fn bound(&mut self, queue: &str, exchange: &str, key: &str) {
        self.ways
            .insert((queue.to_owned(), exchange.to_owned(), key.to_owned()));
    }

    /// A message is published.
    pub fn published(&mut self, id: MessageId, exchange: &str, key: &str, at: Duration) {
        self.sent.insert(
            id,
            Sent {
                exchange: exchange.to_owned(),
                key: key.to_owned(),
                at,
                confirmed: false,
            },
        );
    }

    /// A message was confirmed.
    pub fn confirmed(&mut self, id: MessageId) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.confirmed = true;
        }
    }

    /// Every message that was confirmed while nothing has happened any more must have been delivered from these queues, which were drained and have the
    /// ways that they have since before the first message.
    ///
    /// # Errors
    /// The first that was not.
    pub(crate) fn check_drained(&self, queues: &[&str], disturbed: Duration) -> Result<(), String> {
        for (id, sent) in self
            .sent
            .iter()
            .filter(|(_, sent)| sent.confirmed && disturbed + SETTLED <= sent.at)
        {
            for queue in queues {
                if self.could_reach(queue, sent)
                    && !self.delivered.contains(&((*queue).to_owned(), *id))
                {
                    return Err(format!(
                        "message {id} was confirmed at {:?}, and nothing has happened since {disturbed:?}, but queue '{queue}' has never delivered it",
                        sent.at
                    ));
                }
            }
        }
        Ok(())
    }

    /// How many deliveries there were.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// A message was delivered. `disturbed` is when something last happened to the cluster.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn delivered(
        &mut self,
        delivery: &Delivery<'_>,
        disturbed: Duration,
    ) -> Result<MessageId, String> {
        self.deliveries += 1;
        let queue = delivery.queue;
        let Some(id) = MessageId::read(delivery.body) else {
            return Err(format!(
                "queue '{queue}' delivered a body that nobody published: {} bytes, {:?}…",
                delivery.body.len(),
                String::from_utf8_lossy(&delivery.body[..delivery.body.len().min(24)])
            ));
        };
        let Some(sent) = self.sent.get(&id) else {
            return Err(format!(
                "queue '{queue}' delivered message {id}, which was never published"
            ));
        };
        if (&*sent.exchange, &*sent.key) != (delivery.exchange, delivery.key) {
            return Err(format!(
                "message {id} was published to exchange '{}' with key '{}', but delivered as of exchange '{}' with key '{}'",
                sent.exchange, sent.key, delivery.exchange, delivery.key
            ));
        }
        if !self.could_reach(queue, sent) {
            return Err(format!(
                "queue '{queue}' delivered message {id} of exchange '{}' with key '{}', for which it was never bound",
                sent.exchange, sent.key
            ));
        }
        let first = self.delivered.insert((queue.to_owned(), id));
        if delivery.redelivered {
            return Ok(id);
        }
        if !first {
            return Err(format!(
                "queue '{queue}' delivered message {id} twice, and did not mark it as redelivered"
            ));
        }
        let at = sent.at;
        let latest = self
            .latest
            .entry((delivery.consumer, id.publisher))
            .or_insert(id);
        if latest.number > id.number && disturbed + SETTLED <= at {
            return Err(format!(
                "queue '{queue}' delivered message {id} after {latest}, although nothing has happened since {disturbed:?}"
            ));
        }
        *latest = (*latest).max(id);
        Ok(id)
    }

    fn could_reach(&self, queue: &str, sent: &Sent) -> bool {
        if sent.exchange.is_empty() {
            return sent.key == queue;
        }
        let Some(kind) = self.kinds.get(&sent.exchange) else {
            return false;
        };
        let first = (queue.to_owned(), sent.exchange.clone(), String::new());
        let of_pair = self
            .ways
            .range(first..)
            .take_while(|(to, from, _)| to == queue && *from == sent.exchange);
        let mut keys = of_pair.map(|(_, _, key)| key);
        keys.any(|key| matches(kind, key, &sent.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Duration = Duration::ZERO;

    fn messages() -> Messages {
        let mut messages = Messages::default();
        messages.exchange("x", "direct");
        messages.bound("q", "x", "k");
        for number in 1..=3 {
            messages.published(
                MessageId {
                    publisher: 1,
                    number,
                },
                "x",
                "k",
                Duration::from_secs(10),
            );
        }
        messages.published(
            MessageId {
                publisher: 1,
                number: 4,
            },
            "x",
            "other",
            Duration::from_secs(10),
        );
        messages
    }

    fn deliver(
        messages: &mut Messages,
        number: u32,
        redelivered: bool,
        disturbed: Duration,
    ) -> Result<MessageId, String> {
        let key = if number == 4 { "other" } else { "k" };
        let body = MessageId {
            publisher: 1,
            number,
        }
        .body();
        messages.delivered(
            &Delivery {
                consumer: 1,
                queue: "q",
                exchange: "x",
                key,
                redelivered,
                body: &body,
            },
            disturbed,
        )
    }

    #[test]
    fn what_is_wrong_with_a_delivery_is_found() {
        let mut m = messages();
        deliver(&mut m, 2, false, LONG_AGO).unwrap();
        assert!(
            deliver(&mut m, 2, false, LONG_AGO)
                .unwrap_err()
                .contains("twice")
        );
        deliver(&mut m, 2, true, LONG_AGO).unwrap();
        assert!(
            deliver(&mut m, 1, false, LONG_AGO)
                .unwrap_err()
                .contains("after")
        );
        assert!(
            deliver(&mut m, 9, false, LONG_AGO)
                .unwrap_err()
                .contains("never published")
        );
        assert!(
            deliver(&mut m, 4, false, LONG_AGO)
                .unwrap_err()
                .contains("never bound")
        );
        let odd = Delivery {
            consumer: 1,
            queue: "q",
            exchange: "y",
            key: "k",
            redelivered: false,
            body: &MessageId {
                publisher: 1,
                number: 3,
            }
            .body(),
        };
        assert!(
            m.delivered(&odd, LONG_AGO)
                .unwrap_err()
                .contains("exchange 'y'")
        );
        assert!(
            m.delivered(
                &Delivery {
                    body: b"1.3;",
                    ..odd
                },
                LONG_AGO
            )
            .unwrap_err()
            .contains("nobody published")
        );
    }

    #[test]
    fn what_was_confirmed_in_calm_must_come_out() {
        let mut m = messages();
        m.check_drained(&["q"], LONG_AGO).unwrap();
        m.confirmed(MessageId {
            publisher: 1,
            number: 1,
        });
        m.confirmed(MessageId {
            publisher: 1,
            number: 4,
        });
        assert!(
            m.check_drained(&["q"], LONG_AGO)
                .unwrap_err()
                .contains("message 1.1")
        );
        m.check_drained(&["q"], Duration::from_secs(9)).unwrap();
        deliver(&mut m, 1, false, LONG_AGO).unwrap();
        m.check_drained(&["q"], LONG_AGO).unwrap();
    }

    #[test]
    fn order_counts_in_calm_only() {
        let mut m = messages();
        deliver(&mut m, 2, false, Duration::from_secs(9)).unwrap();
        deliver(&mut m, 1, false, Duration::from_secs(9)).unwrap();
    }
}
