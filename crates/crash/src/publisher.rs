//! A publisher: persistent, mandatory messages to random queues, each confirmed, at most a window of them without an answer.
//!
//! It publishes nothing twice: what has no answer when its connection ends stays unknown. So every message that is seen twice was
//! doubled by the broker.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::body::{SMALLEST, Stamp};
use crate::history::{Closed, End, Link, Outcome, Published, PublisherLog};
use crate::shared::{Phase, Shared, add, take};
use crate::wire::{Event, Gone, Wire};

/// Publishes without an answer.
const WINDOW: usize = 256;
/// What may wait to be written before nothing more is published.
const UNWRITTEN: usize = 1 << 20;
/// How long to wait for something to come.
const TURN: Duration = Duration::from_millis(2);
/// How long to wait between attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// The publisher.
pub struct Publisher<'a> {
    shared: &'a Shared,
    number: u16,
    address: SocketAddr,
    random: StdRng,
    log: PublisherLog,
}

/// What a connection's channel knows of its publishes: they are numbered from 1, and follow each other in the log.
struct Channel {
    /// The first one's place in the log.
    first: usize,
    /// How many of them have an answer, from the first on without a gap.
    answered: usize,
    /// How many have none.
    open: usize,
}

impl<'a> Publisher<'a> {
    /// A publisher with this number at a node.
    pub fn new(
        shared: &'a Shared,
        number: u16,
        node: usize,
        address: SocketAddr,
        seed: u64,
    ) -> Self {
        Self {
            shared,
            number,
            address,
            random: StdRng::seed_from_u64(seed),
            log: PublisherLog {
                node,
                ..PublisherLog::default()
            },
        }
    }

    /// Publishes until the load ends, waits for all answers until clients shall close, and hands over its log.
    pub fn run(mut self) -> PublisherLog {
        while self.shared.phase() == Phase::Load {
            let opened = self.connect();
            let Ok(wire) = opened else {
                std::thread::sleep(RETRY);
                continue;
            };
            self.log.links.push(Link {
                opened: self.shared.now(),
                closed: None,
            });
            add(&self.shared.connected, 1);
            let mut channel = Channel {
                first: self.log.messages.len(),
                answered: 0,
                open: 0,
            };
            let end = match self.session(wire, &mut channel) {
                Ok(()) => End::Ours,
                Err(Gone::Lost(why)) => End::Lost(why),
                Err(Gone::Broken(why)) => End::Broken(why),
            };
            take(&self.shared.connected, 1);
            take(&self.shared.unanswered, channel.open as u64);
            let at = self.shared.now();
            if let Some(link) = self.log.links.last_mut() {
                link.closed = Some(Closed { at, end });
            }
        }
        self.log
    }

    fn connect(&self) -> Result<Wire, Gone> {
        let mut wire = Wire::open(self.address, &format!("crash publisher {}", self.number))?;
        wire.confirm()?;
        Ok(wire)
    }

    /// Until clients shall close, or all is answered after the load, or the connection ends.
    fn session(&mut self, mut wire: Wire, channel: &mut Channel) -> Result<(), Gone> {
        let begin = Instant::now();
        let mut due = 0.0;
        loop {
            wire.pump(TURN);
            while let Some(event) = wire.event()? {
                self.take(event, channel)?;
            }
            let phase = self.shared.phase();
            if phase == Phase::Close || (phase == Phase::Drain && channel.open == 0) {
                return wire.close();
            }
            if phase == Phase::Load {
                let allowed = begin.elapsed().as_secs_f64() * self.shared.rate;
                let paused = self.shared.waiting() > self.shared.backlog;
                while due < allowed
                    && !paused
                    && channel.open < WINDOW
                    && wire.unwritten() < UNWRITTEN
                {
                    self.publish(&mut wire, channel);
                    due += 1.0;
                }
                // What could not be published in time is not caught up with: a burst would hide how long a stall was.
                due = due.max(allowed - 1.0);
            }
        }
    }

