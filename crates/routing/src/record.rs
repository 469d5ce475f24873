//! Records: the table's stored form, one record a definition.
//!
//! A key is a kind octet and the names that identify the definition, written so that keys sort as the names do: each name's zero bytes are
//! followed by 0xff, and each name ends with two zero bytes. A value starts with its version. Kinds are numbered so that, in key order, what a
//! definition refers to comes before it. Numbers are big endian.
//! The digest is taken over these bytes, so a record has exactly one form.

use std::borrow::Cow;
use warren_model::command::{
    ApplyTo, ParameterKey, PasswordHashing, Permission, Place, Policy, TopicPermission, User,
    UserLimit, VhostDetails, VhostLimit,
};
use warren_model::{Incarnation, Level, NodeId, QueueId, SessionId, ShardId};

use crate::limits::Limits;
use crate::members::{NodeRecord, Placed};

/// The only version of the values so far.
const VERSION: u8 = 1;

/// First octet of a key.
pub(crate) mod kind {
    pub const CLUSTER: u8 = 1;
    pub const EPOCH: u8 = 2;
    pub const NODE: u8 = 3;
    pub const SHARD: u8 = 4;
    pub const USER: u8 = 5;
    pub const VHOST: u8 = 6;
    pub const PERMISSION: u8 = 7;
    pub const EXCHANGE: u8 = 8;
    pub const QUEUE: u8 = 9;
    pub const BINDING: u8 = 10;
    pub const POLICY: u8 = 11;
    pub const GLOBAL: u8 = 12;
    pub const TOPIC_PERMISSION: u8 = 13;
    pub const PLACEMENT: u8 = 14;
    pub const DRAINING: u8 = 15;
    pub const VHOST_LIMITS: u8 = 16;
    pub const USER_LIMITS: u8 = 17;
    pub const VHOST_DETAILS: u8 = 18;
    pub const PARAMETER: u8 = 19;
    pub const LEVEL: u8 = 20;
}

/// Records that do not make a table: written by a newer release, damaged, or not a complete set.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadTable {
    /// The value's version is unknown.
    #[error(
        "routing record {key} has version {version}, this release knows version 1: it was written by a newer release"
    )]
    Version {
        /// The record's key, escaped.
        key: String,
        /// Its version.
        version: u8,
    },
    /// The bytes are not those of any record.
    #[error("routing record {key} is damaged: {what}")]
    Damaged {
        /// The record's key, escaped.
        key: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It refers to a definition that is not there, or stands there twice.
    #[error("routing record {key} does not fit the others: {what}")]
    Unfit {
        /// The record's key, escaped.
        key: String,
        /// What is missing or doubled.
        what: &'static str,
    },
}

/// A decoded record.
pub(crate) enum Record<'a> {
    Cluster {
        id: u128,
        shards: u16,
    },
    Epoch(u64),
    Node(NodeRecord),
    Shard(ShardId, NodeId),
    Placement(ShardId, Placed),
    User(User),
    Vhost(String),
    Permission(Permission),
    Exchange {
        vhost: Cow<'a, str>,
        name: String,
        kind: &'a str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: &'a [u8],
    },
    Queue {
        vhost: Cow<'a, str>,
        name: String,
        queue: QueueValue<'a>,
    },
    Binding(BindingKey<'a>),
    Policy(Policy),
    Global {
        name: String,
        value: String,
    },
    TopicPermission(TopicPermission),
    Draining(NodeId),
    VhostLimits(String, Limits<VhostLimit>),
    UserLimits(String, Limits<UserLimit>),
    VhostDetails(String, VhostDetails),
    Parameter(ParameterKey, String),
    Level(Level),
}

#[derive(Clone, Copy)]
pub(crate) struct QueueValue<'a> {
    pub id: QueueId,
    pub place: Place,
    pub durable: bool,
    pub auto_delete: bool,
    pub exclusive: Option<SessionId>,
    pub arguments: &'a [u8],
}

