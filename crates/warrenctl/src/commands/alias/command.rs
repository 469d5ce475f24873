//! rabbitmqctl's commands, as they are written.

use clap::{Args, Subcommand};

use super::super::{parameter, vhost};

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
    #[command(
        after_help = "Example: warrenctl list_consumers -p / queue_name channel_pid consumer_tag"
    )]
    ListConsumers(Columns),
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
    /// Take a user's password away: it cannot log in with one any more.
    #[command(after_help = "Example: warrenctl clear_password alice")]
    ClearPassword(Name),
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
    /// Wait until the node serves.
    #[command(after_help = "Example: warrenctl await_startup --timeout 120")]
    AwaitStartup,
    /// Take a node that is down out of the cluster for good.
    #[command(after_help = "Example: warrenctl forget_cluster_node node3")]
    ForgetClusterNode(Name),
    /// List feature flags, of which there are none.
    #[command(after_help = "Example: warrenctl list_feature_flags")]
    ListFeatureFlags,
    /// Say where the cluster's name is set instead.
    #[command(after_help = "Example: warrenctl set_cluster_name shop")]
    SetClusterName(Unheard),
    /// Say how a node joins instead.
    #[command(after_help = "Example: warrenctl join_cluster rabbit@node1")]
    JoinCluster(Unheard),
    /// Say how a node is stopped instead.
    #[command(after_help = "Example: warrenctl stop_app")]
    StopApp,
    /// Say how a node is started instead.
    #[command(after_help = "Example: warrenctl start_app")]
    StartApp,
    /// Say how a node is emptied instead.
    #[command(after_help = "Example: warrenctl reset")]
    Reset,
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
    pub(super) vhost: String,
}

/// A virtual host and what to show of it.
#[derive(Debug, Args)]
pub struct Columns {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// What to show.
    #[arg(value_delimiter = ',')]
    pub(super) show: Vec<String>,
}

/// What to show.
#[derive(Debug, Args)]
pub struct AllColumns {
    /// What to show.
    #[arg(value_delimiter = ',')]
    pub(super) show: Vec<String>,
}

/// A name.
#[derive(Debug, Args)]
pub struct Name {
    /// The name.
    pub(super) name: String,
}

/// A user and a password.
#[derive(Debug, Args)]
pub struct Login {
    /// The user.
    pub(super) name: String,
    /// The password.
    pub(super) secret: Option<String>,
}

/// A user and its tags.
#[derive(Debug, Args)]
pub struct Tags {
    /// The user.
    pub(super) name: String,
    /// Its tags.
    pub(super) tags: Vec<String>,
}

/// A user's topic permissions.
#[derive(Debug, Args)]
pub struct TopicPermissions {
    #[command(flatten)]
    pub(super) user: UserInVhost,
    /// The topic exchange.
    pub(super) exchange: String,
    /// Routing keys that may be published with.
    pub(super) write: String,
    /// Binding keys that may be bound with.
    pub(super) read: String,
}

/// Whose topic permissions.
#[derive(Debug, Args)]
pub struct ClearTopicPermissions {
    #[command(flatten)]
    pub(super) user: UserInVhost,
    /// Only of this exchange.
    pub(super) exchange: Option<String>,
}

/// A policy.
#[derive(Debug, Args)]
pub struct SetPolicy {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// Of several that match the one with the greatest priority applies.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    pub(super) priority: i64,
    /// What it applies to.
    #[arg(long, default_value = "all")]
    pub(super) apply_to: String,
    /// Its name.
    pub(super) name: String,
    /// Regular expression over names.
    pub(super) pattern: String,
    /// What it sets, in JSON.
    #[arg(value_parser = parameter::json_value)]
    pub(super) definition: serde_json::Value,
}

/// A user or a policy in a virtual host.
#[derive(Debug, Args)]
pub struct UserInVhost {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// Its name.
    pub(super) name: String,
}

/// A parameter and its value.
#[derive(Debug, Args)]
pub struct SetParameter {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// The component.
    pub(super) component: String,
    #[command(flatten)]
    pub(super) set: parameter::Set,
}

/// A parameter.
#[derive(Debug, Args)]
pub struct ClearParameter {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// The component.
    pub(super) component: String,
    /// The name.
    pub(super) name: String,
}

/// Whose limits to list.
#[derive(Debug, Args)]
pub struct VhostLimits {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// Of all virtual hosts.
    #[arg(long)]
    pub(super) global: bool,
}

/// A virtual host's limits.
#[derive(Debug, Args)]
pub struct SetVhostLimits {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// The limits, in JSON.
    #[arg(value_parser = parameter::json_value)]
    pub(super) limits: serde_json::Value,
}

/// Whose limits to list. rabbitmqctl's `--user` names who asks, here.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct UserLimits {
    /// Of this user.
    #[arg(long, value_name = "NAME")]
    pub(super) of_user: Option<String>,
    /// Of all users; so it is without `--of-user`.
    #[arg(long)]
    pub(super) global: bool,
}

/// A user's limits.
#[derive(Debug, Args)]
pub struct SetUserLimits {
    /// The user.
    pub(super) name: String,
    /// The limits, in JSON.
    #[arg(value_parser = parameter::json_value)]
    pub(super) limits: serde_json::Value,
}

/// Which limits of a user go.
#[derive(Debug, Args)]
pub struct ClearUserLimits {
    /// The user.
    pub(super) name: String,
    /// The limit, or `all`.
    pub(super) limit: String,
}

/// A user's permissions in a virtual host.
#[derive(Debug, Args)]
pub struct Permissions {
    #[command(flatten)]
    pub(super) user: UserInVhost,
    /// Names that may be declared and deleted.
    pub(super) configure: String,
    /// Names that may be published to and bound.
    pub(super) write: String,
    /// Names that may be consumed from and bound from.
    pub(super) read: String,
}

/// A queue in a virtual host.
#[derive(Debug, Args)]
pub struct QueueInVhost {
    #[command(flatten)]
    pub(super) vhost: Vhost,
    /// The queue.
    pub(super) name: String,
}

/// A queue to be deleted.
#[derive(Debug, Args)]
pub struct DeleteQueue {
    #[command(flatten)]
    pub(super) queue: QueueInVhost,
    /// Only if it has no messages.
    #[arg(short = 'e', long)]
    pub(super) if_empty: bool,
    /// Only if it has no consumers.
    #[arg(short = 'u', long)]
    pub(super) if_unused: bool,
}

/// What to close.
#[derive(Debug, Args)]
pub struct Close {
    /// The connection, or the user.
    pub(super) name: String,
    /// What the client is told.
    pub(super) reason: String,
}

/// A file.
#[derive(Debug, Args)]
pub struct File {
    /// The file.
    pub(super) file: std::path::PathBuf,
}

/// What is not read, since the command does nothing.
#[derive(Debug, Args)]
pub struct Unheard {
    /// As rabbitmqctl takes them.
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    rest: Vec<String>,
}
