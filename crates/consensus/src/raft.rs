//! The types that openraft is built with here, and how our tasks enter its seeded randomness.
//!
//! openraft draws randomness (election timeouts) from a task-local generator, so every task that calls into it is
//! wrapped by a [`Spawner`], which gives it a seed of its own.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use openraft_rt::deterministic_rng::DeterministicRng;
use openraft_rt_tokio::TokioRuntime;
use warren_model::NodeId;

use crate::entry::Applied;
use crate::machine::Machine;

/// The runtime: tokio with seeded randomness.
pub(crate) type Runtime = DeterministicRng<TokioRuntime>;
/// The Raft group.
pub(crate) type Raft = openraft::Raft<Types, Machine>;
pub(crate) type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
pub(crate) type LogId = openraft::LogId<LeaderId>;
pub(crate) type Vote = openraft::impls::Vote<LeaderId>;
pub(crate) type Entry = openraft::Entry<LeaderId, EntryPayload>;
pub(crate) type EntryPayload = openraft::EntryPayload<Payload, NodeId, Member>;
pub(crate) type Membership = openraft::Membership<NodeId, Member>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<Types>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<Types>;
pub(crate) type WriteResult = openraft::raft::ClientWriteResult<Types>;

/// openraft's parameters for the metadata group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Types;

impl openraft::RaftTypeConfig for Types {
    type D = Payload;
    type R = Applied;
    type NodeId = NodeId;
    type Node = Member;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = EntryPayload;
    type Entry = Entry;
    type AsyncRuntime = Runtime;
    type Responder<T>
        = Then<T>
    where
        T: Send + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: Send + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// What an entry carries: in the metadata group an encoded batch of proposals (see [`crate::entry`]), in a shard's whatever
/// was proposed.
#[derive(Clone)]
pub(crate) struct Payload {
    bytes: Bytes,
    /// The stored entry that `bytes` is the end of, if it was read from one: so that storing or sending it copies nothing.
    stored: Option<Bytes>,
}

impl Payload {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self {
            bytes,
            stored: None,
        }
    }

    /// What follows a stored entry's header.
    pub(crate) fn of_stored(stored: Bytes, header: usize) -> Self {
        Self {
            bytes: stored.slice(header..),
            stored: Some(stored),
        }
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes
    }

    pub(crate) fn stored(&self) -> Option<&Bytes> {
        self.stored.as_ref()
    }

    /// Forgets the entry that it was read from.
    pub(crate) fn detach(&mut self) {
        self.stored = None;
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A member of the group, as its membership entries name it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Member {
    /// Name from the node's configuration.
    pub(crate) name: String,
    /// Address of its transport when it joined; the routing table knows newer ones.
    pub(crate) address: String,
}

/// Answers a write right where it is applied, without waking a task in between.
pub(crate) struct Then<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Then<T> {
    pub(crate) fn new(then: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(then))
    }
}

impl<T: Send + 'static> openraft::raft::responder::Responder<Types, T> for Then<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

/// Starts tasks, each with a seed of its own.
#[derive(Debug)]
pub(crate) struct Spawner {
    seed: u64,
    started: AtomicU64,
}

impl Spawner {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            started: AtomicU64::new(0),
        }
    }

    /// Wraps a future so that openraft may be called in it.
    pub(crate) fn scope<F: Future>(&self, task: F) -> impl Future<Output = F::Output> + use<F> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        Runtime::scope(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15), task)
    }
}
