//! Connections: those that ended although their node works, clients that could not come back, and answers that never came.

use super::messages::{node, seconds};
use super::{Class, Faults, Findings, Limits};
use crate::history::{End, History, Link, Micros, Outcome, PublisherLog};

/// Judges every client's connections, and every publish's answer.
pub(super) fn check(
    history: &History,
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    for (number, publisher) in history.publishers.iter().enumerate() {
        let who = format!("publisher {number}");
        check_links(
            &who,
            publisher.node,
            &publisher.links,
            (history.begin, history.end),
            limits,
            faults,
            findings,
        );
        answers(&who, publisher, history.end, limits, faults, findings);
    }
    for (number, consumer) in history.consumers.iter().enumerate() {
        let who = format!("consumer {number}");
        check_links(
            &who,
            consumer.node,
            &consumer.links,
            (history.begin, history.end),
            limits,
            faults,
            findings,
        );
    }
}

fn check_links(
    who: &str,
    at_node: usize,
    links: &[Link],
    (begin, end): (Micros, Micros),
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    let mut since = begin;
    for link in links {
        absent(who, at_node, since, link.opened, limits, faults, findings);
        let Some(closed) = &link.closed else {
            since = end;
            continue;
        };
        since = closed.at;
        match &closed.end {
            End::Ours => since = end,
            End::Lost(why) => {
                // A client may notice late, never early.
                let excused =
                    faults.touch(at_node, closed.at.saturating_sub(limits.notice), closed.at);
                findings.add(Class::Dropped, excused, closed.at, || {
                    format!("{who} at {}: {why}", node(at_node))
                });
            }
            End::Broken(why) => findings.add(Class::Broken, false, closed.at, || {
                format!("{who} at {}: {why}", node(at_node))
            }),
        }
    }
    absent(who, at_node, since, end, limits, faults, findings);
}

/// The time that a client spent without a connection, but for what its node's faults explain.
fn absent(
    who: &str,
    at_node: usize,
    from: Micros,
    until: Micros,
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    if faults.unexplained(at_node, from, until) > limits.hang {
        findings.add(Class::Hung, false, from, || {
            format!(
                "{who} could not connect to {} from {} to {}",
                node(at_node),
                seconds(from),
                seconds(until)
            )
        });
    }
}

fn answers(
    who: &str,
    publisher: &PublisherLog,
    end: Micros,
    limits: &Limits,
    faults: &Faults<'_>,
    findings: &mut Findings,
) {
    for (seq, message) in publisher.messages.iter().enumerate() {
        let (until, what) = match message.outcome {
            Outcome::Confirmed(at) => (at, "confirmed"),
            Outcome::Refused(at) => (at, "refused"),
            Outcome::Returned(_) => continue,
            Outcome::Unknown => match &publisher.links[message.link as usize].closed {
                Some(closed) if closed.end != End::Ours => continue,
                Some(_) | None => (end, "not answered"),
            },
        };
        let unanswered = message.outcome == Outcome::Unknown;
        if unanswered || faults.unexplained(publisher.node, message.sent, until) > limits.hang {
            findings.add(Class::Hung, false, message.sent, || {
                format!(
                    "message {seq} of {who} at {}, sent at {}: {what} by {}",
                    node(publisher.node),
                    seconds(message.sent),
                    seconds(until)
                )
            });
        }
    }
}
