//! What is delivered was published: with this exchange, key and body, by a way that was once bound, not twice without saying so, in the order in which its
//! publisher sent it; what was refused to its publisher never comes; and what was confirmed is delivered and acknowledged by the end, when all has been drained.
//!
//! A message that needed no acknowledgement counts as acknowledged when it has come. Lost may be only what was on its way so when a connection ended.
//! Order is held against each consumer's own deliveries that are not marked as redelivered: two consumers of one queue share it out as they like.
//! Queues in a node's memory go with the node: of them, order counts in calm only, and nothing is lost that need not be.

use super::matches;
use super::stakes::{Stake, Stakes};
use crate::message::MessageId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// After a disturbance, messages that were under way may come late for so long.
const SETTLED: Duration = Duration::from_secs(4);

/// A message that was put back is in its place again after so long.
const PLACED: Duration = Duration::from_secs(2);

/// A delivery as a consumer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Number of the consumer.
    pub consumer: u32,
    /// The queue that it consumes.
    pub queue: &'a str,
    /// The queue survives the loss of a node.
    pub durable: bool,
    /// Exchange that the message is said to be published to.
    pub exchange: &'a str,
    /// Routing key that it is said to have.
    pub key: &'a str,
    /// It may have been delivered before.
    pub redelivered: bool,
    /// Its body.
    pub body: &'a [u8],
}

/// What a publisher was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Unknown,
    Confirmed,
    Refused,
}

#[derive(Debug)]
struct Sent {
    exchange: String,
    key: String,
    at: Duration,
    fate: Fate,
}

