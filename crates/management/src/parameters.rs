//! Parameters of virtual hosts: JSON under a component and a name.
//!
//! Two components are something of their own here, and stand in these lists, too, as in RabbitMQ: `operator_policy` and `vhost-limits`. All others are
//! kept for whoever asks, and have no effect. Administrators and policymakers see and set them; those two are administrators'.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::policies::Kind;
use crate::{Shared, change, check_name, limits, listing, policies, put_status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Map, Value, json};
use warren_model::Command;
use warren_model::command::ParameterKey;
use warren_node::Node;
use warren_routing::Table;

/// Policies are parameters in RabbitMQ, and cannot be reached as such there.
const POLICY_COMPONENT: &str = "policy";

pub(crate) fn described((parameter, value): (&ParameterKey, &str)) -> Value {
    // It was made from JSON.
    let value: Value = serde_json::from_str(value).unwrap_or_default();
    json!({
        "vhost": parameter.vhost,
        "component": parameter.component,
        "name": parameter.name,
        "value": value,
    })
}

/// What sets the parameter that a row describes.
pub(crate) fn read(parameter: ParameterKey, body: &Body) -> Result<Vec<Command>, Error> {
    let value = body.0.get("value");
    let value = value.ok_or_else(|| Error::bad_request("key_missing: value"))?;
    let ParameterKey {
        vhost,
        component,
        name,
    } = &parameter;
    check_name("component of the parameter", component)?;
    check_name("name of the parameter", name)?;
    match component.as_str() {
        POLICY_COMPONENT => Err(Error::bad_request(
            "policies are set under /api/policies, not as parameters",
        )),
        limits::COMPONENT => limits::read_parameter(vhost, value),
        policies::OPERATOR_COMPONENT => {
            let Value::Object(fields) = value else {
                return Err(Error::bad_request("its value must be an object"));
            };
            let fields = Body(fields.clone());
            let policy = policies::read(Kind::Operator, vhost.clone(), name.clone(), &fields)?;
            Ok(vec![Command::PutPolicy(policy)])
        }
        _ => Ok(vec![Command::PutParameter {
            value: value.to_string(),
            parameter,
        }]),
    }
}

/// What takes a parameter away.
fn clear(parameter: ParameterKey) -> Result<Vec<Command>, Error> {
    match parameter.component.as_str() {
        limits::COMPONENT => limits::read_parameter(&parameter.vhost, &Value::Object(Map::new())),
        policies::OPERATOR_COMPONENT => Ok(vec![Command::DeletePolicy {
            vhost: parameter.vhost,
            operator: true,
            name: parameter.name,
        }]),
        _ => Ok(vec![Command::DeleteParameter(parameter)]),
    }
}

/// All parameters of a virtual host.
pub(crate) fn rows(table: &Table, vhost: &str) -> Vec<Value> {
    let operator = table.policies(vhost, true).map(policies::as_parameter);
    operator
        .chain(limits::as_parameter(table, vhost))
        .chain(table.parameters(vhost).map(described))
        .collect()
}

fn listed(
    node: &Node,
    access: &Access,
    component: Option<&str>,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    access.policymaker()?;
    listing::of_table(node, parameters, |table| {
        let vhosts = access.vhosts(table, vhost)?;
        let all = vhosts.iter().flat_map(|vhost| rows(table, vhost));
        let of_component =
            |row: &Value| component.is_none_or(|component| row["component"] == component);
        Ok(all.filter(of_component).collect())
    })
}

pub(crate) async fn list_all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, None, None, &parameters)
}

pub(crate) async fn of_component(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(component): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, Some(&component), None, &parameters)
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((component, vhost)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, Some(&component), Some(&vhost), &parameters)
}

/// The parameter of a path.
fn found(table: &Table, parameter: &ParameterKey) -> Option<Value> {
    rows(table, &parameter.vhost)
        .into_iter()
        .find(|row| row["component"] == *parameter.component && row["name"] == *parameter.name)
}

fn key((component, vhost, name): (String, String, String)) -> ParameterKey {
    ParameterKey {
        vhost,
        component,
        name,
    }
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(names): Names<(String, String, String)>,
) -> Result<Json<Value>, Error> {
    access.policymaker()?;
    let parameter = key(names);
    let table = node.metadata().table().read();
    access.vhost(&table, &parameter.vhost)?;
    found(&table, &parameter)
        .map(Json)
        .ok_or_else(|| none(&parameter))
}

/// Refuses who may not change a parameter, and says whether it is there.
fn known(node: &Node, access: &Access, parameter: &ParameterKey) -> Result<bool, Error> {
    match parameter.component.as_str() {
        limits::COMPONENT | policies::OPERATOR_COMPONENT => access.administrator()?,
        _ => access.policymaker()?,
    }
    let table = node.metadata().table().read();
    access.vhost(&table, &parameter.vhost)?;
    Ok(found(&table, parameter).is_some())
}

/// Sets a parameter: 201 if it is new, 204 if not.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(names): Names<(String, String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    let parameter = key(names);
    let known = known(&node, &access, &parameter)?;
    for command in read(parameter, &body)? {
        change(&node, command).await?;
    }
    Ok(put_status(known))
}

pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(names): Names<(String, String, String)>,
) -> Result<StatusCode, Error> {
    let parameter = key(names);
    if !known(&node, &access, &parameter)? {
        return Err(none(&parameter));
    }
    for command in clear(parameter)? {
        change(&node, command).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

fn none(parameter: &ParameterKey) -> Error {
    Error::not_found(format!(
        "no parameter '{}' of component '{}' in vhost '{}'",
        parameter.name, parameter.component, parameter.vhost
    ))
}
