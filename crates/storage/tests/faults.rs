//! The simulated disk's faults: what a crash leaves, failing syncs, a full disk, a slow one.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use warren_storage::memory::{Completion, Disk, Job, MemoryStorage};
use warren_storage::{Done, LogEntry, Space, Storage, StorageError, Write};

type Answer = Result<(), StorageError>;

/// Collects answers by the name of the call.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<(&'static str, Answer)>>>);

impl Answers {
    fn done(&self, name: &'static str) -> Done {
        let answers = self.0.clone();
        Box::new(move |answer| answers.lock().push((name, answer)))
    }

    fn take(&self) -> Vec<(&'static str, Answer)> {
        std::mem::take(&mut self.0.lock())
    }
}

fn entries(indexes: std::ops::RangeInclusive<u64>) -> Vec<LogEntry> {
    indexes
        .map(|index| LogEntry {
            index,
            bytes: Bytes::from(vec![7; 20]),
        })
        .collect()
}

fn last(storage: &MemoryStorage) -> u64 {
    let bounds = storage.log().bounds(1).unwrap();
    let all = storage.log().read(1, 1, u64::MAX, usize::MAX).unwrap();
    assert_eq!(all, entries(1..=bounds.last));
    bounds.last
}

fn queued() -> Disk {
    let disk = Disk::new();
    disk.set_completion(Completion::Queued);
    disk
}

#[test]
fn a_power_loss_takes_what_was_not_synced_and_drops_its_dones() {
    let disk = queued();
    let storage = disk.open();
    let answers = Answers::default();
    storage
        .log()
        .append(1, entries(1..=2), answers.done("synced"));
    storage
        .state()
        .write(
            Space::Node,
            vec![Write::Put(Bytes::from("a"), Bytes::from("1"))],
        )
        .unwrap();
    storage.state().sync().unwrap();
    assert_eq!(disk.pump(), 1);
    storage
        .log()
        .append(1, entries(3..=4), answers.done("unsynced"));
    storage
        .state()
        .write(Space::Node, vec![Write::DeleteAll])
        .unwrap();
    assert_eq!(answers.take(), [("synced", Ok(()))]);
    assert_eq!(last(&storage), 4);

    disk.power_off();
    let reopened = disk.open();
    assert_eq!(last(&reopened), 2);
    assert_eq!(
        reopened.state().get(Space::Node, b"a").unwrap(),
        Some(Bytes::from("1"))
    );
    disk.pump();
    assert_eq!(answers.take(), [], "a dead process hears nothing");
    assert_eq!(storage.log().bounds(1), Err(StorageError::Closed));
    storage
        .log()
        .append(1, entries(3..=3), answers.done("dead"));
    assert_eq!(answers.take(), [("dead", Err(StorageError::Closed))]);
}

/// What a crash with the seed leaves of six unsynced entries in three calls and three unsynced state writes.
fn crashed(seed: u64) -> (u64, u64) {
    let disk = queued();
    let storage = disk.open();
    storage.log().append(1, entries(1..=4), Box::new(|_| ()));
    disk.pump();
    for (first, last) in [(5, 5), (6, 8), (9, 10)] {
        storage
            .log()
            .append(1, entries(first..=last), Box::new(|_| ()));
        let number = Bytes::from(vec![u8::try_from(first).unwrap()]);
        storage
            .state()
            .write(Space::Node, vec![Write::Put(number, Bytes::new())])
            .unwrap();
    }
    let mut state = seed;
    disk.crash(&mut |limit| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    });
    let storage = disk.open();
    let keys: Vec<u8> = storage
        .state()
        .scan(Space::Node)
        .unwrap()
        .map(|item| item.unwrap().0[0])
        .collect();
    assert_eq!(
        keys,
        [5, 6, 9][..keys.len()],
        "seed {seed}: state survives in order"
    );
    (last(&storage), keys.len() as u64)
}

#[test]
fn a_crash_leaves_prefixes_and_repeats_with_its_seed() {
    let mut lasts = [0; 11];
    let (mut state_ahead, mut log_ahead) = (0, 0);
    for seed in 0..500 {
        let (last, keys) = crashed(seed);
        assert_eq!(crashed(seed), (last, keys), "seed {seed}");
        assert!((4..=10).contains(&last), "seed {seed} leaves {last}");
        lasts[usize::try_from(last).unwrap()] += 1;
        state_ahead += u64::from(last == 4 && keys == 3);
        log_ahead += u64::from(last == 10 && keys == 0);
    }
    assert!(
        lasts[4..].iter().all(|count| *count > 0),
        "also torn appends happen: {lasts:?}"
    );
    assert!(
        state_ahead > 0 && log_ahead > 0,
        "neither is ordered against the other"
    );
}

#[test]
fn what_a_reopened_disk_serves_is_durable() {
    let disk = queued();
    disk.open()
        .log()
        .append(1, entries(1..=3), Box::new(|_| ()));
    assert_eq!(
        last(&disk.open()),
        3,
        "a killed process's writes are with the operating system"
    );
    disk.power_off();
    assert_eq!(last(&disk.open()), 3);
}

