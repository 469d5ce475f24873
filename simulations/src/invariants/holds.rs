//! A message is with one consumer: while a client whose node lives and has no fault holds a message, or has acknowledged it, nobody gets it again, whatever
//! happens to the other nodes.
//!
//! A server may know of a connection's end before its client does, so what looks wrong is a suspicion at first, and is dropped if the connection turns out
//! to have ended, or the node to have had a fault. What needed no acknowledgement is settled by the node itself: the connection's end is no excuse there.
//! Nor is it wrong if the other delivery reached its consumer late, through a node with a fault, and that consumer's connection ended with it.

use crate::message::MessageId;
use crate::options::node_name;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long after a suspicious delivery the holder's connection may still be found to have ended.
const PATIENCE: Duration = Duration::from_secs(3);
/// An acknowledgement is sure to be in the log when its connection lives on for so long.
const SURE: Duration = Duration::from_secs(10);

/// What its consumer did with a delivered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    Holds,
    Acknowledged(Duration),
    /// It needed no acknowledgement: its node settles it.
    Given,
    PutBack,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    connection: u32,
    since: Duration,
    doing: Doing,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    node: usize,
    ended: Option<Duration>,
}

#[derive(Debug)]
struct Suspicion {
    connection: u32,
    since: Duration,
    /// Who got the message besides, and when.
    other: (u32, Duration),
    due: Duration,
    /// The connection's end is no excuse.
    given: bool,
    what: String,
}

/// Who has which message.
#[derive(Debug, Default)]
pub struct Holds {
    holders: BTreeMap<String, BTreeMap<MessageId, Holder>>,
    connections: BTreeMap<u32, Connection>,
    suspicions: Vec<Suspicion>,
    again: u64,
}

impl Holds {
    /// Its name.
    pub const NAME: &str = "holds";

    /// A client's channel is open on this node.
    pub(crate) fn opened(&mut self, connection: u32, node: usize) {
        let ended = None;
        self.connections
            .insert(connection, Connection { node, ended });
    }

    /// It is over, or may be.
    pub(crate) fn ended(&mut self, connection: u32, now: Duration) {
        if let Some(known) = self.connections.get_mut(&connection) {
            known.ended.get_or_insert(now);
        }
    }

    /// A message of a queue that survives the loss of nodes was delivered.
    pub(crate) fn delivered(&mut self, queue: &str, id: MessageId, connection: u32, now: Duration) {
        let holder = Holder {
            connection,
            since: now,
            doing: Doing::Holds,
        };
        let of_queue = match self.holders.get_mut(queue) {
            Some(of_queue) => of_queue,
            None => self.holders.entry(queue.to_owned()).or_default(),
        };
        let Some(before) = of_queue.insert(id, holder) else {
            return;
        };
        self.again += 1;
        let Some(held_on) = self.connections.get(&before.connection) else {
            return;
        };
        let (counts, how) = match before.doing {
            Doing::PutBack => (false, String::new()),
            Doing::Given => (true, "needed not to acknowledge it".to_owned()),
            Doing::Holds => (held_on.ended.is_none(), "still holds it".to_owned()),
            Doing::Acknowledged(at) => (
                held_on.ended.is_none_or(|ended| ended > at + SURE),
                format!("acknowledged it at {at:?}"),
            ),
        };
        if counts {
            self.suspicions.push(Suspicion {
                connection: before.connection,
                since: before.since,
                other: (connection, now),
                due: now + PATIENCE,
                given: before.doing == Doing::Given,
                what: format!(
                    "queue '{queue}' delivered message {id} at {now:?} to consumer {connection}, although consumer {} at {}, which got it at {:?}, {how}",
                    before.connection,
                    node_name(held_on.node),
                    before.since
                ),
            });
        }
    }

    /// A consumer acknowledges a message, or puts it back.
    pub(crate) fn settled(
        &mut self,
        queue: &str,
        id: MessageId,
        connection: u32,
        put_back: bool,
        now: Duration,
    ) {
        let doing = if put_back {
            Doing::PutBack
        } else {
            Doing::Acknowledged(now)
        };
        self.does(queue, id, connection, doing);
    }

