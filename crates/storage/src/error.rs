//! What can go wrong in a storage engine, where, and what a person can do about it.

use std::fmt;
use std::path::PathBuf;

use crate::Space;

/// A storage engine's failure. Cloneable, because one failed sync answers many waiting calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused a read, a write or a sync.
    #[error("{doing} failed at {}: {detail}; {advice}", path.display())]
    Io {
        /// The folder of the storage.
        path: PathBuf,
        /// What was being done, for example `append to the log`.
        doing: &'static str,
        /// What the operating system or the engine said.
        detail: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// No space is left for a write.
    #[error("no space is left at {}; free space or enlarge the volume, then restart the node", path.display())]
    Full {
        /// The folder of the storage.
        path: PathBuf,
    },
    /// Stored bytes are not what was written. They are never served.
    #[error(
        "corrupt {place}: {what}; restore this node from its peers: wipe its data folder and let it join again"
    )]
    Corrupt {
        /// What is wrong with the bytes.
        what: String,
        /// Where they are.
        place: Place,
    },
    /// A record was written by a newer release in a format that this one does not know.
    #[error(
        "{place} has format version {version}, this release knows up to {known}; run the newer release again"
    )]
    NewerFormat {
        /// Where the record is.
        place: Place,
        /// Its version.
        version: u8,
        /// The newest version that this release reads.
        known: u8,
    },
    /// Another process has the folder open.
    #[error("another process uses {}; stop it first, or give this node its own data folder", path.display())]
    Locked {
        /// The folder of the storage.
        path: PathBuf,
    },
    /// An earlier write failed, and the engine refuses all later ones until it is opened again.
    #[error("the storage takes no more writes since one failed: {cause}")]
    Stopped {
        /// The failure that stopped it.
        cause: Box<StorageError>,
    },
    /// The storage was closed, or its (simulated) process died.
    #[error("the storage is closed")]
    Closed,
    /// An append does not continue its group's log. The caller is at fault: nothing was written.
    #[error(
        "group {group}: an append of index {got} does not follow: index {expected} is next (indexes start at 1)"
    )]
    OutOfOrder {
        /// The Raft group.
        group: u64,
        /// The index that must come next.
        expected: u64,
        /// The index that was given.
        got: u64,
    },
    /// A value is beyond what a record can hold.
    #[error("{place} has {bytes} bytes, a record holds at most {bytes_max}; split it")]
    TooLarge {
        /// What was to be written.
        place: Place,
        /// Its size in bytes.
        bytes: usize,
        /// The largest size in bytes.
        bytes_max: usize,
    },
}

impl StorageError {
    /// The first cause: unwraps [`StorageError::Stopped`].
    #[must_use]
    pub fn root(&self) -> &StorageError {
        let mut error = self;
        while let StorageError::Stopped { cause } = error {
            error = cause;
        }
        error
    }

    /// The error that later calls get once this one has stopped the engine.
    #[must_use]
    pub fn stopping(&self) -> StorageError {
        StorageError::Stopped {
            cause: Box::new(self.root().clone()),
        }
    }
}

/// Where in a storage something is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An entry of a group's log.
    LogEntry {
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
        name: String,
    },
    /// A key of the applied state.
    State {
        /// The key's space.
        space: Space,
    },
    /// The engine's own files.
    Files {
        /// The folder of the storage.
        path: PathBuf,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::LogEntry { group, index } => write!(f, "log entry {index} of group {group}"),
            Place::Record { group, name } => write!(f, "record {name:?} of group {group}"),
            Place::State { space } => write!(f, "state in space {space:?}"),
            Place::Files { path } => write!(f, "files in {}", path.display()),
        }
    }
}