/// Messages and ways.
#[derive(Debug, Default)]
pub struct Messages {
    sent: BTreeMap<MessageId, Sent>,
    /// Types of exchanges by name.
    kinds: BTreeMap<String, &'static str>,
    /// Bindings that were ever asked for: queue, exchange, key.
    ways: BTreeSet<(String, String, String)>,
    /// What came out of each queue, and which consumer has acknowledged it.
    delivered: BTreeMap<String, BTreeMap<MessageId, Option<u32>>>,
    /// What was put back and has not come again, with when that was, by queue.
    put_back: BTreeMap<String, BTreeMap<MessageId, Duration>>,
    /// The latest number delivered, by consumer and publisher.
    latest: BTreeMap<(u32, u32), MessageId>,
    stakes: Stakes,
    deliveries: u64,
    confirmed: u64,
    drained: u64,
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
                fate: Fate::Unknown,
            },
        );
    }

    /// A message was confirmed.
    pub fn confirmed(&mut self, id: MessageId) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.fate = Fate::Confirmed;
            self.confirmed += 1;
        }
    }

    /// A message was refused. Of several queues, some may have it all the same.
    ///
    /// # Errors
    /// If the one queue that it could go to, and that loses nothing, has delivered it.
    pub fn refused(
        &mut self,
        id: MessageId,
        durable: &[&str],
        others: &[&str],
    ) -> Result<(), String> {
        let Some(sent) = self.sent.get(&id) else {
            return Ok(());
        };
        let reached: Vec<&str> = durable
            .iter()
            .copied()
            .filter(|queue| self.could_reach(queue, sent))
            .collect();
        if reached.len() != 1 || others.iter().any(|queue| self.could_reach(queue, sent)) {
            return Ok(());
        }
        let (queue, at) = (reached[0], sent.at);
        if self.was_delivered(queue, id) {
            return Err(format!(
                "message {id}, published at {at:?}, was refused after queue '{queue}' had delivered it"
            ));
        }
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.fate = Fate::Refused;
        }
        Ok(())
    }

    fn was_delivered(&self, queue: &str, id: MessageId) -> bool {
        self.delivered
            .get(queue)
            .is_some_and(|delivered| delivered.contains_key(&id))
    }

    /// A consumer has acknowledged a message.
    pub fn acknowledged(&mut self, queue: &str, id: MessageId, consumer: u32) {
        if let Some(acknowledged) = self
            .delivered
            .get_mut(queue)
            .and_then(|delivered| delivered.get_mut(&id))
        {
            *acknowledged = Some(consumer);
        }
    }

    /// A channel is given messages of a queue that need no acknowledgement.
    pub(crate) fn at_stake(&mut self, channel: u32, queue: &str, stake: Stake) {
        self.stakes.open(channel, queue, stake);
    }

    /// All of them have come.
    pub(crate) fn nothing_at_stake(&mut self, channel: u32) {
        self.stakes.over(channel);
    }

    /// A channel has ended, and its node knows it by then.
    pub(crate) fn ended(&mut self, channel: u32, until: Duration) {
        self.stakes.ended(channel, until);
    }

    /// A consumer has put a message back.
    pub fn put_back(&mut self, queue: &str, id: MessageId, at: Duration) {
        self.put_back
            .entry(queue.to_owned())
            .or_default()
            .insert(id, at);
    }

    /// A message that was put back comes before those of its publisher that came behind it.
    fn check_places(
        &mut self,
        delivery: &Delivery<'_>,
        id: MessageId,
        disturbed: Duration,
        now: Duration,
    ) -> Result<(), String> {
        let Some(waiting) = self.put_back.get_mut(delivery.queue) else {
            return Ok(());
        };
        waiting.remove(&id);
        if delivery.redelivered || !delivery.durable {
            return Ok(());
        }
        let first = MessageId { number: 0, ..id };
        let passed = waiting
            .range(first..id)
            .find(|(_, at)| **at + PLACED < now && disturbed + SETTLED <= **at);
        match passed {
            None => Ok(()),
            Some((earlier, at)) => Err(format!(
                "queue '{}' delivered message {id}, but not yet {earlier}, which was put back at {at:?}; nothing has happened since {disturbed:?}",
                delivery.queue
            )),
        }
    }

    /// Every message that was ever confirmed must have been delivered from these queues and acknowledged: they were drained, survive whatever happens, and have
    /// the ways that they have since before the first message.
    ///
    /// # Errors
    /// The first that was not.
    pub(crate) fn check_drained(&mut self, queues: &[&str]) -> Result<(), String> {
        let mut checked = 0;
        let (mut missing, mut first) = (0, None);
        let mut gets: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, sent) in self
            .sent
            .iter()
            .filter(|(_, sent)| sent.fate == Fate::Confirmed)
        {
            for queue in queues {
                if !self.could_reach(queue, sent) {
                    continue;
                }
                checked += 1;
                let seen = self
                    .delivered
                    .get(*queue)
                    .and_then(|delivered| delivered.get(id));
                let how = match seen {
                    Some(Some(_)) => continue,
                    Some(None) => "was delivered, never acknowledged, and not delivered again",
                    None => "has never been delivered",
                };
                if self.stakes.may_lose(queue, sent.at) {
                    continue;
                }
                let of_gets = gets.entry(queue).or_insert_with(|| self.stakes.gets(queue));
                if *of_gets > 0 {
                    *of_gets -= 1;
                    continue;
                }
                missing += 1;
                first.get_or_insert_with(|| {
                    format!(
                        "message {id} to '{}' with key '{}' was published at {:?} and confirmed, but from queue '{queue}' it {how}",
                        sent.exchange, sent.key, sent.at
                    )
                });
            }
        }
        self.drained += checked;
        match first {
            None => Ok(()),
            Some(first) => Err(format!("{first} ({missing} such of {checked})")),
        }
    }

    /// How many deliveries there were.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }

    /// How many confirmed messages were looked for at the end.
    #[must_use]
    pub fn drained(&self) -> u64 {
        self.drained
    }

    /// A message was delivered. `disturbed` is when something last happened to the cluster.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn delivered(
        &mut self,
        delivery: &Delivery<'_>,
        disturbed: Duration,
        now: Duration,
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
        if sent.fate == Fate::Refused {
            return Err(format!(
                "queue '{queue}' delivered message {id}, published at {:?}, whose publisher was told that it was refused",
                sent.at
            ));
        }
        let at = sent.at;
        self.check_places(delivery, id, disturbed, now)?;
        let of_queue = match self.delivered.get_mut(queue) {
            Some(of_queue) => of_queue,
            None => self.delivered.entry(queue.to_owned()).or_default(),
        };
        let mut first = false;
        let acknowledged_by = of_queue.entry(id).or_insert_with(|| {
            first = true;
            None
        });
        // What comes again has to be acknowledged again. But another consumer's acknowledgement may still be on its way, even after its connection has ended.
        *acknowledged_by = acknowledged_by.filter(|by| *by != delivery.consumer);
        if delivery.redelivered {
            return Ok(id);
        }
        if !first {
            return Err(format!(
                "queue '{queue}' delivered message {id} twice, and did not mark it as redelivered"
            ));
        }
        let latest = self
            .latest
            .entry((delivery.consumer, id.publisher))
            .or_insert(id);
        if latest.number > id.number && (delivery.durable || disturbed + SETTLED <= at) {
            return Err(format!(
                "queue '{queue}' delivered message {id} after {latest} to one consumer, neither of them marked as redelivered; the last disturbance was at {disturbed:?}"
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
                durable: false,
                exchange: "x",
                key,
                redelivered,
                body: &body,
            },
            disturbed,
            Duration::from_secs(20),
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
            durable: false,
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
            m.delivered(&odd, LONG_AGO, LONG_AGO)
                .unwrap_err()
                .contains("exchange 'y'")
        );
        assert!(
            m.delivered(
                &Delivery {
                    body: b"1.3;",
                    ..odd
                },
                LONG_AGO,
                LONG_AGO
            )
            .unwrap_err()
            .contains("nobody published")
        );
    }

    fn id(number: u32) -> MessageId {
        MessageId {
            publisher: 1,
            number,
        }
    }

    #[test]
    fn what_was_confirmed_must_come_out_and_be_acknowledged() {
        let mut m = messages();
        m.check_drained(&["q"]).unwrap();
        m.confirmed(id(1));
        m.confirmed(id(4));
        assert!(
            m.check_drained(&["q"])
                .unwrap_err()
                .contains("message 1.1 to 'x'")
        );
        deliver(&mut m, 1, false, LONG_AGO).unwrap();
        assert!(
            m.check_drained(&["q"])
                .unwrap_err()
                .contains("not delivered again")
        );
        m.acknowledged("q", id(1), 1);
        m.check_drained(&["q"]).unwrap();
        deliver(&mut m, 1, true, LONG_AGO).unwrap();
        assert!(m.check_drained(&["q"]).is_err(), "it came again");
        m.acknowledged("q", id(1), 2);
        deliver(&mut m, 1, true, LONG_AGO).unwrap();
        m.check_drained(&["q"]).unwrap();
    }

    #[test]
    fn what_was_refused_never_comes() {
        let mut m = messages();
        m.refused(id(1), &["q"], &[]).unwrap();
        assert!(
            deliver(&mut m, 1, false, LONG_AGO)
                .unwrap_err()
                .contains("refused")
        );
        deliver(&mut m, 2, false, LONG_AGO).unwrap();
        assert!(m.refused(id(2), &["q"], &[]).is_err());
        m.refused(id(3), &[], &["q"]).unwrap();
        deliver(&mut m, 3, false, LONG_AGO).unwrap();
    }

    #[test]
    fn order_counts_in_calm_and_always_where_nothing_is_lost() {
        let mut m = messages();
        deliver(&mut m, 2, false, Duration::from_secs(9)).unwrap();
        deliver(&mut m, 1, false, Duration::from_secs(9)).unwrap();
        let body = id(3).body();
        let third = Delivery {
            consumer: 2,
            queue: "q",
            durable: true,
            exchange: "x",
            key: "k",
            redelivered: false,
            body: &body,
        };
        let mut m = messages();
        m.delivered(&third, Duration::from_secs(9), LONG_AGO)
            .unwrap();
        let body = id(2).body();
        let second = Delivery {
            body: &body,
            ..third
        };
        assert!(
            m.delivered(&second, Duration::from_secs(9), LONG_AGO)
                .is_err()
        );
    }

    #[test]
    fn what_was_put_back_keeps_its_place() {
        let put_back = |at| {
            let mut m = messages();
            m.put_back("q", id(1), Duration::from_secs(at));
            let body = id(2).body();
            let delivery = Delivery {
                consumer: 2,
                queue: "q",
                durable: true,
                exchange: "x",
                key: "k",
                redelivered: false,
                body: &body,
            };
            m.delivered(&delivery, LONG_AGO, Duration::from_secs(20))
        };
        assert!(put_back(10).unwrap_err().contains("put back"));
        put_back(19).unwrap();
    }
}
