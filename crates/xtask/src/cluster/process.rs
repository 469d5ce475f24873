//! Node processes: starting them, and knowing them again.
//!
//! A process is its id *and* its start time: an id alone may belong to somebody else by the time it is used.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::nodes::Node;
use crate::repository::Repository;
use crate::run::{EX_UNAVAILABLE, Stop};

/// A process that is known again after this program has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The process id.
    pub pid: i32,
    /// When it started, in the kernel's ticks since boot.
    started: u64,
}

impl Record {
    /// The process that now has this id, unless it has ended and only waits to be collected.
    pub fn of(pid: i32) -> Option<Self> {
        let started = start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Self { pid, started })
    }

    /// The process recorded in a file, if it still runs.
    pub fn load(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let mut lines = text.lines();
        let record = Self {
            pid: lines.next()?.parse().ok()?,
            started: lines.next()?.parse().ok()?,
        };
        record.runs().then_some(record)
    }

    /// Writes it down.
    pub fn save(&self, path: &Path) -> Result<()> {
        fs::write(path, format!("{}\n{}\n", self.pid, self.started))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Whether the very same process still runs.
    pub fn runs(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Sends a signal, unless it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if !self.runs() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => {
                Err(error).with_context(|| format!("cannot send {signal} to process {}", self.pid))
            }
        }
    }
}

/// The start time in a `/proc/PID/stat`, or `None` for a zombie.
fn start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let (state, started) = (fields.first()?, fields.get(19)?);
    if ["Z", "X"].contains(state) {
        None
    } else {
        started.parse().ok()
    }
}

/// Waits until all have ended or time is up; returns those that still run.
pub fn wait_for_end(records: &[Record], patience: Duration) -> Vec<Record> {
    let deadline = Instant::now() + patience;
    loop {
        let left: Vec<Record> = records.iter().copied().filter(Record::runs).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A node that this very program has started.
pub struct Started {
    /// The node's name.
    pub name: String,
    /// The node's number.
    pub number: usize,
    child: Child,
    said: bool,
}

impl Started {
    /// How it ended, once: `None` while it runs and after it has been said.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.said {
            return Ok(None);
        }
        let status = self
            .child
            .try_wait()
            .with_context(|| format!("cannot tell whether {} runs", self.name))?;
        self.said = status.is_some();
        Ok(status)
    }
}

/// Starts a node, in a process group of its own so that Ctrl-C reaches this program alone, and records it.
pub fn start(repository: &Repository, node: &Node) -> Result<Started> {
    let binary = repository.binaries.join("warren");
    if !binary.is_file() {
        let text = format!(
            "{} is not there; build it: cargo build --release -p warren -p warrenctl",
            binary.display()
        );
        return Err(Stop::error(EX_UNAVAILABLE, text));
    }
    fs::create_dir_all(&node.data)
        .with_context(|| format!("cannot make {}", node.data.display()))?;
    let log = node.log_file();
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = repository.command(&binary);
    command
        .arg("--config")
        .arg(&node.config)
        .arg("--data-dir")
        .arg(&node.data);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    // Uncollected until `ended` asks, so its id cannot have passed to another process.
    let recorded = i32::try_from(child.id())
        .ok()
        .and_then(Record::of)
        .map(|record| (record, record.save(&node.pid_file())));
    if let Some((record, saved)) = recorded {
        if let Err(error) = saved {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        println!("{} starts as process {}", node.name, record.pid);
    }
    Ok(Started {
        name: node.name.clone(),
        number: node.number,
        child,
        said: false,
    })
}

/// The last lines of a node's log.
pub fn log_tail(node: &Node) -> String {
    const LINES: usize = 20;
    let text = fs::read(node.log_file())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default();
    tail.iter().map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::process::Command;

    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name_and_zombies_do_not_run() {
        let stat = |state: &str| {
            format!("7 (a ) b) {state} 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0")
        };
        assert_eq!(start_time(&stat("S")), Some(4242));
        assert_eq!(start_time(&stat("Z")), None);
    }

    #[test]
    fn only_the_very_process_is_signalled() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let record = Record::of(i32::try_from(child.id()).unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let other = Record {
            started: record.started + 1,
            ..record
        };
        other.save(&folder.path().join("pid")).unwrap();
        assert_eq!(Record::load(&folder.path().join("pid")), None);
        other.signal(Signal::SIGKILL).unwrap();
        assert!(record.runs());
        record.save(&folder.path().join("pid")).unwrap();
        assert_eq!(Record::load(&folder.path().join("pid")), Some(record));
        record.signal(Signal::SIGKILL).unwrap();
        assert_eq!(wait_for_end(&[record], Duration::from_secs(10)), []);
        child.wait().unwrap();
    }
}
