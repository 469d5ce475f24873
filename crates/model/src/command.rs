//! Commands: every change of the replicated table. They are the entries of the metadata log, so their archived form is a stored format.
//!
//! `arguments` are the raw bytes of an AMQP field table's entries (without its length), as the client sent them, already checked for form.
//! Names are UTF-8 of at most 255 bytes; routing and binding keys are any bytes, at most 255.

use crate::definition::Definition;
use crate::ids::{Incarnation, NodeId, QueueId, SessionId, ShardId};
use rkyv::{Archive, Deserialize, Serialize};

/// Queues that one import may declare. What an entry of the log creates is numbered with 16 bits; other commands of the entry need numbers, too.
pub const IMPORTED_QUEUES_MAX: usize = 50_000;

/// A change of the replicated table.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// First command of a cluster: its identity and its fixed number of shards. A second one is refused.
    FoundCluster {
        /// Identity of the cluster, drawn by its founder.
        cluster: u128,
        /// Number of shards, at least 1; never changes.
        shards: u16,
    },
    /// A node is up under an incarnation: new nodes are added, a known one gets its new address and incarnation.
    NodeUp(NodeUp),
    /// A node's incarnation has ended (its lease ran out and it was not renewed): its exclusive and non-durable queues are deleted.
    NodeDown {
        /// The node.
        node: NodeId,
        /// The incarnation that ended: ignored if the node is up under a later one.
        incarnation: Incarnation,
    },
    /// A node left for good, or was replaced.
    NodeForgotten {
        /// The node.
        node: NodeId,
    },
    /// Creates a virtual host with its pre-declared exchanges. An existing one is fine.
    PutVhost {
        /// Name.
        name: String,
    },
    /// Deletes a virtual host and all that is in it.
    DeleteVhost {
        /// Name.
        name: String,
    },
    /// Creates or replaces a user.
    PutUser(User),
    /// Deletes a user and its permissions.
    DeleteUser {
        /// Name.
        name: String,
    },
    /// Creates or replaces what a user may do in a virtual host.
    SetPermission(Permission),
    /// Takes all permissions of a user in a virtual host away.
    ClearPermission {
        /// The user.
        user: String,
        /// The virtual host.
        vhost: String,
    },
    /// exchange.declare that is not passive.
    DeclareExchange(DeclareExchange),
    /// exchange.delete.
    DeleteExchange {
        /// Virtual host.
        vhost: String,
        /// Name.
        name: String,
        /// Refuse (406) while it is the source of a binding.
        if_unused: bool,
    },
    /// queue.declare that is not passive.
    DeclareQueue(DeclareQueue),
    /// queue.delete by name. What `if-unused` and `if-empty` ask is settled with the queue's owner before this is proposed.
    DeleteQueue {
        /// Virtual host.
        vhost: String,
        /// Name.
        name: String,
        /// When given, only this life of the queue is meant; another one is left alone (outcome as for a missing queue).
        only: Option<QueueId>,
        /// Who asks: an exclusive queue of another session is refused (405).
        session: SessionId,
    },
    /// queue.bind and exchange.bind.
    Bind(Binding),
    /// queue.unbind and exchange.unbind.
    Unbind(Binding),
    /// A session has ended: its exclusive queues are deleted.
    SessionClosed {
        /// The session.
        session: SessionId,
    },
    /// A shard's owner changes (leadership handed over).
    MoveShard {
        /// The shard.
        shard: ShardId,
        /// Its new owner; must be up.
        to: NodeId,
    },
    /// Says which nodes are to hold replicas of shards. The first placement of a shard founds its group.
    PlaceShards {
        /// What changes; other shards stay as they are.
        placements: Vec<Placement>,
    },
    /// Creates or replaces a policy or an operator policy. What it applies to follows at once.
    PutPolicy(Policy),
    /// Takes a policy away. One that is not there is fine.
    DeletePolicy {
        /// Virtual host.
        vhost: String,
        /// Whether it is an operator policy.
        operator: bool,
        /// Name.
        name: String,
    },
    /// Creates or replaces a global parameter.
    PutGlobalParameter {
        /// Name.
        name: String,
        /// JSON.
        value: String,
    },
    /// Takes a global parameter away. One that is not there is fine.
    DeleteGlobalParameter {
        /// Name.
        name: String,
    },
    /// Creates or replaces what routing keys a user may use with a topic exchange.
    SetTopicPermission(TopicPermission),
    /// Takes topic permissions of a user in a virtual host away.
    ClearTopicPermissions {
        /// The user.
        user: String,
        /// The virtual host.
        vhost: String,
        /// Of this exchange; of all if none is named.
        exchange: Option<String>,
    },
    /// Says whether a node is to be emptied: nothing more is placed on it, and the replicas and leaderships that it has go to the others.
    DrainNode {
        /// The node.
        node: NodeId,
        /// Whether it is drained from now on, or takes its share again.
        draining: bool,
    },
    /// Replaces what is said of a virtual host.
    SetVhostDetails {
        /// The virtual host.
        vhost: String,
        /// What is said of it from now on.
        details: VhostDetails,
    },
    /// Creates or replaces a parameter of a virtual host.
    PutParameter {
        /// Which one.
        parameter: ParameterKey,
        /// JSON.
        value: String,
    },
    /// Takes a parameter away. One that is not there is fine.
    DeleteParameter(ParameterKey),
    /// Sets a limit of a virtual host, or takes it away. It holds for what comes from then on.
    SetVhostLimit {
        /// The virtual host.
        vhost: String,
        /// Which limit.
        limit: VhostLimit,
        /// How many; a negative number sets no bound.
        value: Option<i64>,
    },
    /// Sets a limit of a user, or takes it away. It holds for what comes from then on.
    SetUserLimit {
        /// The user.
        user: String,
        /// Which limit.
        limit: UserLimit,
        /// How many; a negative number sets no bound.
        value: Option<i64>,
    },
    /// Defines many things in their order: all of them, or, if one is refused, none.
    Import {
        /// At most [`IMPORTED_QUEUES_MAX`] queues are among them.
        definitions: Vec<Definition>,
    },
    /// All nodes know this level: what it has brought may be written from now on. One that is not beyond the cluster's changes nothing.
    RaiseLevel {
        /// A [`Level`](crate::Level).
        level: u8,
    },
}

