//! Global parameters: JSON under a name, kept for whoever asks. None of them has an effect here.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, check_name, listing, put_status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use warren_model::Command;
use warren_node::Node;

pub(crate) fn described((name, value): (&str, &str)) -> Value {
    // It was made from JSON.
    let value: Value = serde_json::from_str(value).unwrap_or_default();
    json!({"name": name, "value": value})
}

/// Name and JSON of the parameter that a body describes.
pub(crate) fn read(body: &Body) -> Result<(String, String), Error> {
    let name = body.text("name")?;
    check_name("name of the parameter", name)?;
    Ok((name.to_owned(), value(body)?))
}

fn value(body: &Body) -> Result<String, Error> {
    let value = body.0.get("value");
    value
        .map(Value::to_string)
        .ok_or_else(|| Error::bad_request("key_missing: value"))
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        Ok(table.global_parameters().map(described).collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    let table = node.metadata().table().read();
    let found = table.global_parameters().find(|(known, _)| *known == name);
    found
        .map(|parameter| Json(described(parameter)))
        .ok_or_else(|| none(&name))
}

fn is_known(node: &Node, name: &str) -> bool {
    let table = node.metadata().table().read();
    table.global_parameters().any(|(known, _)| known == name)
}

pub(crate) async fn put(
    State(node): Shared,
    Names(name): Names<String>,
    body: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the parameter", &name)?;
    let (known, value) = (is_known(&node, &name), value(&body)?);
    change(&node, Command::PutGlobalParameter { name, value }).await?;
    Ok(put_status(known))
}

pub(crate) async fn delete(
    State(node): Shared,
    Names(name): Names<String>,
) -> Result<StatusCode, Error> {
    if !is_known(&node, &name) {
        return Err(none(&name));
    }
    change(&node, Command::DeleteGlobalParameter { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn none(name: &str) -> Error {
    Error::not_found(format!("no global parameter '{name}'"))
}
