//! Bindings, the default exchange's implicit ones among them: every queue under its own name.
//!
//! A binding is named by its two ends and its properties key (see [`BindingView`]). In a path that key stands percent-encoded once more; a client that
//! forgets that is understood, too, where it is clear what it means.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::Listing;
use crate::queues::{Key, keys};
use crate::{Shared, arguments, change_for, check_name, exchange_name, exchanges, queues};
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::{Extension, Json};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::{Binding, Destination};
use warren_node::Node;
use warren_routing::{BindingView, Table};

/// What is escaped in a properties key and in a path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Virtual host, source, `q` or `e`, destination.
type Ends = (String, String, String, String);

fn row(
    vhost: &str,
    source: &str,
    destination: &Destination,
    key: &[u8],
    arguments: &[u8],
    properties_key: &str,
) -> Value {
    let (kind, name) = match destination {
        Destination::Queue(name) => ("queue", name),
        Destination::Exchange(name) => ("exchange", name),
    };
    json!({
        "source": source,
        "vhost": vhost,
        "destination": name,
        "destination_type": kind,
        "routing_key": String::from_utf8_lossy(key),
        "arguments": arguments::to_json(arguments),
        "properties_key": properties_key,
    })
}

fn described(binding: &BindingView<'_>) -> Value {
    row(
        binding.vhost,
        binding.source,
        &binding.destination,
        binding.key,
        binding.arguments,
        &binding.properties_key,
    )
}

/// The default exchange's binding of a queue.
fn implicit(vhost: &str, queue: &str) -> Value {
    let key = utf8_percent_encode(queue, ESCAPED)
        .to_string()
        .replace("%20", "+");
    row(
        vhost,
        "",
        &Destination::Queue(queue.to_owned()),
        queue.as_bytes(),
        b"",
        &key,
    )
}

pub(crate) async fn list_all(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, None, &parameters).await
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(vhost): Names<String>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    listed(&node, &access, Some(&vhost), &parameters).await
}

async fn listed(
    node: &Node,
    access: &Access,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(parameters)?;
    let vhosts = access.vhosts(&node.metadata().table().read(), vhost)?;
    let mut rows = Vec::new();
    for vhost in &vhosts {
        rows.extend(implicit_ones(node, vhost).await);
        let sources: Vec<String> = node
            .metadata()
            .table()
            .read()
            .exchanges(vhost)
            .map(|exchange| exchange.name.to_owned())
            .collect();
        for source in sources {
            rows.extend(
                node.metadata()
                    .table()
                    .read()
                    .bindings_of_source(vhost, &source)
                    .map(|binding| described(&binding)),
            );
            tokio::task::yield_now().await;
        }
    }
    listing.of_rows(rows).map(Json)
}

async fn implicit_ones(node: &Node, vhost: &str) -> Vec<Value> {
    let mut all = Vec::new();
    keys(node, vhost, &mut all).await;
    all.iter()
        .map(|Key { name, .. }| implicit(vhost, name))
        .collect()
}

pub(crate) async fn of_source(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, exchange)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let (listing, source) = (Listing::new(&parameters)?, exchange_name(&exchange));
    let rows = {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table
            .exchange(&vhost, source)
            .ok_or_else(|| exchanges::none(&vhost, source))?;
        table
            .bindings_of_source(&vhost, source)
            .map(|binding| described(&binding))
            .collect()
    };
    let rows = if source.is_empty() {
        implicit_ones(&node, &vhost).await
    } else {
        rows
    };
    listing.of_rows(rows).map(Json)
}

pub(crate) async fn of_exchange(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, exchange)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let end = Destination::Exchange(exchange_name(&exchange).to_owned());
    to(&node, &access, &vhost, None, &end, &parameters)
}

pub(crate) async fn of_queue(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, queue)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    to(
        &node,
        &access,
        &vhost,
        None,
        &Destination::Queue(queue),
        &parameters,
    )
}

pub(crate) async fn between(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(ends): Names<Ends>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    let (vhost, source, end) = understood(ends)?;
    to(&node, &access, &vhost, Some(&source), &end, &parameters)
}

/// The bindings that lead to a queue or exchange, from everywhere or from one exchange.
fn to(
    node: &Node,
    access: &Access,
    vhost: &str,
    source: Option<&str>,
    end: &Destination,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(parameters)?;
    let table = node.metadata().table().read();
    check_ends(&table, access, vhost, source, end)?;
    let implicit = match end {
        Destination::Queue(name) if source.is_none_or(str::is_empty) => Some(implicit(vhost, name)),
        Destination::Queue(_) | Destination::Exchange(_) => None,
    };
    let explicit = table
        .bindings_of_destination(vhost, end)
        .filter(|binding| source.is_none_or(|source| binding.source == source));
    let rows = implicit
        .into_iter()
        .chain(explicit.map(|binding| described(&binding)))
        .collect();
    drop(table);
    listing.of_rows(rows).map(Json)
}

