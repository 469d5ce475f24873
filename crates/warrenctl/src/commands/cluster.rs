//! `warrenctl cluster`: the nodes, who leads the metadata group, and nodes that leave for a while or for good.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::Value;

use super::join::{self, Join};
use super::{Context, health, listing};
use crate::client::{Client, Method, Request, segment};
use crate::failure::Failure;
use crate::output::{self, Table};

/// The columns of the table of nodes.
const MEMBERS: [&str; 13] = [
    "node",
    "name",
    "up",
    "voter",
    "level",
    "draining",
    "shards_placed",
    "shards_led",
    "incarnation",
    "last_seen_ms",
    "address",
    "amqp",
    "http",
];

/// What can be done with the cluster.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the nodes, the metadata leader and how far this node has applied the log.
    #[command(after_help = "Example: warrenctl cluster status --output json")]
    Status,
    /// Say whether the cluster is well: every node's state, alarms and links, and what is wrong.
    #[command(after_help = "Exits with 69 when anything is wrong.

Example: warrenctl cluster health --output json")]
    Health,
    /// Check that a new node can join, or take the place of one that is lost, and write its configuration. It joins when it starts.
    #[command(
        after_help = "Example: warrenctl cluster join node4 --address 10.0.0.4:7671 --amqp 10.0.0.4:5672 --http 10.0.0.4:15672 --out node4.toml"
    )]
    Join(Join),
    /// Empty a node of replicas and leaderships, so that it can be stopped without anybody noticing. It stays up and serves its connections.
    ///
    /// Durable queues move to the other nodes. Non-durable and exclusive queues live in the node's memory and go when it stops; the answer counts them.
    #[command(after_help = "Example: warrenctl cluster drain node2 --wait --timeout 300 --yes")]
    Drain(Leaving),
    /// Give a drained node its share of replicas and leaderships again.
    #[command(after_help = "Example: warrenctl cluster revive node2 --wait")]
    Revive(Leaving),
    /// Take a node that is down out of the cluster for good. A node that is up is drained and stopped first.
    #[command(after_help = "Example: warrenctl cluster forget node2 --yes")]
    Forget(Forget),
    /// Wait until the node that is asked serves, all known nodes are up, and every shard has its leader.
    #[command(after_help = "Example: warrenctl cluster await-ready --nodes 3 --timeout 120")]
    AwaitReady(AwaitReady),
}

/// Which node, and whether to wait for it.
#[derive(Debug, clap::Args)]
pub struct Leaving {
    /// The node's name.
    node: String,
    /// Wait until all has moved, and show how far it is.
    #[arg(long)]
    wait: bool,
    /// Wait at most so many seconds.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// Which node goes for good.
#[derive(Debug, clap::Args)]
pub struct Forget {
    /// The node's name.
    node: String,
    /// Even if shards have no majority without it: what is in them is lost.
    #[arg(long)]
    force: bool,
}

/// What is waited for.
#[derive(Debug, clap::Args)]
pub struct AwaitReady {
    /// So many nodes at least are up.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Wait at most so many seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::Status => status(context),
        Verb::Health => health::run(context),
        Verb::Join(options) => join::join(context, options),
        Verb::Drain(options) => drain(context, options),
        Verb::Revive(options) => revive(context, options),
        Verb::Forget(Forget { node, force }) => {
            context.confirm(&format!("Take node '{node}' out of the cluster for good"))?;
            forget(context, node, *force)
        }
        Verb::AwaitReady(options) => await_ready(context, options),
    }
}

