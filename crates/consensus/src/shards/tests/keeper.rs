//! A keeper of a shard's state, as a node has one: a task with a channel, a state that is a list, checkpoints in a store.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use warren_model::ShardId;
use warren_storage::{Scan, Space, StateStore, StorageError, Write};

use crate::{Committed, Leadership, Replica};

/// What a keeper was told and what it holds, in the order of its channel.
#[derive(Default, Clone, Debug)]
pub(super) struct Seen {
    /// Payloads with their index and term, of the state's whole life.
    pub(super) entries: Vec<(u64, u64, Bytes)>,
    /// The index given last.
    pub(super) last: Option<u64>,
    /// The index that this process began with.
    pub(super) began_at: Option<u64>,
    pub(super) leadership: Vec<Leadership>,
    pub(super) checkpoints: u64,
    pub(super) installs: u64,
}

impl Seen {
    /// The term to propose in, if it leads.
    pub(super) fn leading(&self) -> Option<u64> {
        match self.leadership.last()? {
            Leadership::Leading { term } => Some(*term),
            Leadership::Following { .. } => None,
        }
    }
}

pub(super) struct Keeper {
    shard: ShardId,
    store: Arc<dyn StateStore>,
    calls: mpsc::UnboundedSender<Call>,
    pub(super) seen: Arc<Mutex<Seen>>,
}

type Done = oneshot::Sender<Result<(), StorageError>>;

enum Call {
    Apply(Vec<Committed>),
    Checkpoint(Bytes, Done),
    View(oneshot::Sender<Result<Scan, StorageError>>),
    Stage(Vec<(Bytes, Bytes)>, bool, Done),
    Install(Bytes, Done),
    Leadership(Leadership),
}

/// Keys: shard, then `p`: position, `e` index: entry, `s` key: staged.
fn key(shard: ShardId, kind: u8, rest: &[u8]) -> Bytes {
    [&shard.0.to_be_bytes()[..], &[kind], rest].concat().into()
}

fn stored((index, term, payload): &(u64, u64, Bytes)) -> (Bytes, Bytes) {
    let value = [&term.to_be_bytes()[..], payload].concat();
    (index.to_be_bytes().to_vec().into(), value.into())
}

fn restored((key, value): (Bytes, Bytes)) -> (u64, u64, Bytes) {
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    (number(&key), number(&value[..8]), value.slice(8..))
}

impl Keeper {
    pub(super) fn open(shard: ShardId, store: Arc<dyn StateStore>) -> Arc<Self> {
        let mut seen = Seen::default();
        let (from, until) = (key(shard, b'e', &[]), key(shard, b'f', &[]));
        for record in store
            .scan_range(Space::Message, &from, Some(&until))
            .unwrap()
        {
            let (key, value) = record.unwrap();
            seen.entries.push(restored((key.slice(3..), value)));
        }
        if let Some(stored) = store.get(Space::Message, &key(shard, b'l', &[])).unwrap() {
            seen.last = Some(u64::from_be_bytes(stored[..].try_into().unwrap()));
            seen.began_at = seen.last;
        }
        let (calls, mut received) = mpsc::unbounded_channel();
        let seen = Arc::new(Mutex::new(seen));
        let keeper = Arc::new(Self {
            shard,
            store: Arc::clone(&store),
            calls,
            seen: Arc::clone(&seen),
        });
        tokio::spawn(async move {
            while let Some(call) = received.recv().await {
                handle(shard, &*store, &seen, call);
            }
        });
        keeper
    }

    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(oneshot::Sender<Result<T, StorageError>>) -> Call,
    ) -> BoxFuture<'static, Result<T, StorageError>> {
        let (done, answer) = oneshot::channel();
        drop(self.calls.send(call(done)));
        async move { answer.await.unwrap_or(Err(StorageError::Closed)) }.boxed()
    }
}

