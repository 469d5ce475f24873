//! A table with one node up, and short ways to command and ask it. Every change is checked: digest and records must agree.

#![allow(dead_code)]

use std::collections::BTreeMap;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination, NodeUp, Place};
use warren_model::{Command, Incarnation, NodeId, Outcome, Refusal, SessionId, ShardId};
use warren_protocol::{OwnedTable, OwnedValue, Properties, Table as FieldTable};
use warren_routing::{Applied, Event, Publish, Route, RouteError, Table};

/// The usual client.
pub const ME: SessionId = session(1, 1);
/// Another one.
pub const OTHER: SessionId = session(1, 2);

pub const fn session(node: u64, number: u64) -> SessionId {
    SessionId {
        node: NodeId(node),
        incarnation: Incarnation(1),
        number,
    }
}

pub struct World {
    pub table: Table,
    /// What a storage that follows the changes holds.
    pub mirror: BTreeMap<Vec<u8>, Vec<u8>>,
    pub events: Vec<Event>,
}

/// Arguments from pairs.
pub fn args<const N: usize>(entries: [(&str, OwnedValue); N]) -> Vec<u8> {
    entries.into_iter().collect::<OwnedTable>().to_bytes()
}

pub fn text(value: &str) -> OwnedValue {
    OwnedValue::from(value)
}

/// Raw properties with these headers.
pub fn headers(raw_table: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let properties = Properties {
        headers: Some(FieldTable::parse(raw_table).unwrap()),
        ..Properties::default()
    };
    properties.encode(&mut out);
    out
}

pub fn node_up(node: u64, incarnation: u64) -> Command {
    Command::NodeUp(NodeUp {
        node: NodeId(node),
        name: format!("n{node}"),
        address: format!("127.0.0.1:{node}"),
        amqp: String::new(),
        http: String::new(),
        incarnation: Incarnation(incarnation),
    })
}

pub fn node_down(node: u64, incarnation: u64) -> Command {
    Command::NodeDown {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
    }
}

pub fn exchange(name: &str, kind: &str) -> DeclareExchange {
    DeclareExchange {
        vhost: "/".into(),
        name: name.into(),
        kind: kind.into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Vec::new(),
    }
}

