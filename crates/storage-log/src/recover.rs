//! Opening a folder: what lies in the segments becomes the index, and what a crash cut short is left out.
//!
//! For each segment its outline is applied, then the frames behind the outline's end, of which only headers and tables are read.
//! At the end of the last segment three things look alike at first: the end, a frame that was being written when the power went,
//! and a synced frame that has rotted. The synced mark, a later frame and a later segment each prove that a frame was synced:
//! then its loss is an error. Only a last frame that nothing proves has its whole body looked at.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use memchr::memmem;
use rustix::fs::SeekFrom;
use warren_storage::record::{self, Address};
use warren_storage::{Place, StorageError};

use crate::disk::{Disk, Kind};
use crate::frame::{
    self, Entries, FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader, Item, SEGMENT_HEADER_BYTES,
    SegmentHeader, Unreadable,
};
use crate::index::Index;
use crate::outline::Outline;

/// What is read of a frame at first: mostly its header and its table.
const GLANCE_BYTES: usize = 4096;
const SEARCH_BYTES: usize = 1 << 20;

/// The segment that is being written.
pub(crate) struct Active {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<File>,
    pub(crate) outline: Outline,
    /// The size of the file.
    pub(crate) bytes: u64,
}

/// A folder that was opened.
pub(crate) struct Recovered {
    pub(crate) index: Index,
    /// The last segment, which goes on.
    pub(crate) active: Option<Active>,
    /// The number of the last frame.
    pub(crate) last_number: u64,
    /// Dead segments that may be written over.
    pub(crate) spares: Vec<u32>,
    /// A number that no file has.
    pub(crate) next_segment: u32,
}

/// A segment as it is read.
struct Reader<'a> {
    disk: &'a Disk,
    header: SegmentHeader,
    file: File,
    bytes: u64,
}

