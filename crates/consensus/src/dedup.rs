//! Which proposals were applied: the part of the replicated state that makes a retried proposal harmless.
//!
//! A proposer (one start of one node's process) numbers its proposals from 1 and keeps proposing the same one, under its
//! number, until it is answered. The group applies each proposer's numbers strictly in order: a number below the next one
//! is a repetition and gets the answer of the first time, a number above it is refused until the missing ones have come.
//! Number 0 stands for a proposal that nobody sends again: it is applied wherever it stands, and its answer is not kept.
//! Answers are kept until the proposer says that it no longer needs them; it has at most [`WINDOW`] numbers open.
//!
//! Stored beside the table, in one atomic write with an entry's changes:
//! ```text
//! proposer   'p' node (8)                          -> version (1) archived [`ProposerRecord`]
//! answers    'a' node (8) first sequence (8)       -> version (1) archived [`RunRecord`]: consecutive answers of one entry
//! ```
//! Cost: one put for each entry and proposer, one delete for each run that is no longer needed.

use std::collections::{BTreeMap, VecDeque};

use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use warren_model::{Incarnation, NodeId, Outcome};

use crate::entry::{Malformed, Settled, VERSION, versioned};

/// How many numbers a proposer may have open: sent, and not yet settled by it.
pub(crate) const WINDOW: u64 = 4096;
const PROPOSER: u8 = b'p';
const ANSWERS: u8 = b'a';

#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
struct ProposerRecord {
    incarnation: Incarnation,
    next: u64,
    settled_below: u64,
}

#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
struct RunRecord {
    index: u64,
    outcomes: Vec<Outcome>,
}

#[derive(Debug)]
struct Proposer {
    record: ProposerRecord,
    /// Runs of answers by their first number, oldest first.
    runs: VecDeque<(u64, RunRecord)>,
}

/// What is to be done with a proposal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Apply it.
    Fresh,
    /// Answer this; nothing is to be applied.
    Settled(Settled),
}

/// A change of what is stored: a key, and its value or none.
pub(crate) type KeyChange = (Vec<u8>, Option<Vec<u8>>);

/// All proposers that the group has heard of.
#[derive(Debug, Default)]
pub(crate) struct Dedup {
    proposers: BTreeMap<NodeId, Proposer>,
}

impl Dedup {
    /// Judges a proposal. After [`Verdict::Fresh`] its number counts as used, and [`Self::record`] must follow with the
    /// entry's outcomes before the next entry is judged.
    pub(crate) fn judge(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        sequence: u64,
        settled_below: u64,
        changes: &mut Vec<KeyChange>,
    ) -> Verdict {
        if sequence == 0 {
            return Verdict::Fresh;
        }
        let proposer = self.proposers.entry(node).or_insert_with(|| Proposer {
            record: ProposerRecord {
                incarnation,
                next: 1,
                settled_below: 1,
            },
            runs: VecDeque::new(),
        });
        if incarnation < proposer.record.incarnation {
            return Verdict::Settled(Settled::Late);
        }
        if incarnation > proposer.record.incarnation {
            proposer.forget_below(u64::MAX, node, changes);
            proposer.record = ProposerRecord {
                incarnation,
                next: 1,
                settled_below: 1,
            };
        }
        if settled_below > proposer.record.settled_below {
            proposer.record.settled_below = settled_below;
            proposer.record.next = proposer.record.next.max(settled_below);
            proposer.forget_below(settled_below, node, changes);
        }
        if sequence < proposer.record.settled_below {
            return Verdict::Settled(Settled::Late);
        }
        if sequence < proposer.record.next {
            return Verdict::Settled(proposer.answer(sequence));
        }
        if sequence > proposer.record.next || sequence >= proposer.record.settled_below + WINDOW {
            return Verdict::Settled(Settled::Early);
        }
        proposer.record.next += 1;
        Verdict::Fresh
    }

    /// Keeps the answers of an entry's fresh proposals of one node, in the order in which they were judged.
    pub(crate) fn record(
        &mut self,
        node: NodeId,
        index: u64,
        answers: Vec<(u64, Outcome)>,
        changes: &mut Vec<KeyChange>,
    ) -> Result<(), Malformed> {
        let Some(proposer) = self.proposers.get_mut(&node) else {
            return Ok(());
        };
        let mut runs: Vec<(u64, RunRecord)> = Vec::new();
        for (sequence, outcome) in answers.into_iter().filter(|(sequence, _)| *sequence > 0) {
            match runs.last_mut() {
                Some((first, run)) if *first + run.outcomes.len() as u64 == sequence => {
                    run.outcomes.push(outcome)
                }
                Some(_) | None => runs.push((
                    sequence,
                    RunRecord {
                        index,
                        outcomes: vec![outcome],
                    },
                )),
            }
        }
        if runs.is_empty() {
            return Ok(());
        }
        for (first, run) in &runs {
            changes.push((answers_key(node, *first), Some(archive(run)?)));
        }
        changes.push((proposer_key(node), Some(archive(&proposer.record)?)));
        proposer.runs.extend(runs);
        Ok(())
    }

