//! What a load declares, and where each of its messages must arrive.
//!
//! A stream's message number n is published with route n modulo the number of routes, so the checker knows from a message's number which
//! queue it belongs to, and at which place in that queue: [`Plan::place`]. Places are dense, so that a bitmap of them is small.

use crate::cli::{ExchangeType, LoadOptions};

/// How one message in a cycle is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The routing key.
    pub key: String,
    /// The value of the header `n`, where headers decide.
    pub header: Option<i32>,
}

/// How a queue is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Index of the queue.
    pub queue: u32,
    /// The binding key.
    pub key: String,
    /// The value of the header `n` that it asks for.
    pub header: Option<i32>,
}

/// Which queues a message belongs in.
#[derive(Clone, Debug)]
enum Spread {
    /// Route i leads to queue i modulo the number of queues: one queue a message.
    InTurn(Turns),
    /// All queues get all messages.
    All,
    /// One queue a message, of the broker's choice.
    Any,
}

/// Per route, its queue and which of that queue's routes it is; per queue, how many routes it has. Looked up, as divisions are
/// what would cost most in noting a delivery.
#[derive(Clone, Debug)]
struct Turns {
    by_route: Vec<(u32, u32)>,
    per_round: Vec<u64>,
}

impl Turns {
    fn new(routes: u32, queues: u32) -> Self {
        let mut per_round = vec![0; queues as usize];
        let by_route: Vec<(u32, u32)> = (0..routes)
            .map(|route| (route % queues, route / queues))
            .collect();
        for (queue, _) in &by_route {
            per_round[*queue as usize] += 1;
        }
        Self {
            by_route,
            per_round,
        }
    }

    /// How often the cycle has gone round before a message, with the message's queue and row in the cycle.
    #[inline]
    fn of(&self, seq: u64) -> (u64, u32, u32) {
        let routes = self.by_route.len() as u64;
        let (queue, row) = self.by_route[(seq % routes) as usize];
        (seq / routes, queue, row)
    }
}

/// Queues, exchange, bindings, routes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The queues' names.
    pub queues: Vec<String>,
    /// The exchange that is published to; empty for the default one.
    pub exchange: String,
    /// The exchange's type, unless it is the default one.
    pub kind: Option<ExchangeType>,
    /// The bindings.
    pub bindings: Vec<Binding>,
    /// The cycle of routes.
    pub routes: Vec<Route>,
    /// Producers, each with its own stream of messages.
    pub streams: u16,
    /// The run's number, in every message.
    pub run: u16,
    spread: Spread,
}

impl Plan {
    /// The plan of a load. `unique` makes names that no other run uses.
    pub fn new(options: &LoadOptions, unique: &str, run: u16) -> Self {
        let queues: Vec<String> = (0..options.queues)
            .map(|queue| format!("bench.{unique}.{queue}"))
            .collect();
        let Some(kind) = options.exchange_type else {
            let routes = queues
                .iter()
                .map(|name| Route {
                    key: name.clone(),
                    header: None,
                })
                .collect();
            return Self {
                queues,
                exchange: String::new(),
                kind: None,
                bindings: Vec::new(),
                routes,
                streams: options.producers,
                run,
                spread: Spread::InTurn(Turns::new(options.queues, options.queues)),
            };
        };
        let count = options.bindings.unwrap_or(0).max(options.queues);
        Self {
            exchange: options
                .exchange
                .clone()
                .unwrap_or_else(|| format!("bench.{unique}")),
            kind: Some(kind),
            bindings: (0..count)
                .map(|index| binding(kind, index, options.queues))
                .collect(),
            routes: (0..count).map(|index| route(kind, index)).collect(),
            queues,
            streams: options.producers,
            run,
            spread: match kind {
                ExchangeType::Direct | ExchangeType::Topic | ExchangeType::Headers => {
                    Spread::InTurn(Turns::new(count, options.queues))
                }
                ExchangeType::Fanout => Spread::All,
                ExchangeType::ConsistentHash => Spread::Any,
            },
        }
    }