pub fn queue(name: &str) -> DeclareQueue {
    DeclareQueue {
        vhost: "/".into(),
        name: name.into(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session: ME,
        place: Place::Shard(ShardId(0)),
    }
}

pub fn binding(source: &str, key: &str, queue: &str) -> Binding {
    Binding {
        vhost: "/".into(),
        source: source.into(),
        destination: Destination::Queue(queue.into()),
        key: key.into(),
        arguments: Vec::new(),
        session: ME,
    }
}

pub fn exchange_binding(source: &str, key: &str, exchange: &str) -> Binding {
    Binding {
        destination: Destination::Exchange(exchange.into()),
        ..binding(source, key, "")
    }
}

pub fn delete_queue(name: &str) -> Command {
    Command::DeleteQueue {
        vhost: "/".into(),
        name: name.into(),
        only: None,
        session: ME,
    }
}

pub fn delete_exchange(name: &str) -> Command {
    Command::DeleteExchange {
        vhost: "/".into(),
        name: name.into(),
        if_unused: false,
    }
}

impl World {
    pub fn new() -> Self {
        let mut world = Self {
            table: Table::new(),
            mirror: BTreeMap::new(),
            events: Vec::new(),
        };
        world.done(Command::FoundCluster {
            cluster: 7,
            shards: 8,
        });
        world.done(node_up(1, 1));
        world
    }

    pub fn run(&mut self, command: Command) -> Outcome {
        let mut applied = Applied::default();
        let index = self.table.index() + 1;
        let outcome = self.table.apply(index, &[command], &mut applied).remove(0);
        for change in applied.changes {
            match change.value {
                Some(value) => self.mirror.insert(change.key, value),
                None => Some(self.mirror.remove(&change.key).unwrap()),
            };
        }
        self.events = applied.events;
        outcome
    }

    pub fn done(&mut self, command: Command) {
        assert_eq!(self.run(command), Outcome::Done);
    }

    pub fn refused(&mut self, command: Command) -> Refusal {
        let before = self.table.digest();
        let outcome = self.run(command);
        let Outcome::Refused(refusal) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(
            before,
            self.table.digest(),
            "a refused command changes nothing"
        );
        assert!(self.events.is_empty());
        refusal
    }

    pub fn exchange(&mut self, name: &str, kind: &str) -> &mut Self {
        self.done(Command::DeclareExchange(exchange(name, kind)));
        self
    }

    pub fn queue(&mut self, name: &str) -> &mut Self {
        let outcome = self.run(Command::DeclareQueue(queue(name)));
        assert!(
            matches!(outcome, Outcome::Queue { created: true, .. }),
            "{outcome:?}"
        );
        self
    }

    pub fn queues(&mut self, names: &[&str]) -> &mut Self {
        for name in names {
            self.queue(name);
        }
        self
    }

    pub fn bind(&mut self, source: &str, key: &str, queue: &str) -> &mut Self {
        self.done(Command::Bind(binding(source, key, queue)));
        self
    }

    pub fn bind_with(&mut self, source: &str, key: &str, queue: &str, arguments: Vec<u8>) {
        self.done(Command::Bind(Binding {
            arguments,
            ..binding(source, key, queue)
        }));
    }

    pub fn bind_exchange(&mut self, source: &str, key: &str, exchange: &str) -> &mut Self {
        self.done(Command::Bind(exchange_binding(source, key, exchange)));
        self
    }

    /// Names of the queues that a message goes to.
    pub fn route(&self, exchange: &str, key: &str) -> Vec<String> {
        self.route_raw(exchange, &[key.as_bytes()], &[]).unwrap()
    }

    pub fn route_headers(&self, exchange: &str, raw_table: &[u8]) -> Vec<String> {
        self.route_raw(exchange, &[b"ignored"], &headers(raw_table))
            .unwrap()
    }

    /// Routes, and holds the result against the explanation.
    pub fn route_raw(
        &self,
        exchange: &str,
        routing_keys: &[&[u8]],
        properties: &[u8],
    ) -> Result<Vec<String>, RouteError> {
        let publish = Publish {
            vhost: "/",
            exchange: exchange.as_bytes(),
            routing_keys,
            properties,
        };
        let mut route = Route::default();
        let explanation = self.table.explain(&publish);
        if let Err(error) = self.table.route(&publish, &mut route) {
            assert_eq!(explanation.error.as_ref(), Some(&error));
            return Err(error);
        }
        let explained: Vec<_> = explanation
            .queues
            .iter()
            .map(|(target, _)| *target)
            .collect();
        assert_eq!(explained, route.queues, "{explanation:#?}");
        let mut names: Vec<String> = explanation
            .queues
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn cacheable(&self, exchange: &str) -> bool {
        let publish = Publish {
            vhost: "/",
            exchange: exchange.as_bytes(),
            routing_keys: &[b"k"],
            properties: &[],
        };
        let mut route = Route::default();
        self.table.route(&publish, &mut route).unwrap();
        route.cacheable
    }

    pub fn binding_count(&self) -> usize {
        self.table.bindings("/").count()
    }

    /// The table, its records, the mirror of its changes and a table restored from them are all the same.
    pub fn check(&self) {
        let records: Vec<_> = self.table.records().collect();
        assert!(
            records.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "records come in the order of their keys"
        );
        assert_eq!(
            records,
            self.mirror.clone().into_iter().collect::<Vec<_>>(),
            "changes tell the whole story"
        );
        let restored = Table::restore(records.iter().cloned(), self.table.index()).unwrap();
        assert_eq!(restored.digest(), self.table.digest());
        assert_eq!(restored.epoch(), self.table.epoch());
        assert_eq!(restored.records().collect::<Vec<_>>(), records);
    }
}
