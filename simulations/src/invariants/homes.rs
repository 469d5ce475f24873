//! Queues in a node's memory (exclusive, not durable) exist only while that incarnation of the node is up: at every applied index.

use warren_model::command::Place;
use warren_routing::Table;

/// The check; it needs no memory.
#[derive(Debug, Default)]
pub struct Homes;

impl Homes {
    /// Its name.
    pub const NAME: &str = "homes";

    /// Looks at all queues.
    pub(crate) fn check(&self, node: &str, table: &Table) -> Result<(), String> {
        for queue in table.queues("/") {
            let homes = match queue.place {
                Place::Shard(_) => None,
                Place::Node(home, incarnation) => Some((home, incarnation)),
            };
            let session = queue
                .exclusive
                .map(|session| (session.node, session.incarnation));
            for (home, incarnation) in homes.into_iter().chain(session) {
                if !table
                    .node(home)
                    .is_some_and(|known| known.up && known.incarnation == incarnation)
                {
                    return Err(format!(
                        "by the table of {node} at index {}, queue '{}' lives on incarnation {} of node {home}, which is not up",
                        table.index(),
                        queue.name,
                        incarnation.0
                    ));
                }
            }
        }
        Ok(())
    }
}
