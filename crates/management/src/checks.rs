//! Health checks as RabbitMQ has them: 200 with `"status": "ok"`, or 503 with `"status": "failed"`, the reason and what it is about.
//!
//! Each tells of the node that is asked, but for `alarms`, which looks at all. What a check is about in RabbitMQ and does not exist here (mirrors) is never
//! in a bad state.

use crate::access::Access;
use crate::amqp::Client;
use crate::error::Error;
use crate::extract::Names;
use crate::overview::listeners;
use crate::{PEERS_DEADLINE, Shared, status};
use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime};
use warren_node::Node;

const DAY: u64 = 24 * 60 * 60;
/// What the aliveness test declares, as in RabbitMQ.
const ALIVENESS_QUEUE: &str = "aliveness-test";

fn ok() -> Response {
    Json(json!({"status": "ok"})).into_response()
}

/// `more` are fields beside status and reason.
fn failed(reason: &str, more: Value) -> Response {
    let mut body = Map::new();
    body.insert("status".into(), json!("failed"));
    body.insert("reason".into(), json!(reason));
    if let Value::Object(more) = more {
        body.extend(more);
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Object(body))).into_response()
}

fn check(passed: bool, reason: &str) -> Response {
    if passed {
        ok()
    } else {
        failed(reason, Value::Null)
    }
}

