//! Deterministic fault simulation of whole Warren clusters: one seed, one history.
//!
//! Flow: [`Options::of`] draws a run from its seed (cluster, latencies, workloads, faults); [`run`] builds the hosts on turmoil, steps them, strikes the
//! faults on time, and ends with the last checks. Nodes run the product's code as it ships; only UDP, TCP, the clock and the disk are simulated. Clients speak
//! AMQP through [`client`]. What everybody sees goes to the [`oracle`], which holds it against the [`invariants`]; the first broken one ends the run.
//!
//! Invariants: all randomness comes from the seed, and nothing here reads the real clock to decide anything. What the libraries below draw from the system
//! (TLS keys, hash seeds) is seeded by the binary; without it a run is as good but may not repeat to the byte.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod certificates;
pub mod client;
mod cluster;
mod drain;
pub mod faults;
pub mod invariants;
mod message;
mod network;
pub mod options;
pub mod oracle;
mod panics;
mod probe;
mod run;
pub mod timeline;
pub mod workloads;

pub use certificates::Certificates;
pub use options::Options;
pub use run::{Report, run};
pub use timeline::Detail;