pub(crate) struct BindingKey<'a> {
    pub vhost: Cow<'a, str>,
    pub source: Cow<'a, str>,
    pub to_exchange: bool,
    pub destination: Cow<'a, str>,
    pub key: Cow<'a, [u8]>,
    pub arguments: Cow<'a, [u8]>,
}

pub(crate) fn cluster_key() -> Vec<u8> {
    vec![kind::CLUSTER]
}

pub(crate) fn cluster_value(id: u128, shards: u16) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&shards.to_be_bytes());
    out
}

pub(crate) fn epoch_key() -> Vec<u8> {
    vec![kind::EPOCH]
}

pub(crate) fn epoch_value(epoch: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&epoch.to_be_bytes());
    out
}

pub(crate) fn level_key() -> Vec<u8> {
    vec![kind::LEVEL]
}

pub(crate) fn level_value(level: Level) -> Vec<u8> {
    vec![VERSION, level.0]
}

pub(crate) fn node_key(node: NodeId) -> Vec<u8> {
    let mut out = vec![kind::NODE];
    out.extend_from_slice(&node.0.to_be_bytes());
    out
}

pub(crate) fn node_value(node: &NodeRecord) -> Vec<u8> {
    let mut out = vec![VERSION, u8::from(node.up)];
    out.extend_from_slice(&node.incarnation.0.to_be_bytes());
    for text in [&node.name, &node.address, &node.amqp, &node.http] {
        put_sized(&mut out, text.as_bytes());
    }
    out
}

pub(crate) fn shard_key(shard: ShardId) -> Vec<u8> {
    let mut out = vec![kind::SHARD];
    out.extend_from_slice(&shard.0.to_be_bytes());
    out
}

pub(crate) fn shard_value(node: NodeId) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.extend_from_slice(&node.0.to_be_bytes());
    out
}

pub(crate) fn placement_key(shard: ShardId) -> Vec<u8> {
    let mut out = vec![kind::PLACEMENT];
    out.extend_from_slice(&shard.0.to_be_bytes());
    out
}

pub(crate) fn placement_value(placed: &Placed) -> Vec<u8> {
    let mut out = vec![VERSION];
    for nodes in [&placed.founders, &placed.replicas] {
        out.extend_from_slice(&(nodes.len() as u16).to_be_bytes());
        for node in nodes {
            out.extend_from_slice(&node.0.to_be_bytes());
        }
    }
    out
}

pub(crate) fn draining_key(node: NodeId) -> Vec<u8> {
    let mut out = vec![kind::DRAINING];
    out.extend_from_slice(&node.0.to_be_bytes());
    out
}

pub(crate) fn draining_value() -> Vec<u8> {
    vec![VERSION]
}

pub(crate) fn user_key(name: &str) -> Vec<u8> {
    key(kind::USER, &[name])
}

pub(crate) fn user_value(user: &User) -> Vec<u8> {
    let hashing = match user.hashing {
        PasswordHashing::SaltedSha256 => 1,
        PasswordHashing::SaltedSha512 => 2,
        PasswordHashing::Argon2id => 3,
    };
    let mut out = vec![VERSION, hashing];
    put_sized(&mut out, &user.password_hash);
    for tag in &user.tags {
        put_sized(&mut out, tag.as_bytes());
    }
    out
}

pub(crate) fn vhost_key(name: &str) -> Vec<u8> {
    key(kind::VHOST, &[name])
}

pub(crate) fn vhost_value() -> Vec<u8> {
    vec![VERSION]
}

pub(crate) fn permission_key(user: &str, vhost: &str) -> Vec<u8> {
    key(kind::PERMISSION, &[user, vhost])
}

pub(crate) fn permission_value(permission: &Permission) -> Vec<u8> {
    let mut out = vec![VERSION];
    for pattern in [&permission.configure, &permission.write, &permission.read] {
        put_sized(&mut out, pattern.as_bytes());
    }
    out
}

