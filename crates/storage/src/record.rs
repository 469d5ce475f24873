//! How a log entry or record lies on disk: a header with format version, length and checksum, then the contents.
//!
//! ```text
//! byte 0      format version, 1
//! bytes 1-4   length of the contents, little endian
//! bytes 5-8   CRC-32C of: version, length, address, contents; little endian
//! bytes 9-    contents
//! ```
//! The address (what the record is: group and index, or group and name) is part of the checksum but is not stored: a record
//! that turns up under another key is as corrupt as one with a flipped bit. The length tells a torn record, which is
//! shorter than it says, from one that has rotted.

use bytes::{Buf, Bytes};

use warren_model::planted;

use crate::{Place, StorageError};

/// The format version that this release writes, and the newest it reads.
pub const VERSION: u8 = 1;
/// Bytes before the contents.
pub const HEADER_BYTES: usize = 9;
/// The largest contents of one record.
pub const CONTENTS_BYTES_MAX: usize = 1 << 30;

/// What a record is; covered by its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address<'a> {
    /// An entry of a group's log.
    Entry {
        /// The Raft group.
        group: u64,
        /// The entry's index.
        index: u64,
    },
    /// A small record of a group.
    Record {
        /// The Raft group.
        group: u64,
        /// The record's name.
        name: &'a str,
    },
}

impl Address<'_> {
    /// The same, for an error.
    #[must_use]
    pub fn place(&self) -> Place {
        match *self {
            Address::Entry { group, index } => Place::LogEntry { group, index },
            Address::Record { group, name } => Place::Record {
                group,
                name: name.to_owned(),
            },
        }
    }

    fn checksum(&self, crc: u32) -> u32 {
        let (kind, group) = match *self {
            Address::Entry { group, .. } => (1, group),
            Address::Record { group, .. } => (2, group),
        };
        let mut head = [kind, 0, 0, 0, 0, 0, 0, 0, 0];
        head[1..].copy_from_slice(&group.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &head);
        match *self {
            Address::Entry { index, .. } => crc32c::crc32c_append(crc, &index.to_le_bytes()),
            Address::Record { name, .. } => {
                let crc = crc32c::crc32c_append(crc, &(name.len() as u64).to_le_bytes());
                crc32c::crc32c_append(crc, name.as_bytes())
            }
        }
    }
}

/// Refuses contents that no record can hold.
pub fn check_size(address: Address<'_>, contents: &[u8]) -> Result<(), StorageError> {
    if contents.len() <= CONTENTS_BYTES_MAX {
        return Ok(());
    }
    Err(StorageError::TooLarge {
        place: address.place(),
        bytes: contents.len(),
        bytes_max: CONTENTS_BYTES_MAX,
    })
}

/// What stands before the contents, for an engine that writes them from where they are. They must have passed [`check_size`].
#[must_use]
pub fn header(address: Address<'_>, contents: &[u8]) -> [u8; HEADER_BYTES] {
    debug_assert!(
        contents.len() <= CONTENTS_BYTES_MAX,
        "the caller checks the size"
    );
    let length = u32::try_from(contents.len()).unwrap_or(u32::MAX);
    let mut header = [VERSION; HEADER_BYTES];
    header[1..5].copy_from_slice(&length.to_le_bytes());
    header[5..].copy_from_slice(&checksum(address, VERSION, length, contents).to_le_bytes());
    header
}

/// Writes a record to the end of `out`. The contents must have passed [`check_size`].
pub fn encode_into(address: Address<'_>, contents: &[u8], out: &mut Vec<u8>) {
    out.reserve(HEADER_BYTES + contents.len());
    out.extend_from_slice(&header(address, contents));
    out.extend_from_slice(contents);
}

/// A record as bytes of its own.
#[must_use]
pub fn encode(address: Address<'_>, contents: &[u8]) -> Bytes {
    let mut out = Vec::new();
    encode_into(address, contents, &mut out);
    Bytes::from(out)
}