#[test]
fn a_failed_sync_stops_the_engine() {
    for disk in [queued(), Disk::new()] {
        let storage = disk.open();
        let answers = Answers::default();
        storage
            .log()
            .append(1, entries(1..=1), answers.done("good"));
        disk.pump();
        disk.fail_syncs(1);
        storage
            .log()
            .append(1, entries(2..=2), answers.done("fails"));
        disk.pump();
        storage
            .log()
            .append(1, entries(3..=3), answers.done("too late"));
        disk.pump();
        let come = answers.take();
        assert_eq!(come[0], ("good", Ok(())));
        assert!(
            matches!(&come[1], ("fails", Err(StorageError::Io { .. }))),
            "{come:?}"
        );
        assert!(
            matches!(&come[2], ("too late", Err(StorageError::Stopped { .. }))),
            "{come:?}"
        );
        assert!(matches!(
            storage.state().write(Space::Node, Vec::new()),
            Err(StorageError::Stopped { .. })
        ));
        assert!(matches!(
            storage.state().sync(),
            Err(StorageError::Stopped { .. })
        ));
        assert_eq!(
            storage.log().read(1, 1, 2, 0).unwrap(),
            entries(1..=1),
            "reads go on"
        );
        disk.power_off();
        let storage = disk.open();
        assert_eq!(last(&storage), 1);
        storage
            .log()
            .append(1, entries(2..=2), answers.done("again"));
        disk.pump();
        assert_eq!(answers.take(), [("again", Ok(()))]);
    }
}

#[test]
fn a_full_disk_stops_the_engine_until_there_is_space() {
    let disk = Disk::new();
    let storage = disk.open();
    let answers = Answers::default();
    storage
        .log()
        .append(1, entries(1..=2), answers.done("fits"));
    disk.set_capacity(Some(disk.used_bytes() + 10));
    storage
        .log()
        .append(1, entries(3..=3), answers.done("too much"));
    storage
        .log()
        .put_record(1, "vote", Bytes::new(), answers.done("after it"));
    let come = answers.take();
    assert_eq!(come[0], ("fits", Ok(())));
    assert!(
        matches!(&come[1], ("too much", Err(StorageError::Full { .. }))),
        "{come:?}"
    );
    assert!(
        matches!(&come[2], ("after it", Err(StorageError::Stopped { .. }))),
        "{come:?}"
    );

    disk.set_capacity(None);
    let storage = disk.open();
    assert_eq!(last(&storage), 2, "nothing of a refused append is there");
    storage
        .log()
        .append(1, entries(3..=3), answers.done("fits now"));
    assert_eq!(answers.take(), [("fits now", Ok(()))]);
    let used = disk.used_bytes();
    storage.log().purge(1, 3, answers.done("purge"));
    assert!(disk.used_bytes() < used);
    let big = Write::Put(Bytes::from("key"), Bytes::from(vec![0; 1000]));
    disk.set_capacity(Some(1000));
    assert!(matches!(
        storage.state().write(Space::Table, vec![big]),
        Err(StorageError::Full { .. })
    ));
}

#[test]
fn a_slow_disk_syncs_on_the_simulators_clock() {
    let disk = Disk::new();
    let jobs: Arc<Mutex<Vec<(Duration, Job)>>> = Arc::default();
    let spawned = jobs.clone();
    disk.set_completion(Completion::Spawned(Arc::new(move |delay, job| {
        spawned.lock().push((delay, job))
    })));
    disk.set_sync_delay(Duration::from_millis(5));
    let next_job = || {
        let (delay, job) = jobs.lock().remove(0);
        job();
        delay
    };
    let storage = disk.open();
    let answers = Answers::default();
    storage
        .log()
        .append(1, entries(1..=1), answers.done("first"));
    storage
        .log()
        .append(1, entries(2..=2), answers.done("during"));
    storage
        .log()
        .append(2, entries(1..=1), answers.done("other group"));
    assert_eq!((answers.take(), jobs.lock().len()), (vec![], 1));
    disk.set_sync_delay(Duration::from_secs(1));
    assert_eq!(next_job(), Duration::from_millis(5));
    assert_eq!(
        answers.take(),
        [("first", Ok(()))],
        "the others came after this sync began"
    );
    assert_eq!(next_job(), Duration::from_secs(1));
    assert_eq!(
        answers.take(),
        [("during", Ok(())), ("other group", Ok(()))]
    );
    assert_eq!((jobs.lock().len(), storage.stats().log_syncs), (0, 2));

    storage
        .log()
        .append(1, entries(3..=3), answers.done("lost"));
    disk.power_off();
    let storage = disk.open();
    storage
        .log()
        .append(1, entries(3..=3), answers.done("new process"));
    next_job();
    assert_eq!(answers.take(), [], "a dead process's sync does nothing");
    next_job();
    assert_eq!(answers.take(), [("new process", Ok(()))]);
}

#[test]
fn a_done_may_call_the_log_again() {
    for disk in [queued(), Disk::new()] {
        let storage = disk.open();
        let (log, answers) = (storage.log(), Answers::default());
        let (again, second) = (storage.log(), answers.done("second"));
        log.append(
            1,
            entries(1..=1),
            Box::new(move |_| again.append(1, entries(2..=2), second)),
        );
        disk.pump();
        disk.pump();
        assert_eq!(answers.take(), [("second", Ok(()))]);
    }
}

#[test]
fn what_rots_is_found_noted_and_well_again_where_nobody_wrote() {
    let disk = Disk::new();
    let storage = disk.open();
    let answers = Answers::default();
    storage.log().append(1, entries(1..=4), answers.done("one"));
    let rotten = disk.rot(4, &mut |below| below - 1);
    assert_eq!(rotten.len(), 4);
    assert_eq!(storage.damage(), None);
    assert!(storage.log().read(1, 1, 2, usize::MAX).is_err());
    assert!(matches!(
        storage.damage(),
        Some(StorageError::Corrupt { .. })
    ));
    // A later process has not found it yet.
    let storage = disk.open();
    assert_eq!(storage.damage(), None);
    storage.log().truncate_after(1, 3, answers.done("cut"));
    storage
        .log()
        .append(1, entries(4..=4), answers.done("again"));
    disk.unrot(&rotten);
    assert_eq!(last(&storage), 4);
    assert_eq!(storage.damage(), None);
}