/// What is said of a virtual host.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct VhostDetails {
    /// What it is for.
    pub description: String,
    /// Tags, for people.
    pub tags: Vec<String>,
    /// The type of queues whose declaration names none, where such a queue can be of that type.
    pub default_queue_type: Option<String>,
}

/// What identifies a parameter of a virtual host.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ParameterKey {
    /// The virtual host.
    pub vhost: String,
    /// Whose parameter it is: a plugin's, a tool's.
    pub component: String,
    /// Name.
    pub name: String,
}

/// What virtual hosts can have too many of.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VhostLimit {
    /// Client connections.
    MaxConnections,
    /// Queues.
    MaxQueues,
}

/// What users can have too many of.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum UserLimit {
    /// Client connections.
    MaxConnections,
    /// Channels of all their connections.
    MaxChannels,
}

/// Where a shard's replicas are to be.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The shard.
    pub shard: ShardId,
    /// Nodes that are to hold replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
}

/// What routing keys a user may use with one topic exchange; without such a record, any. Patterns are regular expressions in which `{username}` and
/// `{vhost}` stand for what they say.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TopicPermission {
    /// The user.
    pub user: String,
    /// The virtual host.
    pub vhost: String,
    /// The exchange, which need not exist.
    pub exchange: String,
    /// Routing keys that may be published with.
    pub write: String,
    /// Binding keys that may be bound with.
    pub read: String,
}

/// A policy: arguments for all queues and exchanges of a virtual host whose names match. Its name is unique among those of its kind in the virtual host.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Virtual host.
    pub vhost: String,
    /// Whether it is an operator policy, which bounds what policies may set.
    pub operator: bool,
    /// Name.
    pub name: String,
    /// Regular expression over names.
    pub pattern: String,
    /// What it applies to.
    pub apply_to: ApplyTo,
    /// Of several that match the one with the greatest priority applies.
    pub priority: i64,
    /// Raw field table entries.
    pub definition: Vec<u8>,
}

