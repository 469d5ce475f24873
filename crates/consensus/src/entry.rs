//! Stored formats: what a log entry is on disk and between nodes, and the batch of proposals that it carries.
//!
//! ```text
//! stored entry   version (1) kind (1) term (8) leader (8) payload       integers little endian; the index is the key's
//!   kind 0       blank: no payload
//!   kind 1       proposals: payload is a batch in the metadata group, the replica's own bytes in a shard's
//!   kind 2       membership: payload is an archived [`MembershipRecord`]
//! batch          level (1) archived [`Batch`]                           the [`Level`] of the newest command in it
//! ```
//! Archives are rkyv's (little endian, unaligned, 32 bit pointers) and are validated whenever they are read.

use bytes::Bytes;
use openraft::entry::RaftEntry;
use rkyv::rancor;
use rkyv::{Archive, Deserialize, Serialize};
use warren_model::{Command, Incarnation, Level, NodeId, Outcome};

use crate::raft::{
    Entry, EntryPayload, LeaderId, LogId, Member, Membership, Payload, StoredMembership, Vote,
};

/// The version of stored entries and records.
pub(crate) const VERSION: u8 = 1;
const HEADER_BYTES: usize = 18;
const BLANK: u8 = 0;
const PROPOSALS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}: {why}")]
pub(crate) struct Malformed {
    pub(crate) what: &'static str,
    pub(crate) why: String,
}

impl Malformed {
    pub(crate) fn new(what: &'static str, why: impl ToString) -> Self {
        Self {
            what,
            why: why.to_string(),
        }
    }

    /// As openraft wants storage errors.
    pub(crate) fn io(self) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, self)
    }
}

/// What one entry of proposals holds.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    pub(crate) proposals: Vec<Proposal>,
}

/// A command with what identifies its proposer, so that one that is proposed twice is applied once.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Proposal {
    /// The proposing node.
    pub(crate) node: NodeId,
    /// The start of its process.
    pub(crate) incarnation: Incarnation,
    /// Counted from 1 within the incarnation, in the order of proposing; 0 for one that is never proposed again.
    pub(crate) sequence: u64,
    /// All below this are settled or given up: none of them will be asked about again.
    pub(crate) settled_below: u64,
    pub(crate) command: Command,
}

/// What applying an entry answers: one for each of its proposals, none for other entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Applied {
    pub(crate) results: Vec<Settled>,
}

/// What became of a proposal.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    /// It was applied, now or earlier.
    Done {
        /// The log index at which it was applied.
        index: u64,
        outcome: Outcome,
    },
    /// An earlier one of the same proposer is missing: propose all anew, in order.
    Early,
    /// Its proposer had given it up, or has started anew.
    Late,
}

impl Batch {
    pub(crate) fn encode(&self) -> Result<Payload, Malformed> {
        let level = newest(&self.proposals);
        let bytes = rkyv::api::high::to_bytes_in::<_, rancor::Error>(self, vec![level.0])
            .map_err(|e| Malformed::new("batch", e))?;
        Ok(Payload::new(bytes.into()))
    }

    /// Reads one of any level up to `known`.
    pub(crate) fn decode(payload: &Payload, known: Level) -> Result<Self, Malformed> {
        let archive = of_level(payload.bytes(), known, "batch")?;
        rkyv::from_bytes::<Self, rancor::Error>(archive).map_err(|e| Malformed::new("batch", e))
    }
}

/// The level that it takes to read these.
pub(crate) fn newest(proposals: &[Proposal]) -> Level {
    let levels = proposals.iter().map(|proposal| proposal.command.level());
    levels.max().unwrap_or(Level::FIRST)
}

/// Takes a level byte off, refusing what is beyond `known`.
pub(crate) fn of_level<'a>(
    bytes: &'a [u8],
    known: Level,
    what: &'static str,
) -> Result<&'a [u8], Malformed> {
    match bytes.split_first() {
        Some((level, rest)) if (Level::FIRST..=known).contains(&Level(*level)) => Ok(rest),
        Some((level, _)) => Err(Malformed::new(
            what,
            format!("level {level}, this release knows {known}; run the newer release"),
        )),
        None => Err(Malformed::new(what, "empty")),
    }
}

/// Takes a version byte off, refusing any but ours.
pub(crate) fn versioned<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a [u8], Malformed> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(Malformed::new(
            what,
            format!("version {version}, this release knows {VERSION}; run the newer release"),
        )),
        None => Err(Malformed::new(what, "empty")),
    }
}

/// A log id, archived.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogIdRecord {
    pub(crate) term: u64,
    pub(crate) leader: NodeId,
    pub(crate) index: u64,
}

impl From<LogId> for LogIdRecord {
    fn from(id: LogId) -> Self {
        let leader = id.committed_leader_id();
        Self {
            term: leader.term,
            leader: leader.node_id,
            index: id.index,
        }
    }
}

