//! Frames: what a lane carries, and how it looks on the stream.
//!
//! On the wire, integers little-endian: `u32 total` (bytes that follow), `u8 kind`, `u64 id` (0 for one-way messages), `u32 head_len`,
//! head, bulk. [`Encoder`] gathers frames into pieces worth writing, [`Decoder`] cuts them out of what arrives.

use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;

/// How many lanes there are.
pub(crate) const LANES: usize = 6;

/// A class of traffic, with a stream of its own on each link. Each is ordered in itself; there is no order among lanes.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub enum Lane {
    /// Consensus: heartbeats, votes, appends. Goes before everything else.
    Raft,
    /// Commands, queries, leases, flow control: small and awaited by someone.
    Control,
    /// Publishes on their way to queue owners. Goes last: what is already in the cluster is delivered before more is let in.
    Publish,
    /// Deliveries on their way to consumers.
    Delivery,
    /// Heartbeats, votes and hand-over of the shards' groups: small, and late ones cost elections.
    ShardPulse,
    /// Entries and views of the shards' groups: bulk, whose writers wait for its being stored.
    Shard,
}

impl Lane {
    /// Every lane, by its byte on the wire.
    pub const ALL: [Lane; LANES] = [
        Lane::Raft,
        Lane::Control,
        Lane::Publish,
        Lane::Delivery,
        Lane::ShardPulse,
        Lane::Shard,
    ];

    pub(crate) fn index(self) -> usize {
        match self {
            Lane::Raft => 0,
            Lane::Control => 1,
            Lane::Publish => 2,
            Lane::Delivery => 3,
            Lane::ShardPulse => 4,
            Lane::Shard => 5,
        }
    }

    pub(crate) fn byte(self) -> u8 {
        match self {
            Lane::Raft => 0,
            Lane::Control => 1,
            Lane::Publish => 2,
            Lane::Delivery => 3,
            Lane::ShardPulse => 4,
            Lane::Shard => 5,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Lane> {
        Lane::ALL.get(usize::from(byte)).copied()
    }

    /// QUIC stream priority: of the streams with something to send, only those of the greatest priority get into a packet.
    pub(crate) fn priority(self) -> i32 {
        match self {
            Lane::Raft => 4,
            Lane::ShardPulse | Lane::Control => 3,
            Lane::Shard => 2,
            Lane::Delivery => 1,
            Lane::Publish => 0,
        }
    }
}

/// What one message, request or reply carries.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The caller's archive, small.
    pub head: Bytes,
    /// Payload that is not worth copying into an archive; may be empty.
    pub bulk: Bytes,
}

impl Frame {
    /// A frame of a head and bulk.
    pub fn new(head: impl Into<Bytes>, bulk: impl Into<Bytes>) -> Self {
        Self {
            head: head.into(),
            bulk: bulk.into(),
        }
    }

    /// A frame with a head only.
    pub fn of_head(head: impl Into<Bytes>) -> Self {
        Self {
            head: head.into(),
            bulk: Bytes::new(),
        }
    }

    /// Bytes that this frame takes on the wire.
    pub fn wire_len(&self) -> usize {
        PREFIX_LEN + self.head.len() + self.bulk.len()
    }
}

/// Shows lengths only: contents may be large, and are nobody's business.
impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} + {} bytes)", self.head.len(), self.bulk.len())
    }
}

/// What a frame is to its receiver.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) enum Kind {
    Message,
    Request,
    Reply,
    /// The receiver of a request gave no answer and will not; the frame is empty.
    NoReply,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Message => 0,
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::NoReply => 3,
        }
    }

    fn from_byte(byte: u8) -> Option<Kind> {
        match byte {
            0 => Some(Kind::Message),
            1 => Some(Kind::Request),
            2 => Some(Kind::Reply),
            3 => Some(Kind::NoReply),
            _ => None,
        }
    }
}

/// A frame with what stands before it on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Envelope {
    pub kind: Kind,
    pub id: u64,
    pub frame: Frame,
}

const TOTAL_LEN: usize = 4;
/// kind, id and head_len: counted in `total`.
const FIXED_LEN: usize = 1 + 8 + 4;
const PREFIX_LEN: usize = TOTAL_LEN + FIXED_LEN;

