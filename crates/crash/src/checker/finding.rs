//! What is wrong, by class: counts, and the first few in words.

use crate::history::Micros;

/// How many findings of a class are kept in words.
const EXAMPLES: usize = 10;

/// What the broker did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Class {
    /// Confirmed, and never delivered to a consumer that acknowledged it.
    Lost,
    /// Delivered again although it was acknowledged or held by a client that lives, or delivered again without the redelivered flag.
    Duplicated,
    /// A publisher's messages in one queue, delivered for the first time in another order than they were published.
    Reordered,
    /// Delivered and never published, or with another content, or from another queue.
    Phantom,
    /// Refused with basic.nack, and delivered all the same.
    RefusedButApplied,
    /// Returned as unroutable although its queue exists.
    Returned,
    /// A client's connection ended, or its consumer was cancelled, although its node works.
    Dropped,
    /// Something that the protocol does not allow.
    Broken,
    /// Something that did not happen within the hang limit.
    Hung,
    /// A node's process ended by itself.
    Died,
}

impl Class {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::Lost,
        Self::Duplicated,
        Self::Reordered,
        Self::Phantom,
        Self::RefusedButApplied,
        Self::Returned,
        Self::Dropped,
        Self::Broken,
        Self::Hung,
        Self::Died,
    ];

    /// As in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Reordered => "reordered",
            Self::Phantom => "phantom",
            Self::RefusedButApplied => "refused-but-applied",
            Self::Returned => "returned",
            Self::Dropped => "dropped",
            Self::Broken => "broken",
            Self::Hung => "hung",
            Self::Died => "died",
        }
    }
}

/// One class's findings.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Violations.
    pub violations: u64,
    /// Those that a client of a node under fault has seen, which was not promised better.
    pub excused: u64,
    /// The first violations: when, and what.
    pub examples: Vec<(Micros, String)>,
}

/// All findings.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    tallies: [Tally; Class::ALL.len()],
}

impl Findings {
    /// Counts one; its words are asked for only if they are kept.
    pub fn add(&mut self, class: Class, excused: bool, at: Micros, words: impl FnOnce() -> String) {
        let tally = &mut self.tallies[class as usize];
        if excused {
            tally.excused += 1;
            return;
        }
        tally.violations += 1;
        if tally.examples.len() < EXAMPLES {
            tally.examples.push((at, words()));
        }
    }

    /// A class's findings.
    pub fn of(&self, class: Class) -> &Tally {
        &self.tallies[class as usize]
    }

    /// How many violations there are.
    pub fn violations(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.violations).sum()
    }

    /// Adds another round's.
    pub fn absorb(&mut self, other: Self) {
        for (mine, theirs) in self.tallies.iter_mut().zip(other.tallies) {
            mine.violations += theirs.violations;
            mine.excused += theirs.excused;
            let room = EXAMPLES - mine.examples.len();
            mine.examples.extend(theirs.examples.into_iter().take(room));
        }
    }
}
