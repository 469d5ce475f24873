//! Which faults come, when, and to whom: a function of the seed alone.
//!
//! Kinds are drawn from a bag that holds each of them once, so that a short run has seen all of them. One node at a time is at fault,
//! but for hasty faults, which begin while the cluster still recovers from the one before: then a majority is there again only once the
//! node before is.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::history::FaultKind;

/// How many faults in a hundred do not wait for the recovery from the one before.
const HASTY_PERCENT: u32 = 10;
/// How many partitions in a hundred cut the node off from its clients too.
const CLIENTS_TOO_PERCENT: u32 = 30;

/// A fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub kind: FaultKind,
    /// To which node, from 0.
    pub node: usize,
    /// How long after the recovery from the one before; a hasty one does not wait for either.
    pub pause: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// Whether it begins as soon as the one before is healed.
    pub hasty: bool,
    /// Whether a partition cuts the node off from its clients too.
    pub clients_too: bool,
}

/// The faults of a run, in order.
#[derive(Debug)]
pub struct Plan {
    random: StdRng,
    kinds: Vec<FaultKind>,
    bag: Vec<FaultKind>,
    nodes: usize,
    interval: Duration,
    last: Option<usize>,
}

impl Plan {
    /// Faults of these kinds to `nodes` nodes, about `interval` apart.
    pub fn new(seed: u64, kinds: &[FaultKind], nodes: usize, interval: Duration) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            kinds: kinds.to_vec(),
            bag: Vec::new(),
            nodes,
            interval,
            last: None,
        }
    }

    /// The next fault; `None` if there is no kind to choose from.
    pub fn draw(&mut self) -> Option<Planned> {
        if self.bag.is_empty() {
            self.bag.clone_from(&self.kinds);
            self.bag.shuffle(&mut self.random);
        }
        let kind = self.bag.pop()?;
        let hasty = self.last.is_some() && self.random.random_ratio(HASTY_PERCENT, 100);
        let mut node = self.random.random_range(0..self.nodes);
        if hasty && self.last == Some(node) {
            node = (node + 1) % self.nodes;
        }
        self.last = Some(node);
        let clients_too =
            kind == FaultKind::Partition && self.random.random_ratio(CLIENTS_TOO_PERCENT, 100);
        let pause = self.interval.mul_f64(self.random.random_range(0.5..1.5));
        Some(Planned {
            kind,
            node,
            pause,
            lasts: self.lasts(kind),
            hasty,
            clients_too,
        })
    }

    /// Short ones are as likely as long ones, to hit every stage of a failover.
    fn lasts(&mut self, kind: FaultKind) -> Duration {
        let (shortest, longest): (f64, f64) = match kind {
            FaultKind::Kill => (0.1, 6.0),
            FaultKind::Stop => (0.2, 8.0),
            FaultKind::Partition => (0.3, 10.0),
            FaultKind::Restart => (0.05, 3.0),
        };
        let exponent = self.random.random_range(shortest.ln()..longest.ln());
        Duration::from_secs_f64(exponent.exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, count: usize) -> Vec<Planned> {
        let mut plan = Plan::new(seed, &FaultKind::ALL, 3, Duration::from_secs(4));
        (0..count).map(|_| plan.draw().unwrap()).collect()
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        assert_eq!(draw(7, 100), draw(7, 100));
        assert_ne!(draw(7, 100), draw(8, 100));
    }

    #[test]
    fn every_kind_comes_before_one_comes_again() {
        for four in draw(3, 40).chunks(4) {
            for kind in FaultKind::ALL {
                assert!(four.iter().any(|fault| fault.kind == kind));
            }
        }
    }

    #[test]
    fn every_node_and_both_partitions_come_and_a_hasty_fault_hits_another_node() {
        let faults = draw(1, 400);
        for node in 0..3 {
            assert!(faults.iter().any(|fault| fault.node == node));
        }
        for clients_too in [true, false] {
            assert!(faults.iter().any(
                |fault| fault.kind == FaultKind::Partition && fault.clients_too == clients_too
            ));
        }
        assert!(faults.iter().any(|fault| fault.hasty));
        for pair in faults.windows(2) {
            assert!(!pair[1].hasty || pair[0].node != pair[1].node);
        }
    }

    #[test]
    fn no_kinds_no_faults() {
        assert_eq!(Plan::new(1, &[], 3, Duration::from_secs(1)).draw(), None);
    }
}
