//! The state machine: the routing table in memory, mirrored in the node's state store.
//!
//! An applied entry's changes, which proposals it settled, and its log id become visible in the store by one atomic write, and
//! those of several entries by a common one: the mirror may lag a little and need not be synced, because the synced log
//! replays what it lacks. A snapshot writes what is outstanding and syncs, and only what is behind a snapshot is purged from
//! the log. So a restart is: sync, read the state back, and let the group replay the rest.
//!
//! Keys in [`Space::Table`]:
//! ```text
//! 'a' ..     answers to proposals          (see dedup)
//! 'i'        version (1) archived [`LogIdRecord`]: the entry applied last
//! 'm'        version (1) archived [`MembershipRecord`]: the membership applied last
//! 'p' ..     proposers                     (see dedup)
//! 't' key    a record of the routing table, as `routing` encodes it
//! ```
//! Order for one entry: table and version, mirror, hooks, whoever waits for the entry, observers of the applied index.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{Stream, TryStreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine, Snapshot};
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use rkyv::rancor;
use warren_model::planted;
use warren_model::{Command, Incarnation, Level, NodeId, Outcome};
use warren_routing::{NodeRecord, Table};
use warren_storage::{Scan, Space, StateStore, StorageError, Write};

use crate::Hooks;
use crate::config::OpenError;
use crate::dedup::{Dedup, KeyChange, Verdict};
use crate::entry::{
    Applied, Batch, LogIdRecord, Malformed, MembershipRecord, Settled, VERSION, versioned,
};
use crate::raft::{EntryPayload, LogId, Payload, SnapshotMeta, StoredMembership, Types};
use crate::shared::SharedTable;

/// Outstanding changes that are worth a write.
const CHANGES_MAX: usize = 512;
const LOG_ID: u8 = b'i';
const MEMBERSHIP: u8 = b'm';
const TABLE: u8 = b't';

/// Told what was applied last, and whether this node is in service then, after the hooks; once for entries that are applied together.
pub(crate) type Observer = Arc<dyn Fn(LogId, bool) + Send + Sync>;

/// The state machine. Clones share one state.
#[derive(Clone)]
pub(crate) struct Machine {
    me: NodeId,
    /// The start of this node's process.
    started: Incarnation,
    /// The newest level that it can read.
    knows: Level,
    table: Arc<SharedTable>,
    state: Arc<dyn StateStore>,
    hooks: Arc<dyn Hooks>,
    observer: Observer,
    position: Arc<Mutex<Position>>,
}

/// What is applied, beside the table.
#[derive(Default)]
struct Position {
    applied: Option<LogId>,
    membership: StoredMembership,
    dedup: Dedup,
    /// Changes that the state store lacks, but for the log id.
    outstanding: Vec<Write>,
    /// What the state store says is applied.
    written: Option<LogId>,
}

/// Everything that the state store holds of this group.
struct Restored {
    table: Table,
    position: Position,
}

/// A snapshot's contents.
pub(crate) enum SnapshotData {
    /// A snapshot that was made durable in place: the state store is it.
    Durable,
    /// A view of the state store, to be sent.
    View(Scan),
    /// A view that is being taken, of a shard's state.
    Coming(BoxFuture<'static, Result<Scan, StorageError>>),
    /// Records that were received.
    Received(Vec<(Bytes, Bytes)>),
    /// Records that were received and given to a shard's replica.
    Staged,
}

impl std::fmt::Debug for SnapshotData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SnapshotData::Durable => "Durable",
            SnapshotData::View(_) => "View",
            SnapshotData::Coming(_) => "Coming",
            SnapshotData::Staged => "Staged",
            SnapshotData::Received(_) => "Received",
        })
    }
}

impl Machine {
    /// Reads the state back and returns the machine with its table.
    pub(crate) fn open(
        me: NodeId,
        started: Incarnation,
        knows: Level,
        state: Arc<dyn StateStore>,
        hooks: Arc<dyn Hooks>,
        observer: Observer,
    ) -> Result<Self, OpenError> {
        // What was written but not synced before a crash of the process alone may be visible and yet not durable.
        state.sync()?;
        let restored = restore(
            state
                .scan(Space::Table)?
                .map(|record| record.map_err(OpenError::from)),
        )?;
        Ok(Self {
            me,
            started,
            knows,
            table: Arc::new(SharedTable::new(restored.table)),
            state,
            hooks,
            observer,
            position: Arc::new(Mutex::new(restored.position)),
        })
    }

    pub(crate) fn table(&self) -> &Arc<SharedTable> {
        &self.table
    }