/// Size of the pieces that small frames are copied into: QUIC searches its unacknowledged pieces for every packet, so few large ones beat many small ones.
const PIECE_LEN: usize = 64 * 1024;
/// Bulk of at least this is handed to QUIC as it is, not copied.
const SHARE_LEN: usize = 16 * 1024;

/// Gathers frames into pieces for one write.
#[derive(Default)]
pub(crate) struct Encoder {
    pieces: Vec<Bytes>,
    open: BytesMut,
    len: usize,
}

impl Encoder {
    /// Adds a frame. The caller has checked it against the limit, which fits in a `u32`.
    pub(crate) fn push(&mut self, envelope: Envelope) {
        let Envelope { kind, id, frame } = envelope;
        self.len += frame.wire_len();
        let copied = PREFIX_LEN
            + frame.head.len()
            + if frame.bulk.len() < SHARE_LEN {
                frame.bulk.len()
            } else {
                0
            };
        if !self.open.is_empty() && self.open.len() + copied > PIECE_LEN {
            self.close_piece();
        }
        if self.open.capacity() < copied {
            self.open.reserve(copied.max(PIECE_LEN));
        }
        self.open
            .put_u32_le(wire_u32(FIXED_LEN + frame.head.len() + frame.bulk.len()));
        self.open.put_u8(kind.byte());
        self.open.put_u64_le(id);
        self.open.put_u32_le(wire_u32(frame.head.len()));
        self.open.put_slice(&frame.head);
        if frame.bulk.len() < SHARE_LEN {
            self.open.put_slice(&frame.bulk);
        } else {
            self.close_piece();
            self.pieces.push(frame.bulk);
        }
    }

    /// Bytes gathered.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The pieces gathered, to be written in order.
    pub(crate) fn take(&mut self) -> Vec<Bytes> {
        self.close_piece();
        self.len = 0;
        std::mem::take(&mut self.pieces)
    }

    fn close_piece(&mut self) {
        if !self.open.is_empty() {
            self.pieces.push(self.open.split().freeze());
        }
    }
}

fn wire_u32(len: usize) -> u32 {
    u32::try_from(len)
        .expect("the frame limit fits in a u32 and is checked before a frame is queued")
}

/// Cuts frames out of the bytes of one lane.
pub(crate) struct Decoder {
    buffer: BytesMut,
    total_max: usize,
}

impl Decoder {
    /// A decoder that refuses frames of more than `frame_bytes_max` on the wire.
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            total_max: frame_bytes_max.saturating_sub(TOTAL_LEN),
        }
    }

    /// Takes in what arrived.
    pub(crate) fn push(&mut self, arrived: &[u8]) {
        let spare = self.buffer.capacity() - self.buffer.len();
        if spare < arrived.len() {
            // At least doubles when a frame is longer than the buffer: what it may take is known only from what has come.
            self.buffer.reserve(arrived.len().max(PIECE_LEN));
        }
        self.buffer.extend_from_slice(arrived);
    }

    /// The next whole frame, if it is here. An error says what is wrong with the peer's bytes; the stream is of no use then.
    pub(crate) fn next(&mut self) -> Result<Option<Envelope>, String> {
        let Some((total, kind, head_len)) = self.peek()? else {
            return Ok(None);
        };
        if self.buffer.len() < TOTAL_LEN + total {
            return Ok(None);
        }
        let mut bytes = self.buffer.split_to(TOTAL_LEN + total).freeze();
        let id = u64::from_le_bytes(array(&bytes[5..13]));
        let mut rest = bytes.split_off(PREFIX_LEN);
        let head = rest.split_to(head_len);
        Ok(Some(Envelope {
            kind,
            id,
            frame: Frame { head, bulk: rest },
        }))
    }

    /// total, kind and head_len, each checked as soon as it is here.
    fn peek(&self) -> Result<Option<(usize, Kind, usize)>, String> {
        let Some(prefix) = self.buffer.get(..TOTAL_LEN) else {
            return Ok(None);
        };
        let total = u32::from_le_bytes(array(prefix)) as usize;
        if total < FIXED_LEN || total > self.total_max {
            return Err(format!(
                "a frame of {total} bytes was announced; allowed are {FIXED_LEN} to {}",
                self.total_max
            ));
        }
        let Some(prefix) = self.buffer.get(..PREFIX_LEN) else {
            return Ok(None);
        };
        let kind = Kind::from_byte(prefix[4])
            .ok_or_else(|| format!("a frame of unknown kind {} arrived", prefix[4]))?;
        let head_len = u32::from_le_bytes(array(&prefix[13..17])) as usize;
        if head_len > total - FIXED_LEN {
            return Err(format!(
                "a frame of {total} bytes announced a head of {head_len}"
            ));
        }
        Ok(Some((total, kind, head_len)))
    }
}

