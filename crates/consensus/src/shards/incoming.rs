//! A view of another node's state as it comes: parts in order, checked, given to the replica as they come.
//!
//! One transfer at a time: a new one replaces one that is not complete (its leader may be gone), but not one that is being
//! installed. A part that does not continue what is there ends the transfer; its sender starts over. Memory: one part.

use std::sync::Arc;

use bytes::Bytes;
use openraft::storage::Snapshot;
use warren_model::NodeId;

use super::group::Group;
use crate::entry::Malformed;
use crate::machine::SnapshotData;
use crate::raft::{LogId, SnapshotMeta};
use crate::wire::{Answer, Reply, SnapshotEnd, unpack_records};

/// A transfer of which parts have come.
#[derive(Debug)]
pub(crate) struct Incoming {
    from: NodeId,
    transfer: u64,
    next: u64,
    digest: blake3::Hasher,
    /// All parts are here.
    complete: bool,
}

/// One part of a view.
pub(crate) struct Part {
    pub(crate) from: NodeId,
    pub(crate) transfer: u64,
    pub(crate) number: u64,
    pub(crate) end: Option<SnapshotEnd>,
    pub(crate) bulk: Bytes,
}

impl Incoming {
    /// Takes a part in, as the next one of the transfer that is coming or as the first of another.
    fn take(slot: &mut Option<Self>, part: &Part) -> Result<(), Malformed> {
        if slot.as_ref().is_some_and(|incoming| incoming.complete) {
            return Err(Malformed::new("snapshot", "another one is being installed"));
        }
        if part.number == 0 {
            *slot = Some(Self {
                from: part.from,
                transfer: part.transfer,
                next: 0,
                digest: blake3::Hasher::new(),
                complete: false,
            });
        }
        let Some(incoming) = slot else {
            return Err(Malformed::new("snapshot", "its beginning is missing"));
        };
        let expected = (incoming.from, incoming.transfer, incoming.next);
        if expected != (part.from, part.transfer, part.number) {
            let why = format!(
                "part {} of transfer {} of node {} after {} parts of transfer {} of node {}",
                part.number,
                part.transfer,
                part.from,
                incoming.next,
                incoming.transfer,
                incoming.from
            );
            return Err(Malformed::new("snapshot", why));
        }
        incoming.next += 1;
        incoming.digest.update(&part.bulk);
        if let Some(end) = &part.end {
            if incoming.digest.finalize().as_bytes() != &end.digest {
                *slot = None;
                return Err(Malformed::new(
                    "snapshot",
                    "its parts are not what was sent",
                ));
            }
            incoming.complete = true;
        }
        Ok(())
    }
}

impl Group {
    /// Stages a part of a view, and installs it when it was the last one. Parts are staged in the order of these calls.
    pub(super) fn take_part(self: &Arc<Self>, part: Part, answer: Answer) {
        let mut records = Vec::new();
        let staged = {
            let mut incoming = self.incoming.lock();
            let taken = unpack_records(part.bulk.clone(), &mut records)
                .and_then(|()| Incoming::take(&mut incoming, &part));
            match taken {
                Ok(()) => self.voice.stage(records, part.number == 0),
                Err(error) => return answer.send(&Reply::Failed(error.to_string())),
            }
        };
        let group = Arc::clone(self);
        drop(self.spawn(async move {
            let ended = part.end.is_some();
            let reply = match (staged.await, part.end) {
                (Ok(()), None) => Reply::SnapshotPart,
                (Ok(()), Some(end)) => group.install(end).await,
                (Err(error), _) => Reply::Failed(error.to_string()),
            };
            let failed = matches!(reply, Reply::Failed(_));
            if ended || failed {
                group.forget_transfer(part.from, ended);
            }
            answer.send(&reply);
        }));
    }

    /// Forgets the transfer of a node; one that is being installed only if it is done with.
    pub(super) fn forget_transfer(&self, from: NodeId, installed: bool) {
        let mut incoming = self.incoming.lock();
        if incoming
            .as_ref()
            .is_some_and(|known| known.from == from && (installed || !known.complete))
        {
            *incoming = None;
        }
    }

    async fn install(&self, end: SnapshotEnd) -> Reply {
        let last_membership = match end.membership.into_stored() {
            Ok(membership) => membership,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        let snapshot = Snapshot {
            meta: SnapshotMeta {
                last_log_id: end.last.map(LogId::from),
                last_membership,
            },
            snapshot: SnapshotData::Staged,
        };
        match self
            .raft
            .install_full_snapshot(end.vote.into(), snapshot)
            .await
        {
            Ok(response) => Reply::Snapshot {
                vote: response.vote.into(),
            },
            Err(error) => Reply::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{MembershipRecord, VoteRecord};
    use crate::wire::pack_record;

    fn part(from: u64, number: u64, end: Option<blake3::Hash>) -> Part {
        let mut bulk = Vec::new();
        pack_record(&number.to_le_bytes(), b"value", &mut bulk).unwrap();
        let vote = VoteRecord {
            term: 1,
            node: NodeId(1),
            committed: true,
        };
        Part {
            from: NodeId(from),
            transfer: 7,
            number,
            end: end.map(|digest| SnapshotEnd {
                vote,
                last: None,
                membership: MembershipRecord::default(),
                digest: *digest.as_bytes(),
            }),
            bulk: bulk.into(),
        }
    }

    fn digest(numbers: std::ops::Range<u64>) -> blake3::Hash {
        let bulks: Vec<Bytes> = numbers.map(|number| part(1, number, None).bulk).collect();
        blake3::hash(&bulks.concat())
    }

    #[test]
    fn parts_come_in_order_of_one_transfer_and_whole() {
        let mut slot = None;
        assert!(Incoming::take(&mut slot, &part(1, 1, None)).is_err());
        Incoming::take(&mut slot, &part(1, 0, None)).unwrap();
        assert!(Incoming::take(&mut slot, &part(1, 2, None)).is_err());
        assert!(Incoming::take(&mut slot, &part(2, 1, None)).is_err());
        Incoming::take(&mut slot, &part(1, 1, None)).unwrap();
        // Another leader's replaces it.
        Incoming::take(&mut slot, &part(2, 0, None)).unwrap();
        assert!(Incoming::take(&mut slot, &part(1, 2, None)).is_err());
        Incoming::take(&mut slot, &part(2, 1, Some(digest(0..2)))).unwrap();
        // While it is installed, nothing else is staged.
        assert!(Incoming::take(&mut slot, &part(1, 0, None)).is_err());
    }

    #[test]
    fn changed_parts_are_refused() {
        let mut slot = None;
        Incoming::take(&mut slot, &part(1, 0, None)).unwrap();
        assert!(Incoming::take(&mut slot, &part(1, 1, Some(digest(0..3)))).is_err());
        assert!(slot.is_none());
    }
}
