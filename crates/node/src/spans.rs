//! Spans of what is done for clients, for whoever collects traces: changes of definitions and connections here, requests in the HTTP API.
//!
//! They have a target of their own, which nothing listens to unless traces are exported. Then a span is not even made, and costs a look at a flag; there
//! is none for a message.

use tracing::Span;
use tracing::field::Empty;

/// The target of the spans.
pub const TARGET: &str = "warren_span";

/// Whether anybody listens.
pub fn are_on() -> bool {
    tracing::span_enabled!(target: TARGET, tracing::Level::INFO)
}

/// A change of definitions, from the proposal to the answer.
pub(crate) fn change(action: &str, vhost: &str, object: &str) -> Span {
    tracing::info_span!(target: TARGET, "metadata.change", action, vhost, object, outcome = Empty)
}

/// A client's connection, from its opening to its end.
pub(crate) fn connection(user: &str, vhost: &str, peer: &str) -> Span {
    tracing::info_span!(target: TARGET, parent: None, "amqp.connection", user, vhost, peer, reason = Empty)
}
