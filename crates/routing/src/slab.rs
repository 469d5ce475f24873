//! A vector with holes: values keep their number while others come and go, and freed numbers are used again.
//!
//! Numbers are 32 bits wide, because indexes over a million bindings are mostly made of them.

use std::ops::{Index, IndexMut};

/// No number: the end of a chain, an absent child.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// Head of the list of free slots.
    free: u32,
    len: u32,
}

#[derive(Clone, Debug)]
enum Slot<T> {
    Used(T),
    /// The next free slot.
    Free(u32),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free == NONE {
            let number = u32::try_from(self.slots.len()).unwrap_or(NONE);
            assert!(number != NONE, "a slab holds at most 2^32 - 1 values");
            self.slots.push(Slot::Used(value));
            return number;
        }
        let number = self.free;
        let slot = &mut self.slots[number as usize];
        match std::mem::replace(slot, Slot::Used(value)) {
            Slot::Free(next) => self.free = next,
            Slot::Used(_) => unreachable!("the free list holds free slots only"),
        }
        number
    }

    pub fn remove(&mut self, number: u32) -> T {
        let slot = &mut self.slots[number as usize];
        match std::mem::replace(slot, Slot::Free(self.free)) {
            Slot::Used(value) => {
                self.free = number;
                self.len -= 1;
                value
            }
            Slot::Free(_) => unreachable!("slot {number} was removed before"),
        }
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(number as usize)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        match &self.slots[number as usize] {
            Slot::Used(value) => value,
            Slot::Free(_) => unreachable!("slot {number} is free"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        match &mut self.slots[number as usize] {
            Slot::Used(value) => value,
            Slot::Free(_) => unreachable!("slot {number} is free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_numbers_are_used_again_and_others_stay() {
        let mut slab = Slab::default();
        let (a, b, c) = (slab.insert("a"), slab.insert("b"), slab.insert("c"));
        assert_eq!(slab.remove(b), "b");
        assert_eq!(slab.remove(a), "a");
        assert_eq!((slab.get(a), slab[c], slab.len()), (None, "c", 1));
        assert_eq!((slab.insert("d"), slab.insert("e")), (a, b));
        assert_eq!((slab[a], slab[b], slab.insert("f")), ("d", "e", 3));
    }
}
