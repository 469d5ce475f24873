//! What a replica is told, in one order: entries, leadership, checkpoints, views.
//!
//! Two parties know parts of it: the machine knows which entries are applied, the group's task knows what openraft says of
//! leadership. Whoever learns something says it under one lock, so that the replica hears "you lead" only behind the own first
//! entry of the term, and "you lead no more" behind all that was applied before.
//!
//! A term can be **fenced**: this node proposes no more in it, though openraft may still lead. From that instant the log stores
//! this leader's entries without their payloads (openraft has taken some that were already on their way), so what was proposed
//! in a term and is applied is always a beginning of what was proposed, without gaps. A fenced term never leads again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use tokio::sync::Notify;
use warren_model::NodeId;
use warren_storage::{Scan, StorageError};

use super::replica::{Committed, Leadership, Replica};
use crate::entry::{LogIdRecord, Malformed, MembershipRecord, VERSION, versioned};
use crate::log::Gate;
use crate::raft::{LeaderId, LogId, SnapshotMeta, StoredMembership};

/// Speaks to one replica.
pub(crate) struct Voice {
    me: NodeId,
    replica: Arc<dyn Replica>,
    /// The term in which the replica was told to lead; 0 for none. Terms begin at 1.
    leading: AtomicU64,
    /// This node proposes no more in this term and all before it.
    fenced: AtomicU64,
    /// Woken when a term was fenced in which openraft may still lead.
    pub(super) deposed: Notify,
    known: Mutex<Known>,
}

/// What is known of entries and leadership.
struct Known {
    position: Position,
    /// The last position that is known to be durable.
    checkpointed: Option<u64>,
    /// The newest term of which an entry of this node as leader was applied.
    own_term: u64,
    /// The term in which openraft says that this node leads.
    elected: Option<u64>,
    /// The newest term, and who leads in it.
    term: u64,
    leader: Option<NodeId>,
    said: Option<Leadership>,
}

/// Which entry was applied last, and the membership that was.
#[derive(Clone, Default)]
pub(crate) struct Position {
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

/// A position, archived.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
struct PositionRecord {
    applied: Option<LogIdRecord>,
    membership: MembershipRecord,
}

impl Position {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let archive = versioned(bytes, "position")?;
        let record = rkyv::from_bytes::<PositionRecord, rancor::Error>(archive)
            .map_err(|e| Malformed::new("position", e))?;
        Ok(Self {
            applied: record.applied.map(Into::into),
            membership: record.membership.into_stored()?,
        })
    }

    fn encode(&self) -> Result<Bytes, Malformed> {
        let record = PositionRecord {
            applied: self.applied.map(Into::into),
            membership: MembershipRecord::stored(&self.membership),
        };
        let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(&record, vec![VERSION])
            .map_err(|e| Malformed::new("position", e))?;
        Ok(bytes.into())
    }

    pub(crate) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
        }
    }

    pub(crate) fn of_meta(meta: &SnapshotMeta) -> Self {
        Self {
            applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
        }
    }
}

impl Gate for Voice {
    fn lets_in(&self, leader: LeaderId) -> bool {
        leader.node_id != self.me || leader.term > self.fenced.load(Ordering::Acquire)
    }
}

impl Voice {
    pub(crate) fn new(me: NodeId, replica: Arc<dyn Replica>, position: Position) -> Self {
        Self {
            me,
            replica,
            leading: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            deposed: Notify::new(),
            known: Mutex::new(Known {
                checkpointed: position.applied.map(|id| id.index),
                position,
                own_term: 0,
                elected: None,
                term: 0,
                leader: None,
                said: None,
            }),
        }
    }

    /// The term in which the replica was told to lead.
    pub(crate) fn leading(&self) -> Option<u64> {
        Some(self.leading.load(Ordering::Acquire)).filter(|term| *term > 0)
    }

    /// Whether the term is fenced.
    pub(crate) fn is_fenced(&self, term: u64) -> bool {
        term <= self.fenced.load(Ordering::Acquire)
    }

    pub(crate) fn position(&self) -> Position {
        self.known.lock().position.clone()
    }

