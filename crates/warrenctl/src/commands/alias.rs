//! The common commands by rabbitmqctl's names, with its options and its columns, for hands and scripts that know them. None of them asks back, as there.
//!
//! What rabbitmqctl does through the node's Erlang cookie is done here as the user that `--user` names.

use clap::{Args, Subcommand};

use super::listing::InVhost;
use super::parameter::Owner;
use super::{
    Context, channel, check, cluster, connection, consumer, definitions, limit, parameter,
    permission, policy, queue, topic_permission, user, vhost,
};
use crate::client::segment;
use crate::failure::Failure;

/// rabbitmqctl's commands.
#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub enum Command {
    /// List queues, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_queues -p / name messages consumers")]
    ListQueues(Columns),
    /// List exchanges, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_exchanges -p / name type")]
    ListExchanges(Columns),
    /// List bindings, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_bindings -p /")]
    ListBindings(Columns),
    /// List connections, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_connections user peer_host peer_port state")]
    ListConnections(AllColumns),
    /// List channels, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_channels name consumer_count")]
    ListChannels(AllColumns),
    /// List consumers, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_consumers -p /")]
    ListConsumers(Vhost),
    /// List virtual hosts, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_vhosts name")]
    ListVhosts(AllColumns),
    /// List users, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_users")]
    ListUsers,
    /// List the permissions in a virtual host, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_permissions -p /")]
    ListPermissions(Vhost),
    /// List a user's permissions, as rabbitmqctl does.
    #[command(after_help = "Example: warrenctl list_user_permissions alice")]
    ListUserPermissions(Name),
    /// Make a user; without a password, it is read from standard input.
    #[command(after_help = "Example: warrenctl add_user alice < secret.txt")]
    AddUser(Login),
    /// Delete a user.
    #[command(after_help = "Example: warrenctl delete_user alice")]
    DeleteUser(Name),
    /// Give a user another password; without one, it is read from standard input.
    #[command(after_help = "Example: warrenctl change_password alice < secret.txt")]
    ChangePassword(Login),
    /// See whether a user can log in; without a password, it is read from standard input.
    #[command(after_help = "Example: warrenctl authenticate_user alice < secret.txt")]
    AuthenticateUser(Login),
    /// Set a user's tags.
    #[command(after_help = "Example: warrenctl set_user_tags alice monitoring")]
    SetUserTags(Tags),
    /// Make a virtual host.
    #[command(
        after_help = "Example: warrenctl add_vhost shop --description Orders --default-queue-type quorum"
    )]
    AddVhost(vhost::Declare),
    /// Change what is said of a virtual host.
    #[command(after_help = "Example: warrenctl update_vhost_metadata shop --tags production,eu")]
    UpdateVhostMetadata(vhost::Declare),
    /// Delete a virtual host.
    #[command(after_help = "Example: warrenctl delete_vhost shop")]
    DeleteVhost(Name),
    /// Set what a user may do.
    #[command(after_help = "Example: warrenctl set_permissions -p shop alice '.*' '.*' '.*'")]
    SetPermissions(Permissions),
    /// Take a user's permissions away.
    #[command(after_help = "Example: warrenctl clear_permissions -p shop alice")]
    ClearPermissions(UserInVhost),
    /// List the topic permissions in a virtual host.
    #[command(after_help = "Example: warrenctl list_topic_permissions -p /")]
    ListTopicPermissions(Vhost),
    /// List a user's topic permissions.
    #[command(after_help = "Example: warrenctl list_user_topic_permissions alice")]
    ListUserTopicPermissions(Name),
    /// Set the routing keys that a user may publish and bind with.
    #[command(after_help = "Example: warrenctl set_topic_permissions -p / alice events '^a' '.*'")]
    SetTopicPermissions(TopicPermissions),
    /// Take a user's topic permissions away.
    #[command(after_help = "Example: warrenctl clear_topic_permissions -p / alice events")]
    ClearTopicPermissions(ClearTopicPermissions),
    /// List policies.
    #[command(after_help = "Example: warrenctl list_policies -p /")]
    ListPolicies(Vhost),
    /// Make or replace a policy.
    #[command(
        after_help = "Example: warrenctl set_policy -p / --apply-to exchanges lost '^events' '{\"alternate-exchange\": \"lost\"}'"
    )]
    SetPolicy(SetPolicy),
    /// Take a policy away.
    #[command(after_help = "Example: warrenctl clear_policy -p / lost")]
    ClearPolicy(UserInVhost),
    /// List operator policies.
    #[command(after_help = "Example: warrenctl list_operator_policies -p /")]
    ListOperatorPolicies(Vhost),
    /// Make or replace an operator policy.
    #[command(
        after_help = "Example: warrenctl set_operator_policy -p / --apply-to queues short '.*' '{\"max-length\": 1000}'"
    )]
    SetOperatorPolicy(SetPolicy),
    /// Take an operator policy away.
    #[command(after_help = "Example: warrenctl clear_operator_policy -p / short")]
    ClearOperatorPolicy(UserInVhost),
    /// List the limits of a virtual host, or of all.
    #[command(after_help = "Example: warrenctl list_vhost_limits --global")]
    ListVhostLimits(VhostLimits),
    /// Set the limits of a virtual host; those that are not named are taken away.
    #[command(
        after_help = "Example: warrenctl set_vhost_limits -p shop '{\"max-connections\": 100, \"max-queues\": 50}'"
    )]
    SetVhostLimits(SetVhostLimits),
    /// Take all limits of a virtual host away.
    #[command(after_help = "Example: warrenctl clear_vhost_limits -p shop")]
    ClearVhostLimits(Vhost),
    /// List the limits of a user, or of all.
    #[command(after_help = "Example: warrenctl list_user_limits --of-user alice")]
    ListUserLimits(UserLimits),
    /// Set limits of a user.
    #[command(
        after_help = "Example: warrenctl set_user_limits alice '{\"max-connections\": 5, \"max-channels\": 50}'"
    )]
    SetUserLimits(SetUserLimits),
    /// Take a limit of a user away, or `all`.
    #[command(after_help = "Example: warrenctl clear_user_limits alice max-channels")]
    ClearUserLimits(ClearUserLimits),
    /// List the parameters of a virtual host.
    #[command(after_help = "Example: warrenctl list_parameters -p /")]
    ListParameters(Vhost),
    /// Set a parameter of a virtual host.
    #[command(
        after_help = "Example: warrenctl set_parameter -p / shovel move '{\"src-queue\": \"a\"}'"
    )]
    SetParameter(SetParameter),
    /// Take a parameter of a virtual host away.
    #[command(after_help = "Example: warrenctl clear_parameter -p / shovel move")]
    ClearParameter(ClearParameter),
    /// List global parameters.
    #[command(after_help = "Example: warrenctl list_global_parameters")]
    ListGlobalParameters,
    /// Set a global parameter.
    #[command(after_help = "Example: warrenctl set_global_parameter owner '\"orders\"'")]
    SetGlobalParameter(parameter::Set),
    /// Take a global parameter away.
    #[command(after_help = "Example: warrenctl clear_global_parameter owner")]
    ClearGlobalParameter(Name),
    /// Take all messages out of a queue.
    #[command(after_help = "Example: warrenctl purge_queue -p / orders")]
    PurgeQueue(QueueInVhost),
    /// Delete a queue.
    #[command(after_help = "Example: warrenctl delete_queue -p / orders --if-empty")]
    DeleteQueue(DeleteQueue),
    /// Close a connection, by its name.
    #[command(
        after_help = "Example: warrenctl close_connection '10.0.0.7:40012 -> 10.0.0.1:5672' 'go away'"
    )]
    CloseConnection(Close),
    /// Close all connections of a user.
    #[command(after_help = "Example: warrenctl close_all_user_connections alice 'go away'")]
    CloseAllUserConnections(Close),
    /// Write all definitions to a file.
    #[command(after_help = "Example: warrenctl export_definitions cluster.json")]
    ExportDefinitions(File),
    /// Import definitions from a file.
    #[command(after_help = "Example: warrenctl import_definitions cluster.json")]
    ImportDefinitions(File),
    /// Show where a queue's replicas are and who leads them, as rabbitmq-queues does.
    #[command(after_help = "Example: warrenctl quorum_status -p / orders")]
    QuorumStatus(QueueInVhost),
    /// Show the nodes of the cluster.
    #[command(after_help = "Example: warrenctl cluster_status")]
    ClusterStatus,
    /// Show the node's process.
    #[command(after_help = "Example: warrenctl status")]
    Status,
    /// See whether the node answers and serves.
    #[command(after_help = "Example: warrenctl ping")]
    Ping,
}

