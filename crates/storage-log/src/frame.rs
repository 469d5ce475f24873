//! How batches lie in a segment. Numbers are little endian.
//!
//! ```text
//! segment  header (48 bytes), then frames
//! header   magic (8) version (1) 0 (3) crc (4) segment (4) previous segment with frames (4) number of its first frame (8) salt (8) 0 (8)
//! frame    header (40 bytes), table, body: one batch, written and synced as one, whole or not at all
//! header   magic (4) crc (4) version (1) 0 (3) crc of the table (4) number (8) bytes of the table (4) 0 (4) bytes of the body (8)
//! table    items: what the batch does, in order
//! body     the records of the items, back to back, as in `warren_storage::record`
//! ```
//! Items: kind (1), group (8), then
//! ```text
//! 1 append      first index (8) count (4) count times: bytes of a record (4)
//! 2 truncate    last index kept (8)
//! 3 purge       last index purged (8)
//! 4 record      bytes of the name (2) name, bytes of the record (4)
//! 5 bounds      last index purged (8) last index (8): what a group's log was before this frame
//! 6 rewritten   as append: entries that are there already and have moved here
//! ```
//! Frames are numbered without a gap over all segments. Frame n + 1 is written only once n is synced: who finds n + 1 knows
//! that n was synced. The salt, new with each segment, goes into each frame's checksum: neither what an earlier use left in a
//! file nor what a client sent can pass for a frame. The table has its own checksum: a bit that has rotted in a record's
//! header does not hide the records behind it.

use bytes::Bytes;
use warren_storage::record::{self, Address};

pub(crate) const VERSION: u8 = 1;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 48;
pub(crate) const FRAME_HEADER_BYTES: usize = 40;
const SEGMENT_MAGIC: [u8; 8] = *b"WarrenLg";
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"\xd7Wf\xa3";
/// Contents up to here are copied together; larger ones are written from where they are.
const COPIED_BYTES_MAX: usize = 4096;
/// A buffer that a large call has needed is given back down to here.
const KEPT_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) segment: u32,
    /// The segment of the frame before its first one, 0 if there is none.
    pub(crate) previous: u32,
    pub(crate) first_number: u64,
    pub(crate) salt: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) number: u64,
    pub(crate) table_crc: u32,
    pub(crate) table_bytes: u32,
    pub(crate) body_bytes: u64,
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// They are no header, or a damaged one.
    Damaged,
    /// A newer release wrote it.
    Newer(u8),
}

/// One thing that a batch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Append(Entries<'a>),
    Truncate {
        group: u64,
        last_kept: u64,
    },
    Purge {
        group: u64,
        through: u64,
    },
    Record {
        group: u64,
        name: &'a str,
        bytes: u32,
    },
    Bounds {
        group: u64,
        purged_through: u64,
        last: u64,
    },
    Rewritten(Entries<'a>),
}

/// Consecutive entries of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entries<'a> {
    pub(crate) group: u64,
    pub(crate) first: u64,
    lengths: &'a [u8],
}

impl Entries<'_> {
    /// Each entry's index and the bytes of its record.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let (lengths, _) = self.lengths.as_chunks::<4>();
        (self.first..).zip(lengths.iter().map(|bytes| u32::from_le_bytes(*bytes)))
    }
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        out[..8].copy_from_slice(&SEGMENT_MAGIC);
        out[8] = VERSION;
        out[16..20].copy_from_slice(&self.segment.to_le_bytes());
        out[20..24].copy_from_slice(&self.previous.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_number.to_le_bytes());
        out[32..40].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..12]), &out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Result<SegmentHeader, Unreadable> {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        if bytes[..8] != SEGMENT_MAGIC || u32_at(bytes, 12) != Some(crc) {
            return Err(Unreadable::Damaged);
        }
        if bytes[8] != VERSION {
            return Err(Unreadable::Newer(bytes[8]));
        }
        Ok(SegmentHeader {
            segment: u32_at(bytes, 16).unwrap_or_default(),
            previous: u32_at(bytes, 20).unwrap_or_default(),
            first_number: u64_at(bytes, 24).unwrap_or_default(),
            salt: u64_at(bytes, 32).unwrap_or_default(),
        })
    }
}