    /// The index that was applied last, and the last one that a durable checkpoint covers.
    pub(crate) fn progress(&self) -> (Option<u64>, Option<u64>) {
        let known = self.known.lock();
        (
            known.position.applied.map(|id| id.index),
            known.checkpointed,
        )
    }

    /// Gives committed entries to the replica. `last` is the id of the last one; `membership` the newest among them.
    pub(crate) fn apply(
        &self,
        entries: Vec<Committed>,
        last: LogId,
        membership: Option<StoredMembership>,
    ) {
        let mut known = self.known.lock();
        self.replica.apply(entries);
        known.position.applied = Some(last);
        if let Some(membership) = membership {
            known.position.membership = membership;
        }
        let leader = last.committed_leader_id();
        if leader.node_id == self.me && leader.term > known.own_term {
            known.own_term = leader.term;
            self.say(&mut known);
        }
    }

    /// What openraft says of leadership: the term in which this node leads, if it does; the newest term, and who leads in it.
    pub(crate) fn heard(&self, elected: Option<u64>, term: u64, leader: Option<NodeId>) {
        let mut known = self.known.lock();
        (known.elected, known.term, known.leader) = (elected, term, leader);
        self.say(&mut known);
    }

    /// Proposes no more in this term.
    pub(crate) fn fence(&self, term: u64) {
        let mut known = self.known.lock();
        self.fenced.fetch_max(term, Ordering::AcqRel);
        self.say(&mut known);
        drop(known);
        self.deposed.notify_one();
    }

    /// Tells the replica about leadership if it has changed.
    fn say(&self, known: &mut Known) {
        let leads = known
            .elected
            .filter(|term| known.own_term == *term && !self.is_fenced(*term));
        let now = match leads {
            Some(term) => Leadership::Leading { term },
            None => Leadership::Following {
                term: known.term,
                leader: known.leader.filter(|leader| *leader != self.me),
            },
        };
        if known.said == Some(now) {
            return;
        }
        if let Some(Leadership::Leading { term: before }) = known.said {
            self.leading.store(0, Ordering::Release);
            // What is still on its way to openraft must not be stored behind what was lost.
            self.fenced.fetch_max(before, Ordering::AcqRel);
            if let Leadership::Leading { term } = now {
                self.replica
                    .leadership(Leadership::Following { term, leader: None });
            }
        }
        if let Leadership::Leading { term } = now {
            self.leading.store(term, Ordering::Release);
        }
        known.said = Some(now);
        self.replica.leadership(now);
    }

    /// Begins a checkpoint of what was applied so far.
    pub(crate) fn checkpoint(
        &self,
    ) -> Result<(SnapshotMeta, BoxFuture<'static, Result<(), StorageError>>), Malformed> {
        let known = self.known.lock();
        let position = known.position.encode()?;
        Ok((known.position.meta(), self.replica.checkpoint(position)))
    }

    /// A checkpoint that covers this entry is durable.
    pub(crate) fn checkpointed(&self, last: Option<LogId>) {
        let mut known = self.known.lock();
        known.checkpointed = known.checkpointed.max(last.map(|id| id.index));
    }

    /// Begins a view of what was applied so far.
    pub(crate) fn view(&self) -> (SnapshotMeta, BoxFuture<'static, Result<Scan, StorageError>>) {
        let known = self.known.lock();
        (known.position.meta(), self.replica.view())
    }

    /// Hands over records of another node's view.
    pub(crate) fn stage(
        &self,
        records: Vec<(Bytes, Bytes)>,
        first: bool,
    ) -> BoxFuture<'static, Result<(), StorageError>> {
        let _in_order = self.known.lock();
        self.replica.stage(records, first)
    }

    /// Begins to replace the state by what was staged.
    pub(crate) fn install(
        &self,
        meta: &SnapshotMeta,
    ) -> Result<BoxFuture<'static, Result<(), StorageError>>, Malformed> {
        let mut known = self.known.lock();
        let position = Position::of_meta(meta);
        let bytes = position.encode()?;
        known.position = position;
        Ok(self.replica.install(bytes))
    }
}
