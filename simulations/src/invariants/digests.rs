//! At equal applied index the tables of all nodes are equal, through crashes and restarts.

use std::collections::BTreeMap;
use warren_routing::Table;

/// What was seen at each index, by whom first.
#[derive(Debug, Default)]
pub struct Digests {
    seen: BTreeMap<u64, ([u8; 32], String)>,
    compared: u64,
}

impl Digests {
    /// Its name.
    pub const NAME: &str = "equal-digests";

    /// A node's table has moved on.
    pub(crate) fn seen(&mut self, node: &str, table: &Table) -> Result<(), String> {
        self.take(node, table.index(), table.digest())
    }

    fn take(&mut self, node: &str, index: u64, digest: [u8; 32]) -> Result<(), String> {
        let (known, by) = self
            .seen
            .entry(index)
            .or_insert_with(|| (digest, node.to_owned()));
        self.compared += u64::from(by != node);
        if *known == digest {
            return Ok(());
        }
        Err(format!(
            "at index {index} the table of {node} has digest {}, but that of {by} had {}",
            hex(&digest),
            hex(known)
        ))
    }

    /// How often two nodes were compared.
    #[must_use]
    pub fn compared(&self) -> u64 {
        self.compared
    }
}

fn hex(digest: &[u8; 32]) -> String {
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_differing_digest_is_found_at_its_index_only() {
        let mut digests = Digests::default();
        digests.take("n1", 5, [1; 32]).unwrap();
        digests.take("n2", 5, [1; 32]).unwrap();
        digests.take("n2", 6, [2; 32]).unwrap();
        assert!(
            digests
                .take("n1", 6, [1; 32])
                .unwrap_err()
                .contains("index 6")
        );
        assert_eq!(digests.compared(), 2);
    }
}