    /// Takes in what was stored: keys of this module only, in key order.
    pub(crate) fn restore(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let bad = |why: &str| Malformed::new("record of proposals", why);
        let archive = versioned(value, "record of proposals")?;
        let (kind, rest) = key.split_first().ok_or_else(|| bad("empty key"))?;
        let (node, rest) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| bad("key cut short"))?;
        let node = NodeId(u64::from_be_bytes(*node));
        // Answers sort before proposers, so a proposer may be only half known until its own record comes.
        let proposer = self.proposers.entry(node).or_insert_with(|| Proposer {
            record: ProposerRecord {
                incarnation: Incarnation(0),
                next: 1,
                settled_below: 1,
            },
            runs: VecDeque::new(),
        });
        match *kind {
            PROPOSER => {
                proposer.record = rkyv::from_bytes::<_, rancor::Error>(archive)
                    .map_err(|e| Malformed::new("proposer", e))?
            }
            ANSWERS => {
                let first = rest
                    .try_into()
                    .map(u64::from_be_bytes)
                    .map_err(|_| bad("key cut short"))?;
                let run = rkyv::from_bytes::<RunRecord, rancor::Error>(archive)
                    .map_err(|e| Malformed::new("answers", e))?;
                proposer.runs.push_back((first, run));
            }
            _ => return Err(bad("unknown kind")),
        }
        Ok(())
    }

    /// The first bytes of this module's keys.
    pub(crate) fn is_key(key: &[u8]) -> bool {
        matches!(key.first(), Some(&PROPOSER | &ANSWERS))
    }
}

impl Proposer {
    fn answer(&self, sequence: u64) -> Settled {
        let at = self.runs.partition_point(|(first, _)| *first <= sequence);
        let found = at
            .checked_sub(1)
            .and_then(|at| self.runs.get(at))
            .and_then(|(first, run)| {
                let position = usize::try_from(sequence - first).ok()?;
                Some(Settled::Done {
                    index: run.index,
                    outcome: run.outcomes.get(position)?.clone(),
                })
            });
        // A number that was skipped because its proposer had given it up has no answer.
        found.unwrap_or(Settled::Late)
    }

    fn forget_below(&mut self, sequence: u64, node: NodeId, changes: &mut Vec<KeyChange>) {
        while let Some((first, run)) = self.runs.front()
            && first + run.outcomes.len() as u64 <= sequence
        {
            changes.push((answers_key(node, *first), None));
            self.runs.pop_front();
        }
    }
}

fn archive(
    record: &impl for<'a> Serialize<
        rkyv::api::high::HighSerializer<
            Vec<u8>,
            rkyv::ser::allocator::ArenaHandle<'a>,
            rancor::Error,
        >,
    >,
) -> Result<Vec<u8>, Malformed> {
    rkyv::api::high::to_bytes_in::<_, rancor::Error>(record, vec![VERSION])
        .map_err(|e| Malformed::new("record of proposals", e))
}

fn proposer_key(node: NodeId) -> Vec<u8> {
    [&[PROPOSER][..], &node.0.to_be_bytes()].concat()
}

