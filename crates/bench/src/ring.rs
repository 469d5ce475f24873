//! The frame builder: a ring of ready publishes, of which only the 16 bytes of the stamp change.
//!
//! Flow: a producer asks how many messages the next block may hold ([`Ring::block`]), has them stamped in place
//! ([`Ring::stamp`]), and writes the bytes that it gets. The ring holds the plan's cycle of routes a whole number of times, so message
//! number n stands at n modulo the ring's length, for good.

use anyhow::{Result, ensure};
use warren_protocol::{
    BasicPublish, CLASS_BASIC, FRAME_OVERHEAD, Method, OwnedTable, OwnedValue, Properties, Table,
    header_frame_len, write_content,
};

use crate::body::{FILLER, STAMP_LEN, Stamp};
use crate::connection::{CHANNEL, short};
use crate::plan::Plan;

/// Bytes that one write aims at.
pub const BLOCK_LEN: usize = 64 * 1024;
/// Bytes below which the cycle of routes is repeated.
const RING_MIN: usize = 4 * BLOCK_LEN;
/// Bytes that a ring may take; a cycle beyond it is refused.
const RING_MAX: usize = 256 * 1024 * 1024;

/// The ready publishes.
#[derive(Debug)]
pub struct Ring {
    bytes: Vec<u8>,
    /// Where each message's stamp begins.
    stamps: Vec<usize>,
    /// Where each message ends.
    ends: Vec<usize>,
    per_block: usize,
}

/// What all messages of a ring have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Body size in bytes, at least that of a stamp.
    pub size: u32,
    /// Persistent or transient.
    pub persistent: bool,
    /// The connection's largest frame.
    pub frame_max: u32,
}

impl Ring {
    /// Builds the frames.
    ///
    /// # Errors
    /// If the cycle of routes with that body size takes too much memory.
    pub fn new(plan: &Plan, shape: Shape) -> Result<Self> {
        let mut ring = Self {
            bytes: Vec::new(),
            stamps: Vec::new(),
            ends: Vec::new(),
            per_block: 1,
        };
        let body = vec![FILLER; shape.size as usize];
        while ring.bytes.len() < RING_MIN {
            for route in &plan.routes {
                ring.push(
                    &plan.exchange,
                    &route.key,
                    &properties(route.header, shape.persistent)?,
                    shape.frame_max,
                    &body,
                )?;
            }
            ensure!(
                ring.bytes.len() <= RING_MAX,
                "{} routes of {}-byte messages take more than {RING_MAX} bytes; use fewer bindings or smaller messages",
                plan.routes.len(),
                shape.size
            );
        }
        ring.per_block = ring
            .len()
            .div_ceil(ring.bytes.len().div_ceil(BLOCK_LEN))
            .max(1);
        Ok(ring)
    }

