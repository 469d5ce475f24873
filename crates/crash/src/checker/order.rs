//! The order in which a consumer gets a publisher's messages from one queue for the first time.
//!
//! A queue may have several consumers, on several nodes, whose clocks of arrival cannot be compared: so each connection's order is judged
//! by itself, where the messages of one publisher in one queue must come with rising numbers. Redeliveries come late by nature. Messages of
//! two connections of a publisher have an order only if the earlier was confirmed before the later was sent.

use std::collections::HashMap;

use super::messages::{node, seconds};
use super::{Class, Faults, Findings};
use crate::history::{ConsumerLog, Delivery, History, Micros, Outcome, Published};

/// The latest message that a consumer's connection got, and when.
type Latest = (u64, Micros);

/// Judges every consumer's order.
pub(super) fn check(history: &History, faults: &Faults<'_>, findings: &mut Findings) {
    for consumer in &history.consumers {
        check_consumer(history, consumer, faults, findings);
    }
}

fn check_consumer(
    history: &History,
    consumer: &ConsumerLog,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    // By the consumer's connection, publisher, queue, and the publisher's connection; and over all connections of the publisher.
    let mut of_link: HashMap<(u32, u16, u16, u32), Latest> = HashMap::new();
    let mut of_all: HashMap<(u32, u16, u16), Latest> = HashMap::new();
    for delivery in consumer
        .deliveries
        .iter()
        .filter(|delivery| !delivery.redelivered)
    {
        let Some(message) = published(history, delivery, delivery.seq) else {
            continue;
        };
        let key = (delivery.link, delivery.publisher, delivery.queue);
        let link_key = (key.0, key.1, key.2, message.link);
        let before = [of_link.get(&link_key), of_all.get(&key)];
        let ahead = before
            .into_iter()
            .flatten()
            .find(|latest| must_follow(history, delivery, message, **latest));
        if let Some((seq, at)) = ahead {
            let excused = faults.touch(consumer.node, *at, delivery.at);
            findings.add(Class::Reordered, excused, delivery.at, || {
                format!(
                    "message {} of publisher {} from {}: came at {} by {}, after message {seq}, which came at {}",
                    delivery.seq,
                    delivery.publisher,
                    history.queues[usize::from(delivery.queue)],
                    seconds(delivery.at),
                    node(consumer.node),
                    seconds(*at)
                )
            });
        }
        let seen = (delivery.seq, delivery.at);
        for latest in [
            of_link.entry(link_key).or_insert(seen),
            of_all.entry(key).or_insert(seen),
        ] {
            if latest.0 < seen.0 {
                *latest = seen;
            }
        }
    }
}

/// Whether the message that came first had to come after this one.
fn must_follow(
    history: &History,
    delivery: &Delivery,
    message: &Published,
    (seq, _): Latest,
) -> bool {
    if seq <= delivery.seq {
        return false;
    }
    let Some(later) = published(history, delivery, seq) else {
        return false;
    };
    let confirmed_before = matches!(message.outcome, Outcome::Confirmed(at) if at < later.sent);
    message.link == later.link || confirmed_before
}

/// The message with this number of the delivery's publisher, if it went to the delivery's queue; anything else is a phantom.
fn published<'a>(history: &'a History, delivery: &Delivery, seq: u64) -> Option<&'a Published> {
    let publisher = history.publishers.get(usize::from(delivery.publisher))?;
    let message = publisher.messages.get(usize::try_from(seq).ok()?)?;
    (message.queue == delivery.queue).then_some(message)
}
