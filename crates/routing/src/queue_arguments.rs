//! Queue arguments: which ones a queue type knows, and what values they may have, as RabbitMQ 4.3 has it.
//!
//! Arguments that no type knows are accepted and kept. One that another type knows is refused (406), and so is a known one with a bad value.
//! A queue without `x-queue-type` is classic, as in RabbitMQ; whether its contents are replicated is decided by its place, not by its type.
//! Streams are not offered: `x-queue-type: stream` is refused as an unsupported type.

use crate::arguments::{as_text, parse};
use crate::text;
use warren_model::Refusal;
use warren_model::command::DeclareQueue;
use warren_protocol::{Table, Value};

/// The argument that chooses the queue's type.
pub(crate) const TYPE: &str = "x-queue-type";
/// How many replicas a quorum queue is to have.
const GROUP_SIZE: &str = "x-quorum-initial-group-size";
pub(crate) const DEFAULT_TYPE: &str = "classic";

/// The names of the types that queues can have.
pub fn queue_types() -> impl Iterator<Item = &'static str> {
    TYPES.iter().map(|known| known.name)
}

/// Whether a queue of this type can be declared so.
pub(crate) fn suits(kind: &str, durable: bool, exclusive: bool, auto_delete: bool) -> bool {
    kind != "quorum" || (durable && !exclusive && !auto_delete)
}

/// RabbitMQ's limit on times: ten years.
const MILLISECONDS_MAX: i128 = 315_360_000_000;
const PRIORITY_MAX: i128 = 255;

/// A type: its name, the name of RabbitMQ's module for texts, and the arguments it knows.
struct QueueType {
    name: &'static str,
    module: &'static str,
    arguments: &'static [&'static str],
}

const TYPES: [QueueType; 2] = [
    QueueType {
        name: "classic",
        module: "rabbit_classic_queue",
        arguments: &[
            "x-expires",
            "x-message-ttl",
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-max-length",
            "x-max-length-bytes",
            "x-max-priority",
            "x-overflow",
            "x-queue-mode",
            "x-queue-version",
            "x-single-active-consumer",
            TYPE,
            "x-queue-master-locator",
            "x-queue-leader-locator",
        ],
    },
    QueueType {
        name: "quorum",
        module: "rabbit_quorum_queue",
        arguments: &[
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-dead-letter-strategy",
            "x-expires",
            "x-max-length",
            "x-max-length-bytes",
            "x-max-in-memory-length",
            "x-max-in-memory-bytes",
            "x-overflow",
            "x-single-active-consumer",
            TYPE,
            GROUP_SIZE,
            "x-delivery-limit",
            "x-message-ttl",
            "x-queue-leader-locator",
            "x-consumer-timeout",
        ],
    },
];

/// Arguments that only streams know.
const STREAM_ONLY: [&str; 4] = [
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-stream-filter-size-bytes",
    "x-initial-cluster-size",
];

/// What a bad value is, in the form in which Erlang prints RabbitMQ's reason.
type Reason = String;

fn find_type(name: &[u8]) -> Option<&'static QueueType> {
    TYPES.iter().find(|known| known.name.as_bytes() == name)
}

/// The type of a queue with these arguments, which were checked when it was declared.
fn type_of(arguments: &[u8]) -> &'static QueueType {
    let named = Table::parse(arguments)
        .ok()
        .and_then(|table| table.get(TYPE))
        .and_then(|value| find_type(as_text(&value)?));
    named.unwrap_or(&TYPES[0])
}

/// The name of the type of a queue with these arguments.
pub(crate) fn type_name(arguments: &[u8]) -> &'static str {
    type_of(arguments).name
}

/// How many replicas a queue with these arguments asks for, if it says.
pub(crate) fn group_size(arguments: &[u8]) -> Option<u32> {
    if arguments.is_empty() {
        return None;
    }
    let table = Table::parse(arguments).ok()?;
    let size = not_negative(&table.get(GROUP_SIZE)?).ok()?;
    Some(u32::try_from(size).unwrap_or(u32::MAX))
}

/// The arguments that two declares of a queue must agree on.
pub(crate) fn compared(arguments: &[u8]) -> &'static [&'static str] {
    type_of(arguments).arguments
}

/// Whether naming this type is the same as naming none.
pub(crate) fn is_default_type(value: &Value<'_>) -> bool {
    as_text(value) == Some(DEFAULT_TYPE.as_bytes())
}

/// Checks the arguments of a queue that is to be created.
pub(crate) fn check(declare: &DeclareQueue) -> Result<(), Refusal> {
    let table = parse(&declare.arguments)?;
    let queue = text::queue(&declare.vhost, &declare.name);
    let invalid = |argument: &str, reason: &str| {
        Refusal::precondition_failed(format!("invalid arg '{argument}' for {queue}: {reason}"))
    };
    if let Some(value) = table
        .get("x-dead-letter-exchange")
        .filter(|value| as_text(value).is_none())
    {
        let kind = value.type_name();
        return Err(Refusal::precondition_failed(format!(
            "invalid type '{kind}' for arg 'x-dead-letter-exchange' in {queue}"
        )));
    }
    let kind = match table.get(TYPE) {
        None => &TYPES[0],
        Some(value) => named_type(&value).map_err(|reason| invalid(TYPE, &reason))?,
    };
    for argument in kind.arguments {
        if let Some(value) = table.get(argument) {
            check_value(argument, &value, table).map_err(|reason| invalid(argument, &reason))?;
        }
    }
    let foreign = |key: &[u8]| {
        !kind.arguments.iter().any(|known| known.as_bytes() == key) && is_known_somewhere(key)
    };
    if let Some((key, _)) = table.iter().find(|(key, _)| foreign(key.as_bytes())) {
        let key = String::from_utf8_lossy(key.as_bytes());
        return Err(Refusal::precondition_failed(format!(
            "invalid arg '{key}' for {queue} of queue type {}",
            kind.module
        )));
    }
    if kind.name == "quorum" {
        let property = [
            (declare.auto_delete, "auto-delete"),
            (declare.exclusive, "exclusive-owner"),
            (!declare.durable, "non-durable"),
        ];
        if let Some((_, property)) = property.iter().find(|(bad, _)| *bad) {
            return Err(Refusal::precondition_failed(format!(
                "invalid property '{property}' for {queue}"
            )));
        }
    }
    Ok(())
}