    /// A consumer has got a message that it need not acknowledge.
    pub(crate) fn given(&mut self, queue: &str, id: MessageId, connection: u32) {
        self.does(queue, id, connection, Doing::Given);
    }

    fn does(&mut self, queue: &str, id: MessageId, connection: u32, doing: Doing) {
        let held = self
            .holders
            .get_mut(queue)
            .and_then(|of_queue| of_queue.get_mut(&id))
            .filter(|holder| holder.connection == connection);
        if let Some(holder) = held {
            holder.doing = doing;
        }
    }

    /// Judges what is due. `faulted` says whether a node had a fault since then.
    pub(crate) fn check(
        &mut self,
        now: Duration,
        faulted: impl Fn(usize, Duration) -> bool,
    ) -> Result<(), String> {
        if self.suspicions.is_empty() {
            return Ok(());
        }
        let (due, later) = std::mem::take(&mut self.suspicions)
            .into_iter()
            .partition(|suspicion: &Suspicion| suspicion.due <= now);
        self.suspicions = later;
        for suspicion in due {
            let Some(connection) = self.connections.get(&suspicion.connection) else {
                continue;
            };
            let has_ended = |connection: &Connection| {
                connection.ended.is_some_and(|ended| ended <= suspicion.due)
            };
            // It was on its way when its consumer was counted out together with its node, which passed it on before it heard of that.
            let (other, at) = suspicion.other;
            let came_late = self
                .connections
                .get(&other)
                .is_some_and(|other| has_ended(other) && faulted(other.node, at));
            let ended = has_ended(connection);
            if (suspicion.given || !ended)
                && !faulted(connection.node, suspicion.since)
                && !came_late
            {
                return Err(suspicion.what);
            }
        }
        Ok(())
    }

    /// How many deliveries were not the first.
    #[must_use]
    pub fn again(&self) -> u64 {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId {
        publisher: 1,
        number: 1,
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn held() -> Holds {
        let mut holds = Holds::default();
        holds.opened(1, 0);
        holds.opened(2, 1);
        holds.delivered("q", ID, 1, at(1));
        holds
    }

    #[test]
    fn what_is_held_is_not_delivered_again() {
        let mut holds = held();
        holds.delivered("q", ID, 2, at(2));
        holds.check(at(4), |_, _| false).unwrap();
        assert!(holds.check(at(5), |_, _| false).is_err());
        let mut holds = held();
        holds.delivered("q", ID, 2, at(2));
        holds
            .check(at(5), |node, since| node == 0 && since == at(1))
            .unwrap();
        let mut holds = held();
        holds.delivered("q", ID, 2, at(2));
        holds.ended(1, at(4));
        holds.check(at(5), |_, _| false).unwrap();
    }

    #[test]
    fn what_reaches_a_consumer_late_that_is_counted_out_is_excused() {
        let late = |ended: Option<Duration>, faulted: Option<usize>| {
            let mut holds = held();
            holds.delivered("q", ID, 2, at(2));
            if let Some(ended) = ended {
                holds.ended(2, ended);
            }
            holds.check(at(5), |node, _| Some(node) == faulted)
        };
        late(Some(at(3)), Some(1)).unwrap();
        assert!(late(Some(at(3)), None).is_err());
        assert!(late(None, Some(1)).is_err());
    }

    #[test]
    fn what_was_acknowledged_does_not_come_again_and_what_was_put_back_may() {
        let mut holds = held();
        holds.settled("q", ID, 1, false, at(2));
        holds.ended(1, at(20));
        holds.delivered("q", ID, 2, at(30));
        holds.check(at(40), |_, _| false).unwrap();
        let mut holds = held();
        holds.settled("q", ID, 1, false, at(2));
        holds.delivered("q", ID, 2, at(30));
        assert!(holds.check(at(40), |_, _| false).is_err());
        let mut holds = held();
        holds.given("q", ID, 1);
        holds.ended(1, at(2));
        holds.delivered("q", ID, 2, at(3));
        assert!(holds.check(at(40), |_, _| false).is_err());
        let mut holds = held();
        holds.settled("q", ID, 1, true, at(2));
        holds.delivered("q", ID, 1, at(3));
        holds.check(at(40), |_, _| false).unwrap();
        assert_eq!(holds.again(), 1);
    }
}