/// Empties a node.
pub fn drain(context: &Context, options: &Leaving) -> Result<(), Failure> {
    context.confirm(&format!(
        "Move all replicas and leaderships away from node '{}'",
        options.node
    ))?;
    let answer = move_node(context, "drain", &options.node)?;
    context.object(&answer)?;
    if !options.wait {
        return Ok(());
    }
    let what = format!("node '{}' is drained", options.node);
    let patience = Duration::from_secs(options.timeout);
    wait(context, patience, &what, || {
        let entry = member(context, &options.node)?;
        if entry.get("drained") == Some(&Value::Bool(true)) {
            return Ok(None);
        }
        if entry.get("draining") != Some(&Value::Bool(true)) {
            return Err(Failure::Data(format!(
                "node '{}' is not drained any more: somebody has revived it",
                options.node
            )));
        }
        let count = |name: &str| output::cell(entry.get(name).unwrap_or(&Value::Null));
        Ok(Some(format!(
            "draining '{}': it still holds {} shards and leads {}",
            options.node,
            count("shards_held"),
            count("shards_led")
        )))
    })
}

/// Gives a drained node its share again.
pub fn revive(context: &Context, options: &Leaving) -> Result<(), Failure> {
    let answer = move_node(context, "revive", &options.node)?;
    context.object(&answer)?;
    if !options.wait {
        return Ok(());
    }
    let what = format!("node '{}' has its share again", options.node);
    let patience = Duration::from_secs(options.timeout);
    wait(context, patience, &what, || {
        let entry = member(context, &options.node)?;
        if entry.get("up") != Some(&Value::Bool(true)) {
            let node = &options.node;
            return Ok(Some(format!(
                "node '{node}' is down: it takes its share once it is started"
            )));
        }
        let placed = entry.get("shards_placed").and_then(Value::as_u64);
        let moves = moves(context)?;
        Ok(match (placed, moves) {
            (Some(1..), 0) => None,
            (placed, moves) => Some(format!(
                "reviving '{}': {} shards are placed on it, {moves} leaderships still move",
                options.node,
                placed.unwrap_or(0)
            )),
        })
    })
}

/// Takes a node out of the cluster without asking.
pub fn forget(context: &Context, node: &str, force: bool) -> Result<(), Failure> {
    let path = format!("/api/cluster/forget/{}", segment(node));
    let query = [("force", "true")];
    let answer = context.client.send_with(&Request {
        query: if force { &query } else { &[] },
        ..Request::of(Method::Post, &path)
    })?;
    context.object(&answer)
}

/// How long a node may take to start.
pub const STARTUP: Duration = Duration::from_secs(300);

/// Waits until the node that is asked serves.
pub fn await_node(context: &Context, patience: Duration) -> Result<(), Failure> {
    wait(context, patience, "the node serves", || {
        match context.client.get("/api/health", &[]) {
            Ok(_) => Ok(None),
            Err(Failure::Unavailable(why)) => Ok(Some(why)),
            Err(other) => Err(other),
        }
    })
}

fn await_ready(context: &Context, options: &AwaitReady) -> Result<(), Failure> {
    let patience = Duration::from_secs(options.timeout);
    wait(context, patience, "the cluster is ready", || {
        // A node that does not answer yet is what is waited for.
        match why_not_ready(context, options.nodes) {
            Err(Failure::Unavailable(why)) => Ok(Some(why)),
            other => other,
        }
    })
}

fn why_not_ready(context: &Context, nodes: usize) -> Result<Option<String>, Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    if answer.get("lease_held") != Some(&Value::Bool(true)) {
        return Ok(Some("the node that is asked may not route yet".to_owned()));
    }
    let all = members(&answer)?;
    let up = all
        .iter()
        .filter(|m| m.get("up") == Some(&Value::Bool(true)));
    let up = up.count();
    if up < all.len() || up < nodes {
        return Ok(Some(format!(
            "{up} of {} nodes are up",
            all.len().max(nodes)
        )));
    }
    let ring = context.client.get("/api/ring", &[])?;
    let owners = listing::rows(ring.get("owners").unwrap_or(&Value::Null), "/api/ring")?;
    let led = owners.iter().filter(|owner| !owner.is_null()).count();
    Ok((led < owners.len()).then(|| format!("{led} of {} shards have a leader", owners.len())))
}