pub(crate) fn exchange_key(vhost: &str, name: &str) -> Vec<u8> {
    key(kind::EXCHANGE, &[vhost, name])
}

pub(crate) fn exchange_value(
    type_name: &str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: &[u8],
) -> Vec<u8> {
    let flags = u8::from(durable) | u8::from(auto_delete) << 1 | u8::from(internal) << 2;
    let mut out = vec![VERSION, flags];
    put_sized(&mut out, type_name.as_bytes());
    out.extend_from_slice(arguments);
    out
}

pub(crate) fn queue_key(vhost: &str, name: &str) -> Vec<u8> {
    key(kind::QUEUE, &[vhost, name])
}

pub(crate) fn queue_value(queue: &QueueValue<'_>) -> Vec<u8> {
    let flags = u8::from(queue.durable)
        | u8::from(queue.auto_delete) << 1
        | u8::from(queue.exclusive.is_some()) << 2;
    let mut out = vec![VERSION, flags];
    out.extend_from_slice(&queue.id.0.to_be_bytes());
    match queue.place {
        Place::Shard(shard) => {
            out.push(0);
            out.extend_from_slice(&shard.0.to_be_bytes());
        }
        Place::Node(node, incarnation) => {
            out.push(1);
            out.extend_from_slice(&node.0.to_be_bytes());
            out.extend_from_slice(&incarnation.0.to_be_bytes());
        }
    }
    if let Some(session) = queue.exclusive {
        out.extend_from_slice(&session.node.0.to_be_bytes());
        out.extend_from_slice(&session.incarnation.0.to_be_bytes());
        out.extend_from_slice(&session.number.to_be_bytes());
    }
    out.extend_from_slice(queue.arguments);
    out
}

pub(crate) fn binding_key(binding: &BindingKey<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(
        12 + binding.vhost.len()
            + binding.source.len()
            + binding.destination.len()
            + binding.key.len()
            + binding.arguments.len(),
    );
    out.push(kind::BINDING);
    put_name(&mut out, binding.vhost.as_bytes());
    put_name(&mut out, binding.source.as_bytes());
    out.push(u8::from(binding.to_exchange));
    put_name(&mut out, binding.destination.as_bytes());
    put_name(&mut out, &binding.key);
    put_name(&mut out, &binding.arguments);
    out
}

pub(crate) fn binding_value() -> Vec<u8> {
    vec![VERSION]
}

pub(crate) fn policy_key(vhost: &str, operator: bool, name: &str) -> Vec<u8> {
    let mut out = key(kind::POLICY, &[vhost]);
    out.push(u8::from(operator));
    put_name(&mut out, name.as_bytes());
    out
}

pub(crate) fn policy_value(policy: &Policy) -> Vec<u8> {
    let apply_to = match policy.apply_to {
        ApplyTo::All => 0,
        ApplyTo::Exchanges => 1,
        ApplyTo::Queues => 2,
        ApplyTo::ClassicQueues => 3,
        ApplyTo::QuorumQueues => 4,
        ApplyTo::Streams => 5,
    };
    let mut out = vec![VERSION, apply_to];
    out.extend_from_slice(&policy.priority.to_be_bytes());
    put_sized(&mut out, policy.pattern.as_bytes());
    out.extend_from_slice(&policy.definition);
    out
}

pub(crate) fn topic_permission_key(user: &str, vhost: &str, exchange: &str) -> Vec<u8> {
    key(kind::TOPIC_PERMISSION, &[user, vhost, exchange])
}

pub(crate) fn topic_permission_value(permission: &TopicPermission) -> Vec<u8> {
    let mut out = vec![VERSION];
    for pattern in [&permission.write, &permission.read] {
        put_sized(&mut out, pattern.as_bytes());
    }
    out
}

pub(crate) fn global_key(name: &str) -> Vec<u8> {
    key(kind::GLOBAL, &[name])
}

