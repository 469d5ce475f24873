//! A session's memory of where its publishes went: valid for one version of the routing table.
//!
//! What the publisher may do is part of it: permissions are in the table, so a change of them is another version.
//! Cost: a publish with the same exchange and key as the one before is two comparisons; any remembered one is a hash and a comparison; no allocation.

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::SmallVec;
use std::hash::BuildHasher;
use warren_model::QueueId;

/// More routes than this are not remembered: the table itself answers in about a microsecond.
const ROUTES_MAX: usize = 16 * 1024;

/// One queue of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hop {
    pub(crate) queue: QueueId,
    /// Index of the session's outgoing batch for the queue's owner; `None` while no owner is up.
    pub(crate) outgoing: Option<u16>,
}

#[derive(Debug)]
struct Remembered {
    exchange: Box<[u8]>,
    key: Box<[u8]>,
    hops: SmallVec<[Hop; 1]>,
    denied: u32,
    number: u32,
}

/// Where a publish goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known<'a> {
    pub(crate) hops: &'a [Hop],
    /// Queues that are left out because the publisher may not write to them.
    pub(crate) denied: u32,
    /// What the exchange is counted by.
    pub(crate) number: u32,
}

impl Remembered {
    fn known(&self) -> Known<'_> {
        Known {
            hops: &self.hops,
            denied: self.denied,
            number: self.number,
        }
    }
}

/// Routes by exchange and routing key.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    version: u64,
    routes: Vec<Remembered>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    last: usize,
}

impl RouteCache {
    /// What is remembered for a publish, if the table is still the one that it was found in.
    #[inline]
    pub(crate) fn find(&mut self, version: u64, exchange: &[u8], key: &[u8]) -> Option<Known<'_>> {
        if self.version != version {
            self.forget(version);
            return None;
        }
        if let Some(last) = self.routes.get(self.last)
            && *last.key == *key
            && *last.exchange == *exchange
        {
            return Some(self.routes[self.last].known());
        }
        let hash = self.hasher.hash_one((exchange, key));
        let routes = &self.routes;
        let same = |&i: &u32| {
            let route = &routes[i as usize];
            *route.key == *key && *route.exchange == *exchange
        };
        self.last = *self.index.find(hash, same)? as usize;
        Some(self.routes[self.last].known())
    }

    pub(crate) fn remember(&mut self, version: u64, exchange: &[u8], key: &[u8], known: Known<'_>) {
        if self.version != version || self.routes.len() >= ROUTES_MAX {
            self.forget(version);
        }
        let hash = self.hasher.hash_one((exchange, key));
        self.last = self.routes.len();
        self.routes.push(Remembered {
            exchange: exchange.into(),
            key: key.into(),
            hops: known.hops.into(),
            denied: known.denied,
            number: known.number,
        });
        let (routes, hasher) = (&self.routes, &self.hasher);
        self.index.insert_unique(hash, self.last as u32, |&i| {
            hasher.hash_one((&*routes[i as usize].exchange, &*routes[i as usize].key))
        });
    }

    fn forget(&mut self, version: u64) {
        self.version = version;
        self.routes.clear();
        self.index.clear();
        self.last = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_until_the_table_changes() {
        let mut cache = RouteCache::default();
        let hop = |n| Hop {
            queue: QueueId(n),
            outgoing: Some(0),
        };
        for n in 0..1000u64 {
            assert_eq!(cache.find(1, b"x", &n.to_le_bytes()), None);
            let hops = &[hop(n)];
            let denied = n as u32 % 3;
            cache.remember(
                1,
                b"x",
                &n.to_le_bytes(),
                Known {
                    hops,
                    denied,
                    number: 7,
                },
            );
        }
        for n in (0..1000u64).rev() {
            let hops = &[hop(n)][..];
            let denied = n as u32 % 3;
            let known = cache.find(1, b"x", &n.to_le_bytes());
            assert_eq!(
                known,
                Some(Known {
                    hops,
                    denied,
                    number: 7
                })
            );
        }
        assert_eq!(cache.find(1, b"y", &5u64.to_le_bytes()), None);
        assert_eq!(cache.find(2, b"x", &5u64.to_le_bytes()), None);
        assert_eq!(cache.find(2, b"x", &5u64.to_le_bytes()), None);
    }
}
