//! What an import asks for, read from JSON; the first thing that makes no sense is an error that names it.
//!
//! What has no equivalent here (whatever a list of another name holds) is not dropped in silence: it is refused, unless the request
//! says that it is to be ignored. Only what RabbitMQ notes of itself among the global parameters is passed over.

use super::arguments;
use crate::error::Error;
use crate::extract::Body;
use crate::policies::Kind;
use crate::queues::NewQueue;
use crate::{
    check_name, globals, limits, parameters, permissions, policies, topic_permissions, users,
    vhosts,
};
use serde_json::Value;
use std::collections::BTreeMap;
use warren_model::Command;
use warren_model::command::{
    Binding, DeclareExchange, Destination, ParameterKey, Permission, Policy, TopicPermission, User,
    VhostDetails,
};
use warren_node::Node;

/// Lists that an import of one virtual host has no use for.
const CLUSTER_WIDE: [&str; 5] = [
    "topic_permissions",
    "users",
    "vhosts",
    "permissions",
    "global_parameters",
];
/// Global parameters that say which cluster an export is from.
const ABOUT_THE_CLUSTER: [&str; 3] = ["cluster_name", "internal_cluster_id", "cluster_tags"];

/// Definitions to be imported.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    pub(super) vhosts: Vec<String>,
    /// What is said of virtual hosts, as what sets it.
    pub(super) details: Vec<Command>,
    pub(super) users: Vec<User>,
    /// Passwords that users are to be given, by their place.
    pub(super) passwords: Vec<(usize, String)>,
    pub(super) permissions: Vec<Permission>,
    pub(super) exchanges: Vec<DeclareExchange>,
    pub(super) queues: Vec<NewQueue>,
    pub(super) bindings: Vec<Binding>,
    pub(super) policies: Vec<Policy>,
    pub(super) globals: Vec<(String, String)>,
    pub(super) topic_permissions: Vec<TopicPermission>,
    /// Limits of virtual hosts and users, as what sets them.
    pub(super) limits: Vec<Command>,
    /// Parameters, with those that are operator policies and limits, as what sets them.
    pub(super) parameters: Vec<Command>,
}

struct Reader<'a> {
    lists: serde_json::Map<String, Value>,
    /// The virtual host that all belongs to, if the path says so.
    vhost: Option<&'a str>,
    /// What there is no equivalent for, and how much of it.
    left_out: BTreeMap<String, usize>,
}

/// Reads definitions; of `ignored` lists nothing is looked at.
pub(super) fn definitions(
    node: &Node,
    body: Body,
    vhost: Option<&str>,
    ignored: &[&str],
) -> Result<Definitions, Error> {
    let mut reader = Reader {
        lists: body.0,
        vhost,
        left_out: BTreeMap::new(),
    };
    for name in ignored {
        reader.lists.remove(*name);
    }
    if vhost.is_some() {
        for name in CLUSTER_WIDE {
            reader.note(name);
        }
    }
    let vhosts = reader.list("vhosts", |body| {
        let name = name(body)?;
        let limits = limits::read_vhost(&name, body.0.get("limits").unwrap_or(&Value::Null))?;
        let details = vhost_details(&name, body)?;
        Ok((name, (details, limits)))
    })?;
    let users = reader.list("users", |body| {
        let (user, password) = user(node, body)?;
        let limits = limits::read_user(&user.name, body.0.get("limits").unwrap_or(&Value::Null))?;
        Ok(((user, password), limits))
    })?;
    let (vhosts, of_vhosts): (Vec<_>, Vec<_>) = vhosts.into_iter().unzip();
    let (details, of_vhosts): (Vec<_>, Vec<_>) = of_vhosts.into_iter().unzip();
    let (users, of_users): (Vec<_>, Vec<_>) = users.into_iter().unzip();
    let (users, passwords): (Vec<_>, Vec<_>) = users.into_iter().unzip();
    let numbered = passwords.into_iter().enumerate();
    let passwords = numbered.filter_map(|(place, password)| Some((place, password?)));
    let parameters = reader.list("parameters", |body| {
        let parameter = ParameterKey {
            vhost: named(body, "vhost")?,
            component: named(body, "component")?,
            name: name(body)?,
        };
        parameters::read(parameter, body)
    })?;
    let limits = [of_vhosts, of_users].concat().concat();
    let definitions = Definitions {
        topic_permissions: reader.list("topic_permissions", |body| {
            topic_permissions::read(named(body, "user")?, named(body, "vhost")?, body)
        })?,
        globals: reader.list_of("global_parameters", is_of_the_cluster, globals::read)?,
        policies: reader.list("policies", |body| {
            policies::read(Kind::Policy, named(body, "vhost")?, name(body)?, body)
        })?,
        parameters: parameters.into_iter().flatten().collect(),
        vhosts,
        details: details.into_iter().flatten().collect(),
        users,
        passwords: passwords.collect(),
        limits,
        permissions: reader.list("permissions", |body| {
            permissions::read(
                body.text("user")?.to_owned(),
                body.text("vhost")?.to_owned(),
                body,
            )
        })?,
        exchanges: reader.list("exchanges", exchange)?,
        queues: reader.list("queues", queue)?,
        bindings: reader.list("bindings", |body| binding(node, body))?,
    };
    reader.finish(ignored)?;
    Ok(definitions)
}