/// The first N bytes of a slice that has them.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[..N]);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(kind: Kind, id: u64, head: usize, bulk: usize) -> Envelope {
        let fill = |len: usize, salt: usize| -> Bytes {
            (0..len)
                .map(|i| (i * 7 + salt) as u8)
                .collect::<Vec<u8>>()
                .into()
        };
        Envelope {
            kind,
            id,
            frame: Frame::new(fill(head, 1), fill(bulk, 2)),
        }
    }

    fn decode_all(decoder: &mut Decoder) -> Vec<Envelope> {
        std::iter::from_fn(|| decoder.next().unwrap()).collect()
    }

    #[test]
    fn frames_survive_any_cut() {
        let sent = vec![
            envelope(Kind::Message, 0, 0, 0),
            envelope(Kind::Request, 1, 5, 0),
            envelope(Kind::Reply, u64::MAX, 0, SHARE_LEN),
            envelope(Kind::NoReply, 9, 0, 0),
            envelope(Kind::Message, 0, 300, SHARE_LEN - 1),
            envelope(Kind::Message, 0, 100_000, 200_000),
        ];
        let mut encoder = Encoder::default();
        for e in &sent {
            encoder.push(e.clone());
        }
        let announced = encoder.len();
        let wire: Vec<u8> = encoder.take().concat();
        assert_eq!(wire.len(), announced);
        for step in [1, 3, 1_400, 70_000, wire.len()] {
            let mut decoder = Decoder::new(1 << 20);
            let mut got = Vec::new();
            for chunk in wire.chunks(step) {
                decoder.push(chunk);
                got.extend(decode_all(&mut decoder));
            }
            assert!(got == sent, "cut into {step} bytes");
        }
    }

    #[test]
    fn small_frames_share_a_piece_and_large_bulk_is_not_copied() {
        let mut encoder = Encoder::default();
        let bulk = Bytes::from(vec![7u8; SHARE_LEN]);
        for _ in 0..50 {
            encoder.push(envelope(Kind::Message, 0, 10, 1_000));
        }
        encoder.push(Envelope {
            kind: Kind::Message,
            id: 0,
            frame: Frame::new("head", bulk.clone()),
        });
        let pieces = encoder.take();
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[1].as_ptr(), bulk.as_ptr());
        assert_eq!(encoder.len(), 0);
    }

    #[test]
    fn hostile_lengths_are_refused_before_anything_is_allocated() {
        let frame = |total: u32, kind: u8, head_len: u32| {
            let mut b = total.to_le_bytes().to_vec();
            b.push(kind);
            b.extend_from_slice(&1u64.to_le_bytes());
            b.extend_from_slice(&head_len.to_le_bytes());
            b
        };
        for (bytes, says) in [
            (u32::MAX.to_le_bytes().to_vec(), "4294967295 bytes"),
            (12u32.to_le_bytes().to_vec(), "12 bytes"),
            (1_021u32.to_le_bytes().to_vec(), "1021 bytes"),
            (frame(13, 4, 0), "kind 4"),
            (frame(20, 0, 8), "head of 8"),
            (frame(20, 0, u32::MAX), "head of 4294967295"),
        ] {
            let mut decoder = Decoder::new(1_024);
            decoder.push(&bytes);
            let error = decoder.next().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let mut decoder = Decoder::new(768 << 20);
        decoder.push(&frame(700 << 20, 0, 0));
        assert_eq!(decoder.next(), Ok(None));
        assert!(
            decoder.buffer.capacity() < 1 << 20,
            "a large frame announced allocates nothing"
        );
    }
}
