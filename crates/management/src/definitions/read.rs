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
use warren_model::command::{
    Binding, DeclareExchange, Destination, ParameterKey, Place, User, VhostDetails,
};
use warren_model::{Command, Definition, ShardId};
use warren_node::Node;

/// Lists that an import of one virtual host has no use for.
const CLUSTER_WIDE: [&str; 5] = [
    "topic_permissions",
    "users",
    "vhosts",
    "permissions",
    "global_parameters",
];
/// Lists of which RabbitMQ's exports of one virtual host say in each row which one it was.
const SAYS_ITS_VHOST: [&str; 2] = ["policies", "parameters"];
/// Global parameters that say which cluster an export is from.
const ABOUT_THE_CLUSTER: [&str; 3] = ["cluster_name", "internal_cluster_id", "cluster_tags"];

/// Definitions to be imported, in an order in which they can succeed.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    /// Queues have no place yet.
    pub(super) all: Vec<Definition>,
    /// Passwords that users are to be given, by their place among all.
    pub(super) passwords: Vec<(usize, String)>,
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
    let mut definitions = Definitions::default();
    // Last, so that they do not stand in the way of what is imported.
    let mut limits = definitions.add_vhosts(&mut reader)?;
    limits.extend(definitions.add_users(&mut reader, node)?);
    let all = &mut definitions.all;
    reader.add(all, "permissions", |body| {
        let (user, vhost) = (
            body.text("user")?.to_owned(),
            body.text("vhost")?.to_owned(),
        );
        permissions::read(user, vhost, body).map(Definition::Permission)
    })?;
    reader.add(all, "topic_permissions", |body| {
        topic_permissions::read(named(body, "user")?, named(body, "vhost")?, body)
            .map(Definition::TopicPermission)
    })?;
    reader.add(all, "exchanges", |body| {
        exchange(body).map(Definition::Exchange)
    })?;
    reader.add(all, "queues", |body| {
        // Its place is chosen when it is declared.
        let declare = queue(body)?.at(Place::Shard(ShardId(0)), node.own_session());
        Ok(Definition::Queue(declare))
    })?;
    reader.add(all, "bindings", |body| {
        binding(node, body).map(Definition::Binding)
    })?;
    let globals = reader.list_of("global_parameters", is_of_the_cluster, globals::read)?;
    let global = |(name, value)| Definition::GlobalParameter { name, value };
    all.extend(globals.into_iter().map(global));
    reader.add(all, "policies", |body| {
        policies::read_imported(Kind::Policy, named(body, "vhost")?, name(body)?, body)
            .map(Definition::Policy)
    })?;
    all.extend(defined(limits));
    let parameters = reader.list("parameters", |body| {
        let parameter = ParameterKey {
            vhost: named(body, "vhost")?,
            component: named(body, "component")?,
            name: name(body)?,
        };
        parameters::read(parameter, body)
    })?;
    all.extend(defined(parameters.into_iter().flatten()));
    reader.finish(ignored)?;
    Ok(definitions)
}

/// What commands define that each set something.
fn defined(commands: impl IntoIterator<Item = Command>) -> impl Iterator<Item = Definition> {
    let definitions = commands.into_iter().map(Definition::try_from);
    definitions.filter_map(Result::ok)
}

impl Definitions {
    /// Returns what sets the limits that the rows name.
    fn add_vhosts(&mut self, reader: &mut Reader<'_>) -> Result<Vec<Command>, Error> {
        let vhosts = reader.list("vhosts", |body| {
            let name = name(body)?;
            let limits = limits::read_vhost(&name, body.0.get("limits").unwrap_or(&Value::Null))?;
            let details = vhost_details(&name, body)?;
            Ok((Definition::Vhost { name }, details, limits))
        })?;
        let mut all = Vec::new();
        for (vhost, details, limits) in vhosts {
            self.all.push(vhost);
            self.all.extend(details);
            all.extend(limits);
        }
        Ok(all)
    }

    /// Returns what sets the limits that the rows name.
    fn add_users(&mut self, reader: &mut Reader<'_>, node: &Node) -> Result<Vec<Command>, Error> {
        let users = reader.list("users", |body| {
            let (user, password) = user(node, body)?;
            let given = body.0.get("limits").unwrap_or(&Value::Null);
            let limits = limits::read_user(&user.name, given)?;
            Ok((user, password, limits))
        })?;
        let mut all = Vec::new();
        for (user, password, limits) in users {
            let place = self.all.len();
            self.passwords
                .extend(password.map(|secret| (place, secret)));
            self.all.push(Definition::User(user));
            all.extend(limits);
        }
        Ok(all)
    }
}

impl Reader<'_> {
    /// Adds what each item of a list defines.
    fn add(
        &mut self,
        to: &mut Vec<Definition>,
        list: &str,
        read: impl Fn(&Body) -> Result<Definition, Error>,
    ) -> Result<(), Error> {
        to.extend(self.list(list, read)?);
        Ok(())
    }

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
            let one = self.item(list, item).and_then(|body| read(&body));
            all.push(one.map_err(|error| error.within(&format!("{list}[{position}]")))?);
        }
        Ok(all)
    }

    /// An item, with its virtual host.
    fn item(&self, list: &str, item: Value) -> Result<Body, Error> {
        let Value::Object(mut fields) = item else {
            return Err(Error::bad_request(format!("must be an object, not {item}")));
        };
        if let Some(vhost) = self.vhost {
            match fields.get("vhost") {
                Some(other) if other != vhost && !SAYS_ITS_VHOST.contains(&list) => {
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
fn vhost_details(vhost: &str, body: &Body) -> Result<Option<Definition>, Error> {
    let mut said = body.0.clone();
    if let Some(Value::Object(metadata)) = body.0.get("metadata") {
        for (key, value) in metadata {
            said.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let details = vhosts::details(&Body(said), VhostDetails::default())?;
    Ok(details.map(|details| Definition::VhostDetails {
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
