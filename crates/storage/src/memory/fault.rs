//! What a simulator may do to a disk: power loss, failing syncs, a full or slow disk, flipped bits.

use std::time::Duration;

use bytes::Bytes;

use super::disk::Platter;
use super::logs::Change;
use super::{Completion, Disk};

/// Where a stored record's checksum begins: behind its version and its length.
const CHECKSUM_AT: usize = 5;

/// A log entry that has rotted.
#[derive(Debug, Clone)]
pub struct Rot {
    group: u64,
    index: u64,
    at: usize,
    mask: u8,
    /// As it is since.
    stored: Bytes,
}

impl Disk {
    /// Says when log calls become durable. Set it before the disk is opened, or while nothing waits.
    pub fn set_completion(&self, completion: Completion) {
        self.platter.lock().completion = completion;
    }

    /// How long a sync takes from now on, for [`Completion::Spawned`].
    pub fn set_sync_delay(&self, delay: Duration) {
        self.platter.lock().sync_delay = delay;
    }

    /// The next so many syncs fail. The first stops the engine until the disk is opened again.
    pub fn fail_syncs(&self, count: u64) {
        self.platter.lock().syncs_to_fail = count;
    }

    /// The disk holds so many bytes from now on; none: any amount. A write beyond it stops the engine until the disk is opened again.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.platter.lock().capacity_bytes = bytes;
    }

    /// Bytes that records, keys and values take now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let platter = self.platter.lock();
        platter.logs.bytes + platter.state.bytes
    }

    /// Power loss: the process is dead, and of what was not synced a random prefix survives, the last write of it maybe
    /// torn; nothing survives where a write or sync had failed before. `draw(n)` must return a number below `n`; the same draws leave the same disk.
    pub fn crash(&self, draw: &mut impl FnMut(u64) -> u64) {
        self.lose(|platter| {
            if platter.stopped.is_some() {
                // Behind a write that failed nothing counts: what the failed sync has dropped would be a hole in the log.
                return;
            }
            let log_kept = draw_up_to(draw, platter.waiting.len());
            let changes = platter
                .waiting
                .iter()
                .filter_map(|waiting| waiting.change.as_ref());
            let changes: Vec<Change> = changes.cloned().collect();
            let log_kept = log_kept.min(changes.len());
            changes[..log_kept]
                .iter()
                .for_each(|change| platter.logs_synced.apply(change));
            if let Some(torn) = changes.get(log_kept).and_then(|change| tear(change, draw)) {
                platter.logs_synced.apply(&torn);
            }
            let state_kept = draw_up_to(draw, platter.state_unsynced.len());
            for batch in platter.state_unsynced.iter().take(state_kept) {
                platter.state_synced.apply(batch);
            }
        });
    }

    /// Power loss that takes everything that was not synced.
    pub fn power_off(&self) {
        self.lose(|_| {});
    }

    /// Flips bits of a stored log entry's record, header included: exclusive-ors `mask` into the byte at `at`. False if no
    /// such byte is there, or it is not durable yet.
    pub fn flip_entry(&self, group: u64, index: u64, at: usize, mask: u8) -> bool {
        let platter = &mut *self.platter.lock();
        let flipped = platter
            .logs_synced
            .entry_mut(group, index)
            .is_some_and(|stored| flip(stored, at, mask));
        flipped
            && platter
                .logs
                .entry_mut(group, index)
                .is_some_and(|stored| flip(stored, at, mask))
    }

    /// The same for a group's small record.
    pub fn flip_record(&self, group: u64, name: &str, at: usize, mask: u8) -> bool {
        let platter = &mut *self.platter.lock();
        let flipped = platter
            .logs_synced
            .record_mut(group, name)
            .is_some_and(|stored| flip(stored, at, mask));
        flipped
            && platter
                .logs
                .record_mut(group, name)
                .is_some_and(|stored| flip(stored, at, mask))
    }

    /// Rot: turns one bit over in the checksum or the contents of so many stored log entries, drawn from all that are durable. Returns what
    /// [`Disk::unrot`] needs. Lengths are spared: the last entry of a log would look torn, as one that was never answered, and be dropped in silence.
    pub fn rot(&self, entries: usize, draw: &mut impl FnMut(u64) -> u64) -> Vec<Rot> {
        let mut all = self.platter.lock().logs_synced.places();
        let mut rotten = Vec::new();
        while rotten.len() < entries && !all.is_empty() {
            let place = usize::try_from(draw(all.len() as u64)).unwrap_or(0);
            let (group, index, bytes) = all.swap_remove(place.min(all.len() - 1));
            let at = CHECKSUM_AT + usize::try_from(draw((bytes - CHECKSUM_AT) as u64)).unwrap_or(0);
            let mask = 1 << draw(8).min(7);
            if self.flip_entry(group, index, at, mask) {
                let stored = self.platter.lock().logs.entry(group, index).cloned();
                rotten.extend(stored.map(|stored| Rot {
                    group,
                    index,
                    at,
                    mask,
                    stored,
                }));
            }
        }
        rotten
    }

    /// Turns the bits back, where what has rotted was not removed or written anew since.
    pub fn unrot(&self, rotten: &[Rot]) {
        for rot in rotten {
            let is_there =
                self.platter.lock().logs.entry(rot.group, rot.index) == Some(&rot.stored);
            if is_there {
                self.flip_entry(rot.group, rot.index, rot.at, rot.mask);
            }
        }
    }

    fn lose(&self, survive: impl FnOnce(&mut Platter)) {
        let dropped = {
            let mut platter = self.platter.lock();
            survive(&mut platter);
            let dropped = platter.die();
            platter.logs = platter.logs_synced.clone();
            platter.state = platter.state_synced.clone();
            dropped
        };
        drop(dropped);
    }
}

/// What is left of a write that the power loss caught: of an append a prefix of its entries and a cut record; else nothing.
fn tear(change: &Change, draw: &mut impl FnMut(u64) -> u64) -> Option<Change> {
    match change {
        Change::Append {
            group,
            first,
            stored,
        } => {
            let whole = draw_up_to(draw, stored.len());
            let mut left: Vec<Bytes> = stored[..whole].to_vec();
            if let Some(cut) = stored.get(whole) {
                let length = draw_up_to(draw, cut.len() - 1);
                left.extend((length > 0).then(|| cut.slice(..length)));
            }
            Some(Change::Append {
                group: *group,
                first: *first,
                stored: left,
            })
        }
        Change::Truncate { .. } | Change::Purge { .. } | Change::Record { .. } => None,
    }
}

fn draw_up_to(draw: &mut impl FnMut(u64) -> u64, most: usize) -> usize {
    let most = most as u64;
    usize::try_from(draw(most + 1).min(most)).unwrap_or(usize::MAX)
}

fn flip(stored: &mut Bytes, at: usize, mask: u8) -> bool {
    let mut bytes = stored.to_vec();
    let Some(byte) = bytes.get_mut(at).filter(|_| mask != 0) else {
        return false;
    };
    *byte ^= mask;
    *stored = Bytes::from(bytes);
    true
}
