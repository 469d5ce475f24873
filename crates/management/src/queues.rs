//! Queues: definitions from this node's table, counts from the queues' owners.
//!
//! Flow of a listing: names are collected a chunk at a time, the page is chosen from them, and only for what is shown are owners asked and rows made.
//! A queue without an owner that answers is listed with state `down` and without counts.

use crate::access::{Access, Login};
use crate::amqp::Client;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::{Chosen, Listing};
use crate::{
    CHANGE_DEADLINE, CHUNK, PEERS_DEADLINE, Shared, arguments, change_for, check_name, connections,
    policies,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;
use warren_model::command::{DeclareQueue, Place};
use warren_model::{Command, Outcome, QueueId, SessionId, ShardId};
use warren_node::{Node, Ownership, QueueStats};
use warren_routing::{NodeRecord, QueueView, Table};

/// A queue to be listed.
pub(crate) struct Key {
    pub(crate) id: QueueId,
    pub(crate) name: String,
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
    node: &Arc<Node>,
    access: &Access,
    vhost: Option<&str>,
    parameters: &Parameters,
) -> Result<Json<Value>, Error> {
    let listing = Listing::new(parameters)?;
    let detail = Detail::asked(parameters);
    let vhosts = access.vhosts(&node.metadata().table().read(), vhost)?;
    let mut all = Vec::new();
    for vhost in &vhosts {
        keys(node, vhost, &mut all).await;
    }
    let mut chosen = listing.filter(all, |key| key.name.as_str());
    if listing.sorts() {
        let mut rows = rows(node, &chosen.items, detail).await;
        listing.sort(&mut rows);
        let rows = listing.page(Chosen::made_of(chosen, rows))?;
        return Ok(Json(listing.answer(rows)));
    }
    if parameters.is_true("sort_reverse") {
        chosen.items.reverse();
    }
    let chosen = listing.page(chosen)?;
    let rows = rows(node, &chosen.items, detail).await;
    Ok(Json(listing.answer(Chosen::made_of(chosen, rows))))
}

/// The queues of a virtual host, by name.
pub(crate) async fn keys(node: &Node, vhost: &str, into: &mut Vec<Key>) {
    let mut after = String::new();
    loop {
        let before = into.len();
        into.extend(
            node.metadata()
                .table()
                .read()
                .queues_after(vhost, &after)
                .take(CHUNK)
                .map(|queue| Key {
                    id: queue.id,
                    name: queue.name.to_owned(),
                }),
        );
        match into.last() {
            Some(last) if into.len() == before + CHUNK => after.clone_from(&last.name),
            Some(_) | None => return,
        }
        tokio::task::yield_now().await;
    }
}

/// Rows of these queues, without those that are gone by now.
async fn rows(node: &Arc<Node>, keys: &[Key], detail: Detail) -> Vec<Value> {
    // An owner names what it has faster than it is told what to name, if that is much.
    let ids = (keys.len() <= CHUNK).then(|| keys.iter().map(|key| key.id).collect());
    let epoch = || node.metadata().table().read().epoch();
    let before = epoch();
    let mut counted = Counted::of(node, ids, detail).await;
    if epoch() != before {
        // Those who own the queues by now have not been asked, maybe: ask all.
        counted = Counted::of(node, None, detail).await;
    }
    let mut rows = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(CHUNK) {
        {
            let table = node.metadata().table().read();
            let ownership = node.ownership(&table);
            rows.extend(
                chunk
                    .iter()
                    .filter_map(|key| table.queue_by_id(key.id))
                    .map(|queue| counted.described(&queue, &table, &ownership)),
            );
        }
        tokio::task::yield_now().await;
    }
    rows
}

/// How much is told of queues, by RabbitMQ's parameters `disable_stats` and `enable_queue_totals`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detail {
    All,
    /// How many messages they have.
    Totals,
    /// What they are declared as: no owner is asked.
    Nothing,
}

impl Detail {
    fn asked(parameters: &Parameters) -> Self {
        match ["disable_stats", "enable_queue_totals"].map(|name| parameters.is_true(name)) {
            [false, _] => Self::All,
            [true, true] => Self::Totals,
            [true, false] => Self::Nothing,
        }
    }
}

