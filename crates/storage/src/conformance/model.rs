//! Random calls, compared with a plain model after each and over restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{Answers, Harness, all, contents, reopen};
use crate::{LogEntry, Storage};

const GROUPS: u64 = 4;
const CALLS: u64 = 2000;
const SEEDS: u64 = 3;

#[derive(Default)]
struct Model {
    groups: BTreeMap<u64, Group>,
}

#[derive(Default)]
struct Group {
    purged_through: u64,
    entries: BTreeMap<u64, Bytes>,
    record: Option<Bytes>,
}

/// A small generator with a seed (SplitMix64): the same on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}

impl Group {
    fn last(&self) -> u64 {
        self.entries
            .last_key_value()
            .map_or(self.purged_through, |(last, _)| *last)
    }
}

/// Any mix of appends, truncations, purges, records, restarts and kills leaves what a sorted map of entries says.
pub fn random_calls_agree_with_a_model(harness: &dyn Harness) {
    let mut storage = harness.open();
    for seed in 0..SEEDS {
        let (mut draw, mut model, mut answers) = (Draw(seed), Model::default(), Answers::new());
        let groups = seed * GROUPS..(seed + 1) * GROUPS;
        for edition in 0..CALLS {
            let group = groups.start + draw.below(GROUPS);
            step(
                &*storage,
                group,
                edition,
                &mut draw,
                model.groups.entry(group).or_default(),
                &mut answers,
            );
            compare_range(&*storage, group, &mut draw, &model.groups[&group], seed);
            if draw.below(100) == 0 {
                answers.all_ok(harness);
                storage = if draw.below(2) == 0 {
                    reopen(harness, storage)
                } else {
                    harness.interrupt(storage)
                };
                compare_all(&storage, &model, seed);
            }
        }
        answers.all_ok(harness);
        compare_all(&storage, &model, seed);
    }
}

fn step(
    storage: &dyn Storage,
    group: u64,
    edition: u64,
    draw: &mut Draw,
    held: &mut Group,
    answers: &mut Answers,
) {
    let log = storage.log();
    let last = held.last();
    match draw.below(10) {
        0 => {
            let last_kept = last.saturating_sub(draw.below(60));
            held.entries.split_off(&(last_kept + 1));
            log.truncate_after(group, last_kept, answers.done());
        }
        1 => {
            let through = held.purged_through + draw.below(50);
            held.purged_through = through;
            held.entries = held.entries.split_off(&(through + 1));
            log.purge(group, through, answers.done());
        }
        2 => {
            held.record = Some(contents(group, edition, edition));
            log.put_record(
                group,
                "record",
                contents(group, edition, edition),
                answers.done(),
            );
        }
        _ => {
            let entries: Vec<LogEntry> = (last + 1..=last + draw.below(12))
                .map(|index| LogEntry {
                    index,
                    bytes: contents(group, index, edition),
                })
                .collect();
            held.entries.extend(
                entries
                    .iter()
                    .map(|entry| (entry.index, entry.bytes.clone())),
            );
            log.append(group, entries, answers.done());
        }
    }
}

fn compare_range(storage: &dyn Storage, group: u64, draw: &mut Draw, held: &Group, seed: u64) {
    let from = held.purged_through.saturating_sub(5) + draw.below(40);
    let until = from + draw.below(40);
    let read = storage.log().read(group, from, until, usize::MAX).unwrap();
    assert_eq!(
        read,
        expected(held, from, until),
        "seed {seed}, group {group}, {from}..{until}"
    );
}

fn compare_all(storage: &Arc<dyn Storage>, model: &Model, seed: u64) {
    let log = storage.log();
    for (group, held) in &model.groups {
        let bounds = log.bounds(*group).unwrap();
        assert_eq!(
            (bounds.purged_through, bounds.last),
            (held.purged_through, held.last()),
            "seed {seed}, group {group}"
        );
        assert_eq!(
            all(&*log, *group),
            expected(held, 0, u64::MAX),
            "seed {seed}, group {group}"
        );
        assert_eq!(
            log.get_record(*group, "record").unwrap(),
            held.record,
            "seed {seed}, group {group}"
        );
    }
}

fn expected(held: &Group, from: u64, until: u64) -> Vec<LogEntry> {
    let entries = held.entries.range(from..until);
    entries
        .map(|(index, bytes)| LogEntry {
            index: *index,
            bytes: bytes.clone(),
        })
        .collect()
}
