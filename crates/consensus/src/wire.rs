//! What the nodes of a group say to each other, and the little that this crate needs of a transport.
//!
//! A request's head is a byte with its [`Level`] and a [`Request`] archive, a message's a version byte and a [`Note`], a reply's a [`Reply`]; bulk
//! carries log entries ([`pack_entries`]) or records of a snapshot ([`pack_record`]). Everything is validated on arrival.
//! Before the head of a request to a shard's group stand the shard (`u16`, little endian) and a byte that says what its bulk is.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures::future::BoxFuture;
use parking_lot::RwLock;
use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use warren_model::{Incarnation, Level, NodeId, ShardId};
use warren_transport::{Frame, Lane, PeerAddress, ReplyTo, RequestError, Transport};

use crate::entry::{
    LogIdRecord, Malformed, MembershipRecord, Proposal, Settled, VERSION, VoteRecord, decode_entry,
    encode_entry, newest, of_level, versioned,
};
use crate::raft::{Entry, EntryPayload};

/// A transport, as far as this crate needs one.
pub(crate) trait Wire: Send + Sync + 'static {
    /// Queues a one-way message; it may be lost.
    fn send(&self, to: NodeId, lane: Lane, frame: Frame);
    /// Sends a request and waits for its reply.
    fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Frame, RequestError>>;
    /// The nodes to be linked with.
    fn set_peers(&self, peers: Vec<PeerAddress>);
    /// The cluster that this node now belongs to.
    fn set_cluster(&self, cluster: u128);
}

/// The wire of a part that is running: none before its start and after its end, so that a transport whose handler holds
/// the part is not held by it for ever.
#[derive(Default)]
pub(crate) struct WireSlot(RwLock<Option<Arc<dyn Wire>>>);

impl WireSlot {
    pub(crate) fn set(&self, wire: Option<Arc<dyn Wire>>) {
        *self.0.write() = wire;
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn Wire>> {
        self.0.read().clone()
    }

    /// Queues a one-way message, if the part is running.
    pub(crate) fn send(&self, to: NodeId, lane: Lane, frame: Frame) {
        if let Some(wire) = self.get() {
            wire.send(to, lane, frame);
        }
    }

    /// Sends a request, if the part is running.
    pub(crate) fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Frame, RequestError>> {
        match self.get() {
            Some(wire) => wire.request(to, lane, frame, deadline),
            None => Box::pin(std::future::ready(Err(RequestError::Unreachable))),
        }
    }
}

impl Wire for Transport {
    fn send(&self, to: NodeId, lane: Lane, frame: Frame) {
        if let Err(error) = Transport::send(self, to, lane, frame) {
            tracing::trace!(%to, %error, "message not sent");
        }
    }