    /// Where among a stream's messages in a queue the stream's message `seq` stands; `None` if it does not belong there.
    #[inline]
    pub fn place(&self, queue: u32, seq: u64) -> Option<u64> {
        match &self.spread {
            Spread::All | Spread::Any => Some(seq),
            Spread::InTurn(turns) => {
                let (round, at, row) = turns.of(seq);
                (at == queue).then(|| round * turns.per_round[queue as usize] + u64::from(row))
            }
        }
    }

    /// How many deliveries one message makes.
    pub fn copies(&self) -> u64 {
        match self.spread {
            Spread::InTurn(_) | Spread::Any => 1,
            Spread::All => self.queues.len() as u64,
        }
    }

    /// Whether the broker chooses the queue.
    pub const fn is_free(&self) -> bool {
        matches!(self.spread, Spread::Any)
    }

    /// The queues that a message must be in, if the broker has no choice: one, or all of them.
    pub fn expected(&self, seq: u64) -> std::ops::Range<u32> {
        match &self.spread {
            Spread::All | Spread::Any => 0..u32::try_from(self.queues.len()).unwrap_or(u32::MAX),
            Spread::InTurn(turns) => {
                let (_, queue, _) = turns.of(seq);
                queue..queue + 1
            }
        }
    }
}

fn header(kind: ExchangeType, index: u32) -> Option<i32> {
    (kind == ExchangeType::Headers).then(|| index.cast_signed())
}

fn route(kind: ExchangeType, index: u32) -> Route {
    Route {
        key: format!("bench.{index}.key"),
        header: header(kind, index),
    }
}

/// Binding `index`: route `index` matches it and no other. Topic patterns take turns between the forms that there are.
pub fn binding(kind: ExchangeType, index: u32, queues: u32) -> Binding {
    let key = match kind {
        ExchangeType::Topic => match index % 4 {
            0 => format!("bench.{index}.*"),
            1 => format!("*.{index}.key"),
            2 => format!("bench.{index}.#"),
            _ => format!("bench.{index}.key"),
        },
        ExchangeType::Direct | ExchangeType::Fanout => format!("bench.{index}.key"),
        // Keys that differ keep the bindings apart; the headers decide.
        ExchangeType::Headers => format!("{index}"),
        // The key is the binding's weight.
        ExchangeType::ConsistentHash => "1".to_owned(),
    };
    Binding {
        queue: index % queues,
        key,
        header: header(kind, index),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    pub fn options(arguments: &str) -> LoadOptions {
        let line = ["warren-bench", "load"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let Command::Load(options) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not a load")
        };
        options
    }

    pub fn plan(arguments: &str) -> Plan {
        Plan::new(&options(arguments), "t", 7)
    }

    /// Each message has one place in its queue, and the places of a queue are 0, 1, 2 and so on.
    #[test]
    fn places_are_dense() {
        for arguments in [
            "--queues 3",
            "--queues 3 --exchange-type topic --bindings 8",
            "--queues 1",
            "--queues 4 --exchange-type direct",
        ] {
            let plan = plan(arguments);
            let mut next = vec![0; plan.queues.len()];
            for seq in 0..100 {
                let expected = plan.expected(seq);
                for queue in 0..u32::try_from(plan.queues.len()).unwrap() {
                    let place = plan.place(queue, seq);
                    assert_eq!(
                        place.is_some(),
                        expected.contains(&queue),
                        "{arguments} {seq}"
                    );
                    if let Some(place) = place {
                        assert_eq!(place, next[queue as usize], "{arguments} {seq}");
                        next[queue as usize] += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn a_route_leads_to_the_queue_of_its_binding() {
        let plan = plan("--queues 3 --exchange-type topic --bindings 8");
        assert_eq!(plan.bindings.len(), plan.routes.len());
        for (index, binding) in plan.bindings.iter().enumerate() {
            assert_eq!(
                plan.expected(index as u64),
                binding.queue..binding.queue + 1
            );
        }
    }

    #[test]
    fn fanout_copies() {
        let plan = plan("--queues 5 --exchange-type fanout");
        assert_eq!(plan.copies(), 5);
        assert_eq!(plan.expected(9), 0..5);
    }
}
