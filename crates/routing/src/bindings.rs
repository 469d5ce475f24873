//! All bindings of the table in one slab, threaded on three lists each: by source, by destination, and one that the source's exchange type
//! uses as it likes.
//!
//! Invariant: a binding is on its source's list, on its destination's list and in the identity index exactly as long as it is in the slab.
//! Cost: 44 bytes a binding and about 10 in the identity index; removing one is constant time, so deleting a queue costs what it removes.

use crate::hash;
use crate::names::Symbol;
use crate::slab::{NONE, Slab};
use hashbrown::HashTable;

/// Where a binding leads: a queue's or an exchange's slot, told apart by the highest bit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct End(u32);

const EXCHANGE: u32 = 1 << 31;

impl End {
    pub fn queue(slot: u32) -> Self {
        debug_assert!(slot < EXCHANGE);
        Self(slot)
    }

    pub fn exchange(slot: u32) -> Self {
        debug_assert!(slot < EXCHANGE);
        Self(slot | EXCHANGE)
    }

    #[inline]
    pub fn as_queue(self) -> Option<u32> {
        (self.0 & EXCHANGE == 0).then_some(self.0)
    }

    #[inline]
    pub fn as_exchange(self) -> Option<u32> {
        (self.0 & EXCHANGE != 0).then_some(self.0 & !EXCHANGE)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Binding {
    /// The source exchange's slot.
    pub source: u32,
    pub destination: End,
    pub key: Symbol,
    /// The canonical argument table.
    pub arguments: Symbol,
    links: [Links; 3],
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// Which of a binding's lists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum List {
    Source,
    Destination,
    /// The exchange type's own.
    Match,
}

/// A list's head and length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub head: u32,
    pub len: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { head: NONE, len: 0 }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bindings {
    slab: Slab<Binding>,
    identities: HashTable<u32>,
}

impl Bindings {
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    #[inline]
    pub fn get(&self, number: u32) -> &Binding {
        &self.slab[number]
    }

    /// Adds a binding that is not there yet (see [`Self::find`]); it is on no list yet.
    pub fn insert(&mut self, source: u32, destination: End, key: Symbol, arguments: Symbol) -> u32 {
        let unlinked = Links {
            before: NONE,
            after: NONE,
        };
        let number = self.slab.insert(Binding {
            source,
            destination,
            key,
            arguments,
            links: [unlinked; 3],
        });
        let slab = &self.slab;
        self.identities
            .insert_unique(identity(&slab[number]), number, |known| {
                identity(&slab[*known])
            });
        number
    }

    /// Takes a binding out that is on no list any more.
    pub fn remove(&mut self, number: u32) -> Binding {
        let binding = self.slab.remove(number);
        match self
            .identities
            .find_entry(identity(&binding), |known| *known == number)
        {
            Ok(found) => {
                found.remove();
            }
            Err(_) => unreachable!("every binding is indexed"),
        }
        binding
    }

    pub fn find(
        &self,
        source: u32,
        destination: End,
        key: Symbol,
        arguments: Symbol,
    ) -> Option<u32> {
        let wanted = identity_of(source, destination, key, arguments);
        let is_it = |known: &u32| {
            let binding = &self.slab[*known];
            binding.source == source
                && binding.destination == destination
                && binding.key == key
                && binding.arguments == arguments
        };
        self.identities.find(wanted, is_it).copied()
    }

    pub fn link(&mut self, list: List, head: &mut u32, number: u32) {
        let after = *head;
        self.slab[number].links[list as usize] = Links {
            before: NONE,
            after,
        };
        if after != NONE {
            self.slab[after].links[list as usize].before = number;
        }
        *head = number;
    }

    pub fn unlink(&mut self, list: List, head: &mut u32, number: u32) {
        let Links { before, after } = self.slab[number].links[list as usize];
        if before == NONE {
            debug_assert_eq!(*head, number);
            *head = after;
        } else {
            self.slab[before].links[list as usize].after = after;
        }
        if after != NONE {
            self.slab[after].links[list as usize].before = before;
        }
    }

    pub fn iter(&self, list: List, head: u32) -> impl Iterator<Item = u32> + '_ {
        let mut next = head;
        std::iter::from_fn(move || {
            let number = next;
            next = self.slab.get(number)?.links[list as usize].after;
            Some(number)
        })
    }

    /// For exchange types that keep no chain: a number of their own with the binding, in place of the links.
    pub fn set_mark(&mut self, number: u32, mark: u32) {
        self.slab[number].links[List::Match as usize].after = mark;
    }

    pub fn mark(&self, number: u32) -> u32 {
        self.slab[number].links[List::Match as usize].after
    }
}

fn identity(binding: &Binding) -> u64 {
    identity_of(
        binding.source,
        binding.destination,
        binding.key,
        binding.arguments,
    )
}

fn identity_of(source: u32, destination: End, key: Symbol, arguments: Symbol) -> u64 {
    hash::mix(hash::pair(source, destination.0) ^ hash::pair(key.0, arguments.0).rotate_left(32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_together_whatever_is_taken_out() {
        let mut bindings = Bindings::default();
        let mut head = NONE;
        let numbers: Vec<u32> = (0..4)
            .map(|key| {
                let number = bindings.insert(0, End::queue(1), Symbol(key), Symbol(9));
                bindings.link(List::Source, &mut head, number);
                number
            })
            .collect();
        assert_eq!(
            bindings.find(0, End::queue(1), Symbol(2), Symbol(9)),
            Some(numbers[2])
        );
        assert_eq!(
            bindings.find(0, End::exchange(1), Symbol(2), Symbol(9)),
            None
        );
        for gone in [1, 3, 0, 2] {
            bindings.unlink(List::Source, &mut head, numbers[gone]);
            bindings.remove(numbers[gone]);
            let left: Vec<u32> = bindings.iter(List::Source, head).collect();
            assert_eq!(left.len(), bindings.len());
            assert!(!left.contains(&numbers[gone]));
        }
        assert_eq!(head, NONE);
    }
}