pub(crate) fn global_value(value: &str) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_sized(&mut out, value.as_bytes());
    out
}

pub(crate) fn vhost_limits_key(vhost: &str) -> Vec<u8> {
    key(kind::VHOST_LIMITS, &[vhost])
}

pub(crate) fn vhost_limits_value(limits: &Limits<VhostLimit>) -> Vec<u8> {
    limits_value(limits, |limit| match limit {
        VhostLimit::MaxConnections => 1,
        VhostLimit::MaxQueues => 2,
    })
}

pub(crate) fn user_limits_key(user: &str) -> Vec<u8> {
    key(kind::USER_LIMITS, &[user])
}

pub(crate) fn user_limits_value(limits: &Limits<UserLimit>) -> Vec<u8> {
    limits_value(limits, |limit| match limit {
        UserLimit::MaxConnections => 1,
        UserLimit::MaxChannels => 2,
    })
}

pub(crate) fn parameter_key(parameter: &ParameterKey) -> Vec<u8> {
    let ParameterKey {
        vhost,
        component,
        name,
    } = parameter;
    key(kind::PARAMETER, &[vhost, component, name])
}

pub(crate) fn vhost_details_key(vhost: &str) -> Vec<u8> {
    key(kind::VHOST_DETAILS, &[vhost])
}

pub(crate) fn vhost_details_value(details: &VhostDetails) -> Vec<u8> {
    let mut out = vec![VERSION];
    // No type has an empty name.
    let default = details.default_queue_type.as_deref().unwrap_or_default();
    put_sized(&mut out, default.as_bytes());
    put_sized(&mut out, details.description.as_bytes());
    for tag in &details.tags {
        put_sized(&mut out, tag.as_bytes());
    }
    out
}

fn limits_value<L: Copy>(limits: &Limits<L>, code: impl Fn(L) -> u8) -> Vec<u8> {
    let mut out = vec![VERSION];
    for (limit, value) in limits {
        out.push(code(*limit));
        out.extend_from_slice(&value.to_be_bytes());
    }
    out
}