    fn publish(&mut self, wire: &mut Wire, channel: &mut Channel) {
        let queue = self.random.random_range(0..self.shared.queues.len());
        let stamp = Stamp {
            run: self.shared.run,
            round: self.shared.round,
            publisher: self.number,
            queue: queue as u16,
            seq: self.log.messages.len() as u64,
        };
        let body = stamp.body(self.size());
        self.log.messages.push(Published {
            queue: stamp.queue,
            link: self.log.links.len() as u32 - 1,
            sent: self.shared.now(),
            outcome: Outcome::Unknown,
        });
        channel.open += 1;
        add(&self.shared.published, 1);
        add(&self.shared.unanswered, 1);
        wire.publish(&self.shared.queues[queue], &body);
    }

    /// Mostly small; now and then more than a page, and rarely more than a frame.
    fn size(&mut self) -> usize {
        match self.random.random_range(0..1000) {
            0 => self.random.random_range(100_000..300_000),
            1..50 => self.random.random_range(4_000..16_000),
            _ => self.random.random_range(SMALLEST..1_200),
        }
    }

    fn take(&mut self, event: Event, channel: &mut Channel) -> Result<(), Gone> {
        match event {
            Event::Outcome {
                tag,
                multiple,
                refused,
            } => self.outcome(tag, multiple, refused, channel),
            Event::Returned { body } => self.returned(&body, channel),
            Event::Delivered { .. } | Event::Cancelled { .. } | Event::Declared { .. } => {
                Err(Gone::Broken(format!("a publisher got {event:?}")))
            }
            Event::Other(_) => Ok(()),
        }
    }

    fn outcome(
        &mut self,
        tag: u64,
        multiple: bool,
        refused: bool,
        channel: &mut Channel,
    ) -> Result<(), Gone> {
        let sent = self.log.messages.len() - channel.first;
        let last = match usize::try_from(tag) {
            Ok(tag) if (1..=sent).contains(&tag) => tag,
            // All that there are.
            Ok(0) if multiple => sent,
            Ok(_) | Err(_) => {
                return Err(Gone::Broken(format!(
                    "an answer to publish {tag} of {sent} of this channel"
                )));
            }
        };
        let first = if multiple { channel.answered + 1 } else { last };
        let now = self.shared.now();
        for number in first..=last {
            let message = &mut self.log.messages[channel.first + number - 1];
            let answered = matches!(message.outcome, Outcome::Confirmed(_) | Outcome::Refused(_));
            if answered && multiple {
                continue;
            }
            if answered {
                return Err(Gone::Broken(format!("a second answer to publish {number}")));
            }
            // A returned message is acknowledged too, and stays returned.
            if message.outcome == Outcome::Unknown {
                message.outcome = if refused {
                    Outcome::Refused(now)
                } else {
                    add(&self.shared.confirmed, 1);
                    Outcome::Confirmed(now)
                };
                channel.open -= 1;
                take(&self.shared.unanswered, 1);
            }
        }
        while channel.answered < sent
            && self.log.messages[channel.first + channel.answered].outcome != Outcome::Unknown
        {
            channel.answered += 1;
        }
        Ok(())
    }

    /// Its number in the channel is not told; its stamp tells which it is. The answer that follows changes nothing.
    fn returned(&mut self, body: &[u8], channel: &mut Channel) -> Result<(), Gone> {
        let stamp = Stamp::of(body).map_err(|error| Gone::Broken(format!("returned {error}")))?;
        let message = usize::try_from(stamp.seq)
            .ok()
            .filter(|_| stamp.publisher == self.number && stamp.round == self.shared.round)
            .and_then(|seq| self.log.messages.get_mut(seq));
        match message {
            Some(message) if message.outcome == Outcome::Unknown => {
                message.outcome = Outcome::Returned(self.shared.now());
                channel.open -= 1;
                take(&self.shared.unanswered, 1);
                Ok(())
            }
            Some(_) | None => Err(Gone::Broken(format!(
                "message {} was returned, which waits for no answer",
                stamp.seq
            ))),
        }
    }
}