    fn request(
        &self,
        to: NodeId,
        lane: Lane,
        frame: Frame,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Frame, RequestError>> {
        let transport = self.clone();
        Box::pin(async move { transport.request(to, lane, frame, deadline).await })
    }

    fn set_peers(&self, peers: Vec<PeerAddress>) {
        Transport::set_peers(self, peers);
    }

    fn set_cluster(&self, cluster: u128) {
        Transport::set_cluster(self, cluster);
    }
}

/// Where a reply goes.
pub(crate) enum Answer {
    /// Over a transport.
    Transport(ReplyTo),
    /// To whoever stands in for one.
    #[cfg(test)]
    Call(Box<dyn FnOnce(Frame) + Send>),
}

impl Answer {
    pub(crate) fn send(self, reply: &Reply) {
        let frame = match reply.encode() {
            Ok(head) => Frame::of_head(head),
            // Dropping the answer tells the requester that none will come.
            Err(error) => return tracing::error!(%error, "a reply cannot be encoded"),
        };
        match self {
            Answer::Transport(reply_to) => reply_to.send(frame),
            #[cfg(test)]
            Answer::Call(call) => call(frame),
        }
    }
}

/// A request.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) enum Request {
    /// Entries or a heartbeat of a leader. Bulk: the entries.
    Append {
        vote: VoteRecord,
        previous: Option<LogIdRecord>,
        committed: Option<LogIdRecord>,
    },
    /// A candidate asks for a vote.
    Vote(Candidacy),
    /// A candidate asks whether it would get a vote.
    PreVote(Candidacy),
    /// A leader hands over.
    Transfer {
        from: VoteRecord,
        to: NodeId,
        last: Option<LogIdRecord>,
    },
    /// Part of a snapshot. Bulk: records. The parts of one transfer come in order, and the last one says so.
    Snapshot {
        transfer: u64,
        number: u64,
        end: Option<SnapshotEnd>,
    },
    /// Proposals of the sending node, in order.
    Propose { proposals: Vec<Proposal> },
    /// The sending node asks for its lease to be renewed, and says how far it has applied.
    Renew {
        incarnation: Incarnation,
        applied: u64,
    },
    /// The sending node routes no more, now and for the rest of its process: its lease need not be waited for.
    Release { incarnation: Incarnation },
    /// Up to where must be applied to see everything that is acknowledged?
    ReadIndex,
    /// What are you? Asked by a node that belongs to no cluster.
    Probe,
    /// May the sending node found a cluster of exactly these nodes?
    Promise { names: Vec<String> },
    /// The sending node wants to be a member.
    Join { name: String, address: String },
    /// May the sending node, which has started, come up in the table?
    ComeUp,
}

/// The group that a request is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Group {
    /// The metadata group.
    Metadata,
    /// A shard's.
    Shard(ShardId),
}

/// What the bulk of an append to a shard's group is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum BulkForm {
    /// Made by [`pack_entries`].
    Packed,
    /// Made by [`sole_entry`].
    Sole,
}

impl Group {
    /// A request's head as it goes to this group.
    pub(crate) fn head(self, request: &Request, form: BulkForm) -> Result<Bytes, Malformed> {
        match self {
            Group::Metadata => request.encode(),
            Group::Shard(shard) => {
                let [low, high] = shard.0.to_le_bytes();
                request.encode_after(vec![low, high, u8::from(form == BulkForm::Sole)])
            }
        }
    }

    /// Reads a head that went to a shard's group.
    pub(crate) fn of_shard(head: &[u8]) -> Result<(ShardId, BulkForm, Request), Malformed> {
        let Some((&[low, high, form], request)) = head.split_first_chunk::<3>() else {
            return Err(Malformed::new("request", "cut short"));
        };
        let form = match form {
            0 => BulkForm::Packed,
            1 => BulkForm::Sole,
            other => {
                return Err(Malformed::new(
                    "request",
                    format!("unknown form {other} of its bulk"),
                ));
            }
        };
        let shard = ShardId(u16::from_le_bytes([low, high]));
        Ok((shard, form, Request::decode(request, Level::FIRST)?))
    }
}

/// What a candidate says of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(crate) struct Candidacy {
    pub(crate) vote: VoteRecord,
    pub(crate) last: Option<LogIdRecord>,
    pub(crate) transfer: bool,
}

/// What completes a snapshot.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct SnapshotEnd {
    pub(crate) vote: VoteRecord,
    pub(crate) last: Option<LogIdRecord>,
    pub(crate) membership: MembershipRecord,
    /// BLAKE3 of the bulk of all parts.
    pub(crate) digest: [u8; 32],
}