impl FrameHeader {
    fn encode(&self, salt: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[..4].copy_from_slice(&FRAME_MAGIC);
        out[8] = VERSION;
        out[12..16].copy_from_slice(&self.table_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..28].copy_from_slice(&self.table_bytes.to_le_bytes());
        out[32..40].copy_from_slice(&self.body_bytes.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the beginning of the bytes.
    pub(crate) fn decode(bytes: &[u8], salt: u64) -> Result<FrameHeader, Unreadable> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES).ok_or(Unreadable::Damaged)?;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &bytes[8..]);
        if bytes[..4] != FRAME_MAGIC || u32_at(bytes, 4) != Some(crc) {
            return Err(Unreadable::Damaged);
        }
        if bytes[8] != VERSION {
            return Err(Unreadable::Newer(bytes[8]));
        }
        Ok(FrameHeader {
            table_crc: u32_at(bytes, 12).unwrap_or_default(),
            number: u64_at(bytes, 16).unwrap_or_default(),
            table_bytes: u32_at(bytes, 24).unwrap_or_default(),
            body_bytes: u64_at(bytes, 32).unwrap_or_default(),
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES as u64 + u64::from(self.table_bytes)).saturating_add(self.body_bytes)
    }
}

/// The items of a table; an error where it is malformed.
pub(crate) fn items(mut table: &[u8]) -> impl Iterator<Item = Result<Item<'_>, Malformed>> {
    std::iter::from_fn(move || {
        if table.is_empty() {
            return None;
        }
        let item = item(&mut table).ok_or(Malformed);
        if item.is_err() {
            table = &[];
        }
        Some(item)
    })
}

/// A table whose checksum is right but that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

fn item<'a>(table: &mut &'a [u8]) -> Option<Item<'a>> {
    let kind = take(table, 1)?.first().copied()?;
    let group = take_u64(table)?;
    Some(match kind {
        APPEND => Item::Append(entries(table, group)?),
        TRUNCATE => Item::Truncate {
            group,
            last_kept: take_u64(table)?,
        },
        PURGE => Item::Purge {
            group,
            through: take_u64(table)?,
        },
        RECORD => {
            let bytes = take(table, 2)?;
            let bytes = usize::from(u16::from_le_bytes(bytes.try_into().ok()?));
            let name = std::str::from_utf8(take(table, bytes)?).ok()?;
            Item::Record {
                group,
                name,
                bytes: take_u32(table)?,
            }
        }
        BOUNDS => Item::Bounds {
            group,
            purged_through: take_u64(table)?,
            last: take_u64(table)?,
        },
        REWRITTEN => Item::Rewritten(entries(table, group)?),
        _ => return None,
    })
}

const APPEND: u8 = 1;
const TRUNCATE: u8 = 2;
const PURGE: u8 = 3;
const RECORD: u8 = 4;
const BOUNDS: u8 = 5;
const REWRITTEN: u8 = 6;

fn entries<'a>(table: &mut &'a [u8], group: u64) -> Option<Entries<'a>> {
    let first = take_u64(table)?;
    let count = take_u32(table)? as usize;
    let lengths = take(table, count.checked_mul(4)?)?;
    Some(Entries {
        group,
        first,
        lengths,
    })
}

fn take<'a>(table: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, rest) = table.split_at_checked(bytes)?;
    *table = rest;
    Some(taken)
}

fn take_u64(table: &mut &[u8]) -> Option<u64> {
    take(table, 8).and_then(|bytes| u64_at(bytes, 0))
}