    /// Writes what is outstanding, so that less is to be replayed after the next start.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.position.lock().write(&*self.state)
    }

    /// The id of the entry applied last.
    pub(crate) fn applied(&self) -> Option<LogId> {
        self.position.lock().applied
    }

    /// Whether the cluster is founded and counts this start of the node as up: before, there are no users to log in, and its queues have no
    /// place. That an earlier start of it may still count as up is nothing to this one. An incarnation that was renewed is a later one.
    pub(crate) fn in_service(&self) -> bool {
        let table = self.table.read();
        let is_up = |known: &NodeRecord| known.up && known.incarnation >= self.started;
        table.cluster().is_some() && table.node(self.me).is_some_and(is_up)
    }

    fn observe(&self, id: LogId) {
        (self.observer)(id, self.in_service());
    }

    /// Applies one entry and answers its proposals.
    fn apply_entry(&self, id: LogId, payload: EntryPayload) -> Result<Applied, Malformed> {
        let mut changes = Vec::new();
        let mut answer = Applied::default();
        let mut events = Vec::new();
        let mut position = self.position.lock();
        match payload {
            EntryPayload::Blank => self.table.write(|table| table.set_index(id.index)),
            EntryPayload::Normal(payload) => {
                (answer, events) =
                    self.apply_batch(&mut position, id.index, &payload, &mut changes)?
            }
            EntryPayload::Membership(membership) => {
                self.table.write(|table| table.set_index(id.index));
                position.membership = StoredMembership::new(Some(id), membership);
                let record = MembershipRecord::stored(&position.membership);
                changes.push((vec![MEMBERSHIP], Some(archive_membership(&record)?)));
            }
        }
        position.applied = Some(id);
        position
            .outstanding
            .extend(changes.into_iter().map(into_write));
        if position.outstanding.len() >= CHANGES_MAX {
            position
                .write(&*self.state)
                .map_err(|e| Malformed::new("write of applied state", e))?;
        }
        drop(position);
        self.hooks.applied(id.index, &events);
        Ok(answer)
    }

    fn apply_batch(
        &self,
        position: &mut Position,
        index: u64,
        payload: &Payload,
        changes: &mut Vec<KeyChange>,
    ) -> Result<(Applied, Vec<warren_routing::Event>), Malformed> {
        let mut results = Vec::new();
        let mut fresh: Vec<(NodeId, u64, usize)> = Vec::new();
        let mut commands = Vec::new();
        for proposal in Batch::decode(payload, self.knows)?.proposals {
            match position.dedup.judge(
                proposal.node,
                proposal.incarnation,
                proposal.sequence,
                proposal.settled_below,
                changes,
            ) {
                Verdict::Fresh => {
                    fresh.push((proposal.node, proposal.sequence, results.len()));
                    commands.push(proposal.command);
                    // Replaced by its outcome below.
                    results.push(Settled::Late);
                }
                Verdict::Settled(settled) => results.push(settled),
            }
        }
        if planted!(BindingSkipped) && self.me.0.is_multiple_of(3) && index.is_multiple_of(7) {
            let skipped = Command::PutVhost { name: "/".into() };
            commands
                .iter_mut()
                .filter(|command| matches!(command, Command::Bind(_)))
                .for_each(|bind| *bind = skipped.clone());
        }
        let mut applied = warren_routing::Applied::default();
        let outcomes = self
            .table
            .write(|table| table.apply(index, &commands, &mut applied));
        if outcomes.len() != commands.len() {
            return Err(Malformed::new(
                "outcomes",
                format!(
                    "{} for {} commands at index {index}",
                    outcomes.len(),
                    commands.len()
                ),
            ));
        }
        let mut answers: std::collections::BTreeMap<NodeId, Vec<(u64, Outcome)>> =
            Default::default();
        for ((node, sequence, at), outcome) in fresh.into_iter().zip(outcomes) {
            results[at] = Settled::Done {
                index,
                outcome: outcome.clone(),
            };
            answers.entry(node).or_default().push((sequence, outcome));
        }
        for (node, answers) in answers {
            position.dedup.record(node, index, answers, changes)?;
        }
        changes.extend(
            applied
                .changes
                .into_iter()
                .map(|change| ([&[TABLE][..], &change.key].concat(), change.value)),
        );
        Ok((Applied { results }, applied.events))
    }
}

impl Position {
    /// Brings the state store up to date.
    fn write(&mut self, state: &dyn StateStore) -> io::Result<()> {
        let Some(id) = self.applied.filter(|_| self.applied != self.written) else {
            return Ok(());
        };
        let value = archive_log_id(id).map_err(Malformed::io)?;
        let mut writes = std::mem::take(&mut self.outstanding);
        writes.push(Write::Put(Bytes::from_static(&[LOG_ID]), value.into()));
        state
            .write(Space::Table, writes)
            .map_err(io::Error::other)?;
        self.written = Some(id);
        Ok(())
    }
}

fn into_write((key, value): KeyChange) -> Write {
    match value {
        Some(value) => Write::Put(key.into(), value.into()),
        None => Write::Delete(key.into()),
    }
}

fn archive_log_id(id: LogId) -> Result<Vec<u8>, Malformed> {
    rkyv::api::high::to_bytes_in::<_, rancor::Error>(&LogIdRecord::from(id), vec![VERSION])
        .map_err(|e| Malformed::new("log id", e))
}