/// A reply.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// The request could not be served; for people.
    Failed(String),
    /// All entries are stored.
    Appended,
    /// Entries up to here are stored.
    AppendedUpTo(Option<LogIdRecord>),
    /// The entry before the first one does not match.
    Conflict,
    /// A newer vote is known.
    HigherVote(VoteRecord),
    /// Answer to both kinds of candidacy.
    Vote {
        vote: VoteRecord,
        granted: bool,
        last: Option<LogIdRecord>,
    },
    /// The hand-over goes on.
    Transferring,
    /// The hand-over was refused, because a newer vote is known.
    TransferVoteChanged {
        expected: VoteRecord,
        actual: VoteRecord,
    },
    /// The hand-over was refused, because entries are missing.
    TransferNotFlushed {
        expected: Option<LogIdRecord>,
        actual: Option<LogIdRecord>,
    },
    /// The part was taken.
    SnapshotPart,
    /// The snapshot was judged; the vote tells whether it was installed.
    Snapshot { vote: VoteRecord },
    /// What became of each proposal.
    Proposed { results: Vec<Settled> },
    /// The answering node does not lead.
    NotLeader { leader: Option<LeaderHint> },
    /// The lease is renewed.
    Granted(Grant),
    /// The sending node is not a member.
    NotMember,
    /// Done.
    Done,
    /// Up to here.
    Index(u64),
    /// Answer to a probe.
    Standing {
        cluster: Option<u128>,
        fresh: bool,
        leader: Option<LeaderHint>,
    },
    /// The sending node is a member now.
    Joined,
    /// No, and why; for people.
    Refused(String),
}

/// A renewed lease.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    /// Counted from when the request was sent.
    pub(crate) nanos: u64,
    /// The lease holds only for a table that has applied this.
    pub(crate) must_apply: u64,
}

/// Whom to ask instead.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaderHint {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
}

/// A one-way message.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub(crate) enum Note {
    /// A start of the sending node's process has applied up to here.
    Applied {
        incarnation: Incarnation,
        applied: u64,
    },
}

macro_rules! versioned_archive {
    ($type:ident, $what:literal) => {
        impl $type {
            pub(crate) fn encode(&self) -> Result<Bytes, Malformed> {
                let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(self, vec![VERSION])
                    .map_err(|e| Malformed::new($what, e))?;
                Ok(bytes.into())
            }

            pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
                rkyv::from_bytes::<Self, rancor::Error>(versioned(bytes, $what)?)
                    .map_err(|e| Malformed::new($what, e))
            }
        }
    };
}

impl Request {
    pub(crate) fn encode(&self) -> Result<Bytes, Malformed> {
        self.encode_after(Vec::new())
    }

    /// Encodes it behind what is in `bytes`.
    fn encode_after(&self, mut bytes: Vec<u8>) -> Result<Bytes, Malformed> {
        bytes.push(self.level().0);
        let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(self, bytes)
            .map_err(|e| Malformed::new("request", e))?;
        Ok(bytes.into())
    }

    /// Reads one of any level up to `known`.
    pub(crate) fn decode(bytes: &[u8], known: Level) -> Result<Self, Malformed> {
        rkyv::from_bytes::<Self, rancor::Error>(of_level(bytes, known, "request")?)
            .map_err(|e| Malformed::new("request", e))
    }

    /// The least level at which the receiver can read it.
    fn level(&self) -> Level {
        match self {
            Request::Append { .. }
            | Request::Vote(_)
            | Request::PreVote(_)
            | Request::Transfer { .. }
            | Request::Snapshot { .. }
            | Request::Renew { .. }
            | Request::Release { .. }
            | Request::ReadIndex
            | Request::Probe
            | Request::Promise { .. }
            | Request::Join { .. } => Level::FIRST,
            Request::Propose { proposals } => newest(proposals),
            Request::ComeUp => Level::CONTINUITY,
        }
    }
}

versioned_archive!(Reply, "reply");
versioned_archive!(Note, "message");

/// An entry of at least this, stored, stays in the memory that it came in; what else that pins is little.
const SHARED_BYTES_MIN: usize = 64 << 10;

/// Entries as bulk: `index u64, length u32, stored entry` each, little endian.
pub(crate) fn pack_entries(entries: &[Entry]) -> Result<Bytes, Malformed> {
    let stored: Vec<Bytes> = entries
        .iter()
        .map(encode_entry)
        .collect::<Result<_, Malformed>>()?;
    let mut bulk = Vec::with_capacity(stored.iter().map(|stored| stored.len() + 12).sum());
    for (entry, stored) in entries.iter().zip(stored) {
        bulk.put_u64_le(entry.log_id.index);
        bulk.put_u32_le(length(&stored)?);
        bulk.put_slice(&stored);
    }
    Ok(bulk.into())
}

