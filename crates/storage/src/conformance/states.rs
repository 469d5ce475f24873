//! The suite's tests of the applied state.

use bytes::Bytes;

use super::{Harness, reopen};
use crate::{Space, StateStore, Write};

fn key(key: &str) -> Bytes {
    Bytes::copy_from_slice(key.as_bytes())
}

fn put(at: &str, value: &str) -> Write {
    Write::Put(key(at), key(value))
}

fn scan(state: &dyn StateStore, space: Space) -> Vec<(String, String)> {
    collect(state.scan(space).unwrap())
}

fn collect(scan: crate::Scan) -> Vec<(String, String)> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    scan.map(|item| item.unwrap())
        .map(|(key, value)| (text(key), text(value)))
        .collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Keys come in order, and the spaces know nothing of each other.
pub fn state_is_sorted_and_apart(harness: &dyn Harness) {
    let storage = harness.open();
    let state = storage.state();
    for space in Space::ALL {
        assert_eq!(scan(&*state, space), []);
    }
    state
        .write(
            Space::Node,
            vec![
                put("b", "2"),
                put("", "empty"),
                put("a", "1"),
                put("ab", ""),
            ],
        )
        .unwrap();
    let both = vec![
        (Space::Queue, vec![put("q", "1")]),
        (Space::Message, vec![put("q", "2")]),
    ];
    state.write_spaces(both).unwrap();
    assert_eq!(
        scan(&*state, Space::Node),
        pairs(&[("", "empty"), ("a", "1"), ("ab", ""), ("b", "2")])
    );
    assert_eq!(scan(&*state, Space::Table), []);
    assert_eq!(scan(&*state, Space::Queue), pairs(&[("q", "1")]));
    assert_eq!(state.get(Space::Message, b"q").unwrap(), Some(key("2")));
    assert_eq!(state.get(Space::Node, b"ab").unwrap(), Some(Bytes::new()));
    assert_eq!(state.get(Space::Node, b"abc").unwrap(), None);
    assert_eq!(state.get(Space::Table, b"a").unwrap(), None);

    let range = |from: &str, until: Option<&str>| {
        collect(
            state
                .scan_range(Space::Node, from.as_bytes(), until.map(str::as_bytes))
                .unwrap(),
        )
    };
    assert_eq!(range("a", Some("b")), pairs(&[("a", "1"), ("ab", "")]));
    assert_eq!(range("aa", None), pairs(&[("ab", ""), ("b", "2")]));
    assert_eq!(range("b", Some("a")), []);
    assert_eq!(range("b", Some("b")), []);
}

/// Writes of a batch take effect in order, deletions included.
pub fn state_writes_are_in_order(harness: &dyn Harness) {
    let storage = harness.open();
    let state = storage.state();
    state
        .write(Space::Node, vec![put("a", "other space")])
        .unwrap();
    let letters = ["a", "b", "c", "d", "e"].map(|letter| put(letter, "old"));
    state.write(Space::Table, letters.to_vec()).unwrap();
    let batch = vec![
        Write::DeleteRange(key("b"), key("d")),
        put("c", "new"),
        Write::DeleteRange(key("e"), key("a")),
        Write::Delete(key("d")),
        Write::Delete(key("never there")),
        put("a", "1"),
        put("a", "2"),
    ];
    state.write(Space::Table, batch).unwrap();
    assert_eq!(
        scan(&*state, Space::Table),
        pairs(&[("a", "2"), ("c", "new"), ("e", "old")])
    );
    state
        .write(
            Space::Table,
            vec![put("x", "gone"), Write::DeleteAll, put("y", "1")],
        )
        .unwrap();
    assert_eq!(scan(&*state, Space::Table), pairs(&[("y", "1")]));
    state.write(Space::Table, vec![Write::DeleteAll]).unwrap();
    assert_eq!(scan(&*state, Space::Table), []);
    assert_eq!(scan(&*state, Space::Node), pairs(&[("a", "other space")]));
}

/// A scan shows the keys as they were when it began, however late it is read.
pub fn scans_look_at_a_fixed_view(harness: &dyn Harness) {
    let storage = harness.open();
    let state = storage.state();
    let put_all = |edition: &str| {
        let writes = (0..1000).map(|number| put(&format!("{number:04}"), edition));
        state.write(Space::Table, writes.collect()).unwrap();
    };
    put_all("old");
    let mut begun = state.scan(Space::Table).unwrap();
    let unread = state.scan(Space::Table).unwrap();
    assert_eq!(begun.next().unwrap().unwrap(), (key("0000"), key("old")));
    put_all("new");
    state
        .write(
            Space::Table,
            vec![Write::DeleteRange(key("05"), key("06")), put("zzz", "new")],
        )
        .unwrap();
    let rest = collect(begun);
    assert_eq!(rest.len(), 999);
    assert!(rest.iter().all(|(_, value)| value == "old"));
    assert_eq!(collect(unread).len(), 1000);
    assert_eq!(scan(&*state, Space::Table).len(), 901);
    // It may be read on another thread.
    let elsewhere = state.scan(Space::Table).unwrap();
    assert_eq!(
        std::thread::spawn(move || collect(elsewhere).len())
            .join()
            .unwrap(),
        901
    );
}

/// What was written before a sync is there after a kill or a power loss, and after it whole writes in order.
pub fn synced_state_survives(harness: &dyn Harness) {
    let mut storage = harness.open();
    for round in 0..4 {
        let state = storage.state();
        let writes = [
            put("round", &round.to_string()),
            put(&format!("key {round}"), "there"),
        ];
        state.write(Space::Table, writes.to_vec()).unwrap();
        state.sync().unwrap();
        for late in 0..5 {
            let writes = [
                put("late 1", &late.to_string()),
                put("late 2", &late.to_string()),
            ];
            state.write(Space::Node, writes.to_vec()).unwrap();
        }
        drop(state);
        storage = if round == 3 {
            reopen(harness, storage)
        } else {
            harness.interrupt(storage)
        };
        let state = storage.state();
        assert_eq!(
            state.get(Space::Table, b"round").unwrap(),
            Some(key(&round.to_string()))
        );
        assert_eq!(scan(&*state, Space::Table).len(), round + 2);
        assert_eq!(
            state.get(Space::Node, b"late 1").unwrap(),
            state.get(Space::Node, b"late 2").unwrap(),
            "all or none"
        );
    }
    assert_eq!(
        storage.state().get(Space::Node, b"late 1").unwrap(),
        Some(key("4")),
        "closing syncs"
    );
}