impl Reader<'_> {
    /// Reads each item of a list, which may be left out.
    fn list<T>(
        &mut self,
        list: &str,
        read: impl Fn(&Body) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        self.list_of(list, |_| false, read)
    }

    /// The same without items that mean nothing elsewhere.
    fn list_of<T>(
        &mut self,
        list: &str,
        passed_over: impl Fn(&Value) -> bool,
        read: impl Fn(&Body) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let items = match self.lists.remove(list) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(other) => {
                return Err(Error::bad_request(format!(
                    "{list} must be a list, not {other}"
                )));
            }
        };
        let mut all = Vec::with_capacity(items.len());
        for (position, item) in items.into_iter().enumerate() {
            if passed_over(&item) {
                continue;
            }
            let one = self.item(item).and_then(|body| read(&body));
            all.push(one.map_err(|error| error.within(&format!("{list}[{position}]")))?);
        }
        Ok(all)
    }

    /// An item, with its virtual host.
    fn item(&self, item: Value) -> Result<Body, Error> {
        let Value::Object(mut fields) = item else {
            return Err(Error::bad_request(format!("must be an object, not {item}")));
        };
        if let Some(vhost) = self.vhost {
            match fields.get("vhost") {
                Some(other) if other != vhost => {
                    return Err(Error::bad_request(format!(
                        "belongs to vhost {other}, not to '{vhost}'"
                    )));
                }
                Some(_) | None => fields.insert("vhost".into(), vhost.into()),
            };
        }
        Ok(Body(fields))
    }

    /// Notes a list that has no equivalent, and takes it away.
    fn note(&mut self, name: &str) {
        if let Some(Value::Array(items)) = self.lists.remove(name)
            && !items.is_empty()
        {
            self.left_out.insert(name.to_owned(), items.len());
        }
    }

    /// Refuses what was left out, but for what may be.
    fn finish(mut self, ignored: &[&str]) -> Result<(), Error> {
        let names: Vec<String> = self.lists.keys().cloned().collect();
        for name in names {
            self.note(&name);
        }
        self.left_out
            .retain(|name, _| !ignored.contains(&name.as_str()));
        if self.left_out.is_empty() {
            return Ok(());
        }
        let list = |of: &dyn Fn((&String, &usize)) -> String, between: &str| {
            let texts: Vec<String> = self.left_out.iter().map(of).collect();
            texts.join(between)
        };
        Err(Error::bad_request(format!(
            "nothing is imported, since there is no equivalent here of: {}; to import the rest, add ?ignore={}",
            list(&|(name, count)| format!("{name} ({count})"), ", "),
            list(&|(name, _)| name.clone(), ","),
        )))
    }
}

/// What a cluster says of itself is not another one's.
fn is_of_the_cluster(item: &Value) -> bool {
    ABOUT_THE_CLUSTER.contains(&item["name"].as_str().unwrap_or_default())
}

fn name(body: &Body) -> Result<String, Error> {
    named(body, "name")
}

fn named(body: &Body, key: &str) -> Result<String, Error> {
    let name = body.text(key)?;
    check_name(key, name)?;
    Ok(name.to_owned())
}

/// What a row says of a virtual host, if it says anything. RabbitMQ says it beside the name, under `metadata`, or both.
fn vhost_details(vhost: &str, body: &Body) -> Result<Option<Command>, Error> {
    let mut said = body.0.clone();
    if let Some(Value::Object(metadata)) = body.0.get("metadata") {
        for (key, value) in metadata {
            said.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let details = vhosts::details(&Body(said), VhostDetails::default())?;
    Ok(details.map(|details| Command::SetVhostDetails {
        vhost: vhost.to_owned(),
        details,
    }))
}

fn user(node: &Node, body: &Body) -> Result<(User, Option<String>), Error> {
    let name = name(body)?;
    let known = node.metadata().table().read().user(&name).cloned();
    users::read(node, name, body, known)
}

fn exchange(body: &Body) -> Result<DeclareExchange, Error> {
    Ok(DeclareExchange {
        vhost: named(body, "vhost")?,
        name: name(body)?,
        kind: body.text("type")?.to_owned(),
        durable: body.flag("durable")?,
        auto_delete: body.flag("auto_delete")?,
        internal: body.flag("internal")?,
        arguments: arguments(body)?,
    })
}

fn queue(body: &Body) -> Result<NewQueue, Error> {
    let name = name(body)?;
    Ok(NewQueue {
        vhost: named(body, "vhost")?,
        durable: body.flag("durable")?,
        auto_delete: body.flag("auto_delete")?,
        server_named: name.starts_with("amq.gen-"),
        arguments: arguments(body)?,
        name,
    })
}

fn binding(node: &Node, body: &Body) -> Result<Binding, Error> {
    let destination = named(body, "destination")?;
    let destination = match body.text("destination_type")? {
        "queue" => Destination::Queue(destination),
        "exchange" => Destination::Exchange(destination),
        other => {
            return Err(Error::bad_request(format!(
                "destination_type must be queue or exchange, not '{other}'"
            )));
        }
    };
    Ok(Binding {
        vhost: named(body, "vhost")?,
        source: named(body, "source")?,
        destination,
        key: named(body, "routing_key")?.into_bytes(),
        arguments: arguments(body)?,
        session: node.own_session(),
    })
}
