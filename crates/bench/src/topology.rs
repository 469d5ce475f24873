//! Declares what a plan needs, and deletes it again: pipelined, as a plan may have many thousand bindings.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use warren_protocol::{
    ExchangeDeclare, ExchangeDelete, Method, NOT_FOUND, OwnedTable, OwnedValue, QueueBind,
    QueueDeclare, QueueDelete, ShortStr, Table,
};

use crate::cli::{ExchangeType, LoadOptions};
use crate::connection::{CHANNEL, Closed, Connection, short};
use crate::plan::{Binding, Plan};
use crate::target::Target;

/// Commands ahead of their answers.
const WINDOW: u32 = 500;
/// Longest time for each kind of command; a broker that takes longer cannot be loaded in good time.
const LONGEST: Duration = Duration::from_secs(300);

/// Declares queues, exchange and bindings.
///
/// # Errors
/// If the broker refuses, or takes too long.
pub fn declare(connection: &mut Connection, plan: &Plan, options: &LoadOptions) -> Result<()> {
    let durable = !options.transient;
    let arguments = queue_arguments(options.queue_type.as_deref());
    all(
        connection,
        plan.queues.len(),
        "queue.declare-ok",
        |index, out| {
            write_queue(
                out,
                &plan.queues[index],
                durable || options.durable_queues,
                &arguments,
            )
        },
    )?;
    let Some(kind) = plan.kind else { return Ok(()) };
    declare_exchange(connection, &plan.exchange, kind, durable)?;
    all(
        connection,
        plan.bindings.len(),
        "queue.bind-ok",
        |index, out| {
            let binding = &plan.bindings[index];
            write_bind(
                out,
                &plan.queues[binding.queue as usize],
                &plan.exchange,
                binding,
            )
        },
    )
}

/// Deletes queues, with their bindings, and the exchange. What is not there is no error.
///
/// # Errors
/// If no broker can be reached, or it refuses or takes too long.
pub fn delete(targets: &[Target], queues: &[String], exchange: &str) -> Result<()> {
    let mut connection = open_any(targets, "warren-bench clean-up")?;
    if !exchange.is_empty() {
        let delete = ExchangeDelete {
            exchange: short(exchange)?,
            if_unused: false,
            no_wait: false,
        };
        connection.request(&Method::ExchangeDelete(delete), "exchange.delete-ok")?;
    }
    all(
        &mut connection,
        queues.len(),
        "queue.delete-ok",
        |index, out| {
            let delete = QueueDelete {
                queue: short(&queues[index])?,
                if_unused: false,
                if_empty: false,
                no_wait: false,
            };
            Method::QueueDelete(delete).write(CHANNEL, out);
            Ok(())
        },
    )?;
    connection.close()
}

/// A connection to the first broker that takes one.
fn open_any(targets: &[Target], name: &str) -> Result<Connection> {
    let mut outcome = Err(anyhow::anyhow!("no broker named"));
    for target in targets {
        outcome = Connection::open(target, name);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// An error if there is an exchange of that name: it would be deleted at the end.
///
/// # Errors
/// That, and if the broker cannot be asked.
pub fn require_free(target: &Target, exchange: &str) -> Result<()> {
    let mut connection = Connection::open(target, "warren-bench check")?;
    let declare = ExchangeDeclare {
        passive: true,
        ..exchange_declare(exchange, ExchangeType::Direct, false)?
    };
    match connection.request(&Method::ExchangeDeclare(declare), "exchange.declare-ok") {
        Ok(()) => bail!("the exchange {exchange} exists already; name another one, or none"),
        Err(error)
            if error
                .downcast_ref::<Closed>()
                .is_some_and(|closed| closed.code == NOT_FOUND) =>
        {
            connection.close()
        }
        Err(error) => Err(error),
    }
}

/// Declares an exchange.
///
/// # Errors
/// If the broker refuses.
pub fn declare_exchange(
    connection: &mut Connection,
    name: &str,
    kind: ExchangeType,
    durable: bool,
) -> Result<()> {
    let declare = exchange_declare(name, kind, durable)?;
    connection.request(&Method::ExchangeDeclare(declare), "exchange.declare-ok")
}

fn exchange_declare(name: &str, kind: ExchangeType, durable: bool) -> Result<ExchangeDeclare<'_>> {
    Ok(ExchangeDeclare {
        exchange: short(name)?,
        kind: ShortStr::from_static(kind.name()),
        passive: false,
        durable,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::EMPTY,
    })
}

/// A queue's arguments, as table entries.
pub fn queue_arguments(queue_type: Option<&str>) -> Vec<u8> {
    let mut table = OwnedTable::new();
    if let Some(name) = queue_type {
        table.put(
            "x-queue-type",
            OwnedValue::LongStr(name.as_bytes().to_vec()),
        );
    }
    entries(&table)
}

/// Appends `queue.declare`.
///
/// # Errors
/// If the name is too long.
pub fn write_queue(out: &mut Vec<u8>, name: &str, durable: bool, arguments: &[u8]) -> Result<()> {
    let declare = QueueDeclare {
        queue: short(name)?,
        passive: false,
        durable,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::parse(arguments)?,
    };
    Method::QueueDeclare(declare).write(CHANNEL, out);
    Ok(())
}

/// Appends `queue.bind`.
///
/// # Errors
/// If a name or the key is too long.
pub fn write_bind(out: &mut Vec<u8>, queue: &str, exchange: &str, binding: &Binding) -> Result<()> {
    let mut table = OwnedTable::new();
    if let Some(value) = binding.header {
        table.put("x-match", OwnedValue::LongStr(b"all".to_vec()));
        table.put("n", OwnedValue::I32(value));
    }
    let arguments = entries(&table);
    let bind = QueueBind {
        queue: short(queue)?,
        exchange: short(exchange)?,
        routing_key: short(&binding.key)?,
        no_wait: false,
        arguments: Table::parse(&arguments)?,
    };
    Method::QueueBind(bind).write(CHANNEL, out);
    Ok(())
}

fn entries(table: &OwnedTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.encode_entries(&mut bytes);
    bytes
}

fn all(
    connection: &mut Connection,
    count: usize,
    answer: &'static str,
    write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    let done = pipeline(connection, count, WINDOW, LONGEST, answer, write)?;
    if done < count {
        bail!(
            "only {done} of {count} {answer} within {} s",
            LONGEST.as_secs()
        );
    }
    Ok(())
}

/// Sends `count` commands, at most `window` ahead of their answers, and returns how many were answered: all, unless time ended first.
///
/// # Errors
/// If the broker refuses one, or does not answer.
pub fn pipeline(
    connection: &mut Connection,
    count: usize,
    window: u32,
    longest: Duration,
    answer: &'static str,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<usize> {
    let end = Instant::now() + longest;
    let window = window as usize;
    let (mut sent, mut answered) = (0, 0);
    let mut bytes = Vec::new();
    while sent < count && Instant::now() < end {
        bytes.clear();
        let until = count.min(answered + window);
        while sent < until {
            write(sent, &mut bytes)?;
            sent += 1;
        }
        connection.send(&bytes)?;
        // Half the window stays under way while the next half is written.
        while sent - answered > window / 2 {
            connection.answer(answer)?;
            answered += 1;
        }
    }
    while answered < sent {
        connection.answer(answer)?;
        answered += 1;
    }
    Ok(answered)
}