impl From<LogIdRecord> for LogId {
    fn from(id: LogIdRecord) -> Self {
        LogId::new(
            LeaderId {
                term: id.term,
                node_id: id.leader,
            },
            id.index,
        )
    }
}

/// A vote, archived.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct VoteRecord {
    pub(crate) term: u64,
    pub(crate) node: NodeId,
    pub(crate) committed: bool,
}

impl From<Vote> for VoteRecord {
    fn from(vote: Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            node: vote.leader_id.node_id,
            committed: vote.committed,
        }
    }
}

impl From<VoteRecord> for Vote {
    fn from(vote: VoteRecord) -> Self {
        if vote.committed {
            Vote::new_committed(vote.term, vote.node)
        } else {
            Vote::new(vote.term, vote.node)
        }
    }
}

/// A membership with the log id of its entry, archived.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct MembershipRecord {
    /// None for the empty membership that a new node starts with.
    pub(crate) at: Option<LogIdRecord>,
    /// The sets of voters: one, or two in a joint membership.
    pub(crate) voters: Vec<Vec<NodeId>>,
    /// All members.
    pub(crate) members: Vec<MemberRecord>,
}

/// A member, archived.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct MemberRecord {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
}

impl MembershipRecord {
    pub(crate) fn new(at: Option<LogId>, membership: &Membership) -> Self {
        Self {
            at: at.map(Into::into),
            voters: membership
                .get_joint_config()
                .iter()
                .map(|set| set.iter().copied().collect())
                .collect(),
            members: membership
                .nodes()
                .map(|(node, member)| MemberRecord {
                    node: *node,
                    name: member.name.clone(),
                    address: member.address.clone(),
                })
                .collect(),
        }
    }

    pub(crate) fn stored(membership: &StoredMembership) -> Self {
        Self::new(*membership.log_id(), membership.membership())
    }

    pub(crate) fn membership(self) -> Result<Membership, Malformed> {
        let voters: Vec<_> = self
            .voters
            .into_iter()
            .map(|set| set.into_iter().collect())
            .collect();
        let members = self.members.into_iter().map(|m| {
            (
                m.node,
                Member {
                    name: m.name,
                    address: m.address,
                },
            )
        });
        if voters.is_empty() {
            return Ok(Membership::default());
        }
        Membership::new(
            voters,
            members.collect::<std::collections::BTreeMap<_, _>>(),
        )
        .map_err(|e| Malformed::new("membership", e))
    }

    pub(crate) fn into_stored(self) -> Result<StoredMembership, Malformed> {
        Ok(StoredMembership::new(
            self.at.map(Into::into),
            self.membership()?,
        ))
    }
}

/// An entry as it is stored and sent, without its index. Shares the memory of one that was read.
pub(crate) fn encode_entry(entry: &Entry) -> Result<Bytes, Malformed> {
    let (kind, membership);
    let payload: &[u8] = match &entry.payload {
        EntryPayload::Blank => {
            kind = BLANK;
            &[]
        }
        EntryPayload::Normal(payload) => {
            if let Some(stored) = payload.stored()
                && decode_log_id(entry.log_id.index, stored).is_ok_and(|id| id == entry.log_id)
            {
                return Ok(stored.clone());
            }
            kind = PROPOSALS;
            payload.bytes()
        }
        EntryPayload::Membership(new) => {
            kind = MEMBERSHIP;
            let record = MembershipRecord::new(None, new);
            membership = rkyv::to_bytes::<rancor::Error>(&record)
                .map_err(|e| Malformed::new("membership", e))?;
            &membership
        }
    };
    let leader = entry.log_id.committed_leader_id();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(&[VERSION, kind]);
    bytes.extend_from_slice(&leader.term.to_le_bytes());
    bytes.extend_from_slice(&leader.node_id.0.to_le_bytes());
    bytes.extend_from_slice(payload);
    Ok(bytes.into())
}

/// The entry at `index`, from its stored bytes, which it shares.
pub(crate) fn decode_entry(index: u64, bytes: &Bytes) -> Result<Entry, Malformed> {
    let log_id = decode_log_id(index, bytes)?;
    let payload = match bytes[1] {
        BLANK => EntryPayload::Blank,
        PROPOSALS => EntryPayload::Normal(Payload::of_stored(bytes.clone(), HEADER_BYTES)),
        MEMBERSHIP => {
            let record =
                rkyv::from_bytes::<MembershipRecord, rancor::Error>(&bytes[HEADER_BYTES..])
                    .map_err(|e| Malformed::new("membership", e))?;
            EntryPayload::Membership(record.membership()?)
        }
        kind => {
            return Err(Malformed::new(
                "log entry",
                format!("kind {kind} at index {index}"),
            ));
        }
    };
    Ok(Entry::new(log_id, payload))
}