/// A virtual host.
#[derive(Debug, Args)]
pub struct Vhost {
    /// The virtual host.
    #[arg(short = 'p', long = "vhost", default_value = "/")]
    vhost: String,
}

/// A virtual host and what to show of it.
#[derive(Debug, Args)]
pub struct Columns {
    #[command(flatten)]
    vhost: Vhost,
    /// What to show.
    show: Vec<String>,
}

/// What to show.
#[derive(Debug, Args)]
pub struct AllColumns {
    /// What to show.
    show: Vec<String>,
}

/// A name.
#[derive(Debug, Args)]
pub struct Name {
    /// The name.
    name: String,
}

/// A user and a password.
#[derive(Debug, Args)]
pub struct Login {
    /// The user.
    name: String,
    /// The password.
    secret: Option<String>,
}

/// A user and its tags.
#[derive(Debug, Args)]
pub struct Tags {
    /// The user.
    name: String,
    /// Its tags.
    tags: Vec<String>,
}

/// A user's topic permissions.
#[derive(Debug, Args)]
pub struct TopicPermissions {
    #[command(flatten)]
    user: UserInVhost,
    /// The topic exchange.
    exchange: String,
    /// Routing keys that may be published with.
    write: String,
    /// Binding keys that may be bound with.
    read: String,
}

