//! The file of the audit log: lines are appended to it, and it is opened anew when it was moved away, as logrotate does.

use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;

/// How often it is looked whether the file was moved away.
const LOOK: Duration = Duration::from_secs(1);

/// The audit log's file.
pub(crate) struct AuditFile {
    path: PathBuf,
    open: Mutex<Open>,
}

struct Open {
    file: File,
    looked: Instant,
}

/// Writes one line.
pub(crate) struct Line<'a>(MutexGuard<'a, Open>);

impl AuditFile {
    /// Opens the file to append to it; only the server's user may read one that is made.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            open: Mutex::new(Open {
                file: append_to(path)?,
                looked: Instant::now(),
            }),
        })
    }
}

fn append_to(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

impl Open {
    /// Whoever moved the file wants later lines in a new one. What cannot be opened anew stays where it is.
    fn follow(&mut self, path: &Path) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let there = std::fs::metadata(path).map(|m| (m.dev(), m.ino()));
        let here = self.file.metadata().map(|m| (m.dev(), m.ino()));
        if there.ok() != here.ok()
            && let Ok(file) = append_to(path)
        {
            self.file = file;
        }
    }
}

impl<'a> MakeWriter<'a> for AuditFile {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.follow(&self.path);
        Line(open)
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.file.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.0.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_to_a_new_file_once_the_old_one_is_moved() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved) = (folder.path().join("audit"), folder.path().join("audit.1"));
        let audit = AuditFile::open(&path).unwrap();
        audit.make_writer().write_all(b"one\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        audit.open.lock().unwrap().looked -= LOOK;
        audit.make_writer().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read(&moved).unwrap(), b"one\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"two\n");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }
}
