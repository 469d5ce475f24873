//! Explaining a route to a person: every exchange visited, every binding of it with its verdict, the alternate exchanges, the queues.
//!
//! It asks the matchers binding by binding, which is slow and independent of how routing finds its matches; tests hold the two against each other.

use crate::bindings::{End, List};
use crate::exchange::{BadProperties, Lookup, Message};
use crate::route::{Publish, RouteError, Target};
use crate::table::Table;
use warren_model::command::Destination;

/// Why a message goes where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Why it cannot be routed at all.
    pub error: Option<RouteError>,
    /// The exchanges visited, in order.
    pub steps: Vec<Step>,
    /// The queues that get it, by id, with their names.
    pub queues: Vec<(Target, String)>,
}

/// One exchange visited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name; empty for the default exchange.
    pub exchange: String,
    /// Its type.
    pub kind: &'static str,
    /// How the message came here.
    pub via: Via,
    /// Its bindings, in canonical order. The default exchange has an implicit one for each queue; only those that match are told.
    pub bindings: Vec<BindingExplanation>,
    /// The alternate exchange that it names.
    pub alternate: Option<String>,
    /// What came of the alternate exchange, in words.
    pub alternate_outcome: Option<&'static str>,
}

/// How a message came to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// It was published to it.
    Publish,
    /// Over a binding from another exchange.
    Binding {
        /// That exchange.
        from: String,
    },
    /// As the alternate exchange of another one.
    Alternate {
        /// The exchange that had no binding for it.
        of: String,
    },
}

/// A binding's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingExplanation {
    /// Where it leads.
    pub destination: Destination,
    /// Binding key.
    pub key: Vec<u8>,
    /// Raw field table entries in canonical form.
    pub arguments: Vec<u8>,
    /// Whether it takes the message.
    pub matched: bool,
    /// Why, or why not.
    pub why: String,
}

impl Table {
    /// Tells where a message would go and why.
    pub fn explain(&self, publish: &Publish<'_>) -> Explanation {
        let mut explanation = Explanation::default();
        if let Err(error) = self.try_explain(publish, &mut explanation) {
            explanation.error = Some(error);
        }
        explanation
            .queues
            .sort_unstable_by_key(|(target, _)| target.id);
        explanation.queues.dedup();
        explanation
    }

    fn try_explain(&self, publish: &Publish<'_>, out: &mut Explanation) -> Result<(), RouteError> {
        let (vhost, first) = self.entrance(publish)?;
        let first = match first {
            Some(first) => first,
            None => self
                .find_exchange(vhost, b"")
                .ok_or_else(|| RouteError::NoExchange {
                    vhost: publish.vhost.to_owned(),
                    exchange: String::new(),
                })?,
        };
        let message = Message::new(publish.routing_keys, publish.properties);
        let mut visited = vec![first];
        let mut waiting = vec![(first, Via::Publish)];
        while let Some((slot, via)) = waiting.pop() {
            let exchange = &self.exchanges[slot];
            let (step, ends) = self.explain_exchange(slot, via, &message)?;
            out.steps.push(step);
            let mut enter = |slot: u32, via: Via| {
                let new = !visited.contains(&slot);
                if new {
                    visited.push(slot);
                    waiting.push((slot, via));
                }
                new
            };
            for end in &ends {
                match (end.as_queue(), end.as_exchange()) {
                    (Some(queue), _) => {
                        let queue = &self.queues[queue];
                        out.queues.push((
                            Target {
                                id: queue.id,
                                place: queue.place,
                            },
                            queue.name.to_string(),
                        ));
                    }
                    (None, Some(bound)) => {
                        enter(
                            bound,
                            Via::Binding {
                                from: exchange.name.to_string(),
                            },
                        );
                    }
                    (None, None) => {}
                }
            }
            let outcome = match (exchange.alternate(), self.alternate(slot)) {
                (None, _) => None,
                (Some(_), _) if !ends.is_empty() => Some("not used: a binding matched"),
                (Some(_), None) => Some("missing: passed over"),
                (Some(_), Some(alternate))
                    if enter(
                        alternate,
                        Via::Alternate {
                            of: exchange.name.to_string(),
                        },
                    ) =>
                {
                    Some("used: no binding matched")
                }
                (Some(_), Some(_)) => Some("visited already"),
            };
            if let Some(step) = out.steps.last_mut() {
                step.alternate_outcome = outcome;
            }
        }
        Ok(())
    }

    fn explain_exchange(
        &self,
        slot: u32,
        via: Via,
        message: &Message<'_>,
    ) -> Result<(Step, Vec<End>), BadProperties> {
        let exchange = &self.exchanges[slot];
        let lookup = Lookup {
            bindings: &self.bindings,
            names: &self.names,
            sources: exchange.sources,
            message,
        };
        let mut ends = Vec::new();
        let mut bindings = Vec::new();
        if exchange.name.is_empty() {
            self.route_by_queue_name(exchange.vhost, message.keys, &mut ends);
            bindings.extend(ends.iter().map(|end| BindingExplanation {
                destination: self.destination(*end),
                key: self.end_name(*end).as_bytes().to_vec(),
                arguments: Vec::new(),
                matched: true,
                why: "the default exchange routes by queue name".to_owned(),
            }));
        }
        for number in self.sorted(List::Source, exchange.sources.head) {
            let (matched, why) = exchange.matcher.explain(&lookup, number)?;
            let binding = self.bindings.get(number);
            if matched {
                ends.push(binding.destination);
            }
            bindings.push(BindingExplanation {
                destination: self.destination(binding.destination),
                key: self.names.get(binding.key).to_vec(),
                arguments: self.names.get(binding.arguments).to_vec(),
                matched,
                why,
            });
        }
        let step = Step {
            exchange: exchange.name.to_string(),
            kind: exchange.matcher.name(),
            via,
            bindings,
            alternate: exchange.alternate().map(str::to_owned),
            alternate_outcome: None,
        };
        Ok((step, ends))
    }
}
