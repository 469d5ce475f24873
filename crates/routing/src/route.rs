//! Routing a publish: from its exchange over bindings, bound exchanges and alternate exchanges to the queues.
//!
//! Flow: exchanges to visit wait on a stack; each is visited once, so cycles end. An exchange that finds no binding for the message passes it to
//! its alternate exchange. An alternate that does not exist is passed over; it is looked up by name each time, so it works as soon as it exists.
//! Invariant: each queue at most once, in the order of ids, whatever the history of the table.
//! Cost: what the visited exchanges' matchers cost; no allocation once the caller's [`Route`] has grown to its usual size.

use crate::bindings::End;
use crate::exchange::{BadProperties, Lookup, Message, Scratch};
use crate::hash::NumberSet;
use crate::table::Table;
use crate::text;
use warren_model::command::Place;
use warren_model::{QueueId, Refusal};

/// A message as far as routing looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    /// Virtual host.
    pub vhost: &'a str,
    /// Exchange; empty for the default exchange.
    pub exchange: &'a [u8],
    /// The routing key, then the keys from the `CC` and `BCC` headers.
    pub routing_keys: &'a [&'a [u8]],
    /// Raw content properties; parsed only if an exchange on the way looks at headers or properties. Empty: none.
    pub properties: &'a [u8],
}

/// Where a message goes; the caller keeps it for the next one, so that its memory is used again.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// The queues, each once, by id.
    pub queues: Vec<Target>,
    /// Whether the result depends on the exchange and the keys alone, so that it may be kept for as long as the table does not change.
    pub cacheable: bool,
    hits: Vec<End>,
    waiting: Vec<u32>,
    visited: NumberSet,
    scratch: Scratch,
}

/// A queue that a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its id.
    pub id: QueueId,
    /// Where its contents live.
    pub place: Place,
}

/// Why a message cannot be routed at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// There is no such exchange.
    #[error("no {}", text::exchange(vhost, exchange))]
    NoExchange {
        /// Virtual host.
        vhost: String,
        /// The exchange's name.
        exchange: String,
    },
    /// The exchange is internal.
    #[error("cannot publish to internal {}", text::exchange(vhost, exchange))]
    Internal {
        /// Virtual host.
        vhost: String,
        /// The exchange's name.
        exchange: String,
    },
    /// An exchange had to look at properties that are malformed.
    #[error("malformed message properties")]
    BadProperties,
}

impl RouteError {
    /// The error that the client gets.
    pub fn refusal(&self) -> Refusal {
        let code = match self {
            Self::NoExchange { .. } => 404,
            Self::Internal { .. } => 403,
            Self::BadProperties => 502,
        };
        Refusal::new(code, self.to_string())
    }
}

impl From<BadProperties> for RouteError {
    fn from(_: BadProperties) -> Self {
        Self::BadProperties
    }
}

impl Table {
    /// Finds the queues that a message goes to. None is not an error: the message is unroutable.
    ///
    /// # Errors
    /// If the exchange does not exist or is internal, or the properties are malformed and an exchange had to look at them. The queues
    /// found so far are then meaningless.
    pub fn route(&self, publish: &Publish<'_>, out: &mut Route) -> Result<(), RouteError> {
        out.queues.clear();
        out.cacheable = true;
        out.hits.clear();
        let (vhost, first) = self.entrance(publish)?;
        let Some(first) = first else {
            self.route_by_queue_name(vhost, publish.routing_keys, &mut out.hits);
            self.collect(out);
            return Ok(());
        };
        out.visited.clear();
        out.visited.insert(first);
        out.waiting.clear();
        out.waiting.push(first);
        let message = Message::new(publish.routing_keys, publish.properties);
        while let Some(slot) = out.waiting.pop() {
            self.visit(slot, &message, out)?;
        }
        self.collect(out);
        Ok(())
    }

    /// The virtual host, and the exchange that the message enters by; `None` is the default exchange.
    pub(crate) fn entrance(&self, publish: &Publish<'_>) -> Result<(u32, Option<u32>), RouteError> {
        let name = || {
            (
                publish.vhost.to_owned(),
                String::from_utf8_lossy(publish.exchange).into_owned(),
            )
        };
        let missing = || {
            let (vhost, exchange) = name();
            RouteError::NoExchange { vhost, exchange }
        };
        let vhost = self.find_vhost(publish.vhost).ok_or_else(missing)?;
        if publish.exchange.is_empty() {
            return Ok((vhost, None));
        }
        let slot = self
            .find_exchange(vhost, publish.exchange)
            .ok_or_else(missing)?;
        if self.exchanges[slot].internal {
            let (vhost, exchange) = name();
            return Err(RouteError::Internal { vhost, exchange });
        }
        Ok((vhost, Some(slot)))
    }

    /// Asks one exchange; queues stay in `hits`, exchanges go to `waiting`.
    fn visit(&self, slot: u32, message: &Message<'_>, out: &mut Route) -> Result<(), RouteError> {
        let exchange = &self.exchanges[slot];
        let found_before = out.hits.len();
        if exchange.name.is_empty() {
            // Reached as an alternate exchange.
            self.route_by_queue_name(exchange.vhost, message.keys, &mut out.hits);
            return Ok(());
        }
        let lookup = Lookup {
            bindings: &self.bindings,
            names: &self.names,
            sources: exchange.sources,
            message,
        };
        out.cacheable &= !exchange.matcher.reads_message();
        exchange
            .matcher
            .route(&lookup, &mut out.scratch, &mut out.hits)?;
        if out.hits.len() == found_before {
            if let Some(alternate) = self.alternate(slot)
                && out.visited.insert(alternate)
            {
                out.waiting.push(alternate);
            }
            return Ok(());
        }
        let mut kept = found_before;
        for at in found_before..out.hits.len() {
            let hit = out.hits[at];
            match hit.as_exchange() {
                None => {
                    out.hits[kept] = hit;
                    kept += 1;
                }
                Some(bound) if out.visited.insert(bound) => out.waiting.push(bound),
                Some(_) => {}
            }
        }
        out.hits.truncate(kept);
        Ok(())
    }

    /// The exchange that an exchange passes on what it has no binding for, if it names one that exists.
    pub(crate) fn alternate(&self, slot: u32) -> Option<u32> {
        let exchange = &self.exchanges[slot];
        self.find_exchange(exchange.vhost, exchange.alternate()?.as_bytes())
    }

    pub(crate) fn route_by_queue_name(&self, vhost: u32, keys: &[&[u8]], hits: &mut Vec<End>) {
        hits.extend(
            keys.iter()
                .filter_map(|key| self.find_queue(vhost, key))
                .map(End::queue),
        );
    }

    fn collect(&self, out: &mut Route) {
        let targets = out
            .hits
            .iter()
            .filter_map(|hit| hit.as_queue())
            .map(|slot| {
                let queue = &self.queues[slot];
                Target {
                    id: queue.id,
                    place: queue.place,
                }
            });
        out.queues.extend(targets);
        out.queues.sort_unstable_by_key(|target| target.id);
        out.queues.dedup_by_key(|target| target.id);
    }
}
