//! How a client takes messages: as a consumer or one by one, with acknowledgements or without.
//!
//! What is taken without acknowledgement is over when it has come. If the connection ends while something may be on its way so, that may be lost, rightly: the
//! oracle is told what was at stake, and how it ended.

use super::{Client, DEADLINE, Incoming, Outcome, short};
use crate::invariants::{Delivery, Messages, Stake};
use crate::message::MessageId;
use crate::options::node_name;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use warren_protocol::{
    BasicAck, BasicCancel, BasicConsume, BasicGet, BasicQos, BasicReject, Method,
};

/// A node knows so soon that a connection is over.
const HEARD: Duration = Duration::from_secs(1);
/// One with a fault knows it by then: its links to clients stand still for 12 s at most.
const HEARD_LATE: Duration = Duration::from_secs(15);
/// Tag of a client's only consumer.
const CONSUMER: &str = "it";

impl Client {
    /// Consumes from a queue with so many messages unacknowledged at most (0: any number).
    pub async fn consume(&mut self, queue: &str, prefetch_count: u16) -> Outcome<()> {
        self.call(
            BasicQos {
                prefetch_count,
                ..BasicQos::default()
            },
            "basic.qos-ok",
        )
        .await?;
        self.call(
            BasicConsume {
                queue: short(queue),
                consumer_tag: short(CONSUMER),
                ..BasicConsume::default()
            },
            "basic.consume-ok",
        )
        .await
    }

    /// Consumes from a queue without acknowledgements, until [`Client::cancel`].
    pub async fn consume_no_ack(&mut self, queue: &str) -> Outcome<()> {
        self.stake(queue, Stake::All);
        self.call(
            BasicConsume {
                queue: short(queue),
                consumer_tag: short(CONSUMER),
                no_ack: true,
                ..BasicConsume::default()
            },
            "basic.consume-ok",
        )
        .await
    }

    /// Ends its consumer. What it was given comes before that is answered, and waits among the events.
    pub async fn cancel(&mut self) -> Outcome<()> {
        let cancel = BasicCancel {
            consumer_tag: short(CONSUMER),
            ..BasicCancel::default()
        };
        self.call(cancel, "basic.cancel-ok").await?;
        self.oracle
            .state()
            .messages
            .nothing_at_stake(self.publisher);
        Ok(())
    }

    /// Takes the first message of a queue; none if it is empty.
    pub async fn get(&mut self, queue: &str, no_ack: bool) -> Outcome<Option<Incoming>> {
        if no_ack {
            self.stake(queue, Stake::One);
        }
        let (since, until) = (self.oracle.now(), Instant::now() + DEADLINE);
        let get = BasicGet {
            queue: short(queue),
            no_ack,
        };
        self.oracle.count_operation();
        self.oracle.trace(
            &self.host,
            format_args!("asks {}: {get:?}", node_name(self.node)),
        );
        let got = match self.send(super::CHANNEL, get, until).await {
            Ok(()) => self.got(until).await,
            Err(failure) => Err(failure),
        };
        let got = self.checked("basic.get", since, got);
        let got = self.reopened(got).await?;
        self.oracle
            .state()
            .messages
            .nothing_at_stake(self.publisher);
        if got.is_none() {
            self.oracle
                .trace(&self.host, format_args!("finds '{queue}' empty"));
        }
        Ok(got)
    }

    /// The answer to a get.
    async fn got(&mut self, until: Instant) -> Outcome<Option<Incoming>> {
        loop {
            if let Some(payload) = self.next_method(until).await? {
                if matches!(Method::decode(&payload), Ok(Method::BasicGetEmpty)) {
                    return Ok(None);
                }
                self.surprised(&payload, "basic.get-ok");
            }
            if let Some(got) = self.got.take() {
                return Ok(Some(got));
            }
        }
    }

    fn stake(&self, queue: &str, stake: Stake) {
        self.oracle
            .state()
            .messages
            .at_stake(self.publisher, queue, stake);
    }

    /// This connection or channel is over, or may be.
    pub(super) fn ended(&self) {
        let now = self.oracle.now();
        // A node with a fault may hear late that nobody is there any more.
        let until = now
            + if self.oracle.is_faulted(self.node) {
                HEARD_LATE
            } else {
                HEARD
            };
        let mut state = self.oracle.state();
        state.holds.ended(self.publisher, now);
        state.messages.ended(self.publisher, until);
    }

    /// Holds a delivery that needs no acknowledgement against what was published.
    pub(crate) fn check_given(&mut self, queue: &str, got: &Incoming) {
        self.check(queue, got);
        if let Some((queue, id)) = self.held.remove(&got.tag) {
            let mut state = self.oracle.state();
            state.messages.acknowledged(&queue, id, self.publisher);
            state.holds.given(&queue, id, self.publisher);
        }
    }

    /// Holds a delivery against what was published, and remembers that this client has it.
    pub(crate) fn check(&mut self, queue: &str, got: &Incoming) {
        let durable = queue != crate::workloads::traffic::MEMORY_QUEUE;
        let delivery = Delivery {
            consumer: self.publisher,
            queue,
            durable,
            exchange: &got.exchange,
            key: &got.key,
            redelivered: got.redelivered,
            body: &got.body,
        };
        self.oracle.count_operation();
        let disturbed = self.oracle.last_disturbed();
        let now = self.oracle.now();
        let verdict = self
            .oracle
            .state()
            .messages
            .delivered(&delivery, disturbed, now);
        if let Ok(id) = &verdict {
            self.oracle.trace(
                &self.host,
                format_args!(
                    "got {id} from '{queue}' as {}{}",
                    got.tag,
                    if got.redelivered { ", redelivered" } else { "" }
                ),
            );
            self.held.insert(got.tag, (queue.to_owned(), *id));
            if durable {
                let now = self.oracle.now();
                let mut state = self.oracle.state();
                state.holds.delivered(queue, *id, self.publisher, now);
            }
        }
        self.oracle.judge(Messages::NAME, verdict.map(drop));
    }

    /// Takes the deliveries that a tag stands for from those that are held.
    fn settles(&mut self, tag: u64, multiple: bool, put_back: bool) {
        let settled: Vec<(String, MessageId)> = if multiple {
            let rest = if tag == 0 {
                BTreeMap::new()
            } else {
                self.held.split_off(&(tag + 1))
            };
            std::mem::replace(&mut self.held, rest)
                .into_values()
                .collect()
        } else {
            self.held.remove(&tag).into_iter().collect()
        };
        let now = self.oracle.now();
        let mut state = self.oracle.state();
        for (queue, id) in settled {
            if put_back {
                state.messages.put_back(&queue, id, now);
            } else {
                state.messages.acknowledged(&queue, id, self.publisher);
            }
            state
                .holds
                .settled(&queue, id, self.publisher, put_back, now);
        }
    }

    /// Acknowledges a delivery, and all before it if asked for.
    pub async fn ack(&mut self, delivery_tag: u64, multiple: bool) -> Outcome<()> {
        self.settles(delivery_tag, multiple, false);
        self.tell(
            BasicAck {
                delivery_tag,
                multiple,
            },
            "ack",
        )
        .await
    }

    /// Puts a delivery back.
    pub async fn requeue(&mut self, delivery_tag: u64) -> Outcome<()> {
        self.settles(delivery_tag, false, true);
        self.tell(
            BasicReject {
                delivery_tag,
                requeue: true,
            },
            "reject",
        )
        .await
    }
}
