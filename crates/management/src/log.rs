//! The last lines of the process's log, kept in memory for whoever may see them over the API.
//!
//! A log is the process's and so are its last lines: a server writes them through [`LogWriter`], beside where its log goes; where nothing does so, there are
//! none. Bounded in lines and bytes; what falls out is counted, so that who follows notices a gap.

use crate::Shared;
use crate::access::Access;
use crate::error::Error;
use crate::extract::Parameters;
use axum::extract::State;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io;

/// Lines that are kept at most.
const LINES_MAX: usize = 5_000;
/// Bytes of them.
const BYTES_MAX: usize = 2 << 20;
/// A longer line is cut.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Lines in one answer.
const ANSWER_MAX: usize = 1_000;

static LINES: Mutex<Lines> = Mutex::new(Lines::new());

/// Takes what is written, whole lines at a time, as the last lines of the process's log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = LINES.lock();
        text.lines().for_each(|line| lines.push(line));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Lines {
    kept: VecDeque<String>,
    bytes: usize,
    /// Number of the next line; the first one ever is 1.
    next: u64,
}

impl Lines {
    const fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            bytes: 0,
            next: 1,
        }
    }

    fn push(&mut self, line: &str) {
        let line = &line[..line.floor_char_boundary(LINE_BYTES_MAX)];
        self.kept.push_back(line.to_owned());
        self.bytes += line.len();
        self.next += 1;
        while self.kept.len() > LINES_MAX || self.bytes > BYTES_MAX {
            self.bytes -= self.kept.pop_front().map_or(0, |line| line.len());
        }
    }

    /// Number of the oldest line that is kept.
    fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Numbered lines from `since` on, the oldest first; without it, the last ones.
    fn from(&self, since: Option<u64>, limit: usize) -> Vec<(u64, &str)> {
        let last_ones = self.next.saturating_sub(limit as u64);
        let from = since.unwrap_or(last_ones).max(self.first());
        let skipped = usize::try_from(from - self.first()).unwrap_or(usize::MAX);
        let some = self.kept.iter().skip(skipped).take(limit);
        (from..).zip(some.map(String::as_str)).collect()
    }
}

fn number<T: std::str::FromStr>(parameters: &Parameters, name: &str) -> Result<Option<T>, Error> {
    let Some(given) = parameters.get(name) else {
        return Ok(None);
    };
    given
        .parse()
        .map(Some)
        .map_err(|_| Error::bad_request(format!("{name} must be a whole number, not '{given}'")))
}

/// `GET /api/log?since=NUMBER&limit=LINES`: lines from a number on, or the last ones; `next` is where to go on, `lost` counts lines that fell out before.
pub(crate) async fn tail(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    let since: Option<u64> = number(&parameters, "since")?;
    let limit = number(&parameters, "limit")?
        .unwrap_or(100)
        .clamp(1, ANSWER_MAX);
    let lines = LINES.lock();
    let found = lines.from(since, limit);
    let next = found.last().map_or_else(
        || since.unwrap_or(lines.next).min(lines.next),
        |(number, _)| number + 1,
    );
    let rows: Vec<Value> = found
        .iter()
        .map(|(number, text)| json!({"number": number, "text": text}))
        .collect();
    let lost = since.map_or(0, |since| lines.first().saturating_sub(since.max(1)));
    Ok(Json(
        json!({"node": node.name(), "lines": rows, "next": next, "lost": lost}),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lines: &Lines, since: Option<u64>, limit: usize) -> Vec<u64> {
        lines.from(since, limit).iter().map(|line| line.0).collect()
    }

    #[test]
    fn the_last_lines_are_kept_and_numbered() {
        let mut lines = Lines::new();
        assert!(numbers(&lines, None, 5).is_empty() && numbers(&lines, Some(7), 5).is_empty());
        (0..LINES_MAX + 10).for_each(|line| lines.push(&line.to_string()));
        let last = LINES_MAX as u64 + 10;
        assert_eq!((lines.first(), lines.next), (11, last + 1));
        assert_eq!(numbers(&lines, None, 2), [last - 1, last]);
        assert_eq!(
            numbers(&lines, Some(1), 2),
            [11, 12],
            "what is left of what was asked for"
        );
        assert_eq!(
            lines.from(Some(last), 5),
            [(last, &*(last - 1).to_string())]
        );
        assert!(numbers(&lines, Some(last + 1), 5).is_empty());
        assert!(numbers(&lines, Some(u64::MAX), 5).is_empty());
    }

    #[test]
    fn bytes_are_bounded_too() {
        let mut lines = Lines::new();
        let long = "\u{fc}".repeat(LINE_BYTES_MAX);
        (0..BYTES_MAX / LINE_BYTES_MAX * 2).for_each(|_| lines.push(&long));
        assert!(lines.bytes <= BYTES_MAX && lines.kept.len() >= BYTES_MAX / LINE_BYTES_MAX - 1);
        assert_eq!(lines.kept.back().map(String::len), Some(LINE_BYTES_MAX));
    }
}
