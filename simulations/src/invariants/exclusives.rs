//! Exclusive queues of connections that are gone disappear: their names can be taken soon, and when all clients have left none is there.

use std::time::Duration;
use warren_routing::Table;

/// How long, in calm, the name of an exclusive queue may stay taken after its connection was lost.
const SOON: Duration = Duration::from_secs(20);

/// How it was with the names.
#[derive(Debug, Default)]
pub struct Exclusives {
    taken_over: u64,
}

impl Exclusives {
    /// Its name.
    pub const NAME: &str = "exclusive-queues";

    /// A name is still taken, so long after its connection was lost; nothing has happened to the cluster for `calm`.
    pub fn still_taken(&self, queue: &str, waited: Duration, calm: Duration) -> Result<(), String> {
        if waited.min(calm) < SOON {
            return Ok(());
        }
        Err(format!(
            "exclusive queue '{queue}' is still there {waited:?} after its connection was lost, although nothing has happened for {calm:?}"
        ))
    }

    /// A name was free again.
    pub fn taken_over(&mut self) {
        self.taken_over += 1;
    }

    /// How often a name was taken again.
    #[must_use]
    pub fn times_taken_over(&self) -> u64 {
        self.taken_over
    }

    /// The exclusive queues in a table, when there should be none.
    pub(crate) fn left_in(node: &str, table: &Table) -> Result<(), String> {
        match table.queues("/").find(|queue| queue.exclusive.is_some()) {
            None => Ok(()),
            Some(queue) => Err(format!(
                "all clients are gone, but {node} still has exclusive queue '{}' of session {:?}",
                queue.name, queue.exclusive
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_stay_taken_for_a_while_only() {
        let (exclusives, short, long) = (
            Exclusives::default(),
            Duration::from_secs(5),
            Duration::from_secs(30),
        );
        exclusives.still_taken("q", short, long).unwrap();
        exclusives.still_taken("q", long, short).unwrap();
        assert!(exclusives.still_taken("q", long, long).is_err());
    }
}
