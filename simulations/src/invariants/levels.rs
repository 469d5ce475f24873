//! The cluster's level is the newest that all its nodes know, soon after the last of them was upgraded, and never more.

use warren_model::Level;

/// The check; it needs no memory.
#[derive(Debug, Default)]
pub struct Levels;

impl Levels {
    /// Its name.
    pub const NAME: &str = "levels";

    /// A cluster that has come to `level`, of whose nodes one knows `known`.
    pub(crate) fn check(node: &str, level: Level, known: Level) -> Result<(), String> {
        if level <= known {
            return Ok(());
        }
        Err(format!(
            "by its table {node} belongs to a cluster of level {level}, and knows {known}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_knows_too_little_is_found() {
        assert!(Levels::check("n1", Level(2), Level(2)).is_ok());
        assert!(Levels::check("n1", Level(1), Level(2)).is_ok());
        let found = Levels::check("n1", Level(2), Level(1)).unwrap_err();
        assert!(found.contains("n1"), "{found}");
    }
}