/// Opens what is in the folder; `synced` is the number of a frame that was certainly synced.
pub(crate) fn recover(disk: &Disk, synced: u64) -> Result<Recovered, StorageError> {
    let files = disk.list()?;
    let next_segment = files.last().map_or(1, |(id, _)| id + 1);
    let of_kind = |wanted: Kind| {
        let ids = files.iter().filter(move |(_, kind)| *kind == wanted);
        ids.map(|(id, _)| *id)
    };
    let segments: Vec<u32> = of_kind(Kind::Segment).collect();
    for orphan in of_kind(Kind::Index).filter(|id| !segments.contains(id)) {
        disk.remove(Kind::Index, orphan)?;
    }
    // Removed only once it is certain that nothing in them is missed.
    let mut unused = Vec::new();
    let mut headers = Vec::new();
    for (position, id) in segments.iter().enumerate() {
        let is_last = position + 1 == segments.len();
        match Reader::open(disk, *id, is_last)? {
            Some(reader) => headers.push(reader.header),
            None => unused.push(*id),
        }
    }

    let mut index = Index::default();
    let mut last: Option<(Reader<'_>, Outline)> = None;
    let mut rest = headers.iter().peekable();
    while let Some(header) = rest.next() {
        let until = rest.peek().map(|next| next.first_number);
        let Some(reader) = Reader::open(disk, header.segment, false)? else {
            continue;
        };
        let outline = reader.outline(until, synced)?;
        if let Some((before, end)) = &last {
            follows(disk, &before.header, end, header)?;
        }
        if outline.frames().next().is_none() && until.is_none() {
            // It was just begun. The next one must begin anew, since the first frame says what a segment begins with.
            unused.push(header.segment);
            continue;
        }
        index.add_segment(header.segment);
        for (table, body) in outline.frames() {
            index
                .apply(table, header.segment, body)
                .map_err(|_| disk.corrupt(format!("{}: a table makes no sense", reader.name())))?;
        }
        last = Some((reader, outline));
    }
    let last_number = last.as_ref().map_or(0, |(_, outline)| outline.last_number);
    if last_number < synced {
        return Err(disk.corrupt(format!(
            "batch {synced} was synced, but the log is readable up to batch {last_number} only"
        )));
    }
    for segment in unused {
        disk.remove(Kind::Segment, segment)?;
        disk.remove(Kind::Index, segment)?;
    }
    let active = last
        .map(|(reader, outline)| reader.go_on(outline))
        .transpose()?;
    Ok(Recovered {
        index,
        active,
        last_number,
        spares: of_kind(Kind::Spare).collect(),
        next_segment,
    })
}

/// Whether the segment may come next: all frames up to its first one are there, unless segments in between are gone.
fn follows(
    disk: &Disk,
    before: &SegmentHeader,
    end: &Outline,
    next: &SegmentHeader,
) -> Result<(), StorageError> {
    let gone = next.previous != before.segment;
    if (gone && end.last_number < next.first_number) || end.last_number + 1 == next.first_number {
        return Ok(());
    }
    Err(disk.corrupt(format!(
        "segment {:08x} begins with batch {}, but {:08x} before it is readable up to batch {} only",
        next.segment, next.first_number, before.segment, end.last_number
    )))
}

impl<'a> Reader<'a> {
    /// Opens a segment. None if it is the last one and its header never came to the disk: nothing in it was ever answered.
    fn open(disk: &'a Disk, id: u32, is_last: bool) -> Result<Option<Reader<'a>>, StorageError> {
        let file = disk.open_for_writing(id)?;
        let bytes = disk.size(&file)?;
        let mut header = [0; SEGMENT_HEADER_BYTES];
        let header = match file.read_exact_at(&mut header, 0) {
            Ok(()) => SegmentHeader::decode(&header),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(Unreadable::Damaged)
            }
            Err(error) => return Err(disk.failed("read a segment's header", &error)),
        };
        match header {
            Ok(header) if header.segment == id => Ok(Some(Reader {
                disk,
                header,
                file,
                bytes,
            })),
            Err(Unreadable::Newer(version)) => Err(StorageError::NewerFormat {
                place: Place::Files {
                    path: disk.path(Kind::Segment, id),
                },
                version,
                known: frame::VERSION,
            }),
            // Were anything synced in it, the synced mark would say so.
            Ok(_) | Err(Unreadable::Damaged) if is_last => {
                tracing::warn!(segment = %format!("{id:08x}"), "a segment without a header is removed: it was just begun");
                Ok(None)
            }
            Ok(_) | Err(Unreadable::Damaged) => {
                Err(disk.corrupt(format!("segment {id:08x} has no readable header")))
            }
        }
    }

    fn name(&self) -> String {
        format!("segment {:08x}", self.header.segment)
    }

    /// All frames of the segment, before the number where the next segment begins, if there is a next one.
    fn outline(&self, until: Option<u64>, synced: u64) -> Result<Outline, StorageError> {
        let mut outline = Outline::read(self.disk, &self.header);
        if outline.end > self.bytes {
            return Err(self.disk.corrupt(format!(
                "{} has {} bytes, {} belong there",
                self.name(),
                self.bytes,
                outline.end
            )));
        }
        // A frame is certain once the next one is there.
        let mut pending = None;
        loop {
            let (at, number) = match &pending {
                None => (outline.end, outline.last_number + 1),
                Some((header, _)) => {
                    let header: &FrameHeader = header;
                    (outline.end + header.frame_bytes(), header.number + 1)
                }
            };
            if until.is_some_and(|until| number >= until) {
                break;
            }
            let Some(found) = self.frame(at, number)? else {
                break;
            };
            if let Some((header, table)) = pending.replace(found) {
                outline.add(&table, header.frame_bytes());
            }
        }
        if let Some((header, table)) = pending {
            let proven = header.number <= synced || until.is_some();
            let body = outline.end + FRAME_HEADER_BYTES as u64 + u64::from(header.table_bytes);
            if proven || self.body_is_whole(&table, body)? {
                outline.add(&table, header.frame_bytes());
            }
        }
        if until.is_none() {
            self.refuse_frames_behind(&outline)?;
        }
        Ok(outline)
    }

    /// The frame of this number, if it is there with a good table.
    fn frame(&self, at: u64, number: u64) -> Result<Option<(FrameHeader, Vec<u8>)>, StorageError> {
        let glance = self.read(at, GLANCE_BYTES as u64)?;
        let header = match FrameHeader::decode(&glance, self.header.salt) {
            Ok(header) => header,
            Err(Unreadable::Damaged) => return Ok(None),
            Err(Unreadable::Newer(version)) => {
                return Err(StorageError::NewerFormat {
                    place: Place::Files {
                        path: self.disk.path(Kind::Segment, self.header.segment),
                    },
                    version,
                    known: frame::VERSION,
                });
            }
        };
        if header.number != number || at.saturating_add(header.frame_bytes()) > self.bytes {
            return Ok(None);
        }
        let table_end = FRAME_HEADER_BYTES + header.table_bytes as usize;
        let table = match glance.get(FRAME_HEADER_BYTES..table_end) {
            Some(table) => table.to_vec(),
            None => self.read(
                at + FRAME_HEADER_BYTES as u64,
                u64::from(header.table_bytes),
            )?,
        };
        Ok((crc32c::crc32c(&table) == header.table_crc).then_some((header, table)))
    }

    /// Whether all records of a frame are as they were written.
    fn body_is_whole(&self, table: &[u8], body: u64) -> Result<bool, StorageError> {
        let mut offset = body;
        for item in frame::items(table) {
            let whole = match item {
                Ok(Item::Append(entries) | Item::Rewritten(entries)) => {
                    self.entries_are_whole(entries, &mut offset)?
                }
                Ok(Item::Record { group, name, bytes }) => {
                    self.is_whole(Address::Record { group, name }, bytes, &mut offset)?
                }
                Ok(Item::Bounds { .. } | Item::Truncate { .. } | Item::Purge { .. }) => true,
                Err(frame::Malformed) => false,
            };
            if !whole {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn entries_are_whole(
        &self,
        entries: Entries<'_>,
        offset: &mut u64,
    ) -> Result<bool, StorageError> {
        let group = entries.group;
        for (index, bytes) in entries.iter() {
            if !self.is_whole(Address::Entry { group, index }, bytes, offset)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_whole(
        &self,
        address: Address<'_>,
        bytes: u32,
        offset: &mut u64,
    ) -> Result<bool, StorageError> {
        let stored = self.read(*offset, u64::from(bytes))?;
        *offset += u64::from(bytes);
        Ok(record::decode(address, Bytes::from(stored)).is_ok())
    }

    /// A frame behind what is readable proves that frames before it were synced, and are lost.
    fn refuse_frames_behind(&self, outline: &Outline) -> Result<(), StorageError> {
        let finder = memmem::Finder::new(&FRAME_MAGIC);
        let mut at = outline.end;
        while let Some(data) = self.data_from(at) {
            at = data;
            let bytes = self.read(at, (SEARCH_BYTES + FRAME_HEADER_BYTES) as u64)?;
            for found in finder.find_iter(&bytes) {
                let rest = bytes.get(found..).unwrap_or_default();
                let header = FrameHeader::decode(rest, self.header.salt);
                if let Ok(header) = header
                    && header.number > outline.last_number + 1
                {
                    return Err(self.disk.corrupt(format!(
                        "batch {} was synced, but {} is readable up to batch {} only",
                        header.number - 1,
                        self.name(),
                        outline.last_number
                    )));
                }
            }
            at += SEARCH_BYTES as u64;
        }
        Ok(())
    }

    /// Where the next written bytes are from here on: what was only reserved is passed over.
    fn data_from(&self, at: u64) -> Option<u64> {
        if at >= self.bytes {
            return None;
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => Some(data),
            Err(rustix::io::Errno::NXIO) => None,
            // A file system that does not tell.
            Err(_) => Some(at),
        }
    }

    /// Up to so many bytes, fewer at the end of the file.
    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, StorageError> {
        let bytes = bytes.min(self.bytes.saturating_sub(at));
        let mut read = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        self.file
            .read_exact_at(&mut read, at)
            .map_err(|error| self.disk.failed("read a segment", &error))?;
        Ok(read)
    }

    /// Makes the segment the one that is written. All that it holds is durable then: a killed process leaves frames that
    /// were written but not yet synced.
    fn go_on(self, outline: Outline) -> Result<Active, StorageError> {
        self.disk.sync(&self.file)?;
        rustix::fs::seek(&self.file, SeekFrom::Start(outline.end)).map_err(|error| {
            self.disk
                .failed("go to the end of a segment", &error.into())
        })?;
        Ok(Active {
            header: self.header,
            file: Arc::new(self.file),
            outline,
            bytes: self.bytes,
        })
    }
}