/// The contents of a stored record, which share its memory, once version, length and checksum are right.
pub fn decode(address: Address<'_>, mut stored: Bytes) -> Result<Bytes, StorageError> {
    let corrupt = |what: String| StorageError::Corrupt {
        what,
        place: address.place(),
    };
    let bytes = stored.len();
    if bytes < HEADER_BYTES {
        return Err(corrupt(format!(
            "torn: {bytes} bytes are shorter than a header"
        )));
    }
    let (version, length, crc) = (stored.get_u8(), stored.get_u32_le(), stored.get_u32_le());
    let expected = checksum(address, version, length, &stored);
    if crc == expected && version > VERSION {
        return Err(StorageError::NewerFormat {
            place: address.place(),
            version,
            known: VERSION,
        });
    }
    if length as usize != stored.len() {
        return Err(corrupt(format!(
            "torn: {} bytes of {length} are there",
            stored.len()
        )));
    }
    if (crc != expected || version != VERSION) && !planted!(ChecksumIgnored) {
        return Err(corrupt(format!(
            "checksum {crc:08x} stands where {expected:08x} belongs (version {version})"
        )));
    }
    Ok(stored)
}

/// Whether a stored record is shorter than it says, as a write that a crash cut short leaves it.
#[must_use]
pub fn is_torn(stored: &[u8]) -> bool {
    let Some(length) = stored
        .get(1..5)
        .and_then(|bytes| <[u8; 4]>::try_from(bytes).ok())
    else {
        return true;
    };
    stored.len() < HEADER_BYTES + u32::from_le_bytes(length) as usize
}

fn checksum(address: Address<'_>, version: u8, length: u32, contents: &[u8]) -> u32 {
    let [a, b, c, d] = length.to_le_bytes();
    let crc = address.checksum(crc32c::crc32c(&[version, a, b, c, d]));
    crc32c::crc32c_append(crc, contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Address<'_> = Address::Entry {
        group: 7,
        index: 42,
    };

    #[test]
    fn golden_bytes_never_change() {
        assert_eq!(
            &encode(ENTRY, b"hare")[..],
            b"\x01\x04\x00\x00\x00\x2a\xa5t\xd7hare"
        );
        assert_eq!(
            &encode(
                Address::Record {
                    group: 7,
                    name: "vote"
                },
                b"hare"
            )[..],
            b"\x01\x04\x00\x00\x00\xde\x57\x45chare"
        );
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = encode(ENTRY, b"contents");
        assert_eq!(&decode(ENTRY, good.clone()).unwrap()[..], b"contents");
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = decode(ENTRY, bad.into()).unwrap_err();
            assert!(
                matches!(
                    error,
                    StorageError::Corrupt {
                        place: Place::LogEntry {
                            group: 7,
                            index: 42
                        },
                        ..
                    }
                ),
                "bit {bit}: {error}"
            );
        }
    }

    #[test]
    fn every_cut_is_torn() {
        let good = encode(ENTRY, b"contents");
        assert!(!is_torn(&good));
        for cut in 0..good.len() {
            assert!(is_torn(&good[..cut]), "cut at {cut}");
            assert!(decode(ENTRY, good.slice(..cut)).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_record_under_another_key_is_corrupt() {
        let stored = encode(ENTRY, b"contents");
        for other in [
            Address::Entry {
                group: 7,
                index: 43,
            },
            Address::Entry {
                group: 8,
                index: 42,
            },
            Address::Record {
                group: 7,
                name: "vote",
            },
        ] {
            assert!(decode(other, stored.clone()).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_newer_version_is_named_as_such() {
        let mut stored = vec![2u8];
        stored.extend_from_slice(&3u32.to_le_bytes());
        stored.extend_from_slice(&checksum(ENTRY, 2, 3, b"new").to_le_bytes());
        stored.extend_from_slice(b"new");
        let error = decode(ENTRY, stored.into()).unwrap_err();
        assert!(
            matches!(
                error,
                StorageError::NewerFormat {
                    version: 2,
                    known: 1,
                    ..
                }
            ),
            "{error}"
        );
    }
}