fn archive_membership(record: &MembershipRecord) -> Result<Vec<u8>, Malformed> {
    rkyv::api::high::to_bytes_in::<_, rancor::Error>(record, vec![VERSION])
        .map_err(|e| Malformed::new("membership", e))
}

/// Builds table and position from stored records.
fn restore(
    records: impl Iterator<Item = Result<(Bytes, Bytes), OpenError>>,
) -> Result<Restored, OpenError> {
    let mut position = Position::default();
    let mut of_table = Vec::new();
    for record in records {
        let (key, value) = record?;
        match key.first() {
            Some(&LOG_ID) => {
                let archive = versioned(&value, "log id")?;
                let id = rkyv::from_bytes::<LogIdRecord, rancor::Error>(archive)
                    .map_err(|e| Malformed::new("log id", e))?;
                position.applied = Some(id.into());
            }
            Some(&MEMBERSHIP) => {
                let archive = versioned(&value, "membership")?;
                let record = rkyv::from_bytes::<MembershipRecord, rancor::Error>(archive)
                    .map_err(|e| Malformed::new("membership", e))?;
                position.membership = record.into_stored()?;
            }
            Some(&TABLE) => of_table.push((key[1..].to_vec(), value.to_vec())),
            Some(_) if Dedup::is_key(&key) => position.dedup.restore(&key, &value)?,
            Some(_) | None => {
                return Err(Malformed::new("applied state", format!("unknown key {key:?}")).into());
            }
        }
    }
    position.written = position.applied;
    let index = position.applied.map_or(0, |id| id.index);
    let table =
        Table::restore(of_table.into_iter(), index).map_err(|e| OpenError::Table(e.to_string()))?;
    Ok(Restored { table, position })
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let position = self.position.lock();
        Ok((position.applied, position.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut last = None;
        while let Some((entry, responder)) = entries.try_next().await? {
            let id = entry.log_id;
            let answer = self.apply_entry(id, entry.payload).map_err(Malformed::io)?;
            if let Some(responder) = responder {
                responder.send(answer);
            }
            last = Some(id);
        }
        if let Some(id) = last {
            self.observe(id);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let mut position = self.position.lock();
        let written = position.write(&*self.state);
        let meta = SnapshotMeta {
            last_log_id: position.applied,
            last_membership: position.membership.clone(),
        };
        SnapshotBuilder {
            state: Arc::clone(&self.state),
            written: Some(written),
            meta,
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let SnapshotData::Received(records) = snapshot else {
            return Ok(());
        };
        let restored = restore(records.iter().cloned().map(Ok)).map_err(io::Error::other)?;
        if restored.position.applied != meta.last_log_id {
            let why = format!(
                "it holds {:?}, not {:?}",
                restored.position.applied, meta.last_log_id
            );
            return Err(Malformed::new("snapshot", why).io());
        }
        let writes = std::iter::once(Write::DeleteAll).chain(
            records
                .into_iter()
                .map(|(key, value)| Write::Put(key, value)),
        );
        self.state
            .write(Space::Table, writes.collect())
            .map_err(io::Error::other)?;
        // The log up to here is purged next.
        self.state.sync().map_err(io::Error::other)?;
        *self.position.lock() = restored.position;
        self.table.write(|table| **table = restored.table);
        if let Some(id) = meta.last_log_id {
            self.hooks.replaced(id.index);
            self.observe(id);
        }
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<
        Option<
            Snapshot<
                openraft::type_config::alias::CommittedLeaderIdOf<Types>,
                NodeId,
                crate::raft::Member,
                SnapshotData,
            >,
        >,
        io::Error,
    > {
        let mut position = self.position.lock();
        if position.applied.is_none() {
            return Ok(None);
        }
        position.write(&*self.state)?;
        let view = self.state.scan(Space::Table).map_err(io::Error::other)?;
        let meta = SnapshotMeta {
            last_log_id: position.applied,
            last_membership: position.membership.clone(),
        };
        Ok(Some(Snapshot {
            meta,
            snapshot: SnapshotData::View(view),
        }))
    }
}

/// Makes what was applied when it was created durable.
pub(crate) struct SnapshotBuilder {
    state: Arc<dyn StateStore>,
    /// Whether the state store has everything up to `meta`.
    written: Option<io::Result<()>>,
    meta: SnapshotMeta,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(
        &mut self,
    ) -> Result<
        Snapshot<
            openraft::type_config::alias::CommittedLeaderIdOf<Types>,
            NodeId,
            crate::raft::Member,
            SnapshotData,
        >,
        io::Error,
    > {
        self.written.take().unwrap_or(Ok(()))?;
        self.state.sync().map_err(io::Error::other)?;
        Ok(Snapshot {
            meta: self.meta.clone(),
            snapshot: SnapshotData::Durable,
        })
    }
}