fn key(kind: u8, names: &[&str]) -> Vec<u8> {
    let mut out = vec![kind];
    for name in names {
        put_name(&mut out, name.as_bytes());
    }
    out
}

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    for byte in name {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

impl<'a> Record<'a> {
    /// Reads a record; what it says of others is not checked here.
    pub fn decode(key: &'a [u8], value: &'a [u8]) -> Result<Self, BadTable> {
        let damaged = |what| BadTable::Damaged {
            key: key.escape_ascii().to_string(),
            what,
        };
        match value.first() {
            None => return Err(damaged("it has no value")),
            Some(&VERSION) => {}
            Some(&version) => {
                return Err(BadTable::Version {
                    key: key.escape_ascii().to_string(),
                    version,
                });
            }
        }
        let (mut k, mut v) = (Reader(key), Reader(&value[1..]));
        let record = read(&mut k, &mut v)
            .ok_or_else(|| damaged("it is cut short or holds an unknown code"))?;
        if !k.0.is_empty() || !v.0.is_empty() {
            return Err(damaged("something follows its end"));
        }
        Ok(record)
    }
}

fn read<'a>(k: &mut Reader<'a>, v: &mut Reader<'a>) -> Option<Record<'a>> {
    let record = match k.u8()? {
        kind::CLUSTER => Record::Cluster {
            id: u128::from_be_bytes(v.array()?),
            shards: v.u16()?,
        },
        kind::EPOCH => Record::Epoch(v.u64()?),
        kind::LEVEL => Record::Level(Level(v.u8()?)),
        kind::NODE => Record::Node(read_node(NodeId(k.u64()?), v)?),
        kind::SHARD => Record::Shard(ShardId(k.u16()?), NodeId(v.u64()?)),
        kind::PLACEMENT => {
            let mut nodes = || {
                (0..v.u16()?)
                    .map(|_| v.u64().map(NodeId))
                    .collect::<Option<_>>()
            };
            let (founders, replicas) = (nodes()?, nodes()?);
            Record::Placement(ShardId(k.u16()?), Placed { founders, replicas })
        }
        kind::DRAINING => Record::Draining(NodeId(k.u64()?)),
        kind::USER => Record::User(read_user(k.text()?.into_owned(), v)?),
        kind::VHOST => Record::Vhost(k.text()?.into_owned()),
        kind::PERMISSION => Record::Permission(Permission {
            user: k.text()?.into_owned(),
            vhost: k.text()?.into_owned(),
            configure: v.sized_text()?,
            write: v.sized_text()?,
            read: v.sized_text()?,
        }),
        kind::EXCHANGE => {
            let (vhost, name) = (k.text()?, k.text()?.into_owned());
            let flags = v.flags()?;
            let kind = std::str::from_utf8(v.sized()?).ok()?;
            Record::Exchange {
                vhost,
                name,
                kind,
                durable: flags[0],
                auto_delete: flags[1],
                internal: flags[2],
                arguments: v.rest(),
            }
        }
        kind::QUEUE => Record::Queue {
            vhost: k.text()?,
            name: k.text()?.into_owned(),
            queue: read_queue(v)?,
        },
        kind::BINDING => Record::Binding(BindingKey {
            vhost: k.text()?,
            source: k.text()?,
            to_exchange: k.bool()?,
            destination: k.text()?,
            key: k.name()?,
            arguments: k.name()?,
        }),
        kind::POLICY => Record::Policy(read_policy(k, v)?),
        kind::TOPIC_PERMISSION => Record::TopicPermission(TopicPermission {
            user: k.text()?.into_owned(),
            vhost: k.text()?.into_owned(),
            exchange: k.text()?.into_owned(),
            write: v.sized_text()?,
            read: v.sized_text()?,
        }),
        kind::VHOST_LIMITS => Record::VhostLimits(
            k.text()?.into_owned(),
            read_limits(v, |code| match code {
                1 => Some(VhostLimit::MaxConnections),
                2 => Some(VhostLimit::MaxQueues),
                _ => None,
            })?,
        ),
        kind::USER_LIMITS => Record::UserLimits(
            k.text()?.into_owned(),
            read_limits(v, |code| match code {
                1 => Some(UserLimit::MaxConnections),
                2 => Some(UserLimit::MaxChannels),
                _ => None,
            })?,
        ),
        kind::VHOST_DETAILS => Record::VhostDetails(k.text()?.into_owned(), read_vhost_details(v)?),
        kind::PARAMETER => {
            let parameter = ParameterKey {
                vhost: k.text()?.into_owned(),
                component: k.text()?.into_owned(),
                name: k.text()?.into_owned(),
            };
            Record::Parameter(parameter, v.sized_text()?)
        }
        kind::GLOBAL => Record::Global {
            name: k.text()?.into_owned(),
            value: v.sized_text()?,
        },
        _ => return None,
    };
    Some(record)
}

fn read_node(id: NodeId, v: &mut Reader<'_>) -> Option<NodeRecord> {
    Some(NodeRecord {
        id,
        up: v.bool()?,
        incarnation: Incarnation(v.u64()?),
        name: v.sized_text()?,
        address: v.sized_text()?,
        amqp: v.sized_text()?,
        http: v.sized_text()?,
    })
}

fn read_policy(k: &mut Reader<'_>, v: &mut Reader<'_>) -> Option<Policy> {
    let (vhost, operator) = (k.text()?.into_owned(), k.bool()?);
    let name = k.text()?.into_owned();
    let apply_to = match v.u8()? {
        0 => ApplyTo::All,
        1 => ApplyTo::Exchanges,
        2 => ApplyTo::Queues,
        3 => ApplyTo::ClassicQueues,
        4 => ApplyTo::QuorumQueues,
        5 => ApplyTo::Streams,
        _ => return None,
    };
    Some(Policy {
        vhost,
        operator,
        name,
        apply_to,
        priority: i64::from_be_bytes(v.array()?),
        pattern: v.sized_text()?,
        definition: v.rest().to_vec(),
    })
}

/// Limits in the order of their codes, at least one.
fn read_limits<L: Ord + Copy>(
    v: &mut Reader<'_>,
    limit: impl Fn(u8) -> Option<L>,
) -> Option<Limits<L>> {
    let mut limits = Limits::new();
    let mut last = 0;
    while !v.0.is_empty() {
        let code = v.u8()?;
        if code <= last {
            return None;
        }
        last = code;
        limits.insert(limit(code)?, i64::from_be_bytes(v.array()?));
    }
    (!limits.is_empty()).then_some(limits)
}

fn read_vhost_details(v: &mut Reader<'_>) -> Option<VhostDetails> {
    let (default, description) = (v.sized_text()?, v.sized_text()?);
    let mut tags = Vec::new();
    while !v.0.is_empty() {
        tags.push(v.sized_text()?);
    }
    Some(VhostDetails {
        description,
        tags,
        default_queue_type: (!default.is_empty()).then_some(default),
    })
}

fn read_user(name: String, v: &mut Reader<'_>) -> Option<User> {
    let hashing = match v.u8()? {
        1 => PasswordHashing::SaltedSha256,
        2 => PasswordHashing::SaltedSha512,
        3 => PasswordHashing::Argon2id,
        _ => return None,
    };
    let password_hash = v.sized()?.to_vec();
    let mut tags = Vec::new();
    while !v.0.is_empty() {
        tags.push(v.sized_text()?);
    }
    Some(User {
        name,
        password_hash,
        hashing,
        tags,
    })
}

fn read_queue<'a>(v: &mut Reader<'a>) -> Option<QueueValue<'a>> {
    let [durable, auto_delete, exclusive] = v.flags()?;
    let id = QueueId(v.u64()?);
    let place = match v.u8()? {
        0 => Place::Shard(ShardId(v.u16()?)),
        1 => Place::Node(NodeId(v.u64()?), Incarnation(v.u64()?)),
        _ => return None,
    };
    let exclusive = match exclusive {
        false => None,
        true => Some(SessionId {
            node: NodeId(v.u64()?),
            incarnation: Incarnation(v.u64()?),
            number: v.u64()?,
        }),
    };
    Some(QueueValue {
        id,
        place,
        durable,
        auto_delete,
        exclusive,
        arguments: v.rest(),
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Three flags in one octet, lowest bit first.
    fn flags(&mut self) -> Option<[bool; 3]> {
        let flags = self.u8()?;
        (flags < 8).then_some([flags & 1 != 0, flags & 2 != 0, flags & 4 != 0])
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn sized(&mut self) -> Option<&'a [u8]> {
        let len = u32::from_be_bytes(self.array()?) as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn sized_text(&mut self) -> Option<String> {
        String::from_utf8(self.sized()?.to_vec()).ok()
    }

    /// A name of a key, up to its end mark.
    fn name(&mut self) -> Option<Cow<'a, [u8]>> {
        let bytes = self.0;
        let first = bytes.iter().position(|byte| *byte == 0)?;
        if *bytes.get(first + 1)? == 0 {
            self.0 = &bytes[first + 2..];
            return Some(Cow::Borrowed(&bytes[..first]));
        }
        let mut name = Vec::new();
        let mut at = 0;
        loop {
            match (*bytes.get(at)?, bytes.get(at + 1)) {
                (0, Some(0)) => break,
                (0, Some(0xff)) => {
                    name.push(0);
                    at += 2;
                }
                (0, _) => return None,
                (byte, _) => {
                    name.push(byte);
                    at += 1;
                }
            }
        }
        self.0 = &bytes[at + 2..];
        Some(Cow::Owned(name))
    }

    fn text(&mut self) -> Option<Cow<'a, str>> {
        match self.name()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }
}
