//! Definitions: what a command can import, many at once and all or none of them. Archived with [`crate::Command`], so their form is a stored format, too.

use crate::command::{
    Binding, Command, DeclareExchange, DeclareQueue, Destination, ParameterKey, Permission, Policy,
    TopicPermission, User, UserLimit, VhostDetails, VhostLimit,
};
use rkyv::{Archive, Deserialize, Serialize};
use std::fmt;

/// One thing that is defined; each does what the command of its name does.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Definition {
    /// A virtual host.
    Vhost {
        /// Name.
        name: String,
    },
    /// What is said of a virtual host.
    VhostDetails {
        /// The virtual host.
        vhost: String,
        /// What is said of it from now on.
        details: VhostDetails,
    },
    /// A user.
    User(User),
    /// What a user may do in a virtual host.
    Permission(Permission),
    /// What routing keys a user may use with a topic exchange.
    TopicPermission(TopicPermission),
    /// An exchange.
    Exchange(DeclareExchange),
    /// A queue.
    Queue(DeclareQueue),
    /// A binding.
    Binding(Binding),
    /// A policy or an operator policy.
    Policy(Policy),
    /// A global parameter.
    GlobalParameter {
        /// Name.
        name: String,
        /// JSON.
        value: String,
    },
    /// A parameter of a virtual host.
    Parameter {
        /// Which one.
        parameter: ParameterKey,
        /// JSON.
        value: String,
    },
    /// A limit of a virtual host, or that it has none.
    VhostLimit {
        /// The virtual host.
        vhost: String,
        /// Which limit.
        limit: VhostLimit,
        /// How many; a negative number sets no bound.
        value: Option<i64>,
    },
    /// A limit of a user, or that it has none.
    UserLimit {
        /// The user.
        user: String,
        /// Which limit.
        limit: UserLimit,
        /// How many; a negative number sets no bound.
        value: Option<i64>,
    },
}

/// The definition that does what a command does. A command that defines nothing is given back.
impl TryFrom<Command> for Definition {
    type Error = Box<Command>;

    fn try_from(command: Command) -> Result<Self, Box<Command>> {
        Ok(match command {
            Command::PutVhost { name } => Self::Vhost { name },
            Command::SetVhostDetails { vhost, details } => Self::VhostDetails { vhost, details },
            Command::PutUser(user) => Self::User(user),
            Command::SetPermission(permission) => Self::Permission(permission),
            Command::SetTopicPermission(permission) => Self::TopicPermission(permission),
            Command::DeclareExchange(declare) => Self::Exchange(declare),
            Command::DeclareQueue(declare) => Self::Queue(declare),
            Command::Bind(binding) => Self::Binding(binding),
            Command::PutPolicy(policy) => Self::Policy(policy),
            Command::PutGlobalParameter { name, value } => Self::GlobalParameter { name, value },
            Command::PutParameter { parameter, value } => Self::Parameter { parameter, value },
            Command::SetVhostLimit {
                vhost,
                limit,
                value,
            } => Self::VhostLimit {
                vhost,
                limit,
                value,
            },
            Command::SetUserLimit { user, limit, value } => Self::UserLimit { user, limit, value },
            Command::FoundCluster { .. }
            | Command::NodeUp(_)
            | Command::NodeDown { .. }
            | Command::NodeForgotten { .. }
            | Command::DeleteVhost { .. }
            | Command::DeleteUser { .. }
            | Command::ClearPermission { .. }
            | Command::DeleteExchange { .. }
            | Command::DeleteQueue { .. }
            | Command::Unbind(_)
            | Command::SessionClosed { .. }
            | Command::MoveShard { .. }
            | Command::PlaceShards { .. }
            | Command::DeletePolicy { .. }
            | Command::DeleteGlobalParameter { .. }
            | Command::ClearTopicPermissions { .. }
            | Command::DrainNode { .. }
            | Command::DeleteParameter(_)
            | Command::Import { .. }
            | Command::RaiseLevel { .. } => return Err(Box::new(command)),
        })
    }
}

/// What it is about, for people.
impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vhost { name } => write!(f, "vhost '{name}'"),
            Self::VhostDetails { vhost, .. } => write!(f, "vhost '{vhost}'"),
            Self::User(user) => write!(f, "user '{}'", user.name),
            Self::Permission(Permission { user, vhost, .. }) => {
                write!(f, "the permission of user '{user}' in vhost '{vhost}'")
            }
            Self::TopicPermission(TopicPermission { user, vhost, .. }) => {
                write!(
                    f,
                    "the topic permission of user '{user}' in vhost '{vhost}'"
                )
            }
            Self::Exchange(exchange) => {
                let DeclareExchange { name, vhost, .. } = exchange;
                write!(f, "exchange '{name}' in vhost '{vhost}'")
            }
            Self::Queue(DeclareQueue { name, vhost, .. }) => {
                write!(f, "queue '{name}' in vhost '{vhost}'")
            }
            Self::Binding(binding) => {
                let (Destination::Queue(name) | Destination::Exchange(name)) = &binding.destination;
                let Binding { source, vhost, .. } = binding;
                write!(
                    f,
                    "the binding from '{source}' to '{name}' in vhost '{vhost}'"
                )
            }
            Self::Policy(policy) => {
                let kind = if policy.operator {
                    "operator policy"
                } else {
                    "policy"
                };
                write!(f, "{kind} '{}' in vhost '{}'", policy.name, policy.vhost)
            }
            Self::GlobalParameter { name, .. } => write!(f, "global parameter '{name}'"),
            Self::Parameter { parameter, .. } => {
                let ParameterKey {
                    vhost,
                    component,
                    name,
                } = parameter;
                write!(
                    f,
                    "parameter '{name}' of component '{component}' in vhost '{vhost}'"
                )
            }
            Self::VhostLimit { vhost, .. } => write!(f, "a limit of vhost '{vhost}'"),
            Self::UserLimit { user, .. } => write!(f, "a limit of user '{user}'"),
        }
    }
}