/// Whether publishers are blocked anywhere in the cluster.
pub(crate) async fn alarms(State(node): Shared) -> Response {
    let observed = node.processes(PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let mut alarms: Vec<Value> = Vec::new();
    for (id, process) in &observed.answers {
        let Some(member) = table.node(*id) else {
            continue;
        };
        alarms.extend(described(&member.name, process.alarm, process.low_on_disk));
    }
    if alarms.is_empty() {
        return ok();
    }
    let reason = "There are alarms in effect in the cluster";
    failed(reason, json!({"alarms": alarms}))
}

/// Whether publishers are blocked on this node.
pub(crate) async fn local_alarms(State(node): Shared) -> Response {
    let low = node.low();
    let alarms = described(node.name(), low.memory, low.disk);
    if alarms.is_empty() {
        return ok();
    }
    let reason = "There are alarms in effect on the node";
    failed(reason, json!({"alarms": alarms}))
}

fn described(node: &str, memory: bool, disk: bool) -> Vec<Value> {
    [(memory, "memory"), (disk, "disk")]
        .into_iter()
        .filter(|(low, _)| *low)
        .map(|(_, resource)| json!({"node": node, "resource": resource}))
        .collect()
}

/// Whether any certificate of this node expires within a time.
pub(crate) async fn certificate_expiration(
    State(node): Shared,
    Names((within, unit)): Names<(String, String)>,
) -> Result<Response, Error> {
    let days = match unit.as_str() {
        "day" | "days" => 1,
        "week" | "weeks" => 7,
        "month" | "months" => 30,
        "year" | "years" => 365,
        _ => {
            return Err(Error::bad_request(format!(
                "Invalid time unit '{unit}': use days, weeks, months or years"
            )));
        }
    };
    let within: u32 = within.parse().map_err(|_| {
        Error::bad_request(format!(
            "Invalid expiration value '{within}': a whole number is needed"
        ))
    })?;
    let end = SystemTime::now() + Duration::from_secs(u64::from(within) * days * DAY);
    let expired: Vec<Value> = node
        .certificates()
        .into_iter()
        .filter(|certificate| certificate.not_after <= end)
        .map(|certificate| {
            let not_after = certificate
                .not_after
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            json!({"name": certificate.what, "subject": certificate.subject, "not_after": not_after})
        })
        .collect();
    Ok(if expired.is_empty() {
        ok()
    } else {
        failed("Certificates expiring", json!({"expired": expired}))
    })
}

/// This node's listeners: protocol and port.
fn own_listeners(node: &Node) -> Vec<(String, u16)> {
    let table = node.metadata().table().read();
    let Some(member) = table.node(node.id()) else {
        return Vec::new();
    };
    let more = node
        .config()
        .listeners
        .iter()
        .filter_map(|(protocol, address)| {
            Some((protocol.clone(), address.rsplit_once(':')?.1.parse().ok()?))
        });
    let known = listeners(member).filter_map(|listener| {
        let port = u16::try_from(listener["port"].as_u64()?).ok()?;
        Some((listener["protocol"].as_str()?.to_owned(), port))
    });
    known.chain(more).collect()
}

/// Whether this node listens at a port.
pub(crate) async fn port_listener(
    State(node): Shared,
    Names(port): Names<String>,
) -> Result<Response, Error> {
    let wanted: u16 = port
        .parse()
        .map_err(|_| Error::bad_request(format!("Invalid port '{port}'")))?;
    let ports: Vec<u16> = own_listeners(&node).into_iter().map(|(_, p)| p).collect();
    Ok(if ports.contains(&wanted) {
        Json(json!({"status": "ok", "port": wanted})).into_response()
    } else {
        let more = json!({"missing": wanted, "ports": ports});
        failed("No active listener", more)
    })
}

/// Whether this node listens for a protocol, by any of the names that RabbitMQ has for it.
pub(crate) async fn protocol_listener(
    State(node): Shared,
    Names(protocol): Names<String>,
) -> Response {
    let wanted = match protocol.to_ascii_lowercase().as_str() {
        "amqp" | "amqp091" | "amqp0.9.1" | "amqp-0-9-1" | "amqp0-9-1" => "amqp",
        "amqps" | "amqp/ssl" | "amqp091/ssl" => "amqp/ssl",
        "management" | "http" => "http",
        "https" | "https/web" => "https",
        "clustering" => "clustering",
        _ => "",
    };
    let protocols: Vec<String> = own_listeners(&node).into_iter().map(|(p, _)| p).collect();
    if protocols.iter().any(|known| known == wanted) {
        return Json(json!({"status": "ok", "protocol": protocol})).into_response();
    }
    let more = json!({"missing": protocol, "protocols": protocols});
    failed("No active listener", more)
}

/// Whether clients can use the virtual hosts on this node: all of them, or none.
pub(crate) async fn virtual_hosts(State(node): Shared) -> Response {
    if node.metadata().may_route() {
        return ok();
    }
    let table = node.metadata().table().read();
    let down: Vec<&str> = table.vhosts().collect();
    failed(
        "Some virtual hosts are down",
        json!({"virtual-hosts": down}),
    )
}

/// Whether the cluster would lose its majority if this node were stopped. A cluster of one node cannot lose what it does not have.
pub(crate) async fn quorum_critical(State(node): Shared) -> Response {
    let status = node.metadata().status();
    let voters: Vec<_> = status.members.iter().filter(|m| m.voter).collect();
    let others_up = voters.iter().filter(|m| m.up && m.node != node.id());
    let majority = voters.len() / 2 + 1;
    if voters.len() <= 1 || others_up.count() >= majority {
        return ok();
    }
    if !voters.iter().any(|m| m.node == node.id()) {
        return ok();
    }
    let reason = "The cluster would lose its quorum if the target node is shut down: nothing could be declared, and no node would route";
    let up: Vec<&str> = voters
        .iter()
        .filter(|m| m.up)
        .map(|m| m.name.as_str())
        .collect();
    failed(reason, json!({"queues": [], "voters_up": up}))
}

/// There are no mirrored queues, so none can be out of step.
pub(crate) async fn mirror_sync_critical() -> Response {
    ok()
}

/// There is no limit of connections of a node, so none can be exceeded.
pub(crate) async fn below_connection_limit() -> Response {
    ok()
}

/// Whether this node serves clients.
pub(crate) async fn ready(State(node): Shared) -> Response {
    let ready = node.metadata().may_route() && !node.is_stopping();
    check(ready, status::why_not(&node))
}

/// Whether this node is a part of a cluster.
pub(crate) async fn store_initialized(State(node): Shared) -> Response {
    let initialized = node.metadata().status().cluster.is_some();
    check(initialized, "Metadata store has not yet been initialized")
}

/// Whether it also has what a cluster has at least: a virtual host and a user.
pub(crate) async fn store_with_data(State(node): Shared) -> Response {
    let table = node.metadata().table().read();
    let data = table.vhosts().next().is_some() && table.users().next().is_some();
    let reason = "Metadata store has not yet been initialized: it has no virtual host or no user";
    check(data, reason)
}

/// Declares a queue, publishes to it and gets the message back, in a session of the user's.
pub(crate) async fn aliveness(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(login): Extension<crate::access::Login>,
    Names(vhost): Names<String>,
) -> Result<Json<Value>, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let mut client = Client::open(&node, &login, &vhost).await?;
    client.declare(ALIVENESS_QUEUE).await?;
    let routed = client
        .publish("", ALIVENESS_QUEUE, &[0, 0], b"test_message")
        .await?;
    let got = client.get(ALIVENESS_QUEUE).await?;
    if !routed || got.is_none() {
        return Err(Error::unavailable(format!(
            "a message that was published to queue '{ALIVENESS_QUEUE}' in vhost '{vhost}' could not be got back"
        )));
    }
    client
        .settle_all(ALIVENESS_QUEUE, crate::amqp::Settle::Ack)
        .await?;
    client.close().await;
    Ok(Json(json!({"status": "ok"})))
}

/// How to log in: with a password. Needs no login itself.
pub(crate) async fn auth() -> Json<Value> {
    Json(json!({"oauth_enabled": false}))
}

/// Extensions of RabbitMQ's web page, of which there are none, and feature flags, of which there are none either.
pub(crate) async fn none() -> Json<Value> {
    Json(json!([]))
}
