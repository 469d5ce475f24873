//! Exchanges.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::Listing;
use crate::{
    PEERS_DEADLINE, Shared, arguments, change_for, check_name, connections, exchange_name, policies,
};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use warren_model::Command;
use warren_model::command::DeclareExchange;
use warren_node::{MessageStats, Node};
use warren_routing::{ExchangeView, Table};

/// The type of an exchange that names none, as AMQP has it.
const KIND: &str = "direct";

/// What was published to exchanges, by virtual host and name.
type Stats = BTreeMap<(String, String), MessageStats>;

/// Exchanges, and a header with the nodes that did not say what was published through them.
type Answer = Result<(HeaderMap, Json<Value>), Error>;

/// What was published to all exchanges, or to one.
async fn stats(node: &Arc<Node>, only: Option<(&str, &str)>) -> (Stats, HeaderMap) {
    let only = only.map(|(vhost, name)| (vhost.to_owned(), name.to_owned()));
    let (stats, silent) = node.exchange_stats(only, PEERS_DEADLINE).await;
    let table = node.metadata().table().read();
    let names = silent.into_iter().filter_map(|id| table.node(id));
    let headers = connections::silent(names.map(|node| node.name.clone()));
    (stats, headers)
}

fn described(table: &Table, exchange: &ExchangeView<'_>, stats: &Stats) -> Value {
    let mut row = json!({
        "name": exchange.name,
        "vhost": exchange.vhost,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": arguments::to_json(exchange.arguments),
    });
    let effective = table.policy_of_exchange(exchange.vhost, exchange.name);
    policies::put_effective(&mut row, &effective);
    let key = (exchange.vhost.to_owned(), exchange.name.to_owned());
    if let Some(stats) = stats.get(&key) {
        row["message_stats"] = crate::stats::described(stats);
    }
    row
}

pub(crate) async fn list_all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Answer {
    listed(&node, &access, None, &parameters).await
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Answer {
    listed(&node, &access, Some(&vhost), &parameters).await
}

async fn listed(
    node: &Arc<Node>,
    access: &Access,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Answer {
    let listing = Listing::new(parameters)?;
    let vhosts = access.vhosts(&node.metadata().table().read(), vhost)?;
    let (stats, headers) = stats(node, None).await;
    let mut rows = Vec::new();
    for vhost in vhosts {
        let table = node.metadata().table().read();
        let of_vhost = table.exchanges(&vhost);
        rows.extend(of_vhost.map(|exchange| described(&table, &exchange, &stats)));
    }
    Ok((headers, listing.of_rows(rows).map(Json)?))
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
) -> Answer {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let name = exchange_name(&name);
    let (stats, headers) = stats(&node, Some((&vhost, name))).await;
    let table = node.metadata().table().read();
    let exchange = table.exchange(&vhost, name);
    let row = exchange.map(|exchange| described(&table, &exchange, &stats));
    let row = row.ok_or_else(|| none(&vhost, name))?;
    Ok((headers, Json(row)))
}

/// Declares an exchange: 201 if it is new, 204 if it is there already as asked.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the exchange", &name)?;
    let name = exchange_name(&name).to_owned();
    let known = {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table.exchange(&vhost, &name).is_some()
    };
    let declare = DeclareExchange {
        vhost,
        name,
        kind: body.optional_text("type")?.unwrap_or(KIND).to_owned(),
        durable: body.flag("durable")?,
        auto_delete: body.flag("auto_delete")?,
        internal: body.flag("internal")?,
        arguments: body.arguments()?,
    };
    change_for(&node, &access, Command::DeclareExchange(declare)).await?;
    Ok(if known {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::CREATED
    })
}

pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, Error> {
    let name = exchange_name(&name).to_owned();
    {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table
            .exchange(&vhost, &name)
            .ok_or_else(|| none(&vhost, &name))?;
    }
    let delete = Command::DeleteExchange {
        vhost,
        name,
        if_unused: parameters.is_true("if-unused"),
    };
    change_for(&node, &access, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) fn none(vhost: &str, name: &str) -> Error {
    Error::not_found(format!("no exchange '{name}' in vhost '{vhost}'"))
}