fn handle(shard: ShardId, store: &dyn StateStore, seen: &Mutex<Seen>, call: Call) {
    let mut seen = seen.lock();
    match call {
        Call::Apply(entries) => {
            for entry in entries {
                let expected = seen.last.map_or(0, |last| last + 1);
                assert_eq!(entry.index, expected, "entries come in order, each once");
                seen.last = Some(entry.index);
                if !entry.payload.is_empty() {
                    seen.entries.push((entry.index, entry.term, entry.payload));
                }
            }
        }
        Call::Checkpoint(position, done) => {
            seen.checkpoints += 1;
            let range = Write::DeleteRange(key(shard, b'e', &[]), key(shard, b'f', &[]));
            let entries = seen.entries.iter().map(stored);
            let entries = entries.map(|(index, value)| Write::Put(key(shard, b'e', &index), value));
            let last = seen.last.unwrap().to_be_bytes().to_vec().into();
            let rest = [
                Write::Put(key(shard, b'l', &[]), last),
                Write::Put(key(shard, b'p', &[]), position),
            ];
            let batch = [range].into_iter().chain(entries).chain(rest).collect();
            let written = store.write(Space::Message, batch);
            drop(done.send(written.and_then(|()| store.sync())));
        }
        Call::View(view) => {
            let last = (
                Bytes::new(),
                seen.last.unwrap().to_be_bytes().to_vec().into(),
            );
            let records: Vec<_> = [last]
                .into_iter()
                .chain(seen.entries.iter().map(stored))
                .collect();
            drop(view.send(Ok(Box::new(records.into_iter().map(Ok)))));
        }
        Call::Stage(records, first, done) => {
            let mut batch = Vec::new();
            if first {
                batch.push(Write::DeleteRange(
                    key(shard, b's', &[]),
                    key(shard, b't', &[]),
                ));
            }
            let puts = records
                .into_iter()
                .map(|(k, value)| Write::Put(key(shard, b's', &k), value));
            batch.extend(puts);
            drop(done.send(store.write(Space::Message, batch)));
        }
        Call::Install(position, done) => {
            let staged: Vec<(Bytes, Bytes)> = store
                .scan_range(
                    Space::Message,
                    &key(shard, b's', &[]),
                    Some(&key(shard, b't', &[])),
                )
                .unwrap()
                .map(|record| record.map(|(key, value)| (key.slice(3..), value)))
                .collect::<Result<_, _>>()
                .unwrap();
            let (last, entries) = staged.split_first().unwrap();
            assert!(last.0.is_empty());
            let mut batch = vec![
                Write::DeleteRange(key(shard, b'e', &[]), key(shard, b'f', &[])),
                Write::DeleteRange(key(shard, b's', &[]), key(shard, b't', &[])),
                Write::Put(key(shard, b'l', &[]), last.1.clone()),
                Write::Put(key(shard, b'p', &[]), position),
            ];
            batch.extend(
                entries
                    .iter()
                    .map(|(index, value)| Write::Put(key(shard, b'e', index), value.clone())),
            );
            seen.installs += 1;
            seen.last = Some(u64::from_be_bytes(last.1[..].try_into().unwrap()));
            seen.entries = entries.iter().cloned().map(restored).collect();
            let written = store.write(Space::Message, batch);
            drop(done.send(written.and_then(|()| store.sync())));
        }
        Call::Leadership(leadership) => {
            assert_ne!(seen.leadership.last(), Some(&leadership), "told twice");
            if let (Some(before), Leadership::Leading { term }) = (seen.leading(), leadership) {
                panic!("it is to lead in term {term} and was not told that it lost {before}");
            }
            seen.leadership.push(leadership);
        }
    }
}

impl Replica for Keeper {
    fn position(&self) -> Result<Option<Bytes>, StorageError> {
        self.store.get(Space::Message, &key(self.shard, b'p', &[]))
    }

    fn apply(&self, entries: Vec<Committed>) {
        drop(self.calls.send(Call::Apply(entries)));
    }

    fn checkpoint(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        self.call(|done| Call::Checkpoint(position, done))
    }

    fn view(&self) -> BoxFuture<'static, Result<Scan, StorageError>> {
        self.call(Call::View)
    }

    fn stage(
        &self,
        records: Vec<(Bytes, Bytes)>,
        first: bool,
    ) -> BoxFuture<'static, Result<(), StorageError>> {
        self.call(|done| Call::Stage(records, first, done))
    }

    fn install(&self, position: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
        self.call(|done| Call::Install(position, done))
    }

    fn leadership(&self, leadership: Leadership) {
        drop(self.calls.send(Call::Leadership(leadership)));
    }
}
