//! The cluster's nodes as they were last seen, to tell the audit log which have come and gone.
//!
//! Every node follows the table; the metadata group's leader of the time writes the records, so that each change is in one node's audit log.

use crate::audit;
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use warren_model::NodeId;
use warren_routing::{NodeRecord, Table};

type Nodes = BTreeMap<NodeId, NodeRecord>;

/// The nodes that were seen last.
#[derive(Debug)]
pub(crate) struct Roster(Mutex<Nodes>);

/// Something that has happened to a node.
#[derive(Debug, PartialEq, Eq)]
struct Change<'a> {
    action: &'static str,
    node: &'a NodeRecord,
    detail: String,
}

impl Roster {
    pub(crate) fn new(table: &Table) -> Self {
        Self(Mutex::new(nodes(table)))
    }
}

fn nodes(table: &Table) -> Nodes {
    let all = table.nodes();
    all.map(|known| (known.id, known.clone())).collect()
}

fn changes<'a>(before: &'a Nodes, after: &'a Nodes) -> Vec<Change<'a>> {
    let mut all = Vec::new();
    let mut add = |action, node, detail| {
        all.push(Change {
            action,
            node,
            detail,
        });
    };
    let named = |nodes: &'a Nodes, name: &str| nodes.values().find(|known| known.name == name);
    for (id, node) in before {
        // One whose name another one has by now is told of with that one.
        if !after.contains_key(id) && named(after, &node.name).is_none() {
            add("node.leave", node, format!("id {id}"));
        }
    }
    for (id, node) in after {
        let state = format!("id {id}, incarnation {}", node.incarnation.0);
        match before.get(id) {
            Some(known) => {
                let is_other = known.incarnation != node.incarnation;
                if known.up && !node.up {
                    add("node.down", node, state);
                } else if node.up && (!known.up || is_other) {
                    add("node.up", node, state);
                }
            }
            None => match named(before, &node.name) {
                Some(lost) => add(
                    "node.replace",
                    node,
                    format!("{state}, in place of id {}", lost.id),
                ),
                None => add("node.join", node, state),
            },
        }
    }
    all
}

impl Node {
    /// The table's nodes are not what they were: notes them, and tells the audit log as the metadata group's leader.
    pub(crate) fn note_members(&self, roster: &Roster) {
        let after = nodes(&self.metadata().table().read());
        let mut seen = roster.0.lock();
        let before = std::mem::replace(&mut *seen, after);
        if self.metadata().leader() == Some(self.id()) {
            for Change {
                action,
                node,
                detail,
            } in changes(&before, &seen)
            {
                audit::member_changed(action, &node.name, &node.address, &detail);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_model::Incarnation;

    fn seen(all: &[(u64, &str, u64, bool)]) -> Nodes {
        let node = |&(id, name, incarnation, up): &(u64, &str, u64, bool)| NodeRecord {
            id: NodeId(id),
            name: name.into(),
            address: "a:1".into(),
            amqp: String::new(),
            http: String::new(),
            incarnation: Incarnation(incarnation),
            up,
        };
        all.iter().map(node).map(|n| (n.id, n)).collect()
    }

    #[test]
    fn what_happened_to_nodes_is_told_once_each() {
        let before = seen(&[(1, "a", 1, true), (2, "b", 1, true), (3, "c", 4, false)]);
        let told = |after: &[(u64, &str, u64, bool)]| -> Vec<(&'static str, String)> {
            let after = seen(after);
            let all = changes(&before, &after);
            all.iter()
                .map(|c| (c.action, c.node.name.clone()))
                .collect()
        };
        let is = |action, name: &str| vec![(action, name.to_owned())];
        let (a, b, c) = ((1, "a", 1, true), (2, "b", 1, true), (3, "c", 4, false));
        assert_eq!(told(&[a, b, c]), []);
        assert_eq!(told(&[a, b, c, (4, "d", 1, true)]), is("node.join", "d"));
        assert_eq!(told(&[a, b]), is("node.leave", "c"));
        assert_eq!(told(&[a, b, (3, "c", 5, true)]), is("node.up", "c"));
        assert_eq!(told(&[a, b, (3, "c", 4, true)]), is("node.up", "c"));
        assert_eq!(told(&[a, (2, "b", 2, true), c]), is("node.up", "b"));
        assert_eq!(told(&[a, (2, "b", 1, false), c]), is("node.down", "b"));
        assert_eq!(told(&[a, b, (9, "c", 1, true)]), is("node.replace", "c"));
    }
}