fn check_ends(
    table: &Table,
    access: &Access,
    vhost: &str,
    source: Option<&str>,
    end: &Destination,
) -> Result<(), Error> {
    access.vhost(table, vhost)?;
    if let Some(source) = source {
        table
            .exchange(vhost, source)
            .ok_or_else(|| exchanges::none(vhost, source))?;
    }
    match end {
        Destination::Queue(name) => table
            .queue(vhost, name)
            .map(drop)
            .ok_or_else(|| queues::none(vhost, name)),
        Destination::Exchange(name) => table
            .exchange(vhost, name)
            .map(drop)
            .ok_or_else(|| exchanges::none(vhost, name)),
    }
}

fn understood((vhost, source, kind, name): Ends) -> Result<(String, String, Destination), Error> {
    let end = match kind.as_str() {
        "q" => Destination::Queue(name),
        "e" => Destination::Exchange(exchange_name(&name).to_owned()),
        _ => {
            return Err(Error::not_found(format!(
                "'{kind}' is no kind of destination: q stands for a queue, e for an exchange"
            )));
        }
    };
    Ok((vhost, exchange_name(&source).to_owned(), end))
}

/// Binds. The answer says in `Location` where the binding is found.
pub(crate) async fn post(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(ends): Names<Ends>,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1]), Error> {
    let (vhost, source, destination) = understood(ends)?;
    let key = body.optional_text("routing_key")?.unwrap_or_default();
    check_name("routing key", key)?;
    let binding = Binding {
        vhost,
        source,
        destination,
        key: key.as_bytes().to_vec(),
        arguments: body.arguments()?,
        session: node.own_session(),
    };
    check_ends(
        &node.metadata().table().read(),
        &access,
        &binding.vhost,
        Some(&binding.source),
        &binding.destination,
    )?;
    change_for(&node, &access, Command::Bind(binding.clone())).await?;
    let table = node.metadata().table().read();
    let same = |known: &BindingView<'_>| {
        known.source == binding.source
            && known.key == binding.key
            && arguments::same(known.arguments, &binding.arguments)
    };
    let made = table
        .bindings_of_destination(&binding.vhost, &binding.destination)
        .find(same);
    // Somebody may have taken it away again; without a name it would still be found among those between the two ends.
    let properties_key = made.map(|made| made.properties_key).unwrap_or_default();
    let (Destination::Queue(name) | Destination::Exchange(name)) = &binding.destination;
    let location = format!(
        "{}/{}",
        utf8_percent_encode(name, ESCAPED),
        utf8_percent_encode(&properties_key, ESCAPED)
    );
    Ok((StatusCode::CREATED, [(header::LOCATION, location)]))
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, source, kind, name, given)): Names<(String, String, String, String, String)>,
) -> Result<Json<Value>, Error> {
    let (vhost, source, end) = understood((vhost, source, kind, name))?;
    let table = node.metadata().table().read();
    check_ends(&table, &access, &vhost, Some(&source), &end)?;
    if let (true, Destination::Queue(name)) = (source.is_empty(), &end) {
        let implicit = implicit(&vhost, name);
        return if implicit["properties_key"] == given || *name == given {
            Ok(Json(implicit))
        } else {
            Err(none(&given))
        };
    }
    find(&table, &vhost, &source, &end, &given).map(|binding| Json(described(&binding)))
}

pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, source, kind, name, given)): Names<(String, String, String, String, String)>,
) -> Result<StatusCode, Error> {
    let (vhost, source, destination) = understood((vhost, source, kind, name))?;
    let binding = {
        let table = node.metadata().table().read();
        check_ends(&table, &access, &vhost, Some(&source), &destination)?;
        if source.is_empty() {
            return Err(Error::not_authorised(
                "operation not permitted on the default exchange",
            ));
        }
        let known = find(&table, &vhost, &source, &destination, &given)?;
        let (key, arguments) = (known.key.to_vec(), known.arguments.to_vec());
        Binding {
            vhost,
            source,
            destination,
            key,
            arguments,
            session: node.own_session(),
        }
    };
    change_for(&node, &access, Command::Unbind(binding)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The binding between two ends whose properties key is given, exactly or, if there is no such one and only one that it can mean, unescaped.
fn find<'a>(
    table: &'a Table,
    vhost: &str,
    source: &str,
    end: &Destination,
    given: &str,
) -> Result<BindingView<'a>, Error> {
    let unescaped = |key: &str| {
        percent_decode_str(key)
            .decode_utf8_lossy()
            .replace('+', " ")
    };
    let loosely = given.replace('+', " ");
    let mut alike = Vec::new();
    for binding in table
        .bindings_of_destination(vhost, end)
        .filter(|binding| binding.source == source)
    {
        if binding.properties_key == given {
            return Ok(binding);
        }
        if unescaped(&binding.properties_key) == loosely {
            alike.push(binding);
        }
    }
    match alike.pop() {
        Some(binding) if alike.is_empty() => Ok(binding),
        Some(_) | None => Err(none(given)),
    }
}

fn none(properties_key: &str) -> Error {
    Error::not_found(format!("no binding '{properties_key}' between these two"))
}
