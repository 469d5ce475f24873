//! Short strings: at most 255 bytes behind a one-byte length. Names, keys and tags on the wire.

use std::fmt;

use crate::error::DecodeError;

/// A borrowed short string. Any bytes: the protocol asks for UTF-8, but routing keys of other bytes exist, and only who needs text
/// pays for the check ([`ShortStr::as_str`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ShortStr<'a>(&'a [u8]);

impl<'a> ShortStr<'a> {
    /// The longest short string, in bytes.
    pub const MAX: usize = 255;
    /// The empty string.
    pub const EMPTY: ShortStr<'static> = ShortStr(b"");

    /// `None` if the bytes are more than a short string can hold.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() > Self::MAX {
            return None;
        }
        Some(Self(bytes))
    }

    /// As much of `text` as fits, cut between characters. For texts whose tail may go, such as reply texts.
    #[must_use]
    pub fn truncated(text: &'a str) -> Self {
        Self(&text.as_bytes()[..text.floor_char_boundary(Self::MAX)])
    }

    /// From a literal; one that is too long is a bug that debug builds stop at, and is cut in release builds.
    #[must_use]
    pub fn from_static(text: &'static str) -> ShortStr<'static> {
        debug_assert!(text.len() <= Self::MAX, "short string literal too long");
        ShortStr::truncated(text)
    }

    /// For bytes that a one-byte length has just measured, or that this crate has cut.
    #[inline]
    pub(crate) const fn from_measured(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes, without the length.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The text.
    ///
    /// # Errors
    /// [`DecodeError::BadUtf8`] if the bytes are not text.
    pub fn as_str(&self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.0).map_err(|_| DecodeError::BadUtf8)
    }

    /// The text, with replacement characters where it is not UTF-8. Borrows if it can.
    #[must_use]
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&'static str> for ShortStr<'static> {
    fn from(text: &'static str) -> Self {
        Self::from_static(text)
    }
}

impl AsRef<[u8]> for ShortStr<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl PartialEq<str> for ShortStr<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ShortStr<'_> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for ShortStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_string_lossy())
    }
}

impl fmt::Debug for ShortStr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_255_bytes_and_no_more() {
        assert_eq!(ShortStr::new(&[7; 255]).unwrap().len(), 255);
        assert!(ShortStr::new(&[7; 256]).is_none());
    }

    #[test]
    fn truncation_keeps_characters_whole() {
        let text = "é".repeat(200);
        let short = ShortStr::truncated(&text);
        assert_eq!(short.len(), 254);
        assert_eq!(short.as_str().unwrap(), "é".repeat(127));
    }

    #[test]
    fn other_bytes_are_kept_but_are_no_text() {
        let short = ShortStr::new(b"a\xff").unwrap();
        assert_eq!(short.as_bytes(), b"a\xff");
        assert_eq!(short.as_str(), Err(DecodeError::BadUtf8));
        assert_eq!(short.to_string(), "a\u{fffd}");
    }
}
