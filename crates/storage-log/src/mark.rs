//! The synced mark: the number of the last synced frame, in a small file of its own.
//!
//! A power loss may leave anything behind the last sync, so opening cuts off what is not readable at the end. Were the last
//! synced frames to rot, they would silently be gone with it, although they were acknowledged: so each sync is followed by a
//! write of its number here. When the folder is opened, at least the frame that the file names must be there.
//!
//! The file is not synced itself: after a power loss it may be behind the truth (then less is checked), never ahead of it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use warren_storage::StorageError;
use warren_storage::record::{self, Address};

use crate::disk::Disk;

const FILE: &str = "synced-mark";
/// The mark is stored as a record under this address, for its checksum and version.
const ADDRESS: Address<'_> = Address::Record {
    group: 0,
    name: FILE,
};

pub(crate) struct Mark {
    file: File,
}

impl Mark {
    pub(crate) fn open(disk: &Disk) -> Result<Mark, StorageError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options
            .open(disk.folder().join(FILE))
            .map_err(|error| disk.failed("open the synced mark", &error))?;
        Ok(Mark { file })
    }

    /// What the file says; nothing if it is new or a power loss has torn it.
    pub(crate) fn get(&self, disk: &Disk) -> Result<u64, StorageError> {
        let mut stored = [0; record::HEADER_BYTES + 8];
        match self.file.read_exact_at(&mut stored, 0) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(0),
            Err(error) => return Err(disk.failed("read the synced mark", &error)),
        }
        let contents = record::decode(ADDRESS, stored.to_vec().into()).ok();
        let number = contents.and_then(|contents| <[u8; 8]>::try_from(&contents[..]).ok());
        Ok(number.map_or(0, u64::from_le_bytes))
    }

    /// The frame of this number is synced.
    pub(crate) fn set(&self, disk: &Disk, number: u64) -> Result<(), StorageError> {
        let contents = number.to_le_bytes();
        let mut stored = [0; record::HEADER_BYTES + 8];
        stored[..record::HEADER_BYTES].copy_from_slice(&record::header(ADDRESS, &contents));
        stored[record::HEADER_BYTES..].copy_from_slice(&contents);
        self.file
            .write_all_at(&stored, 0)
            .map_err(|error| disk.failed("write the synced mark", &error))
    }
}