/// What owners have said of their queues.
struct Counted {
    detail: Detail,
    counts: std::collections::BTreeMap<QueueId, (warren_node::Counts, QueueStats)>,
    silent: Vec<warren_model::NodeId>,
}

impl Counted {
    async fn of(node: &Arc<Node>, ids: Option<Vec<QueueId>>, detail: Detail) -> Self {
        let (counts, silent) = match detail {
            Detail::All | Detail::Totals => node.queue_counts(ids, PEERS_DEADLINE).await,
            Detail::Nothing => Default::default(),
        };
        Self {
            detail,
            counts,
            silent,
        }
    }

    /// Where the queue's replicas are, which of them run, and which one leads.
    fn put_replicas(&self, row: &mut Value, shard: ShardId, table: &Table) {
        let placed = table.placement(shard).map(|placed| &placed.replicas[..]);
        let members = placed.unwrap_or_default().iter();
        let members: Vec<_> = members.filter_map(|id| table.node(*id)).collect();
        let runs = |member: &&&NodeRecord| member.up && !self.silent.contains(&member.id);
        let online = members.iter().filter(runs).map(|member| &member.name);
        row["online"] = json!(online.collect::<Vec<_>>());
        let names = members.iter().map(|member| &member.name);
        row["members"] = json!(names.collect::<Vec<_>>());
        row["leader"] = row["node"].clone();
    }

    fn described(&self, queue: &QueueView<'_>, table: &Table, ownership: &Ownership) -> Value {
        let owner = ownership.of_place(queue.place);
        let mut row = json!({
            "name": queue.name,
            "vhost": queue.vhost,
            "type": queue.kind,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive.is_some(),
            "arguments": arguments::to_json(queue.arguments),
            "node": owner.and_then(|owner| table.node(owner)).map(|owner| &owner.name),
            "state": "down",
        });
        let effective = table.policy_of_queue(queue.vhost, queue.name, queue.kind);
        policies::put_effective(&mut row, &effective);
        if let Place::Shard(shard) = queue.place {
            self.put_replicas(&mut row, shard, table);
        }
        if owner.is_some_and(|owner| !self.silent.contains(&owner)) {
            row["state"] = json!("running");
            self.put_counts(&mut row, queue.id);
        }
        row
    }

    fn put_counts(&self, row: &mut Value, queue: QueueId) {
        if self.detail == Detail::Nothing {
            return;
        }
        // Of a queue that has not been used, its owner knows nothing.
        let (counts, stats) = self.counts.get(&queue).copied().unwrap_or_default();
        row["messages_ready"] = json!(counts.ready);
        row["messages_unacknowledged"] = json!(counts.unacked);
        row["messages"] = json!(counts.ready + counts.unacked);
        if self.detail == Detail::Totals {
            return;
        }
        row["message_bytes"] = json!(counts.bytes);
        row["consumers"] = json!(counts.consumers);
        let stats = stats.messages();
        if !stats.is_empty() {
            row["message_stats"] = crate::stats::described(&stats);
        }
    }
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
) -> Result<Json<Value>, Error> {
    let id = {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table
            .queue(&vhost, &name)
            .ok_or_else(|| none(&vhost, &name))?
            .id
    };
    let row = rows(
        &node,
        &[Key {
            id,
            name: name.clone(),
        }],
        Detail::All,
    )
    .await
    .pop();
    let row = match row {
        Some(mut row) => {
            row["consumer_details"] = json!(connections::consumers_of_queue(&node, id).await);
            Some(row)
        }
        None => None,
    };
    row.map(Json).ok_or_else(|| none(&vhost, &name))
}

/// Declares a queue: 201 if it is new, 204 if it is there already as asked.
pub(crate) async fn put(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names((vhost, name)): Names<(String, String)>,
    body: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the queue", &name)?;
    access.vhost(&node.metadata().table().read(), &vhost)?;
    if body.flag("exclusive")? {
        return Err(Error::bad_request(
            "an exclusive queue belongs to a connection: declare it over AMQP",
        ));
    }
    let (durable, auto_delete, arguments) = (
        body.flag("durable")?,
        body.flag("auto_delete")?,
        body.arguments()?,
    );
    let queue = NewQueue {
        vhost,
        name,
        durable,
        auto_delete,
        server_named: false,
        arguments,
    };
    Ok(if declare(&node, &access, &queue).await? {
        StatusCode::CREATED
    } else {
        StatusCode::NO_CONTENT
    })
}

