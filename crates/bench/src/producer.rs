//! One publishing connection: it writes blocks of ready frames, and reads confirms when its window is full.
//!
//! Flow: [`Producer::open`] on the main thread, then [`Producer::run`] on a thread of its own until time is up or its share of
//! `--messages` is sent; then the outstanding confirms are awaited.
//!
//! Reading only when an eighth of the window is not free costs no poll and no second thread: the acks of a window fit the socket's buffers, and
//! if they should not, a write that times out reads.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use warren_protocol::{ConfirmSelect, FrameKind, Method, parse_frame};

use crate::body::Stamp;
use crate::confirms::Confirms;
use crate::connection::{Connection, TICK, refuse_close};
use crate::input::is_timeout;
use crate::meter::{Meter, sum};
use crate::ring::Ring;

/// How long a producer rests while too much is under way.
const REST: Duration = Duration::from_micros(200);
/// The shortest pause of a producer that keeps to a rate.
const PACE: Duration = Duration::from_millis(1);

/// How one producer goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Its run and stream.
    pub stamp: Stamp,
    /// Most messages unconfirmed; 0: no confirms.
    pub window: u64,
    /// Messages a second.
    pub rate: Option<f64>,
    /// Messages in all.
    pub limit: u64,
    /// Deliveries that may be under way, over all producers.
    pub backlog: u64,
    /// Deliveries per message.
    pub copies: u64,
}

/// The producer.
#[derive(Debug)]
pub struct Producer {
    connection: Connection,
    ring: Ring,
    pace: Pace,
    confirms: Confirms,
    sent: u64,
}

/// What a producer did.
#[derive(Debug)]
pub struct Produced {
    /// Messages written.
    pub sent: u64,
    /// The answers; none if it did not ask for any.
    pub confirms: Option<Confirms>,
    /// Why it ended early.
    pub error: Option<anyhow::Error>,
}

impl Producer {
    /// Makes a connection ready to publish.
    ///
    /// # Errors
    /// If the broker refuses confirms.
    pub fn open(mut connection: Connection, ring: Ring, pace: Pace) -> Result<Self> {
        if pace.window > 0 {
            let select = ConfirmSelect { no_wait: false };
            connection.request(&Method::ConfirmSelect(select), "confirm.select-ok")?;
        }
        Ok(Self {
            connection,
            ring,
            pace,
            confirms: Confirms::default(),
            sent: 0,
        })
    }

    /// Publishes until it is told to stop.
    pub fn run(mut self, meter: &Meter) -> Produced {
        let outcome = self
            .publish(meter)
            .and_then(|()| self.await_confirms(meter));
        let error = outcome
            .err()
            .map(|error| self.connection.close_reason().unwrap_or(error));
        let confirms = (self.pace.window > 0).then_some(self.confirms);
        if error.is_none() {
            // Everything written is processed before close-ok; a broker that does not answer shows in what is missing.
            let _ = self.connection.close();
        }
        Produced {
            sent: self.sent,
            confirms,
            error,
        }
    }

    fn publish(&mut self, meter: &Meter) -> Result<()> {
        while self.sent < self.pace.limit && !meter.publishing_stopped() {
            let room = self.room(meter)?;
            if room > 0 {
                let room = usize::try_from(room).unwrap_or(usize::MAX);
                self.write(room.min(self.ring.block(self.sent)), meter)?;
            }
        }
        Ok(())
    }

    /// How many messages may be written now; if it is none, some time has been spent waiting.
    fn room(&mut self, meter: &Meter) -> Result<u64> {
        let mut room = self.pace.limit - self.sent;
        if self.pace.window > 0 {
            let free = self.pace.window - (self.sent - self.confirms.settled());
            if free < (self.pace.window / 8).max(1) {
                self.read_confirms(meter)?;
                return Ok(0);
            }
            room = room.min(free);
        }
        if let Some(rate) = self.pace.rate {
            let due = due(meter.elapsed(), rate).saturating_sub(self.sent);
            if due == 0 {
                self.wait_until_due(rate, meter)?;
            }
            room = room.min(due);
        }
        if self.pace.backlog > 0 && room > 0 {
            let under_way =
                (sum(&meter.published) * self.pace.copies).saturating_sub(sum(&meter.received));
            if under_way >= self.pace.backlog {
                std::thread::sleep(REST);
                return Ok(0);
            }
        }
        Ok(room)
    }

