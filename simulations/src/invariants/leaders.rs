//! Every shard is led by its preferred leader soon after the last fault, and all nodes know it.

use std::fmt;
use std::time::Duration;
use warren_node::Node;

/// The check; it needs no memory.
#[derive(Debug, Default)]
pub struct Leaders;

/// A shard that is not led as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Misled {
    by: String,
    shard: usize,
    known: String,
    preferred: String,
}

impl fmt::Display for Misled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "by {}, shard {} is led by {}, and should be by {}",
            self.by, self.shard, self.known, self.preferred
        )
    }
}

impl Leaders {
    /// Its name.
    pub const NAME: &str = "preferred-leaders";
    /// How soon.
    pub(crate) const SOON: Duration = Duration::from_secs(10);

    /// The first shard of which a node does not know that its preferred leader leads.
    pub(crate) fn misled(node: &Node) -> Option<Misled> {
        let table = node.metadata().table().read();
        let ownership = node.ownership(&table);
        let name = |id: Option<warren_model::NodeId>| {
            let known = id.and_then(|id| table.node(id));
            known.map_or_else(|| "nobody".to_owned(), |known| known.name.to_owned())
        };
        let pairs = ownership.of_shards().zip(ownership.preferred());
        first_misled(pairs).map(|(shard, known, preferred)| Misled {
            by: node.name().to_owned(),
            shard,
            known: name(known),
            preferred: name(preferred),
        })
    }
}

fn first_misled<T: PartialEq>(
    shards: impl Iterator<Item = (Option<T>, Option<T>)>,
) -> Option<(usize, Option<T>, Option<T>)> {
    shards
        .enumerate()
        .find(|(_, (known, preferred))| known.is_none() || known != preferred)
        .map(|(shard, (known, preferred))| (shard, known, preferred))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_leader_and_none_are_found() {
        let find = |shards: &[(Option<u8>, Option<u8>)]| {
            first_misled(shards.iter().copied()).map(|(shard, ..)| shard)
        };
        assert_eq!(find(&[(Some(1), Some(1)), (Some(2), Some(2))]), None);
        assert_eq!(find(&[(Some(1), Some(1)), (Some(1), Some(2))]), Some(1));
        assert_eq!(find(&[(None, None)]), Some(0));
    }
}
