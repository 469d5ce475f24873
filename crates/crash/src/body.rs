//! Message bodies: who sent the message, which one it is, filler of any length, and a checksum over all of it.
//!
//! ```text
//! run:u64 round:u16 publisher:u16 queue:u16 0:u16 seq:u64 filler… checksum:u64      (big-endian; the checksum is BLAKE3's first 8 bytes)
//! ```

use thiserror::Error;

const HEAD: usize = 24;
const CHECKSUM: usize = 8;
/// The smallest body.
pub const SMALLEST: usize = HEAD + CHECKSUM;

/// Who sent a message, and which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The run of the test: a number that two runs do not share.
    pub run: u64,
    /// The round within the run.
    pub round: u16,
    /// The publisher.
    pub publisher: u16,
    /// The queue that it was published to.
    pub queue: u16,
    /// The publisher's sequence number, from 0.
    pub seq: u64,
}

/// A body that no publisher of this test has sent.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BodyError {
    /// Too short.
    #[error("a body of {0} bytes, shorter than the shortest")]
    Short(usize),
    /// Some byte is not what was sent.
    #[error("a body of {0} bytes whose checksum does not match")]
    Checksum(usize),
}

impl Stamp {
    /// A body of `len` bytes, or of the smallest length.
    pub fn body(&self, len: usize) -> Vec<u8> {
        let mut body = Vec::with_capacity(len.max(SMALLEST));
        body.extend_from_slice(&self.run.to_be_bytes());
        for field in [self.round, self.publisher, self.queue, 0] {
            body.extend_from_slice(&field.to_be_bytes());
        }
        body.extend_from_slice(&self.seq.to_be_bytes());
        // Filler that differs from message to message, so that a block of another message in its place is seen.
        let mut filler = self.seq ^ u64::from(self.publisher) << 48 | 1;
        while body.len() + CHECKSUM < len {
            filler ^= filler << 13;
            filler ^= filler >> 7;
            filler ^= filler << 17;
            let bytes = filler.to_be_bytes();
            let room = (len - CHECKSUM - body.len()).min(bytes.len());
            body.extend_from_slice(&bytes[..room]);
        }
        let checksum = checksum(&body);
        body.extend_from_slice(&checksum);
        body
    }

    /// The stamp of a body.
    ///
    /// # Errors
    /// If it is none of ours, or has been changed.
    pub fn of(body: &[u8]) -> Result<Self, BodyError> {
        let Some((content, found)) = body.split_last_chunk::<CHECKSUM>() else {
            return Err(BodyError::Short(body.len()));
        };
        let Some((head, _)) = content.split_first_chunk::<HEAD>() else {
            return Err(BodyError::Short(body.len()));
        };
        if checksum(content) != *found {
            return Err(BodyError::Checksum(body.len()));
        }
        let [run, ids, seq] = [0, 8, 16].map(|at| {
            head[at..at + 8]
                .iter()
                .fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
        });
        let id = |place: u32| (ids >> (48 - 16 * place)) as u16;
        Ok(Self {
            run,
            round: id(0),
            publisher: id(1),
            queue: id(2),
            seq,
        })
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM] {
    let hash = blake3::hash(content);
    let mut first = [0; CHECKSUM];
    first.copy_from_slice(&hash.as_bytes()[..CHECKSUM]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        run: 0xfedc_ba98_7654_3210,
        round: 3,
        publisher: 0x8001,
        queue: 7,
        seq: u64::MAX - 5,
    };

    #[test]
    fn a_stamp_comes_back_from_bodies_of_any_length() {
        for len in [0, SMALLEST, SMALLEST + 1, 100, 300_000] {
            let body = STAMP.body(len);
            assert_eq!(body.len(), len.max(SMALLEST));
            assert_eq!(Stamp::of(&body), Ok(STAMP));
        }
    }

    #[test]
    fn every_changed_or_missing_byte_is_seen() {
        let body = STAMP.body(100);
        for at in 0..body.len() {
            let mut spoilt = body.clone();
            spoilt[at] ^= 0x40;
            assert_eq!(Stamp::of(&spoilt), Err(BodyError::Checksum(100)));
            assert!(Stamp::of(&body[..at]).is_err());
        }
    }
}
