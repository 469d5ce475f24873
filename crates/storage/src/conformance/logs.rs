//! The suite's tests of the logs.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Answers, Harness, all, append, contents, entries, reopen};
use crate::record::HEADER_BYTES;
use crate::{LogBounds, LogEntry, Place, StorageError};

fn bounds(purged_through: u64, last: u64) -> LogBounds {
    LogBounds {
        purged_through,
        last,
    }
}

/// The answers of one group come in call order, whatever the calls are and whether they succeed.
pub fn answers_come_in_order(harness: &dyn Harness) {
    let storage = harness.open();
    let log = storage.log();
    let mut answers = Answers::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    for round in 0..50u64 {
        for group in 0..3 {
            for step in 0..6u64 {
                let (order, done) = (order.clone(), answers.done());
                let done = Box::new(move |answer| {
                    order.lock().push((group, round * 6 + step));
                    done(answer);
                });
                let first = round * 2 + 1;
                match step {
                    0 => log.append(group, entries(group, first..=first + 2, round), done),
                    1 => log.append(group, entries(group, first..=first, round), done),
                    2 => log.put_record(group, "vote", Bytes::from(vec![1]), done),
                    3 => log.truncate_after(group, first + 1, done),
                    4 => log.purge(group, round, done),
                    _ => log.append(group, Vec::new(), done),
                }
            }
        }
    }
    answers.wait(harness);
    for group in 0..3 {
        let of_group: Vec<u64> = order
            .lock()
            .iter()
            .filter(|(at, _)| *at == group)
            .map(|(_, number)| *number)
            .collect();
        assert!(of_group.into_iter().eq(0..300), "group {group}");
        assert_eq!(log.bounds(group).unwrap(), bounds(49, 100));
    }
    let refused = answers
        .come
        .iter()
        .filter(|(_, answer)| answer.is_err())
        .count();
    assert_eq!(refused, 150, "the second append of each round overlaps");
}

/// A read sees what `append` and `put_record` were given as soon as they have returned.
pub fn reads_see_appends_before_they_are_durable(harness: &dyn Harness) {
    let storage = harness.open();
    let log = storage.log();
    let mut answers = Answers::new();
    for index in 1..=100 {
        log.append(1, entries(1, index..=index, 0), answers.done());
        assert_eq!(
            log.read(1, index, index + 1, 0).unwrap(),
            entries(1, index..=index, 0)
        );
        assert_eq!(log.bounds(1).unwrap(), bounds(0, index));
        log.put_record(1, "vote", contents(1, index, 0), answers.done());
        assert_eq!(
            log.get_record(1, "vote").unwrap(),
            Some(contents(1, index, 0))
        );
    }
    log.truncate_after(1, 50, answers.done());
    assert_eq!(log.bounds(1).unwrap(), bounds(0, 50));
    log.purge(1, 10, answers.done());
    assert_eq!(all(&*log, 1), entries(1, 11..=50, 0));
    answers.all_ok(harness);
    assert_eq!(all(&*log, 1), entries(1, 11..=50, 0));
}

/// An append with a gap, an overlap or index 0 writes nothing.
pub fn appends_that_do_not_follow_are_refused(harness: &dyn Harness) {
    let storage = harness.open();
    let log = storage.log();
    append(harness, &*log, 1, entries(1, 1..=3, 0));
    let gap_inside = [entries(1, 4..=4, 1), entries(1, 6..=6, 1)].concat();
    let wrong = [
        (1, entries(1, 5..=6, 1), 4, 5),
        (1, entries(1, 3..=4, 1), 4, 3),
        (1, gap_inside, 5, 6),
        (2, entries(2, 0..=1, 1), 1, 0),
    ];
    for (group, wrong, expected, got) in wrong {
        let mut answers = Answers::new();
        log.append(group, wrong, answers.done());
        answers.wait(harness);
        assert_eq!(
            answers.come[0].1,
            Err(StorageError::OutOfOrder {
                group,
                expected,
                got
            })
        );
    }
    append(harness, &*log, 1, entries(1, 4..=5, 2));
    let storage = reopen(harness, storage);
    let expected = [entries(1, 1..=3, 0), entries(1, 4..=5, 2)].concat();
    assert_eq!(all(&*storage.log(), 1), expected);
    assert_eq!(storage.log().bounds(2).unwrap(), bounds(0, 0));
}