/// What a policy applies to.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ApplyTo {
    /// Queues and exchanges.
    All,
    /// Exchanges.
    Exchanges,
    /// Queues of all types.
    Queues,
    /// Queues of type classic.
    ClassicQueues,
    /// Queues of type quorum.
    QuorumQueues,
    /// Streams.
    Streams,
}

/// A node's incarnation comes into service.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NodeUp {
    /// Identity.
    pub node: NodeId,
    /// Name from its configuration, unique in the cluster among nodes that are not forgotten.
    pub name: String,
    /// QUIC address, `host:port`.
    pub address: String,
    /// AMQP address to show to people, `host:port`.
    pub amqp: String,
    /// HTTP address to show to people, `host:port`.
    pub http: String,
    /// The incarnation.
    pub incarnation: Incarnation,
}

/// A user.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Name.
    pub name: String,
    /// The password's hash in the form that `hashing` names; empty: no password login.
    pub password_hash: Vec<u8>,
    /// How `password_hash` was made.
    pub hashing: PasswordHashing,
    /// Tags (`administrator`, `management`, …).
    pub tags: Vec<String>,
}

/// How a password hash was made.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum PasswordHashing {
    /// RabbitMQ's `rabbit_password_hashing_sha256`: 4 bytes of salt, then SHA-256 of salt and password.
    SaltedSha256,
    /// RabbitMQ's `rabbit_password_hashing_sha512`: 4 bytes of salt, then SHA-512 of salt and password.
    SaltedSha512,
    /// Argon2id, as a PHC string (`$argon2id$v=19$m=…`) with its parameters and its salt.
    Argon2id,
}

/// What a user may do in a virtual host: three regular expressions over resource names, RabbitMQ's form.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Permission {
    /// The user.
    pub user: String,
    /// The virtual host.
    pub vhost: String,
    /// Names that may be declared and deleted.
    pub configure: String,
    /// Names that may be published to.
    pub write: String,
    /// Names that may be consumed from.
    pub read: String,
}

/// exchange.declare.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeclareExchange {
    /// Virtual host.
    pub vhost: String,
    /// Name.
    pub name: String,
    /// Type, as sent (`direct`, `x-consistent-hash`, …).
    pub kind: String,
    /// Survives a restart of the whole cluster.
    pub durable: bool,
    /// Deleted when its last binding as a source goes.
    pub auto_delete: bool,
    /// Cannot be published to by clients.
    pub internal: bool,
    /// Raw field table entries.
    pub arguments: Vec<u8>,
}

/// queue.declare.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeclareQueue {
    /// Virtual host.
    pub vhost: String,
    /// Name; never empty (the session makes the `amq.gen-` names).
    pub name: String,
    /// Survives a restart of the whole cluster.
    pub durable: bool,
    /// Belongs to `session` alone and goes with it.
    pub exclusive: bool,
    /// Deleted when its last consumer goes.
    pub auto_delete: bool,
    /// The name was made by the server, so its `amq.` prefix is allowed.
    pub server_named: bool,
    /// Raw field table entries.
    pub arguments: Vec<u8>,
    /// Who declares.
    pub session: SessionId,
    /// Where its contents are to live, chosen by the proposing node. A place on a node incarnation that is not up is refused as [`crate::Outcome::Retry`].
    pub place: Place,
}

/// Where a queue's contents live.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug,
)]
pub enum Place {
    /// With the owner of a shard, whoever that is at the time.
    Shard(ShardId),
    /// In the memory of one incarnation of one node; gone with it.
    Node(NodeId, Incarnation),
}

/// A binding, by all that identifies it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// Virtual host.
    pub vhost: String,
    /// Source exchange.
    pub source: String,
    /// Destination.
    pub destination: Destination,
    /// Binding key.
    pub key: Vec<u8>,
    /// Raw field table entries.
    pub arguments: Vec<u8>,
    /// Who asks: an exclusive queue of another session is refused (405).
    pub session: SessionId,
}

/// What a binding leads to.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Destination {
    /// A queue, by name.
    Queue(String),
    /// An exchange, by name.
    Exchange(String),
}
