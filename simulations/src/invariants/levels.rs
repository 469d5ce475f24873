//! The cluster's level is the newest that all its nodes know, soon after the last of them was upgraded, and never more.

use crate::options::node_name;
use warren_model::Level;

/// The check; it needs no memory.
#[derive(Debug, Default)]
pub struct Levels;

impl Levels {
    /// Its name.
    pub const NAME: &str = "levels";

    /// A cluster that has come to `level`, and what its running nodes know.
    pub(crate) fn check(
        level: Level,
        mut known: impl Iterator<Item = (usize, Level)>,
    ) -> Result<(), String> {
        match known.find(|(_, knows)| *knows < level) {
            None => Ok(()),
            Some((node, knows)) => Err(format!(
                "the cluster has come to level {level}, and {} knows {knows}",
                node_name(node)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_knows_too_little_is_found() {
        let check = |level, known: &[u8]| {
            Levels::check(Level(level), known.iter().copied().map(Level).enumerate())
        };
        assert_eq!(check(2, &[2, 2, 3]), Ok(()));
        assert_eq!(check(1, &[1, 2]), Ok(()));
        let found = check(2, &[2, 2, 1]).unwrap_err();
        assert!(found.contains("n3"), "{found}");
    }
}
