//! Each message by itself: is it lost, delivered too often, delivered although refused, or never published?

use super::{Class, Faults, Findings, Limits};
use crate::history::{
    Delivery, Fate, History, Link, Micros, Outcome, Published, Stranger, StrangerKind,
};

/// A delivery, with the consumer that got it.
struct Got<'a> {
    delivery: &'a Delivery,
    node: usize,
    link: &'a Link,
}

/// Judges every message.
pub(super) fn check(
    history: &History,
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    let mut judge = Judge {
        history,
        limits,
        faults,
        findings,
    };
    for consumer in &history.consumers {
        for stranger in &consumer.strangers {
            judge.stranger(consumer.node, stranger);
        }
    }
    let mut all: Vec<Got<'_>> = Vec::new();
    for consumer in &history.consumers {
        for delivery in &consumer.deliveries {
            let link = &consumer.links[delivery.link as usize];
            all.push(Got {
                delivery,
                node: consumer.node,
                link,
            });
        }
    }
    all.sort_by_key(|got| (got.delivery.publisher, got.delivery.seq, got.delivery.at));

    let mut rest = all.as_slice();
    for (number, publisher) in history.publishers.iter().enumerate() {
        for (seq, message) in publisher.messages.iter().enumerate() {
            let (got, after) = split(rest, number, seq);
            rest = after;
            judge.message(number, seq, message, got);
        }
        // What is left of this publisher's has numbers that it never came to.
        let unknown = rest.partition_point(|got| usize::from(got.delivery.publisher) <= number);
        judge.unpublished(&rest[..unknown]);
        rest = &rest[unknown..];
    }
    judge.unpublished(rest);
}

/// The deliveries of one message, which come first in `all`, and the rest.
fn split<'a, 'b>(
    all: &'a [Got<'b>],
    publisher: usize,
    seq: usize,
) -> (&'a [Got<'b>], &'a [Got<'b>]) {
    let is_it = |got: &Got<'_>| {
        usize::from(got.delivery.publisher) == publisher && got.delivery.seq == seq as u64
    };
    let count = all.iter().take_while(|got| is_it(got)).count();
    all.split_at(count)
}

struct Judge<'a> {
    history: &'a History,
    limits: &'a Limits,
    faults: &'a Faults<'a>,
    findings: &'a mut Findings,
}

impl Judge<'_> {
    fn message(&mut self, publisher: usize, seq: usize, message: &Published, all: &[Got<'_>]) {
        let queue = &self.history.queues[usize::from(message.queue)];
        let name = || format!("message {seq} of publisher {publisher} to {queue}");
        let (strays, all): (Vec<&Got<'_>>, Vec<&Got<'_>>) = all
            .iter()
            .partition(|got| got.delivery.queue != message.queue);
        for got in strays {
            self.findings
                .add(Class::Phantom, false, got.delivery.at, || {
                    format!(
                        "{} came from {}",
                        name(),
                        self.history.queues[usize::from(got.delivery.queue)]
                    )
                });
        }
        match message.outcome {
            Outcome::Confirmed(at) => self.confirmed(at, &all, &name),
            Outcome::Refused(at) => {
                if let Some(got) = all.first() {
                    self.findings
                        .add(Class::RefusedButApplied, false, got.delivery.at, || {
                            format!(
                                "{}, sent at {}, refused at {}, delivered by {}",
                                name(),
                                seconds(message.sent),
                                seconds(at),
                                node(got.node)
                            )
                        });
                }
            }
            Outcome::Returned(at) => self.findings.add(Class::Returned, false, at, || {
                format!("{} reached no queue", name())
            }),
            Outcome::Unknown => {}
        }
        self.duplicates(&all, &name);
    }

    /// A confirmed message must have been acknowledged by a consumer. That the acknowledgement arrived is given the benefit of doubt.
    fn confirmed(&mut self, at: Micros, all: &[&Got<'_>], name: &dyn Fn() -> String) {
        let settled = all
            .iter()
            .any(|got| matches!(got.delivery.fate, Fate::Acked(_)));
        if settled {
            return;
        }
        self.findings.add(Class::Lost, false, at, || {
            let name = name();
            match all.last() {
                None => format!("{name}, confirmed at {}: never delivered", seconds(at)),
                Some(last) => format!(
                    "{name}, confirmed at {}: delivered by {} at {}, not acknowledged, and not seen again",
                    seconds(at),
                    node(last.node),
                    seconds(last.delivery.at)
                ),
            }
        });
    }

    fn duplicates(&mut self, all: &[&Got<'_>], name: &dyn Fn() -> String) {
        for (count, again) in all.iter().enumerate().skip(1) {
            let earlier = &all[..count];
            let held = earlier
                .iter()
                .find(|before| self.keeps(before, again.delivery.at));
            let (before, why) = match (held, earlier.last()) {
                (Some(before), _) => (before, self.why_kept(before, again.delivery.at)),
                (None, Some(before)) if !again.delivery.redelivered => {
                    (before, "without the redelivered flag")
                }
                (None, _) => continue,
            };
            let (from, until) = (before.delivery.at, again.delivery.at);
            let excused = [before.node, again.node]
                .iter()
                .any(|node| self.faults.touch(*node, from, until));
            self.findings.add(Class::Duplicated, excused, until, || {
                format!(
                    "{}, delivered by {} at {}: again by {} at {}, {why}",
                    name(),
                    node(before.node),
                    seconds(from),
                    node(again.node),
                    seconds(until)
                )
            });
        }
    }

    /// Whether the consumer had not given the message up by `at`: neither returned it nor lost its connection.
    fn keeps(&self, got: &Got<'_>, at: Micros) -> bool {
        let returned = matches!(got.delivery.fate, Fate::Requeued(when) if when <= at);
        let gone = got
            .link
            .closed
            .as_ref()
            .is_some_and(|closed| closed.at <= at + self.limits.notice);
        !returned && !gone
    }

    fn why_kept(&self, before: &Got<'_>, at: Micros) -> &'static str {
        match before.delivery.fate {
            Fate::Acked(when) if when <= at => "after it was acknowledged",
            Fate::Acked(_) | Fate::Held | Fate::Requeued(_) => "while it was held",
        }
    }

    fn unpublished(&mut self, all: &[Got<'_>]) {
        for got in all {
            let Delivery {
                publisher,
                seq,
                queue,
                at,
                ..
            } = *got.delivery;
            self.findings.add(Class::Phantom, false, at, || {
                format!(
                    "message {seq} of publisher {publisher} from {}: never published",
                    self.history.queues[usize::from(queue)]
                )
            });
        }
    }

    fn stranger(&mut self, by: usize, stranger: &Stranger) {
        let queue = &self.history.queues[usize::from(stranger.queue)];
        let at = stranger.at;
        match &stranger.what {
            StrangerKind::Spoilt(what) => self.findings.add(Class::Phantom, false, at, || {
                format!("from {queue} by {}: {what}", node(by))
            }),
            StrangerKind::Earlier { round, redelivered } => {
                let excused = self.faults.touch(by, at, at);
                let flag = if *redelivered { "with" } else { "without" };
                self.findings.add(Class::Duplicated, excused, at, || {
                    format!("a message of round {round}, settled then, from {queue} by {}, {flag} the redelivered flag", node(by))
                });
            }
        }
    }
}

/// A node's name.
pub(super) fn node(index: usize) -> String {
    format!("node{}", index + 1)
}

/// A time in words.
pub(super) fn seconds(at: Micros) -> String {
    format!("{}.{:03} s", at / 1_000_000, at % 1_000_000 / 1000)
}