    /// With a rate, confirms are read in the pauses, so that their times are true.
    fn wait_until_due(&mut self, rate: f64, meter: &Meter) -> Result<()> {
        let pause = Duration::from_secs_f64(1.0 / rate).clamp(PACE, TICK);
        if self.confirms.settled() < self.sent && self.pace.window > 0 {
            self.connection.socket.set_read_timeout(Some(pause))?;
            let outcome = self.read_confirms(meter);
            self.connection.socket.set_read_timeout(Some(TICK))?;
            return outcome;
        }
        std::thread::sleep(pause);
        Ok(())
    }

    /// Writes the next `count` messages.
    fn write(&mut self, count: usize, meter: &Meter) -> Result<()> {
        let stamp = Stamp {
            seq: self.sent,
            sent_us: meter.now_us(),
            ..self.pace.stamp
        };
        let mut done = 0;
        loop {
            // Stamping again after a pause would change what has been written in part, so the same stamp is used.
            let bytes = self.ring.stamp(stamp, count);
            let (mut socket, rest) = (&self.connection.socket, &bytes[done..]);
            match socket.write(rest) {
                Ok(written) => {
                    done += written;
                    if written == rest.len() {
                        break;
                    }
                }
                Err(error) if is_timeout(&error) => {
                    ensure!(
                        !meter.is_over(),
                        "the broker does not read: no write went through until the end"
                    );
                    if self.pace.window > 0 {
                        self.read_confirms(meter)?;
                    }
                }
                Err(error) => return Err(error).context("publishing"),
            }
        }
        self.sent += count as u64;
        if self.pace.window > 0 {
            self.confirms.wrote(self.sent, stamp.sent_us);
        }
        meter.published[usize::from(stamp.stream)].store(self.sent, Ordering::Relaxed);
        Ok(())
    }

    fn await_confirms(&mut self, meter: &Meter) -> Result<()> {
        while self.pace.window > 0 && self.confirms.settled() < self.sent {
            let missing = self.sent - self.confirms.settled();
            ensure!(
                !meter.is_over(),
                "{missing} messages were not confirmed until the end"
            );
            self.read_confirms(meter)?;
        }
        Ok(())
    }

    /// One read, of acks and nacks.
    fn read_confirms(&mut self, meter: &Meter) -> Result<()> {
        let connection = &mut self.connection;
        connection
            .input
            .fill(&mut connection.socket)
            .context("waiting for confirms")?;
        // Part of a block may be on its way, and answered for, before it is counted.
        let written = self.sent + self.ring.block(self.sent) as u64;
        while let Some(frame) = parse_frame(connection.input.unread(), connection.frame_max)? {
            if frame.kind == FrameKind::Method {
                let method = Method::decode(frame.payload)?;
                refuse_close(&method)?;
                if let Method::BasicAck(ack) = &method {
                    self.confirms
                        .settle(ack.delivery_tag, ack.multiple, true, written)?;
                } else if let Method::BasicNack(nack) = &method {
                    self.confirms
                        .settle(nack.delivery_tag, nack.multiple, false, written)?;
                }
            }
            let length = frame.wire_len();
            connection.input.consume(length);
        }
        self.confirms.measure(meter.now_us(), meter.is_recording());
        meter.settled[usize::from(self.pace.stamp.stream)]
            .store(self.confirms.settled(), Ordering::Relaxed);
        Ok(())
    }
}

/// How many messages a rate asks for within a time.
fn due(elapsed: Duration, rate: f64) -> u64 {
    (elapsed.as_secs_f64() * rate) as u64
}
