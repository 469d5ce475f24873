//! Direct exchanges: a binding takes the messages whose routing key equals its own.
//!
//! Bindings of one key form a chain, whose head is found by the key's symbol: routing costs one look-up and the matching bindings.

use super::{BadProperties, ExchangeType, Lookup, NewBinding, Scratch, Store};
use crate::bindings::{End, List};
use crate::hash;
use crate::slab::NONE;
use hashbrown::HashTable;
use warren_model::Refusal;
use warren_protocol::Table;

#[derive(Clone, Debug, Default)]
pub(crate) struct Direct {
    chains: HashTable<KeyChain>,
}

#[derive(Clone, Copy, Debug)]
struct KeyChain {
    key: u32,
    head: u32,
}

fn hasher(chain: &KeyChain) -> u64 {
    hash::mix(u64::from(chain.key))
}

impl ExchangeType for Direct {
    fn new(_: Table<'_>, _: &str) -> Result<Self, Refusal> {
        Ok(Self::default())
    }

    fn check_binding(&self, _: &[u8], _: Table<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>) {
        let key = store.bindings.get(binding.number).key.0;
        let chain = self
            .chains
            .entry(hash::mix(u64::from(key)), |chain| chain.key == key, hasher);
        let mut chain = chain.or_insert(KeyChain { key, head: NONE });
        store
            .bindings
            .link(List::Match, &mut chain.get_mut().head, binding.number);
    }

    fn remove(&mut self, store: &mut Store<'_>, number: u32) {
        let key = store.bindings.get(number).key.0;
        let Ok(mut chain) = self
            .chains
            .find_entry(hash::mix(u64::from(key)), |chain| chain.key == key)
        else {
            unreachable!("every binding's key has a chain");
        };
        store
            .bindings
            .unlink(List::Match, &mut chain.get_mut().head, number);
        if chain.get().head == NONE {
            chain.remove();
        }
    }

    #[inline]
    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        _: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties> {
        for key in lookup.message.keys {
            let Some(symbol) = lookup.names.find(key) else {
                continue;
            };
            if let Some(chain) = self.chains.find(hash::mix(u64::from(symbol.0)), |chain| {
                chain.key == symbol.0
            }) {
                hits.extend(
                    lookup
                        .bindings
                        .iter(List::Match, chain.head)
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
        let key = lookup.names.get(lookup.bindings.get(number).key);
        let matched = lookup.message.keys.contains(&key);
        let why = if matched {
            "the routing key equals the binding key"
        } else {
            "the routing key differs from the binding key"
        };
        Ok((matched, why.to_owned()))
    }
}
