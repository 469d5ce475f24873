//! A shard as one of its replicas has it: the replicated state, and what only the leader keeps beside it.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tokio::sync::oneshot;
use tokio::time::Instant;
use warren_consensus::{Committed, Leadership};
use warren_model::planted;
use warren_model::{Incarnation, NodeId, QueueId, SessionId};
use warren_queue::entry::Builder;
use warren_queue::index::IN_USE;
use warren_queue::shard::Shard;
use warren_storage::{Scan, StorageError};

use crate::wire::Answer;

/// Entries under way at once: a few, so that the disk and the followers never wait, and what comes meanwhile makes the next one larger.
pub(crate) const ENTRIES_MAX: usize = 4;
/// Bytes of entries whose payloads are kept for queues that are a little behind.
const RECENT_BYTES: usize = 4 << 20;

/// Nodes that have not said what their consumers hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missing {
    /// The one that led before.
    Earlier(NodeId),
    /// Those that are not linked.
    Unlinked,
    All,
}

/// What a lane is told of one shard.
pub(crate) enum ShardMessage {
    /// The group runs here: this is the state that was kept.
    Opened(Box<Hosted>),
    Apply(Vec<Committed>),
    Leadership(Leadership),
    /// All sessions of a node have attached their consumers.
    Reattached {
        node: NodeId,
        term: u64,
    },
    /// These are not waited for any longer to say so.
    GatherOver {
        term: u64,
        of: Missing,
    },
    /// What need not be proposed at once has waited long enough.
    Lazy {
        term: u64,
    },
    /// Keep the state.
    Checkpoint(Bytes, oneshot::Sender<Result<(), StorageError>>),
    /// A view of the state, for another node.
    View(oneshot::Sender<Result<Scan, StorageError>>),
    /// Records of another node's view.
    Stage {
        records: Vec<(Bytes, Bytes)>,
        first: bool,
        done: oneshot::Sender<Result<(), StorageError>>,
    },
    /// What was staged replaces the state.
    Install(Bytes, oneshot::Sender<Result<(), StorageError>>),
    /// This node is no replica any more.
    Closed,
    /// Leadership is about to be handed over: says exactly what was delivered, and answers when that is proposed.
    HandingOver(oneshot::Sender<()>),
    /// It was not handed over.
    KeepsLeading {
        term: u64,
    },
    /// See whether a majority has confirmed the leader of late.
    Confirm {
        term: u64,
    },
}

/// A replica of a shard.
#[derive(Debug, Default)]
pub(crate) struct Hosted {
    pub(crate) state: Shard,
    pub(crate) leading: Option<Leading>,
    pub(crate) recent: Recent,
    /// Bytes of entries applied since the state was last kept.
    pub(crate) unkept_bytes: u64,
    /// Sizes of the entries that are in the log since this node was started, oldest first.
    pub(crate) log: VecDeque<(u64, u32)>,
    pub(crate) log_bytes: u64,
    /// Which of the places in the store holds the state: a view that is installed takes the next one.
    pub(crate) generation: u32,
    /// Queues with messages in the store, and up to where those are deleted there.
    pub(crate) stored: BTreeMap<QueueId, u64>,
    /// Views that are being sent: while there is one, nothing that it may refer to goes.
    pub(crate) views: Vec<std::sync::Weak<()>>,
    /// Parts of another node's view lie in the next place in the store.
    pub(crate) staged: bool,
    /// An entry could not be applied.
    pub(crate) damaged: bool,
}

impl Hosted {
    /// An entry of the log was applied.
    pub(crate) fn applied_entry(&mut self, index: u64, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.unkept_bytes += u64::from(bytes);
        self.log_bytes += u64::from(bytes);
        self.log.push_back((index, bytes));
    }

    /// Whether a view is being sent.
    pub(crate) fn is_viewed(&mut self) -> bool {
        self.views.retain(|view| view.strong_count() > 0);
        !self.views.is_empty()
    }
}

/// What is due when everything that was proposed before it is applied.
#[derive(Debug)]
pub(crate) enum Due {
    /// A session gets this answer.
    Answer(SessionId, u64, Answer),
    /// Whoever hands the shard's leadership over goes on.
    HandingOver(oneshot::Sender<()>),
    /// A queue that takes no more publishes may be deleted, if it is unused and empty by now where that is asked for.
    Sealed {
        queue: QueueId,
        session: SessionId,
        id: u64,
        if_unused: bool,
        if_empty: bool,
    },
}

