//! Topic exchanges: keys are words between dots; in a binding key `*` stands for one word and `#` for any number of them.
//!
//! The binding keys form a trie over interned words. Routing walks it like a finite automaton: it keeps the set of nodes that the words
//! read so far can lead to, so several `#` cost no more than one. Words of no binding key are not interned and only match wildcards.
//! An empty key has no words (RabbitMQ: `#` matches it, `*` does not); between dots an empty word is a word.
//! Cost: words of the message times the nodes reached, which are prefixes of the key; bindings that do not match are not looked at.

use super::{BadProperties, ExchangeType, Lookup, NewBinding, Scratch, Store};
use crate::bindings::{End, List};
use crate::hash::{self, NumberSet};
use crate::names::{Names, Symbol};
use crate::slab::{NONE, Slab};
use hashbrown::HashTable;
use smallvec::SmallVec;
use warren_model::Refusal;
use warren_protocol::Table;

/// The node that stands for no words.
const ROOT: u32 = 0;

#[derive(Clone, Debug)]
pub(crate) struct Topic {
    nodes: Slab<Node>,
    /// Children by (parent, word), the wildcards' aside.
    children: HashTable<u32>,
}

#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    /// What leads here from the parent: a symbol's number, [`STAR`] or [`HASH`].
    word: u32,
    star: u32,
    hash: u32,
    /// Children by word, wildcards' aside.
    words: u32,
    /// Bindings whose key ends here.
    head: u32,
}

/// Not a symbol: a slab never holds so many.
const STAR: u32 = NONE - 1;
const HASH: u32 = NONE - 2;

impl Node {
    fn new(parent: u32, word: u32) -> Self {
        Self {
            parent,
            word,
            star: NONE,
            hash: NONE,
            words: 0,
            head: NONE,
        }
    }

    fn is_bare(&self) -> bool {
        self.head == NONE && self.words == 0 && self.star == NONE && self.hash == NONE
    }
}

fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let some = if key.is_empty() {
        None
    } else {
        Some(key.split(|byte| *byte == b'.'))
    };
    some.into_iter().flatten()
}

impl Topic {
    fn child(&self, parent: u32, word: u32) -> Option<u32> {
        match word {
            STAR => Some(self.nodes[parent].star).filter(|child| *child != NONE),
            HASH => Some(self.nodes[parent].hash).filter(|child| *child != NONE),
            word => {
                let is_it = |node: &u32| {
                    self.nodes[*node].parent == parent && self.nodes[*node].word == word
                };
                self.children.find(hash::pair(parent, word), is_it).copied()
            }
        }
    }

    /// The child under `word`, made if need be; a node holds its word.
    fn descend(&mut self, names: &mut Names, parent: u32, text: &[u8]) -> u32 {
        let word = match text {
            b"*" => STAR,
            b"#" => HASH,
            text => names.acquire(text).0,
        };
        if let Some(child) = self.child(parent, word) {
            if word < HASH {
                names.release(Symbol(word));
            }
            return child;
        }
        let child = self.nodes.insert(Node::new(parent, word));
        match word {
            STAR => self.nodes[parent].star = child,
            HASH => self.nodes[parent].hash = child,
            word => {
                self.nodes[parent].words += 1;
                let nodes = &self.nodes;
                self.children
                    .insert_unique(hash::pair(parent, word), child, |node| {
                        hash::pair(nodes[*node].parent, nodes[*node].word)
                    });
            }
        }
        child
    }

    /// Takes out nodes that nothing needs any more, from `node` upwards.
    fn prune(&mut self, names: &mut Names, mut node: u32) {
        while node != ROOT && self.nodes[node].is_bare() {
            let Node { parent, word, .. } = self.nodes.remove(node);
            match word {
                STAR => self.nodes[parent].star = NONE,
                HASH => self.nodes[parent].hash = NONE,
                word => {
                    self.nodes[parent].words -= 1;
                    match self
                        .children
                        .find_entry(hash::pair(parent, word), |known| *known == node)
                    {
                        Ok(found) => {
                            found.remove();
                        }
                        Err(_) => unreachable!("every child by word is indexed"),
                    }
                    names.release(Symbol(word));
                }
            }
            node = parent;
        }
    }

