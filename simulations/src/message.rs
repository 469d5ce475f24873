//! The messages that workloads publish: each names itself, so that whoever gets one can tell whether it is the one that was sent.

use std::fmt;

/// Identity of a message: who published it, and its number there. A publisher is one connection's life, so numbers say in which order they were published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MessageId {
    /// Counted over the run.
    pub publisher: u32,
    /// Counted from 1.
    pub number: u32,
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.publisher, self.number)
    }
}

impl MessageId {
    /// The body of this message: its name, and as much filling as its numbers say.
    pub(crate) fn body(self) -> Vec<u8> {
        let mut body = format!("{self};").into_bytes();
        let mixed = (u64::from(self.publisher) << 32 | u64::from(self.number))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 33;
        let filling = match mixed % 100 {
            0 => 150_000,
            1..=5 => 5_000,
            n => usize::try_from(n).unwrap_or_default() * 2,
        };
        body.resize(
            body.len() + filling,
            b'a' + u8::try_from(mixed % 26).unwrap_or_default(),
        );
        body
    }

    /// Reads a body; none if it is not exactly what this message's body is.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let end = body.iter().position(|b| *b == b';')?;
        let (publisher, number) = std::str::from_utf8(body.get(..end)?)
            .ok()?
            .split_once('.')?;
        let id = Self {
            publisher: publisher.parse().ok()?,
            number: number.parse().ok()?,
        };
        (id.body() == body).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_reads_back_and_a_changed_one_does_not() {
        for number in 0..100 {
            let id = MessageId {
                publisher: 3,
                number,
            };
            let mut body = id.body();
            assert_eq!(MessageId::read(&body), Some(id));
            if let Some(last) = body.last_mut() {
                *last ^= 1;
            }
            assert_eq!(MessageId::read(&body), None);
        }
    }
}