/// What is appended after a truncation is read, also after a restart, whether few or many entries were truncated.
pub fn truncated_entries_are_replaced(harness: &dyn Harness) {
    let mut storage = harness.open();
    let log = storage.log();
    append(harness, &*log, 1, entries(1, 1..=200, 0));
    let mut answers = Answers::new();
    log.truncate_after(1, 60, answers.done());
    log.append(1, entries(1, 61..=70, 1), answers.done());
    log.truncate_after(1, 68, answers.done());
    log.truncate_after(1, 1000, answers.done());
    log.append(1, entries(1, 69..=69, 2), answers.done());
    answers.all_ok(harness);
    drop(log);
    let expected = [
        entries(1, 1..=60, 0),
        entries(1, 61..=68, 1),
        entries(1, 69..=69, 2),
    ]
    .concat();
    assert_eq!(all(&*storage.log(), 1), expected);
    storage = reopen(harness, storage);
    assert_eq!(all(&*storage.log(), 1), expected);

    let log = storage.log();
    let mut answers = Answers::new();
    log.purge(1, 65, answers.done());
    log.truncate_after(1, 3, answers.done());
    answers.all_ok(harness);
    assert_eq!(
        log.bounds(1).unwrap(),
        bounds(65, 65),
        "what is purged cannot be truncated"
    );
    append(harness, &*log, 1, entries(1, 66..=66, 3));
    drop(log);
    storage = reopen(harness, storage);
    assert_eq!(all(&*storage.log(), 1), entries(1, 66..=66, 3));
}

/// A purge is remembered, also beyond the end of the log, and never undone by a smaller one.
pub fn purged_entries_stay_purged(harness: &dyn Harness) {
    let storage = harness.open();
    let log = storage.log();
    assert!(log.bounds(1).unwrap().is_empty());
    append(harness, &*log, 1, entries(1, 1..=100, 0));
    let mut answers = Answers::new();
    log.purge(1, 80, answers.done());
    log.purge(1, 20, answers.done());
    log.purge(2, 500, answers.done());
    log.append(2, entries(2, 501..=502, 0), answers.done());
    log.append(3, entries(3, 1..=5, 0), answers.done());
    log.purge(3, 5, answers.done());
    answers.all_ok(harness);
    drop(log);
    let check = |storage: &dyn crate::Storage| {
        let log = storage.log();
        assert_eq!(log.bounds(1).unwrap(), bounds(80, 100));
        assert_eq!(all(&*log, 1), entries(1, 81..=100, 0));
        assert_eq!(log.bounds(2).unwrap(), bounds(500, 502));
        assert_eq!(all(&*log, 2), entries(2, 501..=502, 0));
        assert_eq!(log.bounds(3).unwrap(), bounds(5, 5));
        assert_eq!(log.read(3, 1, 100, 1000).unwrap(), []);
    };
    check(&*storage);
    let storage = reopen(harness, storage);
    check(&*storage);
    let storage = harness.interrupt(storage);
    check(&*storage);
    append(harness, &*storage.log(), 3, entries(3, 6..=6, 1));
    assert_eq!(storage.log().bounds(3).unwrap(), bounds(5, 6));
}

