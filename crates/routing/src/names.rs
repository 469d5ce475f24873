//! Interned byte strings: binding keys, topic words and binding arguments, each held once and counted.
//!
//! Flow: a binding acquires its key and arguments, a topic trie its words; a message's key is only looked up.
//! Cost: about 40 bytes for a string of up to 16 bytes, which needs no allocation of its own.

use crate::hash;
use crate::slab::Slab;
use hashbrown::HashTable;
use smallvec::SmallVec;

/// An interned string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Symbol(pub u32);

#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    entries: Slab<Entry>,
    index: HashTable<u32>,
}

#[derive(Clone, Debug)]
struct Entry {
    bytes: SmallVec<[u8; 16]>,
    holders: u32,
}

impl Names {
    /// The symbol of `bytes`, held once more.
    pub fn acquire(&mut self, bytes: &[u8]) -> Symbol {
        if let Some(symbol) = self.find(bytes) {
            self.entries[symbol.0].holders += 1;
            return symbol;
        }
        let number = self.entries.insert(Entry {
            bytes: SmallVec::from_slice(bytes),
            holders: 1,
        });
        let entries = &self.entries;
        self.index
            .insert_unique(hash::bytes(bytes), number, |known| {
                hash::bytes(&entries[*known].bytes)
            });
        Symbol(number)
    }

    /// Held once less; forgotten when nobody holds it.
    pub fn release(&mut self, symbol: Symbol) {
        let entry = &mut self.entries[symbol.0];
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        let entry = self.entries.remove(symbol.0);
        match self
            .index
            .find_entry(hash::bytes(&entry.bytes), |known| *known == symbol.0)
        {
            Ok(found) => {
                found.remove();
            }
            Err(_) => unreachable!("every entry is indexed"),
        }
    }

    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<Symbol> {
        self.index
            .find(hash::bytes(bytes), |known| {
                &self.entries[*known].bytes[..] == bytes
            })
            .map(|known| Symbol(*known))
    }

    #[inline]
    pub fn get(&self, symbol: Symbol) -> &[u8] {
        &self.entries[symbol.0].bytes
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lives_as_long_as_it_is_held() {
        let mut names = Names::default();
        let a = names.acquire(b"a");
        assert_eq!(names.acquire(b"a"), a);
        let long = names.acquire(&[7; 200]);
        assert_eq!(names.get(long), &[7; 200]);
        names.release(a);
        assert_eq!(names.find(b"a"), Some(a));
        names.release(a);
        assert_eq!((names.find(b"a"), names.len()), (None, 1));
    }
}