/// The log id of a stored entry, without looking at its payload.
pub(crate) fn decode_log_id(index: u64, bytes: &[u8]) -> Result<LogId, Malformed> {
    let rest = versioned(bytes, "log entry")?;
    let Some((_, rest)) = rest.split_first() else {
        return Err(Malformed::new(
            "log entry",
            format!("cut short at index {index}"),
        ));
    };
    let Some((numbers, _)) = rest.split_first_chunk::<16>() else {
        return Err(Malformed::new(
            "log entry",
            format!("cut short at index {index}"),
        ));
    };
    let number = |at: usize| {
        numbers[at..at + 8]
            .iter()
            .rev()
            .fold(0u64, |n, byte| n << 8 | u64::from(*byte))
    };
    Ok(LogId::new(
        LeaderId {
            term: number(0),
            node_id: NodeId(number(8)),
        },
        index,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn batch() -> Batch {
        let proposal = |sequence, command| Proposal {
            node: NodeId(7),
            incarnation: Incarnation(2),
            sequence,
            settled_below: 3,
            command,
        };
        Batch {
            proposals: vec![
                proposal(
                    4,
                    Command::FoundCluster {
                        cluster: 9,
                        shards: 3,
                    },
                ),
                proposal(5, Command::PutVhost { name: "/".into() }),
            ],
        }
    }

    fn id(term: u64, node: u64, index: u64) -> LogId {
        LogId::new(
            LeaderId {
                term,
                node_id: NodeId(node),
            },
            index,
        )
    }

    #[test]
    fn golden_batch_never_changes() {
        let bytes = batch().encode().unwrap();
        assert_eq!(hex(bytes.bytes()), GOLDEN_BATCH);
        assert_eq!(Batch::decode(&bytes, Level::NEWEST).unwrap(), batch());
    }

    const GOLDEN_BATCH: &str = concat!(
        "0107000000000000000200000000000000040000000000000003000000000000000009000000",
        "0000000000000000000000000300000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000700000000000000020000",
        "000000000005000000000000000300000000000000042fffffffffffffff0000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000000000000000000",
        "00000000000000000000000000000034ffffff02000000",
    );

    #[test]
    fn golden_entry_never_changes() {
        let entry = Entry::new(
            id(3, 5, 8),
            EntryPayload::Normal(Payload::new(Bytes::from_static(b"hare"))),
        );
        let bytes = encode_entry(&entry).unwrap();
        assert_eq!(
            &bytes[..],
            b"\x01\x01\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0hare"
        );
        let back = decode_entry(8, &bytes).unwrap();
        assert_eq!(
            encode_entry(&back).unwrap().as_ptr(),
            bytes.as_ptr(),
            "an entry that was read is not copied"
        );
        let mut moved = back.clone();
        moved.log_id = id(4, 5, 8);
        assert_eq!(encode_entry(&moved).unwrap()[2], 4, "its log id is its own");
        assert_eq!((back.log_id, back.payload), (entry.log_id, entry.payload));
    }

    #[test]
    fn every_kind_of_entry_reads_back() {
        let members: BTreeMap<_, _> = [
            (
                NodeId(1),
                Member {
                    name: "a".into(),
                    address: "h:1".into(),
                },
            ),
            (NodeId(2), Member::default()),
        ]
        .into();
        let joint = Membership::new(
            vec![[NodeId(1)].into(), [NodeId(1), NodeId(2)].into()],
            members,
        )
        .unwrap();
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(batch().encode().unwrap()),
            EntryPayload::Membership(joint),
        ] {
            let entry = Entry::new(id(1, 2, 3), payload);
            let back = decode_entry(3, &encode_entry(&entry).unwrap()).unwrap();
            assert_eq!((back.log_id, back.payload), (entry.log_id, entry.payload));
        }
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let entry = encode_entry(&Entry::new(id(1, 2, 3), EntryPayload::Blank)).unwrap();
        for cut in 0..entry.len() {
            assert!(
                decode_entry(3, &entry.slice(..cut)).is_err(),
                "cut to {cut}"
            );
        }
        for (at, value) in [(0, 2), (1, 9)] {
            let mut bad = entry.to_vec();
            bad[at] = value;
            assert!(decode_entry(3, &bad.into()).is_err(), "byte {at}");
        }
        // A batch's length and checksum are the log store's; whatever it holds, reading it must not panic.
        let good = batch().encode().unwrap().into_bytes();
        assert!(Batch::decode(&Payload::new(good.slice(..8)), Level::NEWEST).is_err());
        for at in 0..good.len() {
            drop(Batch::decode(
                &Payload::new(good.slice(..at)),
                Level::NEWEST,
            ));
            let mut bad = good.to_vec();
            bad[at] ^= 0x81;
            drop(Batch::decode(&Payload::new(bad.into()), Level::NEWEST));
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }
}
