//! Texts as RabbitMQ has them, because client libraries and people match on them.

use warren_model::Refusal;

pub(crate) fn queue(vhost: &str, name: &str) -> String {
    format!("queue '{name}' in vhost '{vhost}'")
}

pub(crate) fn exchange(vhost: &str, name: &str) -> String {
    format!("exchange '{name}' in vhost '{vhost}'")
}

pub(crate) fn no_vhost(name: &str) -> Refusal {
    Refusal::new(530, format!("vhost {name} not found"))
}

pub(crate) fn no_queue(vhost: &str, name: &str) -> Refusal {
    Refusal::not_found(format!("no {}", queue(vhost, name)))
}

pub(crate) fn no_exchange(vhost: &str, name: &str) -> Refusal {
    Refusal::not_found(format!("no {}", exchange(vhost, name)))
}

pub(crate) fn default_exchange() -> Refusal {
    Refusal::access_refused("operation not permitted on the default exchange")
}

pub(crate) fn queue_limit(vhost: &str, name: &str, limit: u64) -> Refusal {
    Refusal::precondition_failed(format!(
        "cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
    ))
}

/// `kind` is `queue` or `exchange`.
pub(crate) fn reserved(kind: &str, name: &str) -> Refusal {
    Refusal::access_refused(format!(
        "{kind} name '{name}' contains reserved prefix 'amq.*'"
    ))
}

pub(crate) fn locked(vhost: &str, name: &str) -> Refusal {
    Refusal::resource_locked(format!(
        "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the exclusive property \
         value does not match that of the original declaration.",
        queue(vhost, name)
    ))
}

/// `resource` as [`queue`] or [`exchange`] writes it; `received` and `current` as they are to be printed.
pub(crate) fn inequivalent(
    argument: &str,
    resource: &str,
    received: &str,
    current: &str,
) -> Refusal {
    Refusal::precondition_failed(format!(
        "inequivalent arg '{argument}' for {resource}: received {received} but current is {current}"
    ))
}

/// Bytes as Erlang prints a binary: RabbitMQ quotes offending values so.
pub(crate) fn erlang_binary(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "<<>>".to_owned();
    }
    if bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        let escaped = String::from_utf8_lossy(bytes)
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        return format!("<<\"{escaped}\">>");
    }
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    format!("<<{}>>", numbers.join(","))
}