fn move_node(context: &Context, verb: &str, node: &str) -> Result<Value, Failure> {
    let path = format!("/api/cluster/{verb}/{}", segment(node));
    context.client.send(Method::Post, &path, None)
}

fn member(context: &Context, node: &str) -> Result<Value, Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    let is_it = |member: &&Value| member.get("name").and_then(Value::as_str) == Some(node);
    let found = members(&answer)?.iter().find(is_it).cloned();
    found.ok_or_else(|| Failure::Data(format!("node '{node}' has left the cluster")))
}

/// A client of the node of that name.
pub fn client_of(context: &Context, name: &str) -> Result<Client, Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    let is_it = |member: &&Value| member.get("name").and_then(Value::as_str) == Some(name);
    let members = members(&answer)?;
    let names = || members.iter().filter_map(|member| member["name"].as_str());
    match members
        .iter()
        .find(is_it)
        .and_then(|member| member.get("http")?.as_str())
    {
        Some(http) => context.client.at(http),
        None => Err(Failure::Data(format!(
            "no node '{name}' in the cluster, which has {}",
            names().collect::<Vec<_>>().join(", ")
        ))),
    }
}

/// What each node says, in their order; all are asked at once.
pub fn of_each<T: Send>(members: &[Value], ask: impl Fn(&Value) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = members
            .iter()
            .map(|member| scope.spawn(move || ask(member)))
            .collect();
        let answers = asked.into_iter().map(|thread| match thread.join() {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        answers.collect()
    })
}

/// Leaderships that are not where they belong.
fn moves(context: &Context) -> Result<usize, Failure> {
    let ring = context.client.get("/api/ring", &[])?;
    let moves = listing::rows(ring.get("moves").unwrap_or(&Value::Null), "/api/ring")?;
    Ok(moves.len())
}

/// Looks until there is nothing left to say, and says what has changed meanwhile.
pub fn wait(
    context: &Context,
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    let until = Instant::now() + patience;
    let mut said = String::new();
    loop {
        let Some(progress) = look()? else {
            context.done(what);
            return Ok(());
        };
        if Instant::now() >= until {
            return Err(Failure::Unavailable(format!(
                "not within {} s: {what}; {progress}. It goes on: ask again with `warrenctl cluster status`",
                patience.as_secs_f64()
            )));
        }
        if progress != said {
            context.done(&progress);
            said = progress;
        }
        std::thread::sleep(LOOK);
    }
}

fn status(context: &Context) -> Result<(), Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    let members = members(&answer)?;
    output::print(context.format, &answer, || {
        let field = |name: &str| output::cell(answer.get(name).unwrap_or(&Value::Null));
        format!(
            "cluster {}, leader {}, term {}, level {}, applied index {}, this node may route: {}\n\n{}",
            field("cluster"),
            leader(&answer, members),
            field("term"),
            field("level"),
            field("applied_index"),
            field("lease_held"),
            Table::of(&MEMBERS, members)
        )
    })
}

/// The nodes in an answer of `/api/cluster`.
pub fn members(answer: &Value) -> Result<&[Value], Failure> {
    listing::rows(
        answer.get("members").unwrap_or(&Value::Null),
        "/api/cluster (members)",
    )
}

/// The leader by name where the answer has it by node id.
fn leader(answer: &Value, members: &[Value]) -> String {
    let leader = answer.get("leader").unwrap_or(&Value::Null);
    let named = members
        .iter()
        .find(|member| !leader.is_null() && member.get("node") == Some(leader));
    match named.and_then(|member| member.get("name")) {
        Some(name) => output::cell(name),
        None if leader.is_null() => "none".to_owned(),
        None => output::cell(leader),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_leader_is_shown_by_name() {
        let members = [
            json!({"node": 1, "name": "node1"}),
            json!({"node": 2, "name": "node2"}),
        ];
        assert_eq!(leader(&json!({"leader": 2}), &members), "node2");
        assert_eq!(leader(&json!({"leader": "node1"}), &members), "node1");
        assert_eq!(leader(&json!({"leader": null}), &members), "none");
    }
}
