//! Client connections, channels and consumers of the whole cluster, whichever node is asked.
//!
//! Flow: every node that is up is asked at once; those that do not answer within the deadline are left out and named in the header [`SILENT`]. Who may not
//! see everything sees its own connections, as in RabbitMQ, and may close those.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Names, Parameters};
use crate::listing::Listing;
use crate::stats::{described, put};
use crate::{PEERS_DEADLINE, Shared, arguments};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use warren_model::{NodeId, QueueId};
use warren_node::{ChannelInfo, ConnectionInfo, ConsumerInfo, Detail, Live, Node};

/// Names nodes that should have answered and did not.
pub(crate) const SILENT: HeaderName = HeaderName::from_static("warren-silent-nodes");
/// Gives the reason for closing a connection.
const REASON: &str = "x-reason";

/// A connection and where it is.
struct Seen {
    node: NodeId,
    node_name: String,
    info: ConnectionInfo,
}

/// What is answered beside the rows.
type Rows = Result<(HeaderMap, Json<Value>), Error>;

/// Connections that the user may see and that `only` chooses, by name, and a header with the nodes that are silent.
async fn seen(
    node: &Arc<Node>,
    access: &Access,
    detail: Detail,
    only: impl Fn(&ConnectionInfo) -> bool,
) -> (Vec<Seen>, HeaderMap) {
    let observed = node.connections(detail, PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let name_of = |id: NodeId| table.node(id).map_or(String::new(), |n| n.name.clone());
    let mut all = Vec::new();
    for (id, infos) in observed.answers {
        let node_name = name_of(id);
        let chosen = infos
            .into_iter()
            .filter(|info| (access.is_monitor() || info.user == access.name) && only(info));
        all.extend(chosen.map(|info| Seen {
            node: id,
            node_name: node_name.clone(),
            info,
        }));
    }
    all.sort_by(|a, b| a.info.name.cmp(&b.info.name));
    (all, silent(observed.silent.iter().map(|id| name_of(*id))))
}

/// The header that names silent nodes, if there are any.
pub(crate) fn silent(names: impl Iterator<Item = String>) -> HeaderMap {
    let names: Vec<String> = names.collect();
    let mut headers = HeaderMap::new();
    if !names.is_empty()
        && let Ok(value) = HeaderValue::from_str(&names.join(","))
    {
        headers.insert(SILENT, value);
    }
    headers
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Rows {
    listed(&node, &access, &parameters, |_| true).await
}

pub(crate) async fn of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Rows {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    listed(&node, &access, &parameters, |info| info.vhost == vhost).await
}

pub(crate) async fn of_user(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(user): Names<String>,
    parameters: Parameters,
) -> Rows {
    access.own_or_monitor(&user)?;
    listed(&node, &access, &parameters, |info| info.user == user).await
}

async fn listed(
    node: &Arc<Node>,
    access: &Access,
    parameters: &Parameters,
    only: impl Fn(&ConnectionInfo) -> bool,
) -> Rows {
    let listing = Listing::new(parameters)?;
    let (all, headers) = seen(node, access, Detail::Connections, only).await;
    let rows = listing.of_rows(all.iter().map(connection).collect())?;
    Ok((headers, Json(rows)))
}

/// The connection of this name that the user may see.
async fn named(
    node: &Arc<Node>,
    access: &Access,
    detail: Detail,
    name: &str,
) -> Result<Seen, Error> {
    let name = &in_path(name);
    // Whose it is decides who may see it, so that one who may not learns that, and not that there is none.
    let observed = node.connections(detail, PEERS_DEADLINE).await;
    let found = observed.answers.into_iter().find_map(|(id, infos)| {
        let info = infos.into_iter().find(|info| info.name == *name)?;
        Some((id, info))
    });
    let (id, info) = found.ok_or_else(|| Error::not_found(format!("no connection '{name}'")))?;
    access.own_or_monitor(&info.user)?;
    let table = node.metadata().table().read();
    let node_name = table.node(id).map_or(String::new(), |n| n.name.clone());
    Ok(Seen {
        node: id,
        node_name,
        info,
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    let seen = named(&node, &access, Detail::Connections, &name).await?;
    Ok(Json(connection(&seen)))
}

/// Closes a connection: its client is told the reason (320).
pub(crate) async fn close(
    State(node): Shared,
    Extension(access): Extension<Access>,
    headers: HeaderMap,
    Names(name): Names<String>,
) -> Result<StatusCode, Error> {
    let seen = named(&node, &access, Detail::Connections, &name).await?;
    access.own_or_administrator(&seen.info.user)?;
    close_one(&node, &seen, &reason(&headers)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Closes all connections of a user.
pub(crate) async fn close_of_user(
    State(node): Shared,
    Extension(access): Extension<Access>,
    headers: HeaderMap,
    Names(user): Names<String>,
) -> Result<impl IntoResponse, Error> {
    access.own_or_administrator(&user)?;
    let of_user = |info: &ConnectionInfo| info.user == user;
    let (all, headers_out) = seen(&node, &access, Detail::Connections, of_user).await;
    let reason = reason(&headers);
    for seen in &all {
        match close_one(&node, seen, &reason).await {
            // It has ended meanwhile.
            Err(error) if error.is_not_found() => {}
            result => result?,
        }
    }
    Ok((StatusCode::NO_CONTENT, headers_out))
}

fn reason(headers: &HeaderMap) -> String {
    let given = headers.get(REASON).and_then(|value| value.to_str().ok());
    given
        .filter(|reason| !reason.is_empty())
        .unwrap_or("Closed via management API")
        .to_owned()
}

async fn close_one(node: &Arc<Node>, seen: &Seen, reason: &str) -> Result<(), Error> {
    let closed = node
        .close_connection(seen.node, &seen.info, reason, PEERS_DEADLINE)
        .await;
    match closed {
        Some(true) => Ok(()),
        Some(false) => Err(Error::not_found(format!(
            "no connection '{}'",
            seen.info.name
        ))),
        None => Err(Error::unavailable(format!(
            "node '{}' did not answer; whether the connection is closed is not known",
            seen.node_name
        ))),
    }
}

pub(crate) async fn channels(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Rows {
    channels_of(&node, &access, &parameters, |_| true).await
}

pub(crate) async fn channels_of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Rows {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    channels_of(&node, &access, &parameters, |info| info.vhost == vhost).await
}

async fn channels_of(
    node: &Arc<Node>,
    access: &Access,
    parameters: &Parameters,
    only: impl Fn(&ConnectionInfo) -> bool,
) -> Rows {
    let listing = Listing::new(parameters)?;
    let (all, headers) = seen(node, access, Detail::Channels, only).await;
    let rows = listing.of_rows(all.iter().flat_map(channel_rows).collect())?;
    Ok((headers, Json(rows)))
}

pub(crate) async fn channels_of_connection(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(&parameters)?;
    let seen = named(&node, &access, Detail::Channels, &name).await?;
    Ok(Json(listing.of_rows(channel_rows(&seen))?))
}

/// A connection's or channel's name as it stands in a path: some clients write a space there as in a query. No name has a plus sign of its own.
fn in_path(name: &str) -> String {
    name.replace('+', " ")
}

/// A channel by its name, which is its connection's and its number in brackets.
pub(crate) async fn channel_named(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    let name = in_path(&name);
    let none = || Error::not_found(format!("no channel '{name}'"));
    let (connection, _) = name.rsplit_once(" (").ok_or_else(none)?;
    let seen = named(&node, &access, Detail::Channels, connection)
        .await
        .map_err(|error| if error.is_not_found() { none() } else { error })?;
    let row = channel_rows(&seen)
        .into_iter()
        .find(|row| row["name"] == name.as_str());
    let mut row = row.ok_or_else(none)?;
    let of_connection = |info: &ConnectionInfo| info.name == connection;
    let (mut consumers, _) = consumer_rows(&node, &access, of_connection).await;
    consumers.retain(|consumer| consumer["channel_details"]["name"] == name.as_str());
    row["consumer_details"] = json!(consumers);
    Ok(Json(row))
}

pub(crate) async fn consumers(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Rows {
    let listing = Listing::new(&parameters)?;
    let (rows, headers) = consumer_rows(&node, &access, |_| true).await;
    Ok((headers, Json(listing.of_rows(rows)?)))
}

pub(crate) async fn consumers_of_vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Rows {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let listing = Listing::new(&parameters)?;
    let (mut rows, headers) = consumer_rows(&node, &access, |_| true).await;
    rows.retain(|row| row["queue"]["vhost"] == vhost.as_str());
    Ok((headers, Json(listing.of_rows(rows)?)))
}

/// The consumers of a queue: whoever sees the queue sees them.
pub(crate) async fn consumers_of_queue(node: &Arc<Node>, queue: QueueId) -> Vec<Value> {
    let observed = node.connections(Detail::Consumers, PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let mut rows = Vec::new();
    for (id, infos) in observed.answers {
        let node_name = table.node(id).map_or(String::new(), |n| n.name.clone());
        for info in infos {
            let seen = Seen {
                node: id,
                node_name: node_name.clone(),
                info,
            };
            let consumers = seen.info.live.iter().flat_map(|live| &live.consumers);
            let of_queue = consumers.filter(|c| c.queue == queue.0);
            rows.extend(of_queue.filter_map(|c| consumer(&seen, c, &table)));
        }
    }
    rows
}

async fn consumer_rows(
    node: &Arc<Node>,
    access: &Access,
    only: impl Fn(&ConnectionInfo) -> bool,
) -> (Vec<Value>, HeaderMap) {
    let (all, headers) = seen(node, access, Detail::Consumers, only).await;
    let table = node.metadata().table().read();
    let mut rows = Vec::new();
    for seen in &all {
        let consumers = seen.info.live.iter().flat_map(|live| &live.consumers);
        rows.extend(consumers.filter_map(|c| consumer(seen, c, &table)));
    }
    (rows, headers)
}

/// How many connections, channels and consumers the user sees, for the overview.
pub(crate) async fn totals(node: &Arc<Node>, access: &Access) -> (u64, u64) {
    let (all, _) = seen(node, access, Detail::Connections, |_| true).await;
    let channels = all
        .iter()
        .filter_map(|seen| seen.info.live.as_ref())
        .map(|live| live.channel_count);
    (all.len() as u64, channels.sum())
}

fn connection(seen: &Seen) -> Value {
    let info = &seen.info;
    let mut fields = Map::new();
    let (peer_host, peer_port) = host_and_port(info.peer);
    let (host, port) = host_and_port(info.local);
    let properties = arguments::to_json(&info.client_properties);
    let row = json!({
        "name": info.name,
        "node": seen.node_name,
        "type": if info.local.is_some() { "network" } else { "direct" },
        "protocol": if info.local.is_some() { "AMQP 0-9-1" } else { "Direct 0-9-1" },
        "user": info.user,
        "user_who_performed_action": info.user,
        "vhost": info.vhost,
        "client_properties": properties,
        "auth_mechanism": info.mechanism,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "host": host,
        "port": port,
        "channel_max": info.channel_max,
        "frame_max": info.frame_max,
        "timeout": info.heartbeat_s,
        "connected_at": info.connected_at,
        "ssl": info.tls.is_some(),
    });
    let named = row["client_properties"].get("connection_name").cloned();
    if let Value::Object(row) = row {
        fields.extend(row);
    }
    if let Some(name) = named {
        fields.insert("user_provided_name".into(), name);
    }
    if let Some(tls) = &info.tls {
        fields.insert("ssl_protocol".into(), json!(tls.protocol));
        fields.insert("ssl_cipher".into(), json!(tls.cipher));
        fields.insert("peer_cert_subject".into(), json!(tls.subject));
        fields.insert("peer_cert_issuer".into(), json!(tls.issuer));
        fields.insert("peer_cert_validity".into(), json!(tls.validity));
    }
    if let Some(live) = &info.live {
        add_live(&mut fields, live);
    }
    Value::Object(fields)
}

fn add_live(fields: &mut Map<String, Value>, live: &Live) {
    fields.insert("state".into(), json!(live.state));
    fields.insert("channels".into(), json!(live.channel_count));
    put(fields, "recv_oct", live.received);
    put(fields, "send_oct", live.sent);
    fields.insert("recv_cnt".into(), json!(live.reads));
    fields.insert("send_cnt".into(), json!(live.writes));
    fields.insert("send_pend".into(), json!(live.pending));
}

fn channel_rows(seen: &Seen) -> Vec<Value> {
    let channels = seen.info.live.iter().flat_map(|live| &live.channels);
    channels.map(|c| channel(seen, c)).collect()
}

fn channel_name(seen: &Seen, number: u16) -> String {
    format!("{} ({number})", seen.info.name)
}

fn channel(seen: &Seen, channel: &ChannelInfo) -> Value {
    let (peer_host, peer_port) = host_and_port(seen.info.peer);
    json!({
        "name": channel_name(seen, channel.number),
        "number": channel.number,
        "node": seen.node_name,
        "user": seen.info.user,
        "user_who_performed_action": seen.info.user,
        "vhost": seen.info.vhost,
        "state": if channel.closing { "closing" } else { "running" },
        "transactional": false,
        "confirm": channel.confirm,
        "consumer_count": channel.consumers,
        "messages_unacknowledged": channel.unacked,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": 0,
        "acks_uncommitted": 0,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "message_stats": described(&channel.stats),
        "connection_details": {"name": seen.info.name, "peer_host": peer_host, "peer_port": peer_port},
    })
}

/// None once the queue is gone: its consumers are about to be.
fn consumer(seen: &Seen, consumer: &ConsumerInfo, table: &warren_routing::Table) -> Option<Value> {
    let queue = table.queue_by_id(QueueId(consumer.queue))?;
    let (peer_host, peer_port) = host_and_port(seen.info.peer);
    Some(json!({
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost},
        "ack_required": consumer.acks,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "arguments": crate::arguments::to_json(&consumer.arguments),
        "active": consumer.active,
        "activity_status": if consumer.active { "up" } else { "suspected_down" },
        "channel_details": {
            "connection_name": seen.info.name,
            "name": channel_name(seen, consumer.channel),
            "node": seen.node_name,
            "number": consumer.channel,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "user": seen.info.user,
        },
    }))
}

fn host_and_port(address: Option<SocketAddr>) -> (Value, Value) {
    match address {
        Some(address) => (
            json!(address.ip().to_canonical().to_string()),
            json!(address.port()),
        ),
        None => (Value::Null, Value::Null),
    }
}
