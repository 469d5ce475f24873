//! A consumer: all queues on one channel, with a prefetch; most deliveries are acknowledged at once, some are held for a while, a few are
//! returned to their queue.
//!
//! What is held for a while is what a failover must neither lose nor hand out again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use warren_protocol::{BasicAck, BasicNack};

use crate::body::{BodyError, Stamp};
use crate::history::{
    Closed, ConsumerLog, Delivery, End, Fate, Link, Micros, Stranger, StrangerKind,
};
use crate::shared::{Phase, Shared, add, take};
use crate::wire::{Event, Gone, Wire};

/// Unacknowledged deliveries of each queue.
const PREFETCH: u16 = 64;
/// How long to wait for something to come.
const TURN: Duration = Duration::from_millis(5);
/// How long to wait between attempts to connect.
const RETRY: Duration = Duration::from_millis(50);

/// The consumer.
pub struct Consumer<'a> {
    shared: &'a Shared,
    number: usize,
    address: SocketAddr,
    random: StdRng,
    log: ConsumerLog,
    /// Deliveries of the present connection that wait, by when they are due and their tag.
    held: BTreeMap<(Micros, u64), Held>,
}

/// A delivery that waits for its acknowledgement or return.
#[derive(Clone, Copy)]
struct Held {
    /// Its place in the log; none for a stranger.
    place: Option<usize>,
    requeue: bool,
}

impl<'a> Consumer<'a> {
    /// A consumer with this number at a node.
    pub fn new(
        shared: &'a Shared,
        number: usize,
        node: usize,
        address: SocketAddr,
        seed: u64,
    ) -> Self {
        Self {
            shared,
            number,
            address,
            random: StdRng::seed_from_u64(seed),
            log: ConsumerLog {
                node,
                ..ConsumerLog::default()
            },
            held: BTreeMap::new(),
        }
    }

    /// Consumes until clients shall close, and hands over its log.
    pub fn run(mut self) -> ConsumerLog {
        while self.shared.phase() != Phase::Close {
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
            let end = match self.session(wire) {
                Ok(()) => End::Ours,
                Err(Gone::Lost(why)) => End::Lost(why),
                Err(Gone::Broken(why)) => End::Broken(why),
            };
            take(&self.shared.connected, 1);
            take(&self.shared.held, self.held.len() as u64);
            self.held.clear();
            let at = self.shared.now();
            if let Some(link) = self.log.links.last_mut() {
                link.closed = Some(Closed { at, end });
            }
        }
        self.log
    }

    fn connect(&self) -> Result<Wire, Gone> {
        let mut wire = Wire::open(self.address, &format!("crash consumer {}", self.number))?;
        wire.prefetch(PREFETCH)?;
        for (number, queue) in self.shared.queues.iter().enumerate() {
            wire.consume(queue, &number.to_string());
        }
        Ok(wire)
    }

    fn session(&mut self, mut wire: Wire) -> Result<(), Gone> {
        loop {
            wire.pump(TURN);
            while let Some(event) = wire.event()? {
                self.take(event)?;
            }
            let phase = self.shared.phase();
            self.settle(&mut wire, phase);
            if phase == Phase::Close {
                return wire.close();
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), Gone> {
        match event {
            Event::Delivered {
                consumer,
                tag,
                redelivered,
                body,
            } => self.delivered(&consumer, tag, redelivered, &body),
            Event::Cancelled { consumer } => {
                let queue = self.queue(&consumer)?;
                Err(Gone::Lost(format!(
                    "the broker cancelled the consumer of {}",
                    self.shared.queues[usize::from(queue)]
                )))
            }
            Event::Other(_) => Ok(()),
            Event::Outcome { .. } | Event::Returned { .. } | Event::Declared { .. } => {
                Err(Gone::Broken(format!("a consumer got {event:?}")))
            }
        }
    }

    fn queue(&self, consumer: &str) -> Result<u16, Gone> {
        consumer
            .parse()
            .ok()
            .filter(|queue| usize::from(*queue) < self.shared.queues.len())
            .ok_or_else(|| {
                Gone::Broken(format!(
                    "a delivery to consumer {consumer:?}, which is none of ours"
                ))
            })
    }

    fn delivered(
        &mut self,
        consumer: &str,
        tag: u64,
        redelivered: bool,
        body: &[u8],
    ) -> Result<(), Gone> {
        let queue = self.queue(consumer)?;
        let at = self.shared.now();
        self.shared.last_delivery.store(at, Ordering::Relaxed);
        add(&self.shared.delivered, 1);
        let place = match self.known(body, redelivered) {
            Ok(stamp) => {
                self.log.deliveries.push(Delivery {
                    link: self.log.links.len() as u32 - 1,
                    publisher: stamp.publisher,
                    queue,
                    seq: stamp.seq,
                    at,
                    redelivered,
                    fate: Fate::Held,
                });
                Some(self.log.deliveries.len() - 1)
            }
            Err(what) => {
                self.log.strangers.push(Stranger { at, queue, what });
                None
            }
        };
        let (wait, requeue) = self.intent();
        let held = Held { place, requeue };
        self.held.insert((at + wait, tag), held);
        add(&self.shared.held, 1);
        Ok(())
    }

    fn known(&self, body: &[u8], redelivered: bool) -> Result<Stamp, StrangerKind> {
        let stamp =
            Stamp::of(body).map_err(|error: BodyError| StrangerKind::Spoilt(error.to_string()))?;
        if stamp.run != self.shared.run {
            return Err(StrangerKind::Spoilt("a message of another run".to_owned()));
        }
        if stamp.round != self.shared.round {
            return Err(StrangerKind::Earlier {
                round: stamp.round,
                redelivered,
            });
        }
        Ok(stamp)
    }

    /// How long to hold a delivery, and whether to return it then.
    fn intent(&mut self) -> (Micros, bool) {
        let wait = match self.random.random_range(0..1000) {
            0..10 => self.random.random_range(0..5_000_000),
            10..100 => self.random.random_range(0..500_000),
            _ => 0,
        };
        (wait, self.random.random_ratio(1, 100))
    }

    /// Acknowledges and returns what is due. At the end of a round everything is due, and nothing is returned.
    fn settle(&mut self, wire: &mut Wire, phase: Phase) {
        let now = self.shared.now();
        while let Some(entry) = self.held.first_entry() {
            if entry.key().0 > now && phase == Phase::Load {
                break;
            }
            let delivery_tag = entry.key().1;
            let Held { place, requeue } = entry.remove();
            take(&self.shared.held, 1);
            let requeue = requeue && phase == Phase::Load && place.is_some();
            if requeue {
                wire.send(BasicNack {
                    delivery_tag,
                    multiple: false,
                    requeue: true,
                });
            } else {
                wire.send(BasicAck {
                    delivery_tag,
                    multiple: false,
                });
                add(&self.shared.acked, 1);
            }
            if let Some(place) = place {
                self.log.deliveries[place].fate = if requeue {
                    Fate::Requeued(now)
                } else {
                    Fate::Acked(now)
                };
            }
        }
    }
}
