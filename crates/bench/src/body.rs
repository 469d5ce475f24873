//! The first 16 bytes of every body: which run and stream the message belongs to, its number in the stream, and when it was sent.
//!
//! What follows them is filler. The run keeps a message that an earlier run left behind from being counted.

/// Bytes of a stamp, and the smallest body.
pub const STAMP_LEN: usize = 16;
/// The byte that bodies are filled up with.
pub const FILLER: u8 = b'w';

/// Who sent a message, which one it is, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The run: a number that two runs hardly share.
    pub run: u16,
    /// The producer.
    pub stream: u16,
    /// Microseconds since the run began, modulo 2³².
    pub sent_us: u32,
    /// Position in the stream, from 0.
    pub seq: u64,
}

impl Stamp {
    /// As it stands in the body.
    #[inline]
    pub fn to_bytes(self) -> [u8; STAMP_LEN] {
        let head =
            u64::from(self.run) << 48 | u64::from(self.stream) << 32 | u64::from(self.sent_us);
        (u128::from(head) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    /// From a body's first bytes.
    #[inline]
    pub fn from_bytes(bytes: [u8; STAMP_LEN]) -> Self {
        let whole = u128::from_be_bytes(bytes);
        let head = (whole >> 64) as u64;
        Self {
            run: (head >> 48) as u16,
            stream: (head >> 32) as u16,
            sent_us: head as u32,
            seq: whole as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_comes_back_as_it_was() {
        let stamp = Stamp {
            run: 0xfedc,
            stream: 0x8001,
            sent_us: 0xffff_fffe,
            seq: u64::MAX - 3,
        };
        assert_eq!(Stamp::from_bytes(stamp.to_bytes()), stamp);
    }
}