    /// Makes a node active, and with it its `#` child, which takes no words at all as well.
    fn enter(&self, mut node: u32, active: &mut NumberSet) {
        while node != NONE && active.insert(node) {
            node = self.nodes[node].hash;
        }
    }

    fn step(&self, word: Option<Symbol>, current: &NumberSet, next: &mut NumberSet) {
        for &node in current.as_slice() {
            let state = &self.nodes[node];
            if state.word == HASH && node != ROOT {
                self.enter(node, next);
            }
            if state.star != NONE {
                self.enter(state.star, next);
            }
            if state.words > 0
                && let Some(child) = word.and_then(|word| self.child(node, word.0))
            {
                self.enter(child, next);
            }
        }
    }
}

impl ExchangeType for Topic {
    fn new(_: Table<'_>, _: &str) -> Result<Self, Refusal> {
        let mut nodes = Slab::default();
        let root = nodes.insert(Node::new(NONE, NONE));
        debug_assert_eq!(root, ROOT);
        Ok(Self {
            nodes,
            children: HashTable::new(),
        })
    }

    fn check_binding(&self, _: &[u8], _: Table<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>) {
        let node =
            words(binding.key).fold(ROOT, |node, word| self.descend(store.names, node, word));
        store
            .bindings
            .link(List::Match, &mut self.nodes[node].head, binding.number);
    }

    fn remove(&mut self, store: &mut Store<'_>, number: u32) {
        let key: SmallVec<[u8; 64]> =
            SmallVec::from_slice(store.names.get(store.bindings.get(number).key));
        let node = words(&key).try_fold(ROOT, |node, word| {
            let word = match word {
                b"*" => STAR,
                b"#" => HASH,
                word => store.names.find(word)?.0,
            };
            self.child(node, word)
        });
        let Some(node) = node else {
            unreachable!("every binding's key has its node")
        };
        store
            .bindings
            .unlink(List::Match, &mut self.nodes[node].head, number);
        self.prune(store.names, node);
    }

    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        scratch: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties> {
        for key in lookup.message.keys {
            let (mut current, mut next) = (&mut scratch.current, &mut scratch.next);
            current.clear();
            self.enter(ROOT, current);
            for word in words(key) {
                next.clear();
                self.step(lookup.names.find(word), current, next);
                std::mem::swap(&mut current, &mut next);
            }
            for &node in current.as_slice() {
                hits.extend(
                    lookup
                        .bindings
                        .iter(List::Match, self.nodes[node].head)
                        .map(|number| lookup.bindings.get(number).destination),
                );
            }
        }
        Ok(())
    }

    fn explain(
        &self,
        lookup: &Lookup<'_, '_>,
        number: u32,
    ) -> Result<(bool, String), BadProperties> {
        let pattern: Vec<&[u8]> =
            words(lookup.names.get(lookup.bindings.get(number).key)).collect();
        let mut furthest = 0;
        for key in lookup.message.keys {
            let key: Vec<&[u8]> = words(key).collect();
            match match_words(&pattern, &key) {
                Ok(()) => return Ok((true, "the routing key fits the pattern".to_owned())),
                Err(matched) => furthest = furthest.max(matched),
            }
        }
        let why = match pattern.get(furthest) {
            Some(word) => format!(
                "the pattern's word {} ('{}') finds nothing that fits",
                furthest + 1,
                String::from_utf8_lossy(word)
            ),
            None => "the routing key has more words than the pattern takes".to_owned(),
        };
        Ok((false, why))
    }
}

/// Whether the pattern takes the key; if not, how many of the pattern's words found something.
fn match_words(pattern: &[&[u8]], key: &[&[u8]]) -> Result<(), usize> {
    // reached[i]: the key's first i words fit the pattern's words so far.
    let mut reached = vec![false; key.len() + 1];
    reached[0] = true;
    for (done, word) in pattern.iter().enumerate() {
        let mut next = vec![false; key.len() + 1];
        for i in 0..=key.len() {
            next[i] = match *word {
                b"#" => reached[i] || i > 0 && next[i - 1],
                b"*" => i > 0 && reached[i - 1],
                word => i > 0 && reached[i - 1] && key[i - 1] == word,
            };
        }
        if !next.contains(&true) {
            return Err(done);
        }
        reached = next;
    }
    if reached[key.len()] {
        Ok(())
    } else {
        Err(pattern.len())
    }
}