    fn push(
        &mut self,
        exchange: &str,
        key: &str,
        properties: &[u8],
        frame_max: u32,
        body: &[u8],
    ) -> Result<()> {
        let publish = BasicPublish {
            exchange: short(exchange)?,
            routing_key: short(key)?,
            mandatory: false,
            immediate: false,
        };
        Method::BasicPublish(publish).write(CHANNEL, &mut self.bytes);
        self.stamps
            .push(self.bytes.len() + header_frame_len(properties.len()) + FRAME_OVERHEAD - 1);
        write_content(
            &mut self.bytes,
            CHANNEL,
            frame_max,
            CLASS_BASIC,
            properties,
            body,
        );
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Messages in the ring.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Messages that the block with message `seq` at its front may hold: about 64 KiB, and not beyond the ring's end.
    #[inline]
    pub fn block(&self, seq: u64) -> usize {
        self.per_block.min(self.len() - self.at(seq))
    }

    /// Stamps `count` messages from `first.seq` on, and returns their frames. `count` is at most what [`Self::block`] says.
    #[inline]
    pub fn stamp(&mut self, first: Stamp, count: usize) -> &[u8] {
        let at = self.at(first.seq);
        let mut stamp = first;
        for &start in &self.stamps[at..at + count] {
            self.bytes[start..start + STAMP_LEN].copy_from_slice(&stamp.to_bytes());
            stamp.seq += 1;
        }
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        &self.bytes[start..self.ends[at + count - 1]]
    }

    #[inline]
    fn at(&self, seq: u64) -> usize {
        (seq % self.len() as u64) as usize
    }
}

/// The property list: delivery mode, and the header that a headers exchange looks at.
fn properties(header: Option<i32>, persistent: bool) -> Result<Vec<u8>> {
    let mut table = OwnedTable::new();
    if let Some(value) = header {
        table.put("n", OwnedValue::I32(value));
    }
    let mut entries = Vec::new();
    table.encode_entries(&mut entries);
    let properties = Properties {
        headers: header.map(|_| Table::parse(&entries)).transpose()?,
        delivery_mode: Some(if persistent { 2 } else { 1 }),
        ..Properties::default()
    };
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;
    use warren_protocol::{FrameKind, parse_content_header, parse_frame};

    /// One publish taken apart: routing key, header `n`, delivery mode, body.
    struct Seen {
        key: String,
        header: Option<i128>,
        mode: Option<u8>,
        body: Vec<u8>,
    }

    /// Takes publishes apart with the protocol's own parser, as a broker would.
    fn take_apart(mut bytes: &[u8], frame_max: u32) -> Vec<Seen> {
        let mut all = Vec::new();
        let mut next = |kind| {
            let frame = parse_frame(bytes, frame_max).unwrap()?;
            assert_eq!((frame.kind, frame.channel), (kind, CHANNEL));
            assert!(frame.wire_len() <= frame_max as usize);
            bytes = &bytes[frame.wire_len()..];
            Some(frame.payload)
        };
        while let Some(payload) = next(FrameKind::Method) {
            let Method::BasicPublish(publish) = Method::decode(payload).unwrap() else {
                panic!("not a publish")
            };
            let header = parse_content_header(next(FrameKind::Header).unwrap()).unwrap();
            let properties = Properties::parse(header.properties).unwrap();
            let mut body = Vec::new();
            while (body.len() as u64) < header.body_size {
                body.extend_from_slice(next(FrameKind::Body).unwrap());
            }
            assert_eq!(body.len() as u64, header.body_size);
            all.push(Seen {
                key: publish.routing_key.to_string_lossy().into_owned(),
                header: properties
                    .headers
                    .and_then(|table| table.get("n")?.as_integer()),
                mode: properties.delivery_mode,
                body,
            });
        }
        all
    }

    fn stamp(seq: u64) -> Stamp {
        Stamp {
            run: 7,
            stream: 3,
            sent_us: 99,
            seq,
        }
    }

    #[test]
    fn stamped_blocks_are_the_streams_messages_in_turn() {
        let plan = plan("--queues 3");
        let shape = Shape {
            size: 20,
            persistent: true,
            frame_max: 131_072,
        };
        let mut ring = Ring::new(&plan, shape).unwrap();
        let mut seq = 0;
        while seq < 3 * ring.len() as u64 {
            let count = ring.block(seq);
            let bytes = ring.stamp(stamp(seq), count).to_vec();
            assert!(bytes.len() <= BLOCK_LEN + BLOCK_LEN / 4);
            let seen = take_apart(&bytes, shape.frame_max);
            assert_eq!(seen.len(), count);
            for message in seen {
                assert_eq!(
                    message.key,
                    plan.routes[usize::try_from(seq % 3).unwrap()].key
                );
                assert_eq!(message.mode, Some(2));
                assert_eq!(
                    Stamp::from_bytes(*message.body.first_chunk().unwrap()),
                    stamp(seq)
                );
                assert_eq!(message.body[STAMP_LEN..], [FILLER; 4]);
                seq += 1;
            }
        }
    }

    #[test]
    fn part_of_a_block_can_be_sent() {
        let mut ring = Ring::new(
            &plan(""),
            Shape {
                size: 16,
                persistent: false,
                frame_max: 4096,
            },
        )
        .unwrap();
        let seen = take_apart(ring.stamp(stamp(5), 2), 4096);
        let seqs: Vec<u64> = seen
            .iter()
            .map(|message| Stamp::from_bytes(*message.body.first_chunk().unwrap()).seq)
            .collect();
        assert_eq!(seqs, [5, 6]);
        assert_eq!(seen[0].mode, Some(1));
    }

    #[test]
    fn large_bodies_are_cut_into_frames() {
        let mut ring = Ring::new(
            &plan(""),
            Shape {
                size: 200_000,
                persistent: false,
                frame_max: 4096,
            },
        )
        .unwrap();
        assert_eq!(ring.block(0), 1);
        let seen = take_apart(ring.stamp(stamp(1), 1), 4096);
        assert_eq!(seen[0].body.len(), 200_000);
        assert_eq!(
            Stamp::from_bytes(*seen[0].body.first_chunk().unwrap()),
            stamp(1)
        );
        assert!(seen[0].body[STAMP_LEN..].iter().all(|byte| *byte == FILLER));
    }

    #[test]
    fn headers_go_with_their_route() {
        let plan = plan("--queues 2 --exchange-type headers --bindings 3");
        let mut ring = Ring::new(
            &plan,
            Shape {
                size: 16,
                persistent: false,
                frame_max: 4096,
            },
        )
        .unwrap();
        let seen = take_apart(ring.stamp(stamp(0), 4), 4096);
        let headers: Vec<_> = seen.iter().map(|message| message.header.unwrap()).collect();
        assert_eq!(headers, [0, 1, 2, 0]);
    }
}
