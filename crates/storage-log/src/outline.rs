//! A segment's outline: the tables of its frames in a file of their own, so that opening reads only what matters.
//!
//! ```text
//! magic (8) version (1) 0 (3) crc of all else (4) segment (4) 0 (4) salt (8) last number (8) end (8), then for each frame
//! offset (8) bytes of the table (4) table
//! ```
//! It is written, unsynced, when a segment is full and when the log is closed. It may be missing, torn or behind: then the frames
//! themselves are looked at from where it ends. It is never ahead of them.

use warren_storage::StorageError;

use crate::disk::{Disk, Kind};
use crate::frame::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"WarrenIx";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 48;

/// What is known of a segment's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outline {
    /// The header's place, then the frames.
    bytes: Vec<u8>,
    /// The number of its last frame; the one before its first if it has none.
    pub(crate) last_number: u64,
    /// Where the next frame goes.
    pub(crate) end: u64,
}

impl Outline {
    /// Of a segment without frames.
    pub(crate) fn new(header: &SegmentHeader) -> Outline {
        Outline {
            bytes: vec![0; HEADER_BYTES],
            last_number: header.first_number.saturating_sub(1),
            end: SEGMENT_HEADER_BYTES as u64,
        }
    }

    /// Adds the frame that lies at the end.
    pub(crate) fn add(&mut self, table: &[u8], frame_bytes: u64) {
        let bytes = u32::try_from(table.len()).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&self.end.to_le_bytes());
        self.bytes.extend_from_slice(&bytes.to_le_bytes());
        self.bytes.extend_from_slice(table);
        self.last_number += 1;
        self.end += frame_bytes;
    }

    /// The frames' tables, and where their bodies begin.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let mut rest = self.bytes.get(HEADER_BYTES..).unwrap_or_default();
        std::iter::from_fn(move || {
            let offset = u64_at(rest, 0)?;
            let bytes = u32_at(rest, 8)?;
            let (table, behind) = rest.get(12..)?.split_at_checked(bytes as usize)?;
            rest = behind;
            let body = offset + FRAME_HEADER_BYTES as u64 + u64::from(bytes);
            Some((table, body))
        })
    }

    pub(crate) fn write(
        &mut self,
        disk: &Disk,
        header: &SegmentHeader,
    ) -> Result<(), StorageError> {
        let out = &mut self.bytes;
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&[VERSION, 0, 0, 0]);
        out[16..20].copy_from_slice(&header.segment.to_le_bytes());
        out[24..32].copy_from_slice(&header.salt.to_le_bytes());
        out[32..40].copy_from_slice(&self.last_number.to_le_bytes());
        out[40..48].copy_from_slice(&self.end.to_le_bytes());
        let crc = checksum(out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(disk.path(Kind::Index, header.segment), &*out)
            .map_err(|error| disk.failed("write a segment's index", &error))
    }

    /// What was written of this segment; of one without frames where there is nothing or it is no good.
    pub(crate) fn read(disk: &Disk, header: &SegmentHeader) -> Outline {
        let bytes = std::fs::read(disk.path(Kind::Index, header.segment)).unwrap_or_default();
        Outline::decode(bytes, header).unwrap_or_else(|| Outline::new(header))
    }

    fn decode(bytes: Vec<u8>, header: &SegmentHeader) -> Option<Outline> {
        let good = bytes.len() >= HEADER_BYTES
            && bytes[..8] == MAGIC
            && bytes[8] == VERSION
            && u32_at(&bytes, 12) == Some(checksum(&bytes))
            && u32_at(&bytes, 16) == Some(header.segment)
            && u64_at(&bytes, 24) == Some(header.salt);
        let (last_number, end) = (u64_at(&bytes, 32)?, u64_at(&bytes, 40)?);
        good.then_some(Outline {
            bytes,
            last_number,
            end,
        })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(
        crc32c::crc32c(bytes.get(..12).unwrap_or_default()),
        bytes.get(16..).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outline_of_another_segment_or_with_a_flipped_bit_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(folder.path()).unwrap();
        let header = SegmentHeader {
            segment: 3,
            previous: 2,
            first_number: 9,
            salt: 77,
        };
        let empty = Outline::read(&disk, &header);
        assert_eq!((empty.last_number, empty.frames().count()), (8, 0));
        let mut outline = empty.clone();
        outline.add(b"first", 100);
        outline.add(b"second", 200);
        outline.write(&disk, &header).unwrap();
        let read = Outline::read(&disk, &header);
        assert_eq!(read, outline);
        let frames: Vec<(&[u8], u64)> = read.frames().collect();
        assert_eq!(
            frames,
            [(&b"first"[..], 48 + 45), (&b"second"[..], 148 + 46)]
        );
        assert_eq!((read.last_number, read.end), (10, 348));
        let other = SegmentHeader { salt: 78, ..header };
        assert_eq!(Outline::read(&disk, &other), empty);
        for byte in 0..read.bytes.len() {
            let mut bad = read.bytes.clone();
            bad[byte] ^= 4;
            assert_eq!(Outline::decode(bad, &header), None, "byte {byte}");
        }
    }
}