fn answers_key(node: NodeId, first: u64) -> Vec<u8> {
    [&[ANSWERS][..], &node.0.to_be_bytes(), &first.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(5);

    fn judge(dedup: &mut Dedup, incarnation: u64, sequence: u64, settled_below: u64) -> Verdict {
        dedup.judge(
            NODE,
            Incarnation(incarnation),
            sequence,
            settled_below,
            &mut Vec::new(),
        )
    }

    fn done(index: u64) -> Verdict {
        Verdict::Settled(Settled::Done {
            index,
            outcome: Outcome::Done,
        })
    }

    #[test]
    fn a_repetition_gets_the_first_answer() {
        let mut dedup = Dedup::default();
        assert_eq!(judge(&mut dedup, 1, 1, 1), Verdict::Fresh);
        assert_eq!(judge(&mut dedup, 1, 2, 1), Verdict::Fresh);
        dedup
            .record(
                NODE,
                10,
                vec![(1, Outcome::Done), (2, Outcome::Retry)],
                &mut Vec::new(),
            )
            .unwrap();
        assert_eq!(judge(&mut dedup, 1, 3, 1), Verdict::Fresh);
        dedup
            .record(NODE, 11, vec![(3, Outcome::Done)], &mut Vec::new())
            .unwrap();
        assert_eq!(judge(&mut dedup, 1, 1, 1), done(10));
        assert_eq!(
            judge(&mut dedup, 1, 2, 1),
            Verdict::Settled(Settled::Done {
                index: 10,
                outcome: Outcome::Retry
            })
        );
        assert_eq!(judge(&mut dedup, 1, 3, 1), done(11));
    }

    #[test]
    fn order_is_kept_and_given_up_numbers_are_skipped() {
        let mut dedup = Dedup::default();
        assert_eq!(judge(&mut dedup, 1, 2, 1), Verdict::Settled(Settled::Early));
        assert_eq!(judge(&mut dedup, 1, 2, 2), Verdict::Fresh);
        dedup
            .record(NODE, 4, vec![(2, Outcome::Done)], &mut Vec::new())
            .unwrap();
        assert_eq!(judge(&mut dedup, 1, 1, 1), Verdict::Settled(Settled::Late));
        // One entry may hold numbers with a gap between them, where the proposer gave up meanwhile.
        assert_eq!(judge(&mut dedup, 1, 3, 2), Verdict::Fresh);
        assert_eq!(judge(&mut dedup, 1, 6, 3), Verdict::Settled(Settled::Early));
        assert_eq!(judge(&mut dedup, 1, 6, 6), Verdict::Fresh);
        dedup
            .record(
                NODE,
                5,
                vec![(3, Outcome::Done), (6, Outcome::Done)],
                &mut Vec::new(),
            )
            .unwrap();
        assert_eq!(judge(&mut dedup, 1, 6, 6), done(5));
        assert_eq!(
            judge(&mut dedup, 1, 7 + WINDOW, 7),
            Verdict::Settled(Settled::Early)
        );
    }

    #[test]
    fn an_unnumbered_proposal_is_always_fresh_and_leaves_no_trace() {
        let mut dedup = Dedup::default();
        let mut changes = Vec::new();
        assert_eq!(judge(&mut dedup, 3, 1, 1), Verdict::Fresh);
        dedup
            .record(NODE, 4, vec![(1, Outcome::Done)], &mut Vec::new())
            .unwrap();
        for incarnation in [1, 3] {
            assert_eq!(
                dedup.judge(NODE, Incarnation(incarnation), 0, 0, &mut changes),
                Verdict::Fresh
            );
            dedup
                .record(NODE, 5, vec![(0, Outcome::Retry)], &mut changes)
                .unwrap();
        }
        assert_eq!(changes, vec![]);
        assert_eq!(judge(&mut dedup, 3, 1, 1), done(4));
    }

    #[test]
    fn a_new_start_counts_anew_and_the_old_one_is_refused() {
        let mut dedup = Dedup::default();
        let mut changes = Vec::new();
        assert_eq!(judge(&mut dedup, 1, 1, 1), Verdict::Fresh);
        dedup
            .record(NODE, 4, vec![(1, Outcome::Done)], &mut changes)
            .unwrap();
        changes.clear();
        assert_eq!(
            dedup.judge(NODE, Incarnation(2), 1, 1, &mut changes),
            Verdict::Fresh
        );
        assert_eq!(changes, vec![(answers_key(NODE, 1), None)]);
        assert_eq!(judge(&mut dedup, 1, 2, 1), Verdict::Settled(Settled::Late));
    }

    #[test]
    fn what_is_stored_is_what_is_known() {
        let mut dedup = Dedup::default();
        let mut stored = BTreeMap::new();
        for round in 0..50u64 {
            let mut changes = Vec::new();
            let settled_below = if round > 10 { round * 2 - 10 } else { 1 };
            for sequence in [round * 2 + 1, round * 2 + 2] {
                assert_eq!(
                    dedup.judge(NODE, Incarnation(1), sequence, settled_below, &mut changes),
                    Verdict::Fresh
                );
            }
            dedup
                .record(
                    NODE,
                    100 + round,
                    vec![
                        (round * 2 + 1, Outcome::Done),
                        (round * 2 + 2, Outcome::Retry),
                    ],
                    &mut changes,
                )
                .unwrap();
            for (key, value) in changes {
                match value {
                    Some(value) => stored.insert(key, value),
                    None => stored.remove(&key),
                };
            }
        }
        let mut restored = Dedup::default();
        for (key, value) in &stored {
            assert!(Dedup::is_key(key));
            restored.restore(key, value).unwrap();
        }
        assert_eq!(format!("{restored:?}"), format!("{dedup:?}"));
        assert_eq!(judge(&mut restored, 1, 99, 1), done(149));
        assert_eq!(judge(&mut restored, 1, 101, 1), Verdict::Fresh);
    }
}
