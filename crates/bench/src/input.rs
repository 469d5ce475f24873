//! A receive buffer of fixed size: filled by large reads, consumed from the front, moved together only when a read needs room.

use std::io::{self, ErrorKind, Read};

/// Bytes of the buffer: what one read may bring.
pub const INPUT_LEN: usize = 256 * 1024;

/// The buffer.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// Empty.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; INPUT_LEN],
            start: 0,
            end: 0,
        }
    }

    /// What has been read and not consumed.
    #[inline]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Gives up bytes at the front.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// One read. `None` if it brought nothing within the source's timeout.
    ///
    /// # Errors
    /// The source's, and `UnexpectedEof` at its end.
    pub fn fill(&mut self, source: &mut impl Read) -> io::Result<Option<usize>> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        match source.read(&mut self.bytes[self.end..]) {
            Ok(0) => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the broker closed the connection",
            )),
            Ok(count) => {
                self.end += count;
                Ok(Some(count))
            }
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether a blocking socket's operation only ran into its timeout, or a signal.
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_consumed_stays_in_front() {
        let mut input = Input::new();
        assert_eq!(input.fill(&mut &b"abc"[..]).unwrap(), Some(3));
        input.consume(2);
        assert_eq!(input.fill(&mut &b"de"[..]).unwrap(), Some(2));
        assert_eq!(input.unread(), b"cde");
        assert_eq!(
            input.fill(&mut &b""[..]).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
}
