//! Deliveries of one channel that wait for an acknowledgement, by delivery tag.
//!
//! Invariant: tags grow; a settled entry in the middle stays until the front reaches it, or until most are settled and the rest is moved together.

use std::collections::VecDeque;

/// A delivery that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unacked {
    pub(crate) tag: u64,
    pub(crate) consumer: u32,
    pub(crate) position: u64,
    settled: bool,
}

/// No queue has so many messages: the position of a delivery whose message is another consumer's, or gone.
pub(crate) const NOT_HELD: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(crate) struct UnackedTags {
    list: VecDeque<Unacked>,
    settled: usize,
}

impl UnackedTags {
    #[inline]
    pub(crate) fn push(&mut self, tag: u64, consumer: u32, position: u64) {
        self.list.push_back(Unacked {
            tag,
            consumer,
            position,
            settled: false,
        });
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.list.len() - self.settled
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.len() == self.settled
    }

    /// A consumer does not hold these positions any more: its deliveries of them can be settled, to no effect.
    pub(crate) fn lose(&mut self, consumer: u32, positions: &[u64]) {
        let of_it = self.list.iter_mut().filter(|u| u.consumer == consumer);
        for unacked in of_it.filter(|u| positions.contains(&u.position)) {
            unacked.position = NOT_HELD;
        }
    }

    /// Deliveries that wait, in the order of their tags.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Unacked> {
        self.list.iter().filter(|u| !u.settled)
    }

    /// Takes the delivery with this tag.
    #[inline]
    pub(crate) fn take(&mut self, tag: u64) -> Option<Unacked> {
        if self
            .list
            .front()
            .is_some_and(|u| u.tag == tag && !u.settled)
        {
            let found = self.list.pop_front();
            self.trim();
            return found;
        }
        let index = self.list.binary_search_by_key(&tag, |u| u.tag).ok()?;
        let entry = &mut self.list[index];
        if entry.settled {
            return None;
        }
        entry.settled = true;
        let found = *entry;
        self.settled += 1;
        self.trim();
        Some(found)
    }

    /// Whether `tag` is open, which a `multiple` settlement asks of the tag that it names.
    pub(crate) fn contains(&self, tag: u64) -> bool {
        self.list
            .binary_search_by_key(&tag, |u| u.tag)
            .is_ok_and(|i| !self.list[i].settled)
    }

    /// Takes all with tags up to `tag`, in order; all there are if `None`.
    pub(crate) fn take_through(&mut self, tag: Option<u64>, mut each: impl FnMut(Unacked)) {
        while let Some(front) = self.list.front() {
            if tag.is_some_and(|tag| front.tag > tag) {
                break;
            }
            let front = *front;
            self.list.pop_front();
            if front.settled {
                self.settled -= 1;
            } else {
                each(front);
            }
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.list.front().is_some_and(|u| u.settled) {
            self.list.pop_front();
            self.settled -= 1;
        }
        if self.settled > 1024 && self.settled * 8 > self.list.len() * 7 {
            self.list.retain(|u| !u.settled);
            self.settled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_once_and_a_straggler_pins_nothing() {
        let mut u = UnackedTags::default();
        for tag in 1..=10_000 {
            u.push(tag, 1, tag + 5);
        }
        assert_eq!(u.take(3).map(|u| u.position), Some(8));
        assert_eq!(u.take(3), None);
        assert_eq!(u.iter().take(3).map(|u| u.tag).sum::<u64>(), 1 + 2 + 4);
        assert!(!u.contains(3) && u.contains(4) && !u.contains(10_001));
        for tag in 4..=10_000 {
            assert!(u.take(tag).is_some(), "tag {tag}");
        }
        assert!(u.list.len() < 2_000, "{}", u.list.len());
        let mut rest = Vec::new();
        u.take_through(Some(2), |u| rest.push(u.tag));
        assert_eq!(rest, [1, 2]);
        assert!(u.is_empty());
    }

    #[test]
    fn what_is_lost_is_settled_to_no_effect() {
        let mut u = UnackedTags::default();
        for (tag, consumer, position) in [(1, 1, 5), (2, 2, 5), (3, 1, 6)] {
            u.push(tag, consumer, position);
        }
        u.lose(1, &[5]);
        // It may come again, as another delivery.
        u.push(4, 1, 5);
        let positions: Vec<u64> = u.iter().map(|u| u.position).collect();
        assert_eq!(positions, [NOT_HELD, 5, 6, 5]);
        assert_eq!(u.take(1).map(|u| u.position), Some(NOT_HELD));
    }
}
