//! Consistent hashing is a pure function of the bindings: with the same ones, each key goes to the same queue on every node, whenever and whatever happened in
//! between; when bindings come or go, keys move only to the new ones or away from the old ones.

use std::collections::BTreeMap;
use warren_model::command::Destination;
use warren_routing::{Publish, Route, Table};

/// Keys that are looked at.
const KEYS: usize = 64;
const VHOST: &str = "/";

/// Destinations with their weights, sorted.
type Members = Vec<(String, Vec<u8>)>;
/// The queue of each key.
type Map = Vec<String>;

/// What was seen of each exchange.
#[derive(Debug, Default)]
pub struct HashRing {
    maps: BTreeMap<(String, Members), Map>,
    latest: BTreeMap<String, Members>,
    compared: u64,
}

impl HashRing {
    /// Its name.
    pub const NAME: &str = "hash-ring";

    /// Looks at all consistent-hash exchanges of a table.
    pub(crate) fn check(&mut self, node: &str, table: &Table) -> Result<(), String> {
        for exchange in table
            .exchanges(VHOST)
            .filter(|exchange| exchange.kind == "x-consistent-hash")
        {
            let bindings = table.bindings_of_source(VHOST, exchange.name);
            let mut members: Members = bindings
                .map(|binding| match binding.destination {
                    Destination::Queue(name) | Destination::Exchange(name) => {
                        (name, binding.key.to_vec())
                    }
                })
                .collect();
            members.sort();
            if members.is_empty() {
                continue;
            }
            self.take(node, exchange.name, members, map(table, exchange.name))?;
        }
        Ok(())
    }

    /// How often a map was held against an earlier one.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.compared
    }

    fn take(
        &mut self,
        node: &str,
        exchange: &str,
        members: Members,
        map: Map,
    ) -> Result<(), String> {
        let name = (exchange.to_owned(), members.clone());
        if let Some(known) = self.maps.get(&name) {
            self.compared += 1;
            if let Some(key) = (0..KEYS).find(|key| known[*key] != map[*key]) {
                return Err(format!(
                    "on {node}, exchange '{exchange}' takes key '{}' to '{}', but with the same bindings it once went to '{}'",
                    key_name(key),
                    map[key],
                    known[key]
                ));
            }
        } else if let Some(before) = self.latest.get(exchange)
            && let Some(known) = self.maps.get(&(exchange.to_owned(), before.clone()))
        {
            self.compared += 1;
            // A queue whose weights have changed counts as both gone and new.
            let stays = |queue: &String| {
                members
                    .iter()
                    .filter(|(name, _)| name == queue)
                    .eq(before.iter().filter(|(name, _)| name == queue))
            };
            if let Some(key) = (0..KEYS)
                .find(|key| known[*key] != map[*key] && stays(&known[*key]) && stays(&map[*key]))
            {
                return Err(format!(
                    "on {node}, a change of other bindings of exchange '{exchange}' has moved key '{}' from '{}' to '{}'",
                    key_name(key),
                    known[key],
                    map[key]
                ));
            }
        }
        self.maps.insert(name, map);
        self.latest.insert(exchange.to_owned(), members);
        Ok(())
    }
}

fn key_name(key: usize) -> String {
    format!("key{key}")
}

fn map(table: &Table, exchange: &str) -> Map {
    let mut route = Route::default();
    let of = |key| {
        let key = key_name(key);
        let publish = Publish {
            vhost: VHOST,
            exchange: exchange.as_bytes(),
            routing_keys: &[key.as_bytes()],
            properties: &[],
        };
        match table.route(&publish, &mut route) {
            Ok(()) => route
                .queues
                .iter()
                .filter_map(|target| table.queue_by_id(target.id))
                .map(|queue| queue.name)
                .collect::<Vec<_>>()
                .join("+"),
            Err(error) => error.to_string(),
        }
    };
    (0..KEYS).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(names: &[&str]) -> Members {
        names
            .iter()
            .map(|name| ((*name).to_owned(), b"1".to_vec()))
            .collect()
    }

    fn map(queue: impl Fn(usize) -> &'static str) -> Map {
        (0..KEYS).map(|key| queue(key).to_owned()).collect()
    }

    #[test]
    fn keys_move_only_with_bindings() {
        let mut ring = HashRing::default();
        let two = map(|key| if key % 2 == 0 { "a" } else { "b" });
        ring.take("n1", "x", members(&["a", "b"]), two.clone())
            .unwrap();
        let three = map(|key| {
            if key % 3 == 0 {
                "c"
            } else if key % 2 == 0 {
                "a"
            } else {
                "b"
            }
        });
        ring.take("n1", "x", members(&["a", "b", "c"]), three)
            .unwrap();
        assert!(
            ring.take("n2", "x", members(&["a", "b"]), map(|_| "a"))
                .unwrap_err()
                .contains("same bindings")
        );
        let swapped = map(|key| if key % 2 == 0 { "b" } else { "a" });
        assert!(
            ring.take("n1", "x", members(&["a", "b", "d"]), swapped)
                .unwrap_err()
                .contains("other bindings")
        );
    }
}
