//! The export: of all virtual hosts with users and permissions, or of one virtual host.
//!
//! As in RabbitMQ, what is there without having been declared (the default exchange, `amq.*` exchanges) and what goes with a connection (exclusive queues)
//! is left out. The table is read in pieces, so things may change meanwhile; a binding is listed only if both its ends are, or are always there.

use super::put_arguments;
use crate::access::Access;
use crate::error::Error;
use crate::extract::{Names, Parameters};
use crate::{
    CHUNK, Shared, globals, parameters, permissions, policies, topic_permissions, users, vhosts,
};
use axum::extract::State;
use axum::http::header::CONTENT_DISPOSITION;
use axum::http::{HeaderMap, HeaderValue};
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use warren_model::command::Destination;
use warren_node::Node;
use warren_routing::{BindingView, ExchangeView, QueueView};

/// Lists of a virtual host.
#[derive(Default)]
struct Lists {
    exchanges: Vec<Value>,
    queues: Vec<Value>,
    bindings: Vec<Value>,
    policies: Vec<Value>,
    parameters: Vec<Value>,
}

/// All that the cluster has.
pub(crate) async fn all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<Value>), Error> {
    access.administrator()?;
    let headers = download(&parameters)?;
    let (mut answer, vhosts) = {
        let table = node.metadata().table().read();
        let names: Vec<String> = table.vhosts().map(str::to_owned).collect();
        let answer = json!({
            "users": table.users().map(|user| users::described(&table, user)).collect::<Vec<_>>(),
            "vhosts": names.iter().map(|name| vhosts::exported(&table, name)).collect::<Vec<_>>(),
            "permissions": table.permissions().map(permissions::described).collect::<Vec<_>>(),
            "topic_permissions": table.topic_permissions().map(topic_permissions::described).collect::<Vec<_>>(),
            "global_parameters": table.global_parameters().map(globals::described).collect::<Vec<_>>(),
        });
        (answer, names)
    };
    let mut lists = Lists::default();
    for vhost in &vhosts {
        lists.add(&node, vhost, true).await;
    }
    lists.finish(&node, &mut answer);
    Ok((headers, Json(answer)))
}

/// Under which name whoever asks wants to save the answer.
fn download(parameters: &Parameters) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    if let Some(name) = parameters.get("download") {
        let plain = |c: char| c.is_ascii_alphanumeric() || " .-_@+()".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            return Err(Error::bad_request(format!(
                "'{name}' is no name of a file to download: use letters, digits and .-_@+()"
            )));
        }
        let value = HeaderValue::from_str(&format!("attachment; filename=\"{name}\""))
            .map_err(|error| Error::bad_request(error.to_string()))?;
        headers.insert(CONTENT_DISPOSITION, value);
    }
    Ok(headers)
}

/// All that a virtual host has, without saying which one it is.
pub(crate) async fn vhost(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<Value>), Error> {
    access.administrator()?;
    let headers = download(&parameters)?;
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let (mut answer, mut lists) = (json!({}), Lists::default());
    lists.add(&node, &vhost, false).await;
    lists.finish(&node, &mut answer);
    Ok((headers, Json(answer)))
}

/// Whether every virtual host has an exchange of that name from the start.
fn is_given(exchange: &str) -> bool {
    exchange.is_empty() || exchange.starts_with("amq.")
}

impl Lists {
    async fn add(&mut self, node: &Node, vhost: &str, say_vhost: bool) {
        let put = |into: &mut Vec<Value>, mut row: Value, arguments: &[u8]| {
            put_arguments(&mut row, arguments);
            if say_vhost {
                row["vhost"] = vhost.into();
            }
            into.push(row);
        };
        {
            let table = node.metadata().table().read();
            let narrowed = |mut row: Value| {
                if let Some(fields) = row.as_object_mut().filter(|_| !say_vhost) {
                    fields.remove("vhost");
                }
                row
            };
            let user = table.policies(vhost, false).map(policies::described);
            self.policies.extend(user.map(narrowed));
            let parameters = parameters::rows(&table, vhost).into_iter();
            self.parameters.extend(parameters.map(narrowed));
        }
        let mut sources = BTreeSet::new();
        for exchange in node.metadata().table().read().exchanges(vhost) {
            sources.insert(exchange.name.to_owned());
            if !is_given(exchange.name) {
                put(
                    &mut self.exchanges,
                    of_exchange(&exchange),
                    exchange.arguments,
                );
            }
        }
        let mut queues = BTreeSet::new();
        let mut after = String::new();
        loop {
            let mut seen = 0;
            {
                let table = node.metadata().table().read();
                for queue in table.queues_after(vhost, &after.clone()).take(CHUNK) {
                    seen += 1;
                    queue.name.clone_into(&mut after);
                    if queue.exclusive.is_none() {
                        queues.insert(queue.name.to_owned());
                        let arguments = table.redeclarable_arguments(&queue);
                        put(&mut self.queues, of_queue(&queue), &arguments);
                    }
                }
            }
            if seen < CHUNK {
                break;
            }
            tokio::task::yield_now().await;
        }
        for source in &sources {
            for binding in node
                .metadata()
                .table()
                .read()
                .bindings_of_source(vhost, source)
            {
                let listed = match &binding.destination {
                    Destination::Queue(name) => queues.contains(name),
                    Destination::Exchange(name) => sources.contains(name),
                };
                if listed {
                    put(&mut self.bindings, of_binding(&binding), binding.arguments);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    fn finish(self, node: &Node, answer: &mut Value) {
        let version = node.compatible_version();
        answer["rabbit_version"] = version.as_str().into();
        answer["rabbitmq_version"] = version.into();
        answer["product_name"] = "Warren".into();
        answer["product_version"] = env!("CARGO_PKG_VERSION").into();
        answer["parameters"] = self.parameters.into();
        answer["policies"] = self.policies.into();
        answer["exchanges"] = self.exchanges.into();
        answer["queues"] = self.queues.into();
        answer["bindings"] = self.bindings.into();
    }
}

fn of_exchange(exchange: &ExchangeView<'_>) -> Value {
    json!({
        "name": exchange.name,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
    })
}

fn of_queue(queue: &QueueView<'_>) -> Value {
    json!({"name": queue.name, "durable": queue.durable, "auto_delete": queue.auto_delete})
}

fn of_binding(binding: &BindingView<'_>) -> Value {
    let (kind, name) = match &binding.destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    json!({
        "source": binding.source,
        "destination": name,
        "destination_type": kind,
        "routing_key": String::from_utf8_lossy(binding.key),
    })
}
