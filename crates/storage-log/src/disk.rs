//! The folder of the log: its files' names, and every call that writes, with typed errors and a place to inject faults.
//!
//! ```text
//! LOCK                 held by the process that has the folder open
//! synced-mark          the number of the last synced frame
//! 0000001f.segment     a segment; its name is its number
//! 0000001f.index       the tables of its frames, so that opening need not look at the frames
//! 0000001f.spare       a dead segment, to be written over
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{IoSlice, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use warren_storage::{Place, StorageError};

/// The system's limit on slices of one write.
const SLICES_MAX: usize = 1024;

pub(crate) struct Disk {
    folder: PathBuf,
    lock: File,
    #[cfg(test)]
    pub(crate) faults: parking_lot::Mutex<Faults>,
}

/// What fails from now on, for tests.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) allocate: Option<i32>,
    /// Writes stop after so many bytes more, then fail.
    pub(crate) write: Option<(usize, i32)>,
    pub(crate) sync: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Segment,
    Index,
    Spare,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Segment, Kind::Index, Kind::Spare];

    fn extension(self) -> &'static str {
        match self {
            Kind::Segment => "segment",
            Kind::Index => "index",
            Kind::Spare => "spare",
        }
    }
}

impl Disk {
    /// Creates the folder if it is not there, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<Disk, StorageError> {
        std::fs::create_dir_all(folder)
            .map_err(|error| failed(folder, "create the log's folder", &error))?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let lock = options
            .open(folder.join("LOCK"))
            .map_err(|error| failed(folder, "open the lock file", &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = folder.to_owned();
                return Err(StorageError::Locked { path });
            }
            Err(TryLockError::Error(error)) => {
                return Err(failed(folder, "lock the log's folder", &error));
            }
        }
        Ok(Disk {
            folder: folder.to_owned(),
            lock,
            #[cfg(test)]
            faults: parking_lot::Mutex::default(),
        })
    }

    /// Lets another process open the folder.
    pub(crate) fn unlock(&self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "the log's folder stays locked until the process ends");
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn path(&self, kind: Kind, id: u32) -> PathBuf {
        self.folder.join(format!("{id:08x}.{}", kind.extension()))
    }

    /// What is there, sorted by number. Other files are left alone.
    pub(crate) fn list(&self) -> Result<Vec<(u32, Kind)>, StorageError> {
        let failed = |error| failed(&self.folder, "list the log's folder", &error);
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            found.extend(name.to_str().and_then(parse));
        }
        found.sort_unstable_by_key(|(id, kind)| (*id, kind.extension()));
        Ok(found)
    }

    pub(crate) fn open_for_reading(&self, id: u32) -> Result<File, StorageError> {
        File::open(self.path(Kind::Segment, id))
            .map_err(|error| failed(&self.folder, "open a segment", &error))
    }

    pub(crate) fn open_for_writing(&self, id: u32) -> Result<File, StorageError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options
            .open(self.path(Kind::Segment, id))
            .map_err(|error| failed(&self.folder, "open a segment to write", &error))
    }

    /// Reserves the file's space, so that writing to it does not find a full disk.
    pub(crate) fn allocate(&self, file: &File, bytes: u64) -> Result<(), StorageError> {
        let allocated = || {
            #[cfg(test)]
            if let Some(code) = self.faults.lock().allocate {
                return Err(std::io::Error::from_raw_os_error(code));
            }
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
                // Some file systems cannot reserve; writes then extend the file.
                Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
                other => Ok(other?),
            }
        };
        allocated().map_err(|error| failed(&self.folder, "reserve a segment", &error))
    }

    /// Writes all slices at the file's position.
    pub(crate) fn write(
        &self,
        mut file: &File,
        mut slices: &mut [IoSlice<'_>],
    ) -> Result<(), StorageError> {
        while !slices.is_empty() {
            let some = slices.len().min(SLICES_MAX);
            #[cfg(test)]
            let written = match self.torn(slices) {
                Some((bytes, code)) => {
                    let all: Vec<u8> = slices
                        .iter()
                        .flat_map(|slice| slice.iter())
                        .copied()
                        .collect();
                    file.write_all(&all[..bytes])
                        .and(Err(std::io::Error::from_raw_os_error(code)))
                }
                None => file.write_vectored(slices.get(..some).unwrap_or_default()),
            };
            #[cfg(not(test))]
            let written = file.write_vectored(slices.get(..some).unwrap_or_default());
            match written {
                Ok(0) => {
                    let error = std::io::Error::from(std::io::ErrorKind::WriteZero);
                    return Err(failed(&self.folder, "append to the log", &error));
                }
                Ok(bytes) => IoSlice::advance_slices(&mut slices, bytes),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&self.folder, "append to the log", &error)),
            }
        }
        Ok(())
    }

    /// Where an injected fault tears this write.
    #[cfg(test)]
    fn torn(&self, slices: &[IoSlice<'_>]) -> Option<(usize, i32)> {
        let (bytes, code) = self.faults.lock().write?;
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        Some((bytes.min(all), code))
    }

    pub(crate) fn sync(&self, file: &File) -> Result<(), StorageError> {
        let synced = || {
            #[cfg(test)]
            if let Some(code) = self.faults.lock().sync {
                return Err(std::io::Error::from_raw_os_error(code));
            }
            file.sync_data()
        };
        synced().map_err(|error| {
            let detail = error.to_string();
            // Not `Full`, whatever the system says: what a failed sync was to write may be lost.
            io(&self.folder, "sync the log", detail)
        })
    }

    /// Makes creations, renames and removals of files durable.
    pub(crate) fn sync_folder(&self) -> Result<(), StorageError> {
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| failed(&self.folder, "sync the log's folder", &error))
    }

    pub(crate) fn size(&self, file: &File) -> Result<u64, StorageError> {
        let metadata = file.metadata();
        Ok(metadata
            .map_err(|error| failed(&self.folder, "look at a segment", &error))?
            .len())
    }

    /// Cuts a segment off.
    pub(crate) fn cut(&self, file: &File, bytes: u64) -> Result<(), StorageError> {
        file.set_len(bytes)
            .map_err(|error| failed(&self.folder, "cut a segment", &error))
    }

    pub(crate) fn rename(&self, id: u32, from: Kind, to: (u32, Kind)) -> Result<(), StorageError> {
        std::fs::rename(self.path(from, id), self.path(to.1, to.0))
            .map_err(|error| failed(&self.folder, "rename a segment", &error))
    }

    /// Removes a file; it need not be there.
    pub(crate) fn remove(&self, kind: Kind, id: u32) -> Result<(), StorageError> {
        match std::fs::remove_file(self.path(kind, id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(&self.folder, "remove a file of the log", &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn corrupt(&self, what: String) -> StorageError {
        let path = self.folder.clone();
        StorageError::Corrupt {
            what,
            place: Place::Files { path },
        }
    }

    pub(crate) fn failed(&self, doing: &'static str, error: &std::io::Error) -> StorageError {
        failed(&self.folder, doing, error)
    }
}

fn parse(name: &str) -> Option<(u32, Kind)> {
    let (number, extension) = name.split_once('.')?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.extension() == extension)?;
    let id = u32::from_str_radix(number, 16).ok()?;
    (number.len() == 8).then_some((id, kind))
}

fn failed(folder: &Path, doing: &'static str, error: &std::io::Error) -> StorageError {
    if error.kind() == std::io::ErrorKind::StorageFull {
        let path = folder.to_owned();
        return StorageError::Full { path };
    }
    io(folder, doing, error.to_string())
}

fn io(folder: &Path, doing: &'static str, detail: String) -> StorageError {
    StorageError::Io {
        path: folder.to_owned(),
        doing,
        detail,
        advice: "check the disk and the folder's permissions, then restart the node",
    }
}