/// Reads give what is there of their range, within their bytes, but one entry at least.
pub fn reads_stop_at_their_limits(harness: &dyn Harness) {
    let mut storage = harness.open();
    let sized = |indexes: std::ops::RangeInclusive<u64>| -> Vec<LogEntry> {
        indexes
            .map(|index| LogEntry {
                index,
                bytes: Bytes::from(vec![7; 100]),
            })
            .collect()
    };
    append(harness, &*storage.log(), 1, sized(1..=10));
    append(
        harness,
        &*storage.log(),
        2,
        vec![LogEntry {
            index: 1,
            bytes: Bytes::new(),
        }],
    );
    let mut answers = Answers::new();
    storage.log().purge(1, 2, answers.done());
    answers.all_ok(harness);
    // First from what is in memory, then from the disk.
    for _ in 0..2 {
        let log = storage.log();
        let read = |from, until, bytes_max| -> Vec<u64> {
            log.read(1, from, until, bytes_max)
                .unwrap()
                .iter()
                .map(|entry| entry.index)
                .collect()
        };
        assert_eq!(read(0, u64::MAX, usize::MAX), [3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(read(4, 6, usize::MAX), [4, 5]);
        assert_eq!(read(4, 9, 300), [4, 5, 6]);
        assert_eq!(read(4, 9, 299), [4, 5]);
        assert_eq!(read(4, 9, 0), [4]);
        assert_eq!(read(9, 20, usize::MAX), [9, 10]);
        for (from, until) in [(0, 3), (5, 5), (6, 5), (11, 20), (u64::MAX, u64::MAX)] {
            assert_eq!(
                read(from, until, usize::MAX),
                [] as [u64; 0],
                "{from}..{until}"
            );
        }
        assert_eq!(
            log.read(2, 1, 2, 0).unwrap(),
            [LogEntry {
                index: 1,
                bytes: Bytes::new()
            }]
        );
        assert_eq!(log.read(77, 1, 2, 100).unwrap(), []);
        drop(log);
        storage = reopen(harness, storage);
    }
}

/// No call touches another group's log, whatever the groups' numbers.
pub fn groups_are_apart(harness: &dyn Harness) {
    let mut storage = harness.open();
    let groups = [0, 1, 2, 255, 256, u64::MAX - 1, u64::MAX];
    for group in groups {
        append(harness, &*storage.log(), group, entries(group, 1..=50, 0));
    }
    let mut answers = Answers::new();
    storage.log().truncate_after(1, 0, answers.done());
    storage.log().purge(255, 50, answers.done());
    storage.log().purge(u64::MAX - 1, 40, answers.done());
    answers.all_ok(harness);
    for _ in 0..2 {
        for group in groups {
            let expected = match group {
                1 | 255 => Vec::new(),
                _ if group == u64::MAX - 1 => entries(group, 41..=50, 0),
                _ => entries(group, 1..=50, 0),
            };
            assert_eq!(all(&*storage.log(), group), expected, "group {group}");
        }
        storage = reopen(harness, storage);
    }
}

/// A record has its newest value, by group and name.
pub fn records_are_replaced(harness: &dyn Harness) {
    let mut storage = harness.open();
    assert_eq!(storage.log().get_record(1, "vote").unwrap(), None);
    let mut answers = Answers::new();
    for edition in 0..20 {
        storage
            .log()
            .put_record(1, "vote", contents(1, 1, edition), answers.done());
        storage
            .log()
            .put_record(2, "vote", contents(2, 1, edition), answers.done());
        storage
            .log()
            .put_record(1, "membership", contents(1, 2, edition), answers.done());
    }
    storage
        .log()
        .put_record(3, "vote", Bytes::new(), answers.done());
    answers.all_ok(harness);
    for end in 0..3 {
        let log = storage.log();
        assert_eq!(log.get_record(1, "vote").unwrap(), Some(contents(1, 1, 19)));
        assert_eq!(log.get_record(2, "vote").unwrap(), Some(contents(2, 1, 19)));
        assert_eq!(
            log.get_record(1, "membership").unwrap(),
            Some(contents(1, 2, 19))
        );
        assert_eq!(log.get_record(2, "membership").unwrap(), None);
        assert_eq!(
            log.get_record(3, "vote").unwrap(),
            Some(Bytes::new()),
            "empty is not absent"
        );
        drop(log);
        storage = if end == 0 {
            reopen(harness, storage)
        } else {
            harness.interrupt(storage)
        };
    }
}

/// What `done` said is there after a kill or a power loss, and what came after it is there in part or not at all.
pub fn what_was_answered_survives(harness: &dyn Harness) {
    let mut storage = harness.open();
    let mut last = 0;
    for round in 1..=5u64 {
        let log = storage.log();
        let mut answers = Answers::new();
        for index in last + 1..=last + 40 {
            log.append(1, entries(1, index..=index, round), answers.done());
        }
        log.put_record(1, "vote", contents(1, round, 0), answers.done());
        answers.all_ok(harness);
        last += 40;
        // Nobody waits for these.
        let mut unanswered = Answers::new();
        log.append(1, entries(1, last + 1..=last + 3, 99), unanswered.done());
        drop(log);
        storage = harness.interrupt(storage);
        let log = storage.log();
        let kept = all(&*log, 1);
        let expected: Vec<LogEntry> = (1..=round)
            .flat_map(|round| entries(1, round * 40 - 39..=round * 40, round))
            .collect();
        assert_eq!(kept[..expected.len()], expected[..]);
        let beyond = &kept[expected.len()..];
        assert_eq!(beyond, &entries(1, last + 1..=last + 3, 99)[..beyond.len()]);
        assert_eq!(
            log.get_record(1, "vote").unwrap(),
            Some(contents(1, round, 0))
        );
        let mut answers = Answers::new();
        log.truncate_after(1, last, answers.done());
        answers.all_ok(harness);
    }
}

/// A crash among many large calls leaves those answered, and of those after them a prefix, each entry whole.
pub fn calls_cut_short_leave_a_prefix(harness: &dyn Harness) {
    let mut storage = harness.open();
    let sized = |indexes: std::ops::RangeInclusive<u64>| -> Vec<LogEntry> {
        let entry = |index: u64| LogEntry {
            index,
            bytes: Bytes::from(index.to_le_bytes().repeat(700)),
        };
        indexes.map(entry).collect()
    };
    let mut last = 0;
    for round in 0..8 {
        let log = storage.log();
        append(harness, &*log, 1, sized(last + 1..=last + 5));
        last += 5;
        let mut unanswered = Answers::new();
        for call in 0..6 {
            let first = last + call * 7 + 1;
            log.append(1, sized(first..=first + 6), unanswered.done());
            let record = Bytes::from(call.to_le_bytes().to_vec());
            log.put_record(1, "call", record, unanswered.done());
        }
        drop(log);
        storage = harness.interrupt(storage);
        let log = storage.log();
        let end = log.bounds(1).unwrap().last;
        assert!((last..=last + 42).contains(&end), "round {round}: {end}");
        assert_eq!(all(&*log, 1), sized(1..=end), "round {round}");
        last = end;
    }
}

/// Whatever a log has been through, it is the same when it is opened again: overwritten, purged and appended many times over.
pub fn long_histories_open_again(harness: &dyn Harness) {
    let mut storage = harness.open();
    let mut expected: Vec<LogEntry> = Vec::new();
    let mut purged = 0;
    for round in 0..60u64 {
        let log = storage.log();
        let mut answers = Answers::new();
        let kept = expected
            .len()
            .saturating_sub(usize::try_from(round % 13).unwrap());
        expected.truncate(kept);
        let last = purged + kept as u64;
        log.truncate_after(1, last, answers.done());
        let more = entries(1, last + 1..=last + 40, round);
        log.append(1, more.clone(), answers.done());
        expected.extend(more);
        if round % 3 == 2 {
            let through = purged + 70;
            log.purge(1, through, answers.done());
            expected.drain(..70);
            purged = through;
        }
        log.put_record(2, "vote", contents(2, round, round), answers.done());
        answers.all_ok(harness);
        drop(log);
        if round % 7 == 0 {
            storage = reopen(harness, storage);
        } else if round % 11 == 0 {
            storage = harness.interrupt(storage);
        }
        let log = storage.log();
        assert_eq!(
            log.bounds(1).unwrap(),
            bounds(purged, purged + expected.len() as u64)
        );
        assert_eq!(all(&*log, 1), expected, "round {round}");
        let vote = log.get_record(2, "vote").unwrap();
        assert_eq!(vote, Some(contents(2, round, round)));
    }
}

/// A group that hardly writes loses nothing while another writes and purges a lot, and its truncated entries stay away.
pub fn slow_groups_outlive_busy_ones(harness: &dyn Harness) {
    let mut storage = harness.open();
    let log = storage.log();
    append(harness, &*log, 1, entries(1, 1..=9, 0));
    let mut answers = Answers::new();
    log.truncate_after(1, 4, answers.done());
    log.append(1, entries(1, 5..=6, 1), answers.done());
    log.truncate_after(1, 5, answers.done());
    log.purge(1, 2, answers.done());
    log.put_record(1, "vote", contents(1, 1, 0), answers.done());
    log.purge(3, 70, answers.done());
    answers.all_ok(harness);
    drop(log);
    let slow = [entries(1, 3..=4, 0), entries(1, 5..=5, 1)].concat();
    for round in 0..30u64 {
        let log = storage.log();
        let mut answers = Answers::new();
        let first = round * 100 + 1;
        log.append(2, entries(2, first..=first + 99, round), answers.done());
        log.purge(2, first + 89, answers.done());
        answers.all_ok(harness);
        drop(log);
        if round % 10 == 9 {
            storage = harness.interrupt(storage);
        } else if round % 10 == 4 {
            storage = reopen(harness, storage);
        }
        let log = storage.log();
        assert_eq!(all(&*log, 1), slow, "round {round}");
        assert_eq!(log.bounds(1).unwrap(), bounds(2, 5));
        assert_eq!(log.bounds(3).unwrap(), bounds(70, 70));
        assert_eq!(log.get_record(1, "vote").unwrap(), Some(contents(1, 1, 0)));
        assert_eq!(all(&*log, 2), entries(2, first + 90..=first + 99, round));
    }
    append(harness, &*storage.log(), 1, entries(1, 6..=7, 2));
    let storage = reopen(harness, storage);
    assert_eq!(
        all(&*storage.log(), 1),
        [slow, entries(1, 6..=7, 2)].concat()
    );
}

/// A flipped bit anywhere in a stored record is reported with its place, and its neighbours are still served.
pub fn corrupt_bytes_are_never_served(harness: &dyn Harness) {
    let mut storage = harness.open();
    append(harness, &*storage.log(), 5, entries(5, 1..=12, 0));
    let mut answers = Answers::new();
    storage
        .log()
        .put_record(5, "vote", contents(5, 1, 0), answers.done());
    storage
        .log()
        .put_record(5, "membership", contents(5, 2, 0), answers.done());
    answers.all_ok(harness);
    storage.close().unwrap();
    drop(storage);
    for (index, at) in [
        (2, 0),
        (4, 1),
        (6, 5),
        (8, HEADER_BYTES),
        (10, HEADER_BYTES + 3),
    ] {
        harness.corrupt_entry(5, index, at);
    }
    harness.corrupt_record(5, "vote", HEADER_BYTES + 1);
    storage = harness.open();
    let log = storage.log();
    for index in 1..=12 {
        let read = log.read(5, index, index + 1, 1000);
        if index % 2 == 0 && index <= 10 {
            let place = Place::LogEntry { group: 5, index };
            assert!(
                matches!(&read, Err(StorageError::Corrupt { place: at, .. }) if *at == place),
                "{read:?}"
            );
        } else {
            assert_eq!(read.unwrap(), entries(5, index..=index, 0));
        }
    }
    assert!(
        matches!(log.read(5, 1, 13, 1000), Err(StorageError::Corrupt { .. })),
        "in the middle of a range"
    );
    assert_eq!(log.bounds(5).unwrap(), bounds(0, 12));
    let vote = log.get_record(5, "vote");
    let place = Place::Record {
        group: 5,
        name: "vote".to_owned(),
    };
    assert!(
        matches!(&vote, Err(StorageError::Corrupt { place: at, .. }) if *at == place),
        "{vote:?}"
    );
    assert_eq!(
        log.get_record(5, "membership").unwrap(),
        Some(contents(5, 2, 0))
    );
}

/// Calls of many groups that wait at the same time take far fewer syncs.
pub fn waiting_groups_share_syncs(harness: &dyn Harness) {
    let storage = harness.open();
    let log = storage.log();
    let mut answers = Answers::new();
    let before = storage.stats();
    for index in 1..=20 {
        for group in 0..64 {
            log.append(group, entries(group, index..=index, 0), answers.done());
        }
    }
    answers.all_ok(harness);
    let after = storage.stats();
    assert_eq!(after.log_calls - before.log_calls, 20 * 64);
    assert_eq!(after.log_entries - before.log_entries, 20 * 64);
    let syncs = after.log_syncs - before.log_syncs;
    assert!(syncs > 0, "something must have been synced");
    if harness.shares_syncs() {
        assert!(syncs <= 20 * 64 / 4, "{syncs} syncs");
    } else {
        assert_eq!(syncs, 20 * 64);
    }
}

/// Closing answers what waits; afterwards everything reports that it is closed.
pub fn a_closed_storage_refuses(harness: &dyn Harness) {
    let storage = harness.open();
    let (log, state) = (storage.log(), storage.state());
    let mut answers = Answers::new();
    for index in 1..=20 {
        log.append(1, entries(1, index..=index, 0), answers.done());
    }
    storage.close().unwrap();
    answers.all_ok(harness);
    storage.close().unwrap();

    let mut refused = Answers::new();
    log.append(1, entries(1, 21..=21, 0), refused.done());
    log.put_record(1, "vote", Bytes::new(), refused.done());
    log.purge(1, 3, refused.done());
    log.truncate_after(1, 3, refused.done());
    refused.wait(harness);
    assert!(
        refused
            .come
            .iter()
            .all(|(_, answer)| *answer == Err(StorageError::Closed))
    );
    assert_eq!(log.read(1, 1, 2, 100), Err(StorageError::Closed));
    assert_eq!(log.bounds(1), Err(StorageError::Closed));
    assert_eq!(state.sync(), Err(StorageError::Closed));
    assert_eq!(
        state.get(crate::Space::Node, b"id"),
        Err(StorageError::Closed)
    );
    drop(storage);
    assert_eq!(all(&*harness.open().log(), 1), entries(1, 1..=20, 0));
}