/// Whose topic permissions.
#[derive(Debug, Args)]
pub struct ClearTopicPermissions {
    #[command(flatten)]
    user: UserInVhost,
    /// Only of this exchange.
    exchange: Option<String>,
}

/// A policy.
#[derive(Debug, Args)]
pub struct SetPolicy {
    #[command(flatten)]
    vhost: Vhost,
    /// Of several that match the one with the greatest priority applies.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i64,
    /// What it applies to.
    #[arg(long, default_value = "all")]
    apply_to: String,
    /// Its name.
    name: String,
    /// Regular expression over names.
    pattern: String,
    /// What it sets, in JSON.
    #[arg(value_parser = parameter::json_value)]
    definition: serde_json::Value,
}

/// A user or a policy in a virtual host.
#[derive(Debug, Args)]
pub struct UserInVhost {
    #[command(flatten)]
    vhost: Vhost,
    /// Its name.
    name: String,
}

/// A parameter and its value.
#[derive(Debug, Args)]
pub struct SetParameter {
    #[command(flatten)]
    vhost: Vhost,
    /// The component.
    component: String,
    #[command(flatten)]
    set: parameter::Set,
}

/// A parameter.
#[derive(Debug, Args)]
pub struct ClearParameter {
    #[command(flatten)]
    vhost: Vhost,
    /// The component.
    component: String,
    /// The name.
    name: String,
}

/// Whose limits to list.
#[derive(Debug, Args)]
pub struct VhostLimits {
    #[command(flatten)]
    vhost: Vhost,
    /// Of all virtual hosts.
    #[arg(long)]
    global: bool,
}

/// A virtual host's limits.
#[derive(Debug, Args)]
pub struct SetVhostLimits {
    #[command(flatten)]
    vhost: Vhost,
    /// The limits, in JSON.
    #[arg(value_parser = parameter::json_value)]
    limits: serde_json::Value,
}

/// Whose limits to list. rabbitmqctl's `--user` names who asks, here.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct UserLimits {
    /// Of this user.
    #[arg(long, value_name = "NAME")]
    of_user: Option<String>,
    /// Of all users; so it is without `--of-user`.
    #[arg(long)]
    global: bool,
}

/// A user's limits.
#[derive(Debug, Args)]
pub struct SetUserLimits {
    /// The user.
    name: String,
    /// The limits, in JSON.
    #[arg(value_parser = parameter::json_value)]
    limits: serde_json::Value,
}

/// Which limits of a user go.
#[derive(Debug, Args)]
pub struct ClearUserLimits {
    /// The user.
    name: String,
    /// The limit, or `all`.
    limit: String,
}

/// A user's permissions in a virtual host.
#[derive(Debug, Args)]
pub struct Permissions {
    #[command(flatten)]
    user: UserInVhost,
    /// Names that may be declared and deleted.
    configure: String,
    /// Names that may be published to and bound.
    write: String,
    /// Names that may be consumed from and bound from.
    read: String,
}

/// A queue in a virtual host.
#[derive(Debug, Args)]
pub struct QueueInVhost {
    #[command(flatten)]
    vhost: Vhost,
    /// The queue.
    name: String,
}

/// A queue to be deleted.
#[derive(Debug, Args)]
pub struct DeleteQueue {
    #[command(flatten)]
    queue: QueueInVhost,
    /// Only if it has no messages.
    #[arg(short = 'e', long)]
    if_empty: bool,
    /// Only if it has no consumers.
    #[arg(short = 'u', long)]
    if_unused: bool,
}

/// What to close.
#[derive(Debug, Args)]
pub struct Close {
    /// The connection, or the user.
    name: String,
    /// What the client is told.
    reason: String,
}

