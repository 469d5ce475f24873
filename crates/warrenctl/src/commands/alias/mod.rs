//! The common commands by rabbitmqctl's names, with its options and its columns, for hands and scripts that know them. None of them asks back, as there.
//!
//! What rabbitmqctl does through the node's Erlang cookie is done here as the user that `--user` names.

mod columns;
mod command;
mod options;

use columns::Listing;
pub use columns::fields;
pub use command::Command;
use command::*;
pub use options::{Options, of, taken};

use super::listing::InVhost;
use super::parameter::Owner;
use super::{
    Context, check, cluster, connection, definitions, limit, listing, parameter, permission,
    policy, queue, topic_permission, user, vhost,
};
use crate::cli::Format;
use crate::client::segment;
use crate::failure::Failure;
use crate::output;

impl From<&QueueInVhost> for InVhost {
    fn from(queue: &QueueInVhost) -> Self {
        Self {
            name: queue.name.clone(),
            vhost: queue.vhost.vhost.clone(),
        }
    }
}

impl Login {
    fn secret(&self) -> Result<String, Failure> {
        match &self.secret {
            Some(secret) => Ok(secret.clone()),
            None => user::first_line(),
        }
    }
}

/// Runs a command.
pub fn run(context: &Context, command: &Command, options: &Options) -> Result<(), Failure> {
    let context = &options.apply(context)?;
    let list = |path: &str, listing: &Listing, given: &[String]| {
        let answer = context.client.get(path, &[])?;
        show(context, options, &answer, path, listing, given)
    };
    let within = |kind: &str, vhost: &Vhost| format!("/api/{kind}/{}", segment(&vhost.vhost));
    let of_vhost =
        |kind: &str, vhost: &Vhost| format!("/api/vhosts/{}/{kind}", segment(&vhost.vhost));
    let of_user = |kind: &str, user: &Name| format!("/api/users/{}/{kind}", segment(&user.name));
    match command {
        Command::ListQueues(Columns { vhost, show }) => {
            list(&within("queues", vhost), &columns::QUEUES, show)
        }
        Command::ListExchanges(Columns { vhost, show }) => {
            list(&within("exchanges", vhost), &columns::EXCHANGES, show)
        }
        Command::ListBindings(Columns { vhost, show }) => {
            list(&within("bindings", vhost), &columns::BINDINGS, show)
        }
        Command::ListConsumers(Columns { vhost, show }) => {
            list(&within("consumers", vhost), &columns::CONSUMERS, show)
        }
        Command::ListConnections(AllColumns { show }) => {
            list("/api/connections", &columns::CONNECTIONS, show)
        }
        Command::ListChannels(AllColumns { show }) => {
            list("/api/channels", &columns::CHANNELS, show)
        }
        Command::ListVhosts(AllColumns { show }) => list("/api/vhosts", &columns::VHOSTS, show),
        Command::ListUsers => list("/api/users", &columns::USERS, &[]),
        Command::ListPermissions(vhost) => {
            let path = of_vhost("permissions", vhost);
            list(&path, &columns::PERMISSIONS, &[])
        }
        Command::ListUserPermissions(user) => {
            let path = of_user("permissions", user);
            list(&path, &columns::USER_PERMISSIONS, &[])
        }
        Command::ListTopicPermissions(vhost) => {
            let path = of_vhost("topic-permissions", vhost);
            list(&path, &columns::TOPIC_PERMISSIONS, &[])
        }
        Command::ListUserTopicPermissions(user) => {
            let path = of_user("topic-permissions", user);
            list(&path, &columns::USER_TOPIC_PERMISSIONS, &[])
        }
        Command::ListPolicies(vhost) => list(&within("policies", vhost), &columns::POLICIES, &[]),
        Command::ListOperatorPolicies(vhost) => {
            list(&within("operator-policies", vhost), &columns::POLICIES, &[])
        }
        Command::ListVhostLimits(VhostLimits { vhost, global }) => {
            let path = match global {
                true => "/api/vhost-limits".to_owned(),
                false => within("vhost-limits", vhost),
            };
            list(&path, &columns::VHOST_LIMITS, &[])
        }
        Command::ListUserLimits(UserLimits { of_user, global: _ }) => {
            let path = of_user.as_ref().map(|name| format!("/{}", segment(name)));
            let path = format!("/api/user-limits{}", path.unwrap_or_default());
            list(&path, &columns::USER_LIMITS, &[])
        }
        Command::ListParameters(Vhost { vhost }) => {
            let path = "/api/parameters";
            let mut answer = context.client.get(path, &[])?;
            if let Some(rows) = answer.as_array_mut() {
                rows.retain(|row| row["vhost"] == *vhost);
            }
            show(context, options, &answer, path, &columns::PARAMETERS, &[])
        }
        Command::ListGlobalParameters => {
            list("/api/global-parameters", &columns::GLOBAL_PARAMETERS, &[])
        }
        Command::ListFeatureFlags => {
            context.done("there are no feature flags: what all nodes understand is the cluster's level, see `warrenctl cluster status`");
            list("/api/feature-flags", &columns::FEATURE_FLAGS, &[])
        }
        Command::AddUser(login) => user::add(context, &login.name, &login.secret()?),
        Command::DeleteUser(Name { name }) => user::delete(context, name),
        Command::ChangePassword(login) => {
            user::change_password(context, &login.name, &login.secret()?)
        }
        Command::ClearPassword(Name { name }) => user::clear_password(context, name),
        Command::AuthenticateUser(login) => authenticate(context, login),
        Command::SetUserTags(Tags { name, tags }) => user::set_tags(context, name, tags),
        Command::AddVhost(options) => vhost::declare(context, options),
        Command::UpdateVhostMetadata(options) => vhost::update(context, options),
        Command::DeleteVhost(Name { name }) => vhost::delete(context, name),
        Command::SetPermissions(options) => {
            let patterns = [&options.configure, &options.write, &options.read];
            let UserInVhost { vhost, name } = &options.user;
            permission::set(context, name, &vhost.vhost, patterns)
        }
        Command::ClearPermissions(UserInVhost { vhost, name }) => {
            permission::clear(context, name, &vhost.vhost)
        }
        Command::SetTopicPermissions(options) => {
            let UserInVhost { vhost, name } = &options.user;
            let patterns = [options.write.as_str(), options.read.as_str()];
            topic_permission::set(context, name, &vhost.vhost, &options.exchange, patterns)
        }
        Command::ClearTopicPermissions(ClearTopicPermissions { user, exchange }) => {
            let UserInVhost { vhost, name } = user;
            topic_permission::clear(context, name, &vhost.vhost, exchange.as_deref())
        }
        Command::SetPolicy(options) => set_policy(context, policy::Kind::Policy, options),
        Command::ClearPolicy(UserInVhost { vhost, name }) => {
            policy::delete(context, policy::Kind::Policy, &in_vhost(vhost, name))
        }
        Command::SetOperatorPolicy(options) => set_policy(context, policy::Kind::Operator, options),
        Command::ClearOperatorPolicy(UserInVhost { vhost, name }) => {
            policy::delete(context, policy::Kind::Operator, &in_vhost(vhost, name))
        }
        Command::SetVhostLimits(SetVhostLimits { vhost, limits }) => {
            limit::set_all(context, limit::Kind::Vhost, &vhost.vhost, limits)
        }
        Command::ClearVhostLimits(Vhost { vhost }) => {
            limit::clear_all(context, limit::Kind::Vhost, vhost, None)
        }
        Command::SetUserLimits(SetUserLimits { name, limits }) => {
            limit::set_all(context, limit::Kind::User, name, limits)
        }
        Command::ClearUserLimits(ClearUserLimits { name, limit }) => {
            let only = (limit != "all").then_some(limit.as_str());
            limit::clear_all(context, limit::Kind::User, name, only)
        }
        Command::SetParameter(SetParameter {
            vhost,
            component,
            set,
        }) => parameter::set(context, Owner::Component(component, &vhost.vhost), set),
        Command::ClearParameter(ClearParameter {
            vhost,
            component,
            name,
        }) => parameter::clear(context, Owner::Component(component, &vhost.vhost), name),
        Command::SetGlobalParameter(options) => parameter::set(context, Owner::Cluster, options),
        Command::ClearGlobalParameter(Name { name }) => {
            parameter::clear(context, Owner::Cluster, name)
        }
        Command::PurgeQueue(options) => queue::purge(context, &options.into()),
        Command::DeleteQueue(options) => {
            let queue = (&options.queue).into();
            queue::delete_now(context, queue, options.if_empty, options.if_unused)
        }
        Command::CloseConnection(Close { name, reason }) => {
            connection::close(context, name, reason)
        }
        Command::CloseAllUserConnections(Close { name, reason }) => {
            connection::close_all(context, name, reason)
        }
        Command::ExportDefinitions(File { file }) => {
            definitions::export(context, Some(file), "/api/definitions")
        }
        Command::ImportDefinitions(File { file }) => {
            definitions::import(context, Some(file), "/api/definitions", false, None)
        }
        Command::QuorumStatus(options) => queue::quorum_status(context, &options.into()),
        Command::ClusterStatus => cluster::run(context, &cluster::Verb::Status),
        Command::AwaitStartup => {
            cluster::await_node(context, options.timeout.unwrap_or(cluster::STARTUP))
        }
        Command::ForgetClusterNode(Name { name }) => cluster::forget(context, name, false),
        Command::SetClusterName(_) => instead(
            "the cluster's name is cluster.name in each node's configuration, and stays as the cluster was founded",
        ),
        Command::JoinCluster(_) => instead(
            "a node joins by itself when it starts: `warrenctl cluster join NAME --address HOST:PORT --out FILE` writes its configuration",
        ),
        Command::StopApp => instead(
            "a node is stopped as a process: `warrenctl cluster drain NODE --wait` first, then end it with SIGTERM or `systemctl stop`",
        ),
        Command::StartApp => instead(
            "a node is started as a process, `warren --config FILE`; `warrenctl cluster revive NODE --wait` gives it its share if it was drained",
        ),
        Command::Reset => instead(
            "a node leaves with `warrenctl cluster drain NODE --wait`, is stopped, and forgotten with `warrenctl cluster forget NODE`; then its data folder may go",
        ),
        Command::Status => status(context),
        Command::Ping => check::run(context, &check::Options::of("ready-to-serve-clients")),
    }
}