/// The entries in a bulk. Their payloads share its memory.
pub(crate) fn unpack_entries(mut bulk: Bytes) -> Result<Vec<Entry>, Malformed> {
    let mut entries = Vec::new();
    while !bulk.is_empty() {
        let cut_short = || Malformed::new("entries", "cut short");
        let index = bulk.try_get_u64_le().map_err(|_| cut_short())?;
        let len = bulk.try_get_u32_le().map_err(|_| cut_short())? as usize;
        if bulk.len() < len {
            return Err(cut_short());
        }
        entries.push(arrived(index, &bulk.split_to(len))?);
    }
    Ok(entries)
}

/// An entry out of what arrived.
fn arrived(index: u64, stored: &Bytes) -> Result<Entry, Malformed> {
    let mut entry = decode_entry(index, stored)?;
    if stored.len() < SHARED_BYTES_MIN
        && let EntryPayload::Normal(payload) = &mut entry.payload
    {
        // The log keeps entries for long: a small one must not keep all that it came with.
        payload.detach();
    }
    Ok(entry)
}

/// The one entry, as bulk that copies nothing: the receiver knows its index from the entry before it.
pub(crate) fn sole_entry(entries: &[Entry]) -> Option<Bytes> {
    let [entry] = entries else { return None };
    let stored = encode_entry(entry).ok()?;
    (stored.len() >= SHARED_BYTES_MIN).then_some(stored)
}

/// The entry of a bulk that [`sole_entry`] made.
pub(crate) fn unpack_sole_entry(index: u64, bulk: &Bytes) -> Result<Entry, Malformed> {
    arrived(index, bulk)
}

/// Appends a record of a snapshot: `length u32, length u32, key, value`, little endian.
pub(crate) fn pack_record(key: &[u8], value: &[u8], bulk: &mut Vec<u8>) -> Result<(), Malformed> {
    bulk.put_u32_le(length(key)?);
    bulk.put_u32_le(length(value)?);
    bulk.put_slice(key);
    bulk.put_slice(value);
    Ok(())
}

/// The records in a bulk, which they share.
pub(crate) fn unpack_records(
    mut bulk: Bytes,
    records: &mut Vec<(Bytes, Bytes)>,
) -> Result<(), Malformed> {
    while !bulk.is_empty() {
        let cut_short = || Malformed::new("records", "cut short");
        let key = bulk.try_get_u32_le().map_err(|_| cut_short())? as usize;
        let value = bulk.try_get_u32_le().map_err(|_| cut_short())? as usize;
        if bulk.len() < key.saturating_add(value) {
            return Err(cut_short());
        }
        records.push((bulk.split_to(key), bulk.split_to(value)));
    }
    Ok(())
}