/// A queue to be declared by the node itself.
#[derive(Clone, Debug)]
pub(crate) struct NewQueue {
    pub(crate) vhost: String,
    pub(crate) name: String,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    /// Its name was made by a server once, so that its prefix `amq.` is allowed.
    pub(crate) server_named: bool,
    pub(crate) arguments: Vec<u8>,
}

impl NewQueue {
    pub(crate) fn at(&self, place: Place, session: SessionId) -> DeclareQueue {
        DeclareQueue {
            vhost: self.vhost.clone(),
            name: self.name.clone(),
            durable: self.durable,
            exclusive: false,
            auto_delete: self.auto_delete,
            server_named: self.server_named,
            arguments: self.arguments.clone(),
            session,
            place,
        }
    }
}

/// Declares a queue. Says whether it is new.
async fn declare(node: &Node, access: &Access, queue: &NewQueue) -> Result<bool, Error> {
    let NewQueue {
        vhost,
        name,
        durable,
        ..
    } = queue;
    let until = Instant::now() + CHANGE_DEADLINE;
    while Instant::now() < until {
        let place = {
            let table = node.metadata().table().read();
            node.ownership(&table).place_of_new(vhost, name, *durable)
        };
        let Some(place) = place else { break };
        let declare = queue.at(place, node.own_session());
        match change_for(node, access, Command::DeclareQueue(declare)).await? {
            Outcome::Queue { created, .. } => return Ok(created),
            Outcome::Done | Outcome::Refused(_) => return Ok(false),
            // The node that was chosen has gone down meanwhile, which the table shows by now.
            Outcome::Retry => {}
        }
    }
    Err(Error::unavailable(format!(
        "no node is up that could take queue '{name}' in vhost '{vhost}'"
    )))
}

/// Deletes a queue. What `if-empty` and `if-unused` ask is its owner's to say, which a session of the user's asks.
pub(crate) async fn delete(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(login): Extension<Login>,
    Names((vhost, name)): Names<(String, String)>,
    parameters: Parameters,
) -> Result<StatusCode, Error> {
    let only = {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        let queue = table
            .queue(&vhost, &name)
            .ok_or_else(|| none(&vhost, &name))?;
        if queue.exclusive.is_some() {
            return Err(Error::bad_request(format!(
                "cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'"
            )));
        }
        queue.id
    };
    let [if_empty, if_unused] = ["if-empty", "if-unused"].map(|name| parameters.is_true(name));
    if if_empty || if_unused {
        let mut client = Client::open(&node, &login, &vhost).await?;
        client.delete(&name, if_unused, if_empty).await?;
        client.close().await;
        return Ok(StatusCode::NO_CONTENT);
    }
    let delete = Command::DeleteQueue {
        vhost,
        name,
        only: Some(only),
        session: node.own_session(),
    };
    change_for(&node, &access, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// RabbitMQ's actions on mirrored queues. Replicas here are always brought up to date by themselves, so that there is nothing to start or stop.
pub(crate) async fn act(
    State(node): Shared,
    Names((vhost, name)): Names<(String, String)>,
    body: Result<Body, Error>,
) -> Result<StatusCode, Error> {
    let is_there = {
        let table = node.metadata().table().read();
        table.queue(&vhost, &name).is_some()
    };
    if !is_there {
        return Err(none(&vhost, &name));
    }
    match body?.text("action")? {
        "sync" | "cancel_sync" => Ok(StatusCode::NO_CONTENT),
        other => Err(Error::bad_request(format!(
            "unknown action '{other}': there are sync and cancel_sync"
        ))),
    }
}

pub(crate) fn none(vhost: &str, name: &str) -> Error {
    Error::not_found(format!("no queue '{name}' in vhost '{vhost}'"))
}