/// A file.
#[derive(Debug, Args)]
pub struct File {
    /// The file.
    file: std::path::PathBuf,
}

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
pub fn run(context: &Context, command: &Command) -> Result<(), Failure> {
    match command {
        Command::ListQueues(options) => listed(context, "queues", options, &["name", "messages"]),
        Command::ListExchanges(options) => listed(context, "exchanges", options, &["name", "type"]),
        Command::ListBindings(options) => {
            let renamed: Vec<String> = options.show.iter().map(|c| binding_column(c)).collect();
            let options = Columns {
                vhost: Vhost {
                    vhost: options.vhost.vhost.clone(),
                },
                show: renamed,
            };
            let columns = [
                "source",
                "destination_type",
                "destination",
                "routing_key",
                "arguments",
            ];
            listed(context, "bindings", &options, &columns)
        }
        Command::ListConnections(options) => {
            let columns = ["user", "peer_host", "peer_port", "state"];
            printed(context, "/api/connections", &options.show, &columns)
        }
        Command::ListChannels(options) => {
            let columns = ["name", "user", "consumer_count", "messages_unacknowledged"];
            let columns = chosen(&options.show, &columns);
            channel::list(context, None, &columns)
        }
        Command::ListConsumers(Vhost { vhost }) => {
            let columns = [
                "queue.name",
                "channel_details.name",
                "consumer_tag",
                "ack_required",
                "prefetch_count",
                "active",
            ];
            consumer::list(context, Some(vhost), &columns)
        }
        Command::ListVhosts(options) => vhost::list(context, &chosen(&options.show, &["name"])),
        Command::ListUsers => user::list(context, &["name", "tags"]),
        Command::ListPermissions(Vhost { vhost }) => {
            permission::of_vhost(context, vhost, &["user", "configure", "write", "read"])
        }
        Command::ListUserPermissions(Name { name }) => {
            permission::of_user(context, name, &["vhost", "configure", "write", "read"])
        }
        Command::AddUser(login) => user::add(context, &login.name, &login.secret()?),
        Command::DeleteUser(Name { name }) => user::delete(context, name),
        Command::ChangePassword(login) => {
            user::change_password(context, &login.name, &login.secret()?)
        }
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
        Command::ListTopicPermissions(Vhost { vhost }) => {
            topic_permission::list(context, Some(vhost), None)
        }
        Command::ListUserTopicPermissions(Name { name }) => {
            topic_permission::list(context, None, Some(name))
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
        Command::ListPolicies(Vhost { vhost }) => {
            policy::list(context, policy::Kind::Policy, Some(vhost))
        }
        Command::SetPolicy(options) => set_policy(context, policy::Kind::Policy, options),
        Command::ClearPolicy(UserInVhost { vhost, name }) => {
            policy::delete(context, policy::Kind::Policy, &in_vhost(vhost, name))
        }
        Command::ListOperatorPolicies(Vhost { vhost }) => {
            policy::list(context, policy::Kind::Operator, Some(vhost))
        }
        Command::SetOperatorPolicy(options) => set_policy(context, policy::Kind::Operator, options),
        Command::ClearOperatorPolicy(UserInVhost { vhost, name }) => {
            policy::delete(context, policy::Kind::Operator, &in_vhost(vhost, name))
        }
        Command::ListVhostLimits(VhostLimits { vhost, global }) => {
            let only = (!global).then_some(vhost.vhost.as_str());
            limit::list(context, limit::Kind::Vhost, only)
        }
        Command::SetVhostLimits(SetVhostLimits { vhost, limits }) => {
            limit::set_all(context, limit::Kind::Vhost, &vhost.vhost, limits)
        }
        Command::ClearVhostLimits(Vhost { vhost }) => {
            limit::clear_all(context, limit::Kind::Vhost, vhost, None)
        }
        Command::ListUserLimits(UserLimits { of_user, global: _ }) => {
            limit::list(context, limit::Kind::User, of_user.as_deref())
        }
        Command::SetUserLimits(SetUserLimits { name, limits }) => {
            limit::set_all(context, limit::Kind::User, name, limits)
        }
        Command::ClearUserLimits(ClearUserLimits { name, limit }) => {
            let only = (limit != "all").then_some(limit.as_str());
            limit::clear_all(context, limit::Kind::User, name, only)
        }
        Command::ListParameters(Vhost { vhost }) => parameter::list_of(context, None, Some(vhost)),
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
        Command::ListGlobalParameters => parameter::list(context),
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

/// rabbitmqctl's names of the ends of bindings.
fn binding_column(name: &str) -> String {
    match name {
        "source_name" => "source",
        "destination_name" => "destination",
        "destination_kind" => "destination_type",
        other => other,
    }
    .to_owned()
}

fn chosen<'a>(given: &'a [String], usual: &[&'a str]) -> Vec<&'a str> {
    if given.is_empty() {
        usual.to_vec()
    } else {
        given.iter().map(String::as_str).collect()
    }
}

fn listed(context: &Context, kind: &str, options: &Columns, usual: &[&str]) -> Result<(), Failure> {
    let path = format!("/api/{kind}/{}", segment(&options.vhost.vhost));
    printed(context, &path, &options.show, usual)
}

fn printed(context: &Context, path: &str, given: &[String], usual: &[&str]) -> Result<(), Failure> {
    let answer = context.client.get(path, &[])?;
    context.list(&answer, path, &chosen(given, usual))
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