fn length(bytes: &[u8]) -> Result<u32, Malformed> {
    u32::try_from(bytes.len())
        .map_err(|_| Malformed::new("bulk", format!("{} bytes in one piece", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::{LeaderId, LogId, Payload};

    #[test]
    fn heads_read_back_and_cuts_are_refused() {
        let vote = VoteRecord {
            term: 3,
            node: NodeId(4),
            committed: true,
        };
        let request = Request::Append {
            vote,
            previous: Some(LogIdRecord {
                term: 1,
                leader: NodeId(2),
                index: 9,
            }),
            committed: None,
        };
        let bytes = request.encode().unwrap();
        assert_eq!(Request::decode(&bytes, Level::FIRST).unwrap(), request);
        for cut in 0..bytes.len() {
            assert!(
                Request::decode(&bytes[..cut], Level::NEWEST).is_err(),
                "cut to {cut}"
            );
        }
        let mut newer = bytes.to_vec();
        newer[0] = Level::NEWEST.0 + 1;
        assert!(Request::decode(&newer, Level::NEWEST).is_err());
        let newer = Request::ComeUp.encode().unwrap();
        assert!(Request::decode(&newer, Level::NEWEST).is_ok());
        assert!(Request::decode(&newer, Level::FIRST).is_err());
    }

    #[test]
    fn requests_to_a_shard_say_so() {
        let request = Request::ReadIndex;
        let group = Group::Shard(ShardId(0x1234));
        for form in [BulkForm::Packed, BulkForm::Sole] {
            let head = group.head(&request, form).unwrap();
            assert_eq!(head[..2], [0x34, 0x12]);
            assert_eq!(
                Group::of_shard(&head).unwrap(),
                (ShardId(0x1234), form, request.clone())
            );
            for cut in 0..head.len() {
                assert!(Group::of_shard(&head[..cut]).is_err(), "cut to {cut}");
            }
        }
        let mut unknown = group.head(&request, BulkForm::Sole).unwrap().to_vec();
        unknown[2] = 7;
        assert!(Group::of_shard(&unknown).is_err());
    }

    #[test]
    fn a_large_entry_is_neither_copied_when_sent_nor_when_it_has_arrived() {
        let log_id = LogId::new(
            LeaderId {
                term: 1,
                node_id: NodeId(2),
            },
            7,
        );
        let payload = EntryPayload::Normal(Payload::new(vec![7; SHARED_BYTES_MIN].into()));
        let stored = encode_entry(&Entry { log_id, payload }).unwrap();
        let read = decode_entry(7, &stored).unwrap();
        let bulk = sole_entry(std::slice::from_ref(&read)).unwrap();
        assert_eq!(bulk.as_ptr(), stored.as_ptr());
        let arrived = unpack_sole_entry(7, &bulk).unwrap();
        assert_eq!(format!("{arrived:?}"), format!("{read:?}"));
        assert_eq!(encode_entry(&arrived).unwrap().as_ptr(), bulk.as_ptr());
        let packed = unpack_entries(pack_entries(&[read.clone(), read]).unwrap()).unwrap();
        assert_eq!(encode_entry(&packed[1]).unwrap(), stored);
        let small = decode_entry(7, &stored.slice(..100)).unwrap();
        assert_eq!(sole_entry(std::slice::from_ref(&small)), None);
        let small = unpack_entries(pack_entries(&[small]).unwrap()).unwrap();
        let EntryPayload::Normal(payload) = &small[0].payload else {
            panic!("{small:?}")
        };
        assert_eq!(
            payload.stored(),
            None,
            "it does not hold on to what it came with"
        );
    }

    #[test]
    fn bulks_read_back_and_cuts_are_refused() {
        let entry = |index, payload| Entry {
            log_id: LogId::new(
                LeaderId {
                    term: 1,
                    node_id: NodeId(2),
                },
                index,
            ),
            payload,
        };
        let entries = vec![
            entry(4, EntryPayload::Blank),
            entry(
                5,
                EntryPayload::Normal(Payload::new(Bytes::from_static(b"hare"))),
            ),
        ];
        let bulk = pack_entries(&entries).unwrap();
        let back = unpack_entries(bulk.clone()).unwrap();
        assert_eq!(format!("{back:?}"), format!("{entries:?}"));
        let first = pack_entries(&entries[..1]).unwrap().len();
        for cut in (1..bulk.len()).filter(|cut| *cut != first) {
            assert!(unpack_entries(bulk.slice(..cut)).is_err(), "cut to {cut}");
        }
        let mut bulk = Vec::new();
        pack_record(b"key", b"value", &mut bulk).unwrap();
        let mut records = Vec::new();
        unpack_records(bulk.clone().into(), &mut records).unwrap();
        assert_eq!(
            records,
            vec![(Bytes::from_static(b"key"), Bytes::from_static(b"value"))]
        );
        for cut in 1..bulk.len() {
            assert!(
                unpack_records(Bytes::copy_from_slice(&bulk[..cut]), &mut Vec::new()).is_err(),
                "cut to {cut}"
            );
        }
    }
}
