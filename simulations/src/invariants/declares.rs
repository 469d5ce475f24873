//! No routing without a lease: the table of a node that may route shows every declare, bind, unbind and delete that was answered.
//!
//! Flow: a client that alone changes a name settles the fact when it is answered, and unsettles it before it asks for a change of it. Nodes are held against the
//! facts settled since they were last looked at, and now and then against all.
//! Only durable things are settled as existing: others may go with a node.

use std::collections::BTreeMap;
use std::fmt;
use warren_model::command::Destination;
use warren_routing::Table;

const VHOST: &str = "/";

/// Something that exists or does not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fact {
    /// An exchange.
    Exchange(String),
    /// A queue.
    Queue(String),
    /// A binding of a queue.
    Binding {
        /// Source exchange.
        source: String,
        /// The queue.
        queue: String,
        /// Binding key.
        key: String,
    },
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exchange(name) => write!(f, "exchange '{name}'"),
            Self::Queue(name) => write!(f, "queue '{name}'"),
            Self::Binding { source, queue, key } => {
                write!(f, "binding '{source}' -{key}-> '{queue}'")
            }
        }
    }
}

impl Fact {
    fn holds_in(&self, table: &Table) -> bool {
        match self {
            Self::Exchange(name) => table.exchange(VHOST, name).is_some(),
            Self::Queue(name) => table.queue(VHOST, name).is_some(),
            Self::Binding { source, queue, key } => {
                let destination = Destination::Queue(queue.clone());
                let mut bindings = table.bindings_of_destination(VHOST, &destination);
                bindings.any(|binding| binding.source == source && binding.key == key.as_bytes())
            }
        }
    }
}

/// What was answered.
#[derive(Debug)]
pub struct Declares {
    settled: BTreeMap<Fact, bool>,
    /// Facts in the order in which they were settled.
    order: Vec<Fact>,
    /// How far in `order` each node was checked.
    checked: Vec<usize>,
    checks: u64,
}

impl Declares {
    /// Its name.
    pub const NAME: &str = "leases";

    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            settled: BTreeMap::new(),
            order: Vec::new(),
            checked: vec![0; nodes],
            checks: 0,
        }
    }

    /// A client was told so.
    pub fn settle(&mut self, fact: Fact, exists: bool) {
        self.order.push(fact.clone());
        self.settled.insert(fact, exists);
    }

    /// It may change from now on, or nobody knows any more.
    pub fn unsettle(&mut self, fact: &Fact) {
        self.settled.remove(fact);
    }

    pub(crate) fn node_up(&mut self, node: usize) {
        self.checked[node] = 0;
    }

    /// How often a fact was held against a table.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.checks
    }

    /// Holds a node that may route against what was settled since the last time, or against everything.
    pub(crate) fn check_routing(
        &mut self,
        node: usize,
        table: &Table,
        everything: bool,
    ) -> Result<(), String> {
        let first = if everything { 0 } else { self.checked[node] };
        self.checked[node] = self.order.len();
        let facts: Vec<(&Fact, bool)> = if everything {
            self.settled
                .iter()
                .map(|(fact, exists)| (fact, *exists))
                .collect()
        } else {
            self.order[first..]
                .iter()
                .filter_map(|fact| Some((fact, *self.settled.get(fact)?)))
                .collect()
        };
        self.checks += facts.len() as u64;
        match facts
            .into_iter()
            .find(|(fact, exists)| fact.holds_in(table) != *exists)
        {
            None => Ok(()),
            Some((fact, exists)) => Err(format!(
                "{} may route, but its table (index {}) {} {fact}, whose {} was answered",
                crate::options::node_name(node),
                table.index(),
                if exists { "lacks" } else { "still has" },
                if exists { "making" } else { "deletion" }
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_without_what_was_answered_is_found() {
        let table = Table::new();
        let queue = Fact::Queue("q".into());
        let mut declares = Declares::new(1);
        declares.settle(queue.clone(), false);
        declares.check_routing(0, &table, false).unwrap();
        declares.settle(queue.clone(), true);
        assert!(
            declares
                .check_routing(0, &table, false)
                .unwrap_err()
                .contains("lacks queue 'q'")
        );
        declares.check_routing(0, &table, false).unwrap();
        assert!(
            declares.check_routing(0, &table, true).is_err(),
            "all facts are checked when asked for"
        );
        declares.unsettle(&queue);
        declares.check_routing(0, &table, true).unwrap();
    }
}
