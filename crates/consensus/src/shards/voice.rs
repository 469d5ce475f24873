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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt;

    use super::*;
    use crate::raft::{Member, Membership};

    /// Writes down what it is told.
    #[derive(Default)]
    struct Listener(Mutex<Vec<String>>);

    impl Listener {
        fn note(&self, what: String) -> BoxFuture<'static, Result<(), StorageError>> {
            self.0.lock().push(what);
            async { Ok(()) }.boxed()
        }

        fn heard(&self) -> Vec<String> {
            std::mem::take(&mut *self.0.lock())
        }
    }

    impl Replica for Listener {
        fn position(&self) -> Result<Option<Bytes>, StorageError> {
            Ok(None)
        }

        fn apply(&self, entries: Vec<Committed>) {
            drop(self.note(format!("{} entries", entries.len())));
        }

        fn checkpoint(&self, _: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
            self.note("checkpoint".into())
        }

        fn view(&self) -> BoxFuture<'static, Result<Scan, StorageError>> {
            async { Err(StorageError::Closed) }.boxed()
        }

        fn stage(
            &self,
            _: Vec<(Bytes, Bytes)>,
            _: bool,
        ) -> BoxFuture<'static, Result<(), StorageError>> {
            self.note("stage".into())
        }

        fn install(&self, _: Bytes) -> BoxFuture<'static, Result<(), StorageError>> {
            self.note("install".into())
        }

        fn leadership(&self, leadership: Leadership) {
            drop(self.note(match leadership {
                Leadership::Leading { term } => format!("lead {term}"),
                Leadership::Following { term, leader } => {
                    format!("follow {:?} in {term}", leader.map(|node| node.0))
                }
            }));
        }
    }

    fn leader(term: u64, node: u64) -> LeaderId {
        LeaderId {
            term,
            node_id: NodeId(node),
        }
    }

    fn voice() -> (Arc<Listener>, Voice) {
        let listener = Arc::new(Listener::default());
        let voice = Voice::new(NodeId(1), listener.clone(), Position::default());
        (listener, voice)
    }

    #[test]
    fn a_replica_leads_behind_its_first_entry_whichever_is_known_first() {
        let own = LogId::new(leader(2, 1), 5);
        let (listener, voice) = voice();
        voice.heard(Some(2), 2, Some(NodeId(1)));
        assert_eq!(
            (voice.leading(), listener.heard()),
            (None, vec!["follow None in 2".into()])
        );
        voice.apply(Vec::new(), own, None);
        assert_eq!(voice.leading(), Some(2));
        assert_eq!(listener.heard(), ["0 entries", "lead 2"]);

        let (listener, voice) = self::voice();
        voice.apply(Vec::new(), own, None);
        assert_eq!(
            voice.leading(),
            None,
            "an entry of an earlier life proves nothing"
        );
        voice.heard(Some(2), 2, Some(NodeId(1)));
        assert_eq!(
            listener.heard(),
            ["0 entries", "follow None in 0", "lead 2"]
        );
        voice.heard(Some(2), 2, Some(NodeId(1)));
        assert_eq!(listener.heard(), [""; 0], "it is told once");
        // Lost and won again between two looks.
        voice.heard(Some(4), 4, Some(NodeId(1)));
        assert_eq!(
            (voice.leading(), listener.heard()),
            (None, vec!["follow None in 4".into()])
        );
        voice.apply(Vec::new(), LogId::new(leader(4, 1), 9), None);
        voice.heard(None, 5, Some(NodeId(3)));
        assert_eq!(
            listener.heard(),
            ["0 entries", "lead 4", "follow Some(3) in 5"]
        );
    }

    #[test]
    fn a_fenced_term_takes_nothing_in_and_never_leads_again() {
        let (listener, voice) = voice();
        voice.heard(Some(2), 2, Some(NodeId(1)));
        voice.apply(Vec::new(), LogId::new(leader(2, 1), 0), None);
        assert!(voice.lets_in(leader(2, 1)));
        listener.heard();
        voice.fence(2);
        assert_eq!(
            (voice.leading(), listener.heard()),
            (None, vec!["follow None in 2".into()])
        );
        assert!(!voice.lets_in(leader(2, 1)) && !voice.lets_in(leader(1, 1)));
        assert!(voice.lets_in(leader(3, 1)), "a newer term");
        assert!(voice.lets_in(leader(2, 2)), "what another leader sends");
        voice.heard(Some(2), 2, Some(NodeId(1)));
        voice.apply(Vec::new(), LogId::new(leader(2, 1), 1), None);
        assert_eq!(
            (voice.leading(), listener.heard()),
            (None, vec!["0 entries".into()])
        );
        // What was led in is fenced when it is lost.
        voice.heard(Some(3), 3, Some(NodeId(1)));
        voice.apply(Vec::new(), LogId::new(leader(3, 1), 2), None);
        assert_eq!(voice.leading(), Some(3));
        voice.heard(None, 4, None);
        assert!(!voice.lets_in(leader(3, 1)));
    }

    #[test]
    fn positions_read_back_and_cuts_are_refused() {
        let members: BTreeMap<_, _> = [(NodeId(1), Member::default())].into();
        let membership = Membership::new(vec![[NodeId(1)].into()], members).unwrap();
        let at = LogId::new(leader(2, 1), 7);
        let position = Position {
            applied: Some(LogId::new(leader(3, 2), 9)),
            membership: StoredMembership::new(Some(at), membership),
        };
        let bytes = position.encode().unwrap();
        let back = Position::decode(&bytes).unwrap();
        assert_eq!(back.applied, position.applied);
        assert_eq!(back.membership, position.membership);
        for cut in 0..bytes.len() {
            assert!(Position::decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }
    }
}