fn is_known_somewhere(key: &[u8]) -> bool {
    let mut all = TYPES
        .iter()
        .flat_map(|known| known.arguments)
        .chain(&STREAM_ONLY);
    all.any(|known| known.as_bytes() == key)
}

fn named_type(value: &Value<'_>) -> Result<&'static QueueType, Reason> {
    let name = text_value(value)?;
    find_type(name).ok_or_else(|| {
        format!(
            "\"unsupported queue type '{}'\"",
            String::from_utf8_lossy(name)
        )
    })
}

fn check_value(argument: &str, value: &Value<'_>, table: Table<'_>) -> Result<(), Reason> {
    match argument {
        "x-expires" => match integer(value)? {
            0 => Err("{value_zero,0}".to_owned()),
            time => milliseconds(time),
        },
        "x-message-ttl" => milliseconds(integer(value)?),
        "x-max-length"
        | "x-max-length-bytes"
        | "x-max-in-memory-length"
        | "x-max-in-memory-bytes"
        | "x-consumer-timeout" => not_negative(value).map(drop),
        "x-max-priority" => match not_negative(value)? {
            priority if priority > PRIORITY_MAX => {
                Err(format!("{{max_value_exceeded,{priority}}}"))
            }
            _ => Ok(()),
        },
        GROUP_SIZE => match not_negative(value)? {
            0 => Err("{value_zero,0}".to_owned()),
            _ => Ok(()),
        },
        "x-delivery-limit" => integer(value).map(drop),
        "x-queue-version" => match not_negative(value)? {
            1 | 2 => Ok(()),
            other => Err(format!("\"unsupported queue version '{other}'\"")),
        },
        "x-dead-letter-routing-key" => {
            text_value(value)?;
            table
                .get("x-dead-letter-exchange")
                .map(drop)
                .ok_or_else(|| "routing_key_but_no_dlx_defined".to_owned())
        }
        "x-dead-letter-strategy" => one_of(
            value,
            &["at-most-once", "at-least-once"],
            "invalid_dlx_strategy",
        ),
        "x-overflow" => one_of(
            value,
            &["drop-head", "reject-publish", "reject-publish-dlx"],
            "invalid_overflow",
        ),
        "x-queue-leader-locator" => one_of(
            value,
            &[
                "client-local",
                "balanced",
                "random",
                "least-leaders",
                "min-masters",
            ],
            "invalid_queue_locator_arg",
        ),
        "x-single-active-consumer" => {
            if matches!(value, Value::Bool(_)) {
                Ok(())
            } else {
                Err(unacceptable(value))
            }
        }
        // Checked before, or without rules of their own.
        _ => Ok(()),
    }
}

fn integer(value: &Value<'_>) -> Result<i128, Reason> {
    value
        .as_integer()
        .ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn not_negative(value: &Value<'_>) -> Result<i128, Reason> {
    match integer(value)? {
        number if number < 0 => Err(format!("{{value_negative,{number}}}")),
        number => Ok(number),
    }
}

/// Checks the arguments of a consumer (raw field table entries). Refuses (406) what makes no sense; unknown ones are accepted, as in RabbitMQ.
pub fn check_consumer(vhost: &str, queue: &str, arguments: &[u8]) -> Result<(), Refusal> {
    if arguments.is_empty() {
        return Ok(());
    }
    let table = parse(arguments)?;
    let invalid = |argument: &str, reason: &str| {
        Refusal::precondition_failed(format!(
            "invalid arg '{argument}' for {}: {reason}",
            text::queue(vhost, queue)
        ))
    };
    let expected =
        |what: &str, value: &Value<'_>| format!("\"expected {what}, got {}\"", value.type_name());
    if let Some(value) = table.get("x-priority")
        && integer(&value).is_err()
    {
        return Err(invalid("x-priority", &expected("integer", &value)));
    }
    if let Some(value) = table.get("x-cancel-on-ha-failover")
        && !matches!(value, Value::Bool(_))
    {
        let reason = expected("boolean", &value);
        return Err(invalid("x-cancel-on-ha-failover", &reason));
    }
    if table.get("x-stream-offset").is_some() {
        let reason = "only streams have offsets, and there are none";
        return Err(invalid("x-stream-offset", reason));
    }
    Ok(())
}

fn milliseconds(time: i128) -> Result<(), Reason> {
    match time {
        time if time < 0 => Err(format!("{{value_negative,{time}}}")),
        time if time > MILLISECONDS_MAX => Err(format!("{{value_too_large,{time}}}")),
        _ => Ok(()),
    }
}

fn text_value<'a>(value: &Value<'a>) -> Result<&'a [u8], Reason> {
    as_text(value).ok_or_else(|| unacceptable(value))
}

fn unacceptable(value: &Value<'_>) -> Reason {
    format!("{{unacceptable_type,{}}}", value.type_name())
}

fn one_of(value: &Value<'_>, allowed: &[&str], reason: &str) -> Result<(), Reason> {
    let text = text_value(value)?;
    if allowed.iter().any(|allowed| allowed.as_bytes() == text) {
        Ok(())
    } else {
        Err(reason.to_owned())
    }
}
