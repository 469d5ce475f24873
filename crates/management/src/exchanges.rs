//! Exchanges.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::Listing;
use crate::{Shared, arguments, change_for, check_name, exchange_name, policies};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::DeclareExchange;
use warren_node::Node;
use warren_routing::{ExchangeView, Table};

/// The type of an exchange that names none, as AMQP has it.
const KIND: &str = "direct";

fn described(table: &Table, exchange: &ExchangeView<'_>) -> Value {
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
    row
}

pub(crate) async fn list_all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, None, &parameters)
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, Some(&vhost), &parameters)
}

fn listed(
    node: &Node,
    access: &Access,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(parameters)?;
    let vhosts = access.vhosts(&node.metadata().table().read(), vhost)?;
    let mut rows = Vec::new();
    for vhost in vhosts {
        let table = node.metadata().table().read();
        let of_vhost = table.exchanges(&vhost);
        rows.extend(of_vhost.map(|exchange| described(&table, &exchange)));
    }
    listing.of_rows(rows).map(Json)
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<Json<Value>, Error> {
    let table = node.metadata().table().read();
    access.vhost(&table, &vhost)?;
    table
        .exchange(&vhost, exchange_name(&name))
        .map(|exchange| Json(described(&table, &exchange)))
        .ok_or_else(|| none(&vhost, &name))
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
