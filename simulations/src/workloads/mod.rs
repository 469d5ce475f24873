//! What clients do, one sort a file. Each client does one of them, over and over, until the run tells it to stop.
//!
//! Names are either a client's own, so that it knows what must be there, or shared, so that clients get in each other's way. What is left unknown by a failure
//! is never asserted about again: an own name whose change was not answered is not used any more.

mod consume;
mod contend;
mod exclusive;
mod hash;
mod publish;
mod topology;
pub(crate) mod traffic;

use crate::client::{Client, Cuts, Failure};
use crate::options::{Options, pick};
use crate::oracle::Oracle;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// A sort of workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Declares, binds, unbinds and deletes its own things, and publishes through other nodes to see that it took effect there.
    Topology,
    /// Publishes to the shared traffic's exchanges, with confirms.
    Publish,
    /// Consumes from the shared traffic's queues.
    Consume,
    /// Declares exclusive queues, loses its connection, takes their names again elsewhere.
    Exclusive,
    /// Keeps a consistent-hash exchange, and changes its bindings now and then.
    Hash,
    /// Changes the same few names as the other clients of this sort, in conflict with them.
    Contend,
}

impl Workload {
    /// All sorts.
    pub const ALL: [Self; 6] = [
        Self::Topology,
        Self::Publish,
        Self::Consume,
        Self::Exclusive,
        Self::Hash,
        Self::Contend,
    ];

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Exclusive => "exclusive",
            Self::Hash => "hash",
            Self::Contend => "contend",
        }
    }
}

/// How messages are taken from queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// As a consumer that acknowledges.
    Acknowledged,
    /// As a consumer that need not.
    Given,
    /// One by one, some with and some without acknowledgement.
    OneByOne,
}

/// One client.
pub(crate) struct Worker {
    pub(crate) oracle: Oracle,
    pub(crate) host: String,
    pub(crate) rng: StdRng,
    nodes: usize,
    think: Duration,
    heartbeat_s: u16,
    cuts: f64,
    takes: Vec<Take>,
    slow_ms: Vec<u64>,
    one_queue: bool,
    /// What was added later draws from here, so that seeds go on meaning what they meant.
    later: StdRng,
}

/// Name of a client in the timeline.
pub(crate) fn host(client: usize) -> String {
    format!("c{}", client + 1)
}

impl Worker {
    pub(crate) fn new(options: &Options, client: usize, oracle: Oracle) -> Self {
        let rng = StdRng::seed_from_u64(options.seed ^ (client as u64 + 1).rotate_left(40));
        Self {
            oracle,
            host: host(client),
            rng,
            nodes: options.nodes,
            think: options.think,
            heartbeat_s: options.heartbeat_s,
            cuts: options.cuts,
            takes: options.takes.clone(),
            slow_ms: options.slow_ms.clone(),
            one_queue: options.one_queue,
            later: StdRng::seed_from_u64(options.seed ^ (client as u64 + 1).rotate_left(24)),
        }
    }

    /// Works until told to stop.
    pub(crate) async fn run(mut self, workload: Workload) {
        while self.oracle.phase() < crate::oracle::Phase::Working {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match workload {
            Workload::Topology => topology::run(&mut self).await,
            Workload::Publish => publish::run(&mut self).await,
            Workload::Consume => consume::run(&mut self).await,
            Workload::Exclusive => exclusive::run(&mut self).await,
            Workload::Hash => hash::run(&mut self).await,
            Workload::Contend => contend::run(&mut self).await,
        }
        self.oracle.client_done();
    }

    pub(crate) fn any_node(&mut self) -> usize {
        self.rng.random_range(0..self.nodes)
    }

    /// Another node, if there is one.
    pub(crate) fn node_other_than(&mut self, node: usize) -> usize {
        (node + self.rng.random_range(1..self.nodes.max(2))) % self.nodes
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        pick(&mut self.rng, from)
    }

    /// How to take messages this time.
    pub(crate) fn take(&mut self) -> Take {
        *pick(&mut self.later, &self.takes)
    }

    /// Where to publish: exchange and key.
    pub(crate) fn target(&mut self) -> (&'static str, &'static str) {
        if self.one_queue {
            return traffic::TO_ONE_QUEUE;
        }
        *self.pick(&traffic::TARGETS)
    }

    /// What to consume from.
    pub(crate) fn source(&mut self) -> &'static str {
        if self.one_queue {
            traffic::ONE_QUEUE
        } else if self.chance(0.15) {
            traffic::MEMORY_QUEUE
        } else {
            self.pick::<&str>(&traffic::QUEUES)
        }
    }

    /// How long a consumer takes over a message: what is in no queue for long cannot go wrong there.
    pub(crate) fn slowness(&mut self) -> Duration {
        Duration::from_millis(*pick(&mut self.later, &self.slow_ms))
    }

    pub(crate) fn chance(&mut self, of: f64) -> bool {
        self.rng.random_bool(of)
    }

    pub(crate) async fn think(&mut self) {
        let micros = u64::try_from(self.think.as_micros()).unwrap_or(u64::MAX);
        tokio::time::sleep(Duration::from_micros(self.rng.random_range(0..=micros))).await;
    }

    pub(crate) async fn connect_to(&mut self, node: usize) -> Result<Client, Failure> {
        let cuts = Cuts::new(self.rng.random(), self.cuts);
        Client::connect(&self.oracle, &self.host, node, self.heartbeat_s, cuts).await
    }

    /// Connects to some node, trying one after the other; none when the run is told to stop.
    pub(crate) async fn connect(&mut self) -> Option<Client> {
        while !self.oracle.is_stopping() {
            let node = self.any_node();
            if let Ok(client) = self.connect_to(node).await {
                return Some(client);
            }
            let pause = self.rng.random_range(20..300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        None
    }

    /// A number up to, but not including, this one.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end)
    }
}
