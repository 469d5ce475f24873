//! A shard's state machine as openraft sees it: everything is handed on to the replica.
//!
//! The replica's state is durable as of its last checkpoint, and that is openraft's snapshot: it is in place, and what is sent to
//! another node is a view of the newest state. A restart begins at the checkpoint; the log replays what follows.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine, Snapshot};
use openraft::type_config::alias::CommittedLeaderIdOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use warren_model::NodeId;
use warren_storage::StorageError;

use super::replica::Committed;
use super::voice::Voice;
use crate::entry::{Applied, Malformed};
use crate::machine::SnapshotData;
use crate::raft::{EntryPayload, LogId, Member, SnapshotMeta, StoredMembership, Types};

/// Entries are handed over when they take so many bytes, or when there are no more: a replay gathers no log in memory here.
const GIVE_BYTES: usize = 4 << 20;

type TypedSnapshot = Snapshot<CommittedLeaderIdOf<Types>, NodeId, Member, SnapshotData>;

/// The state machine of one shard.
#[derive(Clone)]
pub(crate) struct ShardMachine {
    voice: Arc<Voice>,
    /// Nothing is sent while openraft is built: a snapshot is only asked for by its position then.
    running: Arc<AtomicBool>,
}

impl ShardMachine {
    pub(crate) fn new(voice: Arc<Voice>) -> Self {
        Self {
            voice,
            running: Arc::default(),
        }
    }

    /// To be set when openraft is built.
    pub(crate) fn running(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.running)
    }
}

/// Entries that were not handed over yet.
#[derive(Default)]
struct Gathered {
    entries: Vec<Committed>,
    bytes: usize,
    last: Option<LogId>,
    membership: Option<StoredMembership>,
}

impl Gathered {
    fn take(&mut self, id: LogId, payload: EntryPayload) {
        let payload = match payload {
            EntryPayload::Normal(payload) => payload.into_bytes(),
            EntryPayload::Blank => bytes::Bytes::new(),
            EntryPayload::Membership(membership) => {
                self.membership = Some(StoredMembership::new(Some(id), membership));
                bytes::Bytes::new()
            }
        };
        self.bytes += payload.len();
        self.last = Some(id);
        self.entries.push(Committed {
            index: id.index,
            term: id.committed_leader_id().term,
            payload,
        });
    }

    fn give(&mut self, voice: &Voice) {
        let gathered = std::mem::take(self);
        if let Some(last) = gathered.last {
            voice.apply(gathered.entries, last, gathered.membership);
        }
    }
}

impl RaftStateMachine<Types> for ShardMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = CheckpointBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let position = self.voice.position();
        Ok((position.applied, position.membership))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut gathered = Gathered::default();
        while let Some((entry, responder)) = entries.try_next().await? {
            gathered.take(entry.log_id, entry.payload);
            if gathered.bytes >= GIVE_BYTES {
                gathered.give(&self.voice);
            }
            if let Some(responder) = responder {
                responder.send(Applied::default());
            }
        }
        gathered.give(&self.voice);
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> CheckpointBuilder {
        CheckpointBuilder {
            voice: Arc::clone(&self.voice),
            begun: Some(Mutex::new(self.voice.checkpoint())),
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        match snapshot {
            SnapshotData::Staged => {}
            // What is durable in place is installed.
            SnapshotData::Durable => return Ok(()),
            SnapshotData::View(_) | SnapshotData::Coming(_) | SnapshotData::Received(_) => {
                return Err(Malformed::new("snapshot", "it was not staged").io());
            }
        }
        let installed = self.voice.install(meta).map_err(Malformed::io)?;
        installed.await.map_err(io::Error::other)?;
        self.voice.checkpointed(meta.last_log_id);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<TypedSnapshot>, io::Error> {
        let position = self.voice.position();
        if position.applied.is_none() {
            return Ok(None);
        }
        if !self.running.load(Ordering::Acquire) {
            return Ok(Some(Snapshot {
                meta: position.meta(),
                snapshot: SnapshotData::Durable,
            }));
        }
        let (meta, view) = self.voice.view();
        Ok(Some(Snapshot {
            meta,
            snapshot: SnapshotData::Coming(view),
        }))
    }
}

type Begun = Result<(SnapshotMeta, BoxFuture<'static, Result<(), StorageError>>), Malformed>;

/// Waits for a checkpoint that has begun.
pub(crate) struct CheckpointBuilder {
    voice: Arc<Voice>,
    /// In a lock only because openraft wants to share what it never does.
    begun: Option<Mutex<Begun>>,
}

impl RaftSnapshotBuilder<Types> for CheckpointBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<TypedSnapshot, io::Error> {
        let Some(begun) = self.begun.take() else {
            return Err(Malformed::new("checkpoint", "it was taken twice").io());
        };
        let (meta, durable) = begun.into_inner().map_err(Malformed::io)?;
        durable.await.map_err(io::Error::other)?;
        self.voice.checkpointed(meta.last_log_id);
        Ok(Snapshot {
            meta,
            snapshot: SnapshotData::Durable,
        })
    }
}