/// What the leader keeps.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) term: u64,
    /// What the next entry will say.
    pub(crate) pending: Builder,
    /// It must not wait.
    pub(crate) urgent: bool,
    /// A wake-up for what may wait a little is under way.
    pub(crate) lazy: bool,
    /// The last batch of each session that was proposed in this term.
    pub(crate) proposed: BTreeMap<SessionId, u64>,
    /// The last incarnation of each node that has ended. What its sessions still send, since nobody has told them yet, must not be taken: the log has nothing of them
    /// any more to count it by, and passes it over.
    pub(crate) ended: BTreeMap<NodeId, Incarnation>,
    /// Items that were refused, of batches that are under way.
    pub(crate) refused: BTreeMap<(SessionId, u64), Vec<u32>>,
    /// Entries under way: since when each is, and what is due when it is applied.
    pub(crate) under_way: VecDeque<(Instant, Vec<Due>)>,
    /// What is due when the entry that is being gathered is.
    pub(crate) due: Vec<Due>,
    /// Nodes whose sessions have not yet attached their consumers; nothing is delivered while there is one.
    pub(crate) gathering: BTreeSet<NodeId>,
    /// Positions that each queue had when the term began: what is before may have been delivered by an earlier leader.
    pub(crate) inherited: BTreeMap<QueueId, u64>,
    /// Queues that have been in use, of which it is not known yet whether they have consumers now.
    pub(crate) doubtful: BTreeSet<QueueId>,
    /// A majority has confirmed this leader of late.
    pub(crate) confirmed: bool,
    /// Leadership is being handed over.
    pub(crate) handing_over: bool,
}

impl Leading {
    pub(crate) fn new(term: u64, gathering: BTreeSet<NodeId>, state: &Shard) -> Self {
        let inherited = state
            .queues()
            .map(|(id, index)| (id, index.touched().min(index.next())))
            .filter(|(_, position)| *position > 0 && !planted!(TouchedIgnored))
            .collect();
        let used = state
            .queues()
            .filter(|(_, index)| index.touched() == IN_USE);
        Self {
            term,
            pending: Builder::default(),
            urgent: false,
            lazy: false,
            proposed: BTreeMap::new(),
            ended: BTreeMap::new(),
            refused: BTreeMap::new(),
            under_way: VecDeque::new(),
            due: Vec::new(),
            gathering,
            inherited,
            doubtful: used.map(|(id, _)| id).collect(),
            confirmed: false,
            handing_over: false,
        }
    }

    /// An incarnation of a node has ended, and all before it.
    pub(crate) fn note_ended(&mut self, node: NodeId, incarnation: Incarnation) {
        let last = self.ended.entry(node).or_default();
        *last = (*last).max(incarnation);
    }

    /// Whether a session's node has gone on without it.
    pub(crate) fn is_over(&self, session: SessionId) -> bool {
        let last = self.ended.get(&session.node);
        last.is_some_and(|last| session.incarnation <= *last)
    }

    /// Something is due when all that was taken so far is applied. Given back if that is so now.
    pub(crate) fn due_when_applied(&mut self, due: Due) -> Option<Due> {
        if !self.pending.is_empty() {
            self.urgent = true;
            self.due.push(due);
            return None;
        }
        match self.under_way.back_mut() {
            Some((_, last)) => {
                last.push(due);
                None
            }
            None => Some(due),
        }
    }

    /// Whether its queues' messages may be delivered.
    pub(crate) fn delivers(&self) -> bool {
        self.gathering.is_empty()
            && (self.confirmed || planted!(StaleLeaderDelivers))
            && !self.handing_over
    }
}

/// Payloads of the newest entries.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    entries: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Recent {
    pub(crate) fn push(&mut self, index: u64, payload: &Bytes) {
        self.bytes += payload.len();
        self.entries.push_back((index, payload.clone()));
        while self.bytes > RECENT_BYTES
            && let Some((_, oldest)) = self.entries.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Bytes> {
        let at = self.entries.partition_point(|(i, _)| *i < index);
        self.entries
            .get(at)
            .filter(|(i, _)| *i == index)
            .map(|(_, payload)| payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_payloads_are_kept_and_no_more() {
        let mut recent = Recent::default();
        let payload = Bytes::from(vec![0; 1 << 20]);
        for index in [3, 4, 7, 8, 9, 10] {
            recent.push(index, &payload);
        }
        assert_eq!(recent.get(4), None);
        assert_eq!(recent.get(6), None);
        assert!(recent.get(7).is_some() && recent.get(10).is_some());
        assert_eq!(recent.bytes, 4 << 20);
    }
}
