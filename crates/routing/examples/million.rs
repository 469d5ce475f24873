//! What a million bindings cost: memory a binding, time to bind, to route, to restore and to delete. Run with `--release`; arguments: how many, and `direct`, `topic` or `both`.
//!
//! Memory is the process's resident set before and after (Linux), so it counts everything: allocator, indexes, spare capacity.

// The crate is pure; this program measures it.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::time::Instant;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination, Place};
use warren_model::{Command, SessionId, ShardId};
use warren_routing::{Applied, Publish, Route, Table};

const QUEUES: u64 = 1_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count = arguments
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or(1_000_000);
    // One mix a process: memory that an earlier one freed would be used again unseen.
    let mix = match arguments.next().as_deref() {
        Some("direct") => Mix::Direct,
        Some("topic") => Mix::Topic,
        _ => Mix::Both,
    };
    measure(mix, count);
    hash_exchange(300);
}

#[derive(Clone, Copy, Debug)]
enum Mix {
    Direct,
    Topic,
    Both,
}

/// Source and a key of about ten bytes.
fn binding(mix: Mix, i: u64) -> (&'static str, String) {
    let direct = matches!(mix, Mix::Direct) || matches!(mix, Mix::Both) && i.is_multiple_of(2);
    if direct {
        ("direct", format!("key{i:07}"))
    } else {
        (
            "topic",
            format!("{}.{}.{}", i % 100, i / 100 % 100, i / 10_000),
        )
    }
}

fn measure(mix: Mix, count: u64) {
    let mut table = Table::new();
    let mut index = 0;
    let mut apply = |table: &mut Table, commands: &[Command]| {
        index += 1;
        let mut applied = Applied::default();
        table.apply(index, commands, &mut applied);
        applied.changes.len()
    };
    apply(
        &mut table,
        &[Command::FoundCluster {
            cluster: 1,
            shards: 64,
        }],
    );
    for kind in ["direct", "topic"] {
        apply(&mut table, &[exchange(kind)]);
    }
    for i in 0..QUEUES {
        apply(&mut table, &[queue(i)]);
    }
    let before = resident();
    let start = Instant::now();
    let mut next = 0;
    while next < count {
        let end = (next + 1000).min(count);
        let commands: Vec<Command> = (next..end).map(|i| bind(mix, i)).collect();
        apply(&mut table, &commands);
        next = end;
    }
    let bound = start.elapsed();
    let bytes = (resident() - before) as f64 / count as f64;
    println!(
        "{mix:?}: {} bindings, {bytes:.0} bytes each, bound in {bound:.2?}",
        table.binding_count()
    );
    route(mix, &table, count);
    let records: Vec<_> = table.records().collect();
    let start = Instant::now();
    let restored = Table::restore(records.into_iter(), table.index());
    println!(
        "  restored in {:.2?}, equal: {}",
        start.elapsed(),
        restored.is_ok_and(|restored| restored.digest() == table.digest())
    );
    let start = Instant::now();
    let name = "q1".to_owned();
    let changes = apply(
        &mut table,
        &[Command::DeleteQueue {
            vhost: "/".into(),
            name,
            only: None,
            session: SessionId::default(),
        }],
    );
    println!(
        "  a queue with {} bindings deleted in {:.2?}",
        changes - 1,
        start.elapsed()
    );
}

fn route(mix: Mix, table: &Table, count: u64) {
    let (mut route, mut targets) = (Route::default(), 0);
    let keys: Vec<_> = (0..1_000_000u64)
        .map(|i| binding(mix, i * 7919 % count))
        .collect();
    let start = Instant::now();
    for (exchange, key) in &keys {
        let publish = Publish {
            vhost: "/",
            exchange: exchange.as_bytes(),
            routing_keys: &[key.as_bytes()],
            properties: &[],
        };
        if table.route(&publish, &mut route).is_ok() {
            targets += route.queues.len();
        }
    }
    println!(
        "  routed {} messages to {targets} queues, {:.0} ns each",
        keys.len(),
        start.elapsed().as_nanos() as f64 / keys.len() as f64
    );
}

fn exchange(kind: &str) -> Command {
    Command::DeclareExchange(DeclareExchange {
        vhost: "/".into(),
        name: kind.into(),
        kind: kind.into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Vec::new(),
    })
}

fn queue(i: u64) -> Command {
    Command::DeclareQueue(DeclareQueue {
        vhost: "/".into(),
        name: format!("q{i}"),
        durable: true,
        exclusive: false,
        auto_delete: false,
        server_named: false,
        arguments: Vec::new(),
        session: SessionId::default(),
        place: Place::Shard(ShardId(0)),
    })
}

fn bind(mix: Mix, i: u64) -> Command {
    let (source, key) = binding(mix, i);
    Command::Bind(Binding {
        vhost: "/".into(),
        source: source.into(),
        destination: Destination::Queue(format!("q{}", i % QUEUES)),
        key: key.into_bytes(),
        arguments: Vec::new(),
        session: SessionId::default(),
    })
}

/// What choosing among many destinations of an x-consistent-hash exchange costs.
fn hash_exchange(destinations: u64) {
    let mut table = Table::new();
    let found = Command::FoundCluster {
        cluster: 1,
        shards: 64,
    };
    table.apply(
        1,
        &[found, exchange("x-consistent-hash")],
        &mut Applied::default(),
    );
    for i in 0..destinations {
        let bind = Command::Bind(Binding {
            vhost: "/".into(),
            source: "x-consistent-hash".into(),
            destination: Destination::Queue(format!("q{i}")),
            key: (i % 3 + 1).to_string().into_bytes(),
            arguments: Vec::new(),
            session: SessionId::default(),
        });
        table.apply(2 + i, &[queue(i), bind], &mut Applied::default());
    }
    let mut route = Route::default();
    let start = Instant::now();
    for i in 0..1_000_000u64 {
        let publish = Publish {
            vhost: "/",
            exchange: b"x-consistent-hash",
            routing_keys: &[&i.to_le_bytes()],
            properties: &[],
        };
        assert!(table.route(&publish, &mut route).is_ok() && route.queues.len() == 1);
    }
    println!(
        "x-consistent-hash: one of {destinations} chosen in {:.0} ns",
        start.elapsed().as_nanos() as f64 / 1e6
    );
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    pages * 4096
}
