//! Receiving a snapshot: parts are collected in order, checked as a whole, and given to openraft.
//!
//! A part that does not continue what is there ends the transfer; its sender starts over. Memory: the whole snapshot, which
//! becomes the table's own memory in a moment.

use std::sync::Arc;

use bytes::Bytes;
use openraft::storage::Snapshot;
use warren_model::NodeId;

use crate::entry::Malformed;
use crate::machine::SnapshotData;
use crate::metadata::Core;
use crate::raft::{LogId, SnapshotMeta};
use crate::wire::{Answer, Reply, SnapshotEnd, unpack_records};

/// A snapshot of which parts have come.
#[derive(Debug)]
pub(crate) struct Incoming {
    transfer: u64,
    next: u64,
    records: Vec<(Bytes, Bytes)>,
    digest: blake3::Hasher,
}

impl Incoming {
    fn new(transfer: u64) -> Self {
        Self {
            transfer,
            next: 0,
            records: Vec::new(),
            digest: blake3::Hasher::new(),
        }
    }

    fn take(&mut self, transfer: u64, number: u64, bulk: Bytes) -> Result<(), Malformed> {
        if (transfer, number) != (self.transfer, self.next) {
            let why = format!(
                "part {number} of transfer {transfer} after {} parts of transfer {}",
                self.next, self.transfer
            );
            return Err(Malformed::new("snapshot", why));
        }
        self.digest.update(&bulk);
        self.next += 1;
        unpack_records(bulk, &mut self.records)
    }

    fn finish(self, end: SnapshotEnd) -> Result<(SnapshotMeta, Vec<(Bytes, Bytes)>), Malformed> {
        if self.digest.finalize().as_bytes() != &end.digest {
            return Err(Malformed::new(
                "snapshot",
                "its parts are not what was sent",
            ));
        }
        let meta = SnapshotMeta {
            last_log_id: end.last.map(LogId::from),
            last_membership: end.membership.into_stored()?,
        };
        Ok((meta, self.records))
    }
}

impl Core {
    pub(crate) fn take_snapshot_part(
        self: &Arc<Self>,
        from: NodeId,
        transfer: u64,
        number: u64,
        end: Option<SnapshotEnd>,
        bulk: Bytes,
        answer: Answer,
    ) {
        let taken = {
            let mut snapshots = self.snapshots.lock();
            let mut incoming = match snapshots.remove(&from) {
                Some(incoming) if number > 0 => incoming,
                Some(_) | None => Incoming::new(transfer),
            };
            incoming.take(transfer, number, bulk).map(|()| match end {
                Some(end) => Some((incoming, end)),
                None => {
                    snapshots.insert(from, incoming);
                    None
                }
            })
        };
        match taken {
            Ok(None) => answer.send(&Reply::SnapshotPart),
            Ok(Some((incoming, end))) => {
                let core = Arc::clone(self);
                drop(self.spawn(async move { answer.send(&core.install(incoming, end).await) }));
            }
            Err(error) => answer.send(&Reply::Failed(error.to_string())),
        }
    }

    async fn install(&self, incoming: Incoming, end: SnapshotEnd) -> Reply {
        let vote = end.vote.into();
        let (meta, records) = match incoming.finish(end) {
            Ok(received) => received,
            Err(error) => return Reply::Failed(error.to_string()),
        };
        match self
            .raft
            .install_full_snapshot(
                vote,
                Snapshot {
                    meta,
                    snapshot: SnapshotData::Received(records),
                },
            )
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

    fn part(key: &str) -> Bytes {
        let mut bulk = Vec::new();
        pack_record(key.as_bytes(), b"value", &mut bulk).unwrap();
        bulk.into()
    }

    fn end(digest: blake3::Hash) -> SnapshotEnd {
        let vote = VoteRecord {
            term: 1,
            node: NodeId(1),
            committed: true,
        };
        SnapshotEnd {
            vote,
            last: None,
            membership: MembershipRecord::default(),
            digest: *digest.as_bytes(),
        }
    }

    #[test]
    fn parts_come_in_order_and_whole() {
        let mut incoming = Incoming::new(7);
        incoming.take(7, 0, part("a")).unwrap();
        assert!(incoming.take(7, 0, part("a")).is_err());
        assert!(incoming.take(7, 2, part("c")).is_err());
        assert!(incoming.take(8, 1, part("b")).is_err());
        incoming.take(7, 1, part("b")).unwrap();
        let digest = blake3::hash(&[part("a"), part("b")].concat());
        assert_eq!(incoming.finish(end(digest)).unwrap().1.len(), 2);
    }

    #[test]
    fn changed_parts_are_refused() {
        let mut incoming = Incoming::new(7);
        incoming.take(7, 0, part("b")).unwrap();
        assert!(incoming.finish(end(blake3::hash(&part("a")))).is_err());
    }
}