fn in_vhost(vhost: &Vhost, name: &str) -> InVhost {
    InVhost {
        name: name.to_owned(),
        vhost: vhost.vhost.clone(),
    }
}

fn set_policy(context: &Context, kind: policy::Kind, options: &SetPolicy) -> Result<(), Failure> {
    let body = serde_json::json!({
        "pattern": options.pattern,
        "apply-to": options.apply_to,
        "priority": options.priority,
        "definition": options.definition,
    });
    let policy = in_vhost(&options.vhost, &options.name);
    policy::put(context, kind, &policy, &body)
}

/// Lists what the answer has, by rabbitmqctl's names; as the API has it where JSON is asked for as elsewhere.
fn show(
    context: &Context,
    options: &Options,
    answer: &serde_json::Value,
    path: &str,
    listing: &Listing,
    given: &[String],
) -> Result<(), Failure> {
    let given = if given.is_empty() {
        &context.columns
    } else {
        given
    };
    if given.is_empty() && context.format == Format::Json && !options.narrow() {
        return context.list(answer, path, listing.usual);
    }
    let columns: Vec<&str> = if given.is_empty() {
        listing.usual.to_vec()
    } else {
        given.iter().map(String::as_str).collect()
    };
    let plain = context.format != Format::Json;
    // What is sorted by need not be shown.
    let sort = context.sort.as_deref();
    let mut fetched = columns.clone();
    fetched.extend(sort.map(output::sorted_by));
    let mut rows = listing.rows(&fetched, listing::rows(answer, path)?, plain)?;
    if let Some(sort) = sort {
        output::sort(&mut rows, sort);
    }
    output::list(context.format, &rows, &columns, true, context.headings)
}

/// Refuses what Warren does otherwise.
fn instead(how: &str) -> Result<(), Failure> {
    Err(Failure::Usage(how.to_owned()))
}

fn authenticate(context: &Context, login: &Login) -> Result<(), Failure> {
    let client = context.client.as_user(&login.name, &login.secret()?);
    match client.get("/api/whoami", &[]) {
        // Whoever may not use the API has logged in all the same, or would not be told that.
        Err(Failure::NoPermission(text)) if text.contains("Not management user") => {}
        result => {
            result?;
        }
    }
    context.done(&format!("user '{}' can log in", login.name));
    Ok(())
}

/// The process of the node that is asked.
fn status(context: &Context) -> Result<(), Failure> {
    let overview = context.client.get("/api/overview", &[])?;
    let node = overview["node"].as_str().unwrap_or_default();
    let path = format!("/api/nodes/{}", segment(node));
    let mut answer = context.client.get(&path, &[])?;
    for field in ["product_version", "rabbitmq_version", "cluster_name"] {
        answer[field] = overview[field].clone();
    }
    context.object(&answer)
}
