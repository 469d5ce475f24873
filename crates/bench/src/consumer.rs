//! One consuming connection: it reads, notes what came, and acknowledges once per read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use warren_protocol::{BasicAck, BasicConsume, BasicQos, Method, Table};

use crate::body::Stamp;
use crate::checker::Received;
use crate::connection::{CHANNEL, Connection, short};
use crate::deliveries::Deliveries;
use crate::histogram::Histogram;
use crate::meter::Meter;
use crate::plan::Plan;

/// How a consumer acknowledges.
#[derive(Clone, Copy, Debug)]
pub struct Acks {
    /// Deliveries in advance; 0: no acknowledgements.
    pub prefetch: u16,
    /// One ack for all that a read brought.
    pub multiple: bool,
}

/// The consumer.
#[derive(Debug)]
pub struct Consumer {
    index: usize,
    connection: Connection,
    acks: Acks,
    received: Received,
    latency: Histogram,
    deliveries: u64,
}

/// What a consumer got.
#[derive(Debug)]
pub struct Consumed {
    /// The messages.
    pub received: Received,
    /// Times from a block's write to a delivery's read.
    pub latency: Histogram,
    /// Why it ended early.
    pub error: Option<anyhow::Error>,
}

impl Consumer {
    /// Subscribes a connection to the queues of consumer `index` of `consumers`. The queues must be empty.
    ///
    /// # Errors
    /// If the broker refuses.
    pub fn open(
        mut connection: Connection,
        plan: &Arc<Plan>,
        size: u32,
        index: usize,
        consumers: usize,
        acks: Acks,
    ) -> Result<Self> {
        if acks.prefetch > 0 {
            let qos = BasicQos {
                prefetch_size: 0,
                prefetch_count: acks.prefetch,
                global: false,
            };
            connection.request(&Method::BasicQos(qos), "basic.qos-ok")?;
        }
        for queue in queues_of(index, consumers, plan.queues.len()) {
            let tag = queue.to_string();
            let consume = BasicConsume {
                queue: short(&plan.queues[queue])?,
                consumer_tag: short(&tag)?,
                no_local: false,
                no_ack: acks.prefetch == 0,
                exclusive: false,
                no_wait: false,
                arguments: Table::EMPTY,
            };
            connection.request(&Method::BasicConsume(consume), "basic.consume-ok")?;
        }
        let received = Received::new(Arc::clone(plan), size);
        Ok(Self {
            index,
            connection,
            acks,
            received,
            latency: Histogram::default(),
            deliveries: 0,
        })
    }

    /// Consumes until it is told to stop.
    pub fn run(mut self, meter: &Meter) -> Consumed {
        let error = self.consume(meter).err();
        Consumed {
            received: self.received,
            latency: self.latency,
            error,
        }
    }

    fn consume(&mut self, meter: &Meter) -> Result<()> {
        let mut parser = Deliveries::new(self.connection.frame_max);
        let mut acks = Vec::new();
        while !meter.consuming_stopped() {
            let connection = &mut self.connection;
            if connection
                .input
                .fill(&mut connection.socket)
                .context("waiting for deliveries")?
                .is_none()
            {
                continue;
            }
            acks.clear();
            self.take(&mut parser, &mut acks, meter)?;
            self.connection.send(&acks).context("acknowledging")?;
        }
        Ok(())
    }

    /// Notes the deliveries that have come in whole, and writes their acks.
    fn take(&mut self, parser: &mut Deliveries, acks: &mut Vec<u8>, meter: &Meter) -> Result<()> {
        let (now_us, recording) = (meter.now_us(), meter.is_recording());
        let each_acked = self.acks.prefetch > 0 && !self.acks.multiple;
        let (received, latency) = (&mut self.received, &mut self.latency);
        let (mut count, mut last) = (0, 0);
        let used = parser.take(self.connection.input.unread(), |delivery| {
            let stamp = Stamp::from_bytes(delivery.head);
            received.note(delivery.queue, stamp, delivery.size, delivery.redelivered);
            if recording {
                latency.record(now_us.wrapping_sub(stamp.sent_us));
            }
            if each_acked {
                write_ack(acks, delivery.tag, false);
            }
            count += 1;
            last = delivery.tag;
        })?;
        self.connection.input.consume(used);
        if count > 0 {
            if self.acks.prefetch > 0 && self.acks.multiple {
                write_ack(acks, last, true);
            }
            self.deliveries += count;
            meter.received[self.index].store(self.deliveries, Ordering::Relaxed);
            meter.fresh[self.index].store(self.received.fresh(self.deliveries), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[inline]
fn write_ack(out: &mut Vec<u8>, delivery_tag: u64, multiple: bool) {
    Method::BasicAck(BasicAck {
        delivery_tag,
        multiple,
    })
    .write(CHANNEL, out);
}

/// The queues of one consumer: every `consumers`th, or, where there are more consumers than queues, one queue for several.
fn queues_of(index: usize, consumers: usize, queues: usize) -> impl Iterator<Item = usize> {
    (index % queues..queues).step_by(consumers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_consumer_and_every_consumer_a_queue() {
        for (consumers, queues) in [(1, 1), (1, 8), (3, 8), (8, 3), (5, 5)] {
            let mut had = vec![0; queues];
            for index in 0..consumers {
                let mine: Vec<usize> = queues_of(index, consumers, queues).collect();
                assert!(!mine.is_empty());
                mine.iter().for_each(|queue| had[*queue] += 1);
            }
            assert!(
                had.iter().all(|count| *count > 0),
                "{consumers} consumers, {queues} queues: {had:?}"
            );
            if consumers <= queues {
                assert!(had.iter().all(|count| *count == 1));
            }
        }
    }

    #[test]
    fn acks_are_what_the_protocol_reads() {
        let mut bytes = Vec::new();
        write_ack(&mut bytes, 1 << 40, true);
        let frame = warren_protocol::parse_frame(&bytes, 4096).unwrap().unwrap();
        let expected = BasicAck {
            delivery_tag: 1 << 40,
            multiple: true,
        };
        assert_eq!(
            Method::decode(frame.payload).unwrap(),
            Method::BasicAck(expected)
        );
        assert_eq!((frame.channel, frame.wire_len()), (CHANNEL, bytes.len()));
    }
}
