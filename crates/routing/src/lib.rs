//! The replicated routing table: who is in the cluster, what is declared, and where a message goes.
//!
//! Flow: the metadata group orders commands; every node calls [`Table::apply`] with each entry and gets the same outcomes, the same record
//! changes (for its storage) and the same events. Sessions ask their node's table: [`Table::route`] for each publish,
//! [`Table::check_queue`] and its siblings before they propose a declare, [`Table::explain`] when a person asks why.
//!
//! Invariants:
//! - Pure: no I/O, no clock, no randomness, no iteration over a map of random order. Two tables that applied the same entries are equal,
//!   and so are their [`Table::digest`]s; a table rebuilt by [`Table::restore`] from its [`Table::records`] is equal as well.
//! - The records are the truth; every index (topic tries, header matchers, hash groups, lists by source and destination) is derived from
//!   them by the same code in `apply` and in `restore`.
//! - The checks that sessions ask beforehand are the ones that `apply` runs, so both agree.
//!
//! Cost: applying a command takes time in proportion to what it adds or removes, whatever the table's size. Routing takes time in
//! proportion to what matches (headers exchanges: to their bindings). A binding takes about 150 bytes.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apply;
mod arguments;
mod bindings;
mod check;
mod declare;
mod delete;
mod describe;
mod digest;
mod exchange;
mod explain;
mod hash;
mod import;
mod limits;
mod members;
mod names;
mod parameters;
mod policy;
mod queue;
mod queue_arguments;
mod record;
mod restore;
mod route;
mod slab;
mod table;
mod text;
mod topic_permissions;
mod vhost_details;
mod view;

pub use apply::{Applied, Change, Event};
pub use check::Check;
pub use describe::{RecordDescription, describe_record};
pub use explain::{BindingExplanation, Explanation, Step, Via};
pub use import::Effect;
pub use limits::Limits;
pub use members::{NodeRecord, Placed};
pub use policy::Effective;
pub use queue_arguments::{check_consumer, queue_types};
pub use record::BadTable;
pub use route::{Publish, Route, RouteError, Target};
pub use table::Table;
pub use view::{BindingView, ExchangeView, QueueView};