fn take_u32(table: &mut &[u8]) -> Option<u32> {
    take(table, 4).and_then(|bytes| u32_at(bytes, 0))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Puts a frame together. Its buffers are used again for the next one.
#[derive(Default)]
pub(crate) struct Builder {
    /// Header and table.
    head: Vec<u8>,
    /// Copied pieces of the body.
    copied: Vec<u8>,
    parts: Vec<Part>,
    body_bytes: u64,
    /// Where the count of the entries that are being added stands.
    count_at: usize,
}

enum Part {
    /// Up to here of `copied`, from where the part before ended.
    Copied {
        until: usize,
    },
    Shared(Bytes),
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        self.head.resize(FRAME_HEADER_BYTES, 0);
        self.copied.clear();
        self.copied.shrink_to(KEPT_BYTES_MAX);
        self.parts.clear();
        self.body_bytes = 0;
    }

    /// Begins an item of consecutive entries. [`Builder::entry`] adds them.
    pub(crate) fn append(&mut self, group: u64, first: u64) {
        self.entries(APPEND, group, first);
    }

    /// Begins an item of entries that have moved. [`Builder::stored`] adds them.
    pub(crate) fn rewritten(&mut self, group: u64, first: u64) {
        self.entries(REWRITTEN, group, first);
    }

    pub(crate) fn entry(&mut self, address: Address<'_>, contents: &Bytes) {
        self.count();
        self.length(record::HEADER_BYTES + contents.len());
        self.contents(address, contents);
    }

    /// Adds an entry's record as it is stored.
    pub(crate) fn stored(&mut self, stored: &Bytes) {
        self.count();
        self.length(stored.len());
        self.bytes(stored);
    }

    pub(crate) fn truncate(&mut self, group: u64, last_kept: u64) {
        self.item(TRUNCATE, group);
        self.head.extend_from_slice(&last_kept.to_le_bytes());
    }

    pub(crate) fn purge(&mut self, group: u64, through: u64) {
        self.item(PURGE, group);
        self.head.extend_from_slice(&through.to_le_bytes());
    }

    pub(crate) fn bounds(&mut self, group: u64, purged_through: u64, last: u64) {
        self.item(BOUNDS, group);
        self.head.extend_from_slice(&purged_through.to_le_bytes());
        self.head.extend_from_slice(&last.to_le_bytes());
    }

    pub(crate) fn record(&mut self, group: u64, name: &str, value: &Bytes) {
        self.name(group, name);
        self.length(record::HEADER_BYTES + value.len());
        self.contents(Address::Record { group, name }, value);
    }

    /// Adds a small record as it is stored.
    pub(crate) fn stored_record(&mut self, group: u64, name: &str, stored: &Bytes) {
        self.name(group, name);
        self.length(stored.len());
        self.bytes(stored);
    }

    /// Completes the frame, and says how many bytes it has.
    pub(crate) fn finish(&mut self, number: u64, salt: u64) -> FrameHeader {
        let table = self.head.get(FRAME_HEADER_BYTES..).unwrap_or_default();
        let header = FrameHeader {
            number,
            table_crc: crc32c::crc32c(table),
            table_bytes: u32::try_from(table.len()).unwrap_or(u32::MAX),
            body_bytes: self.body_bytes,
        };
        self.head[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(salt));
        header
    }

    pub(crate) fn table(&self) -> &[u8] {
        self.head.get(FRAME_HEADER_BYTES..).unwrap_or_default()
    }

    /// The finished frame's pieces.
    pub(crate) fn slices(&self) -> Vec<std::io::IoSlice<'_>> {
        let mut slices = Vec::with_capacity(1 + self.parts.len());
        slices.push(std::io::IoSlice::new(&self.head));
        let mut from = 0;
        for part in &self.parts {
            let bytes = match part {
                Part::Copied { until } => {
                    let bytes = self.copied.get(from..*until).unwrap_or_default();
                    from = *until;
                    bytes
                }
                Part::Shared(bytes) => bytes,
            };
            slices.push(std::io::IoSlice::new(bytes));
        }
        slices
    }

    fn item(&mut self, kind: u8, group: u64) {
        self.head.push(kind);
        self.head.extend_from_slice(&group.to_le_bytes());
    }

    fn entries(&mut self, kind: u8, group: u64, first: u64) {
        self.item(kind, group);
        self.head.extend_from_slice(&first.to_le_bytes());
        self.count_at = self.head.len();
        self.head.extend_from_slice(&[0; 4]);
    }

    fn count(&mut self) {
        let at = self.count_at;
        let count = u32_at(&self.head, at).unwrap_or_default() + 1;
        self.head[at..at + 4].copy_from_slice(&count.to_le_bytes());
    }

    fn name(&mut self, group: u64, name: &str) {
        self.item(RECORD, group);
        let bytes = u16::try_from(name.len()).unwrap_or(u16::MAX);
        self.head.extend_from_slice(&bytes.to_le_bytes());
        self.head.extend_from_slice(name.as_bytes());
    }

    fn length(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.head.extend_from_slice(&bytes.to_le_bytes());
    }

    fn contents(&mut self, address: Address<'_>, contents: &Bytes) {
        self.copy(&record::header(address, contents));
        self.bytes(contents);
    }

    fn bytes(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPIED_BYTES_MAX {
            self.copy(bytes);
        } else {
            self.body_bytes += bytes.len() as u64;
            self.parts.push(Part::Shared(bytes.clone()));
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        self.body_bytes += bytes.len() as u64;
        let end = self.copied.len();
        match self.parts.last_mut() {
            Some(Part::Copied { until }) => *until = end,
            Some(Part::Shared(_)) | None => self.parts.push(Part::Copied { until: end }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(number: u64, salt: u64) -> Vec<u8> {
        let mut builder = Builder::default();
        builder.clear();
        builder.bounds(7, 3, 9);
        builder.append(7, 10);
        builder.entry(
            Address::Entry {
                group: 7,
                index: 10,
            },
            &Bytes::from("hare"),
        );
        builder.entry(
            Address::Entry {
                group: 7,
                index: 11,
            },
            &Bytes::from(vec![1; COPIED_BYTES_MAX + 1]),
        );
        builder.record(7, "vote", &Bytes::from("me"));
        builder.truncate(7, 10);
        builder.purge(7, 4);
        builder.rewritten(8, 2);
        builder.stored(&Bytes::from("as it is"));
        builder.finish(number, salt);
        builder
            .slices()
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect()
    }

    #[test]
    fn what_is_built_is_read_again() {
        let frame = built(5, 77);
        let header = FrameHeader::decode(&frame, 77).unwrap();
        assert_eq!(
            (header.number, header.frame_bytes()),
            (5, frame.len() as u64)
        );
        let table = &frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.table_bytes as usize];
        assert_eq!(crc32c::crc32c(table), header.table_crc);
        let items: Vec<Item<'_>> = items(table).map(|item| item.unwrap()).collect();
        let Item::Append(appended) = items[1] else {
            panic!("{items:?}")
        };
        let lengths: Vec<(u64, u32)> = appended.iter().collect();
        assert_eq!((appended.group, lengths), (7, vec![(10, 13), (11, 4106)]));
        assert_eq!(
            items[0],
            Item::Bounds {
                group: 7,
                purged_through: 3,
                last: 9
            }
        );
        assert_eq!(
            items[2],
            Item::Record {
                group: 7,
                name: "vote",
                bytes: 11
            }
        );
        assert_eq!(
            items[3],
            Item::Truncate {
                group: 7,
                last_kept: 10
            }
        );
        assert_eq!(
            items[4],
            Item::Purge {
                group: 7,
                through: 4
            }
        );
        let Item::Rewritten(moved) = items[5] else {
            panic!("{items:?}")
        };
        assert_eq!((moved.group, moved.iter().next()), (8, Some((2, 8))));
        assert!(frame.ends_with(b"as it is"));
    }

    #[test]
    fn a_frame_is_none_with_another_salt_or_a_flipped_bit() {
        let frame = built(5, 77);
        assert_eq!(FrameHeader::decode(&frame, 78), Err(Unreadable::Damaged));
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bad, 77).is_err(), "bit {bit}");
        }
        let header = SegmentHeader {
            segment: 3,
            previous: 2,
            first_number: 9,
            salt: 77,
        };
        let good = header.encode();
        assert_eq!(SegmentHeader::decode(&good), Ok(header));
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn golden_bytes_never_change() {
        let header = SegmentHeader {
            segment: 3,
            previous: 2,
            first_number: 9,
            salt: 77,
        };
        assert_eq!(crc32c::crc32c(&header.encode()), SEGMENT_GOLDEN);
        assert_eq!(crc32c::crc32c(&built(5, 77)), FRAME_GOLDEN);
    }

    /// Checksums of the encoded bytes.
    const SEGMENT_GOLDEN: u32 = 871_315_829;
    const FRAME_GOLDEN: u32 = 3_636_825_485;

    #[test]
    fn a_cut_table_is_malformed() {
        let frame = built(5, 77);
        let header = FrameHeader::decode(&frame, 77).unwrap();
        let table = &frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.table_bytes as usize];
        let whole = items(table).count();
        assert!(items(table).all(|item| item.is_ok()));
        let refused =
            (1..table.len()).filter(|cut| items(&table[..*cut]).any(|item| item.is_err()));
        // A cut between two items leaves whole ones.
        assert_eq!(refused.count(), table.len() - whole);
    }
}
