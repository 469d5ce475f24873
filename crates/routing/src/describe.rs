//! What a record says, for people who compare tables: its kind and its fields by name, without secrets.

use crate::record::{BadTable, QueueValue, Record};
use warren_model::NodeId;
use warren_model::command::Place;

/// A record in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDescription {
    /// `vhost`, `user`, `exchange`, `queue`, `binding` and so on.
    pub kind: &'static str,
    /// Name and value of each field; a password's hash is left out.
    pub fields: Vec<(&'static str, String)>,
    /// Raw entries of a field table, where the definition has arguments.
    pub arguments: Option<Vec<u8>>,
}

/// Describes a record of [`Table::records`](crate::Table::records).
///
/// # Errors
/// If it is of an unknown version or damaged.
pub fn describe_record(key: &[u8], value: &[u8]) -> Result<RecordDescription, BadTable> {
    Ok(described(Record::decode(key, value)?))
}

fn described(record: Record<'_>) -> RecordDescription {
    let mut arguments = None;
    let (kind, fields) = match record {
        Record::Cluster { id, shards } => (
            "cluster",
            vec![("id", format!("{id:032x}")), ("shards", shards.to_string())],
        ),
        Record::Epoch(epoch) => ("ring_epoch", vec![("epoch", epoch.to_string())]),
        Record::Level(level) => ("level", vec![("level", level.0.to_string())]),
        Record::Node(node) => (
            "node",
            vec![
                ("name", node.name),
                ("node", node.id.to_string()),
                ("address", node.address),
                ("amqp", node.amqp),
                ("http", node.http),
                ("incarnation", node.incarnation.0.to_string()),
                ("up", node.up.to_string()),
            ],
        ),
        Record::Shard(shard, node) => (
            "shard_given",
            vec![("shard", shard.0.to_string()), ("node", node.to_string())],
        ),
        Record::Placement(shard, placed) => (
            "shard_placement",
            vec![
                ("shard", shard.0.to_string()),
                ("founders", nodes(&placed.founders)),
                ("replicas", nodes(&placed.replicas)),
            ],
        ),
        Record::Draining(node) => ("draining", vec![("node", node.to_string())]),
        Record::User(user) => (
            "user",
            vec![("name", user.name), ("tags", user.tags.join(","))],
        ),
        Record::Vhost(name) => ("vhost", vec![("name", name)]),
        Record::Permission(known) => (
            "permission",
            vec![
                ("user", known.user),
                ("vhost", known.vhost),
                ("configure", known.configure),
                ("write", known.write),
                ("read", known.read),
            ],
        ),
        Record::Exchange {
            vhost,
            name,
            kind,
            durable,
            auto_delete,
            internal,
            arguments: given,
        } => {
            arguments = Some(given.to_vec());
            let fields = vec![
                ("vhost", vhost.into_owned()),
                ("name", name),
                ("type", kind.to_owned()),
                ("durable", durable.to_string()),
                ("auto_delete", auto_delete.to_string()),
                ("internal", internal.to_string()),
            ];
            ("exchange", fields)
        }
        Record::Queue { vhost, name, queue } => {
            arguments = Some(queue.arguments.to_vec());
            let mut fields = vec![("vhost", vhost.into_owned()), ("name", name)];
            fields.extend(of_queue(&queue));
            ("queue", fields)
        }
        Record::Binding(binding) => {
            arguments = Some(binding.arguments.into_owned());
            let kind = if binding.to_exchange {
                "exchange"
            } else {
                "queue"
            };
            let key = String::from_utf8_lossy(&binding.key).into_owned();
            let fields = vec![
                ("vhost", binding.vhost.into_owned()),
                ("source", binding.source.into_owned()),
                ("destination_type", kind.to_owned()),
                ("destination", binding.destination.into_owned()),
                ("routing_key", key),
            ];
            ("binding", fields)
        }
        Record::Policy(policy) => {
            arguments = Some(policy.definition);
            let kind = if policy.operator {
                "operator_policy"
            } else {
                "policy"
            };
            let fields = vec![
                ("vhost", policy.vhost),
                ("name", policy.name),
                ("pattern", policy.pattern),
                ("apply-to", format!("{:?}", policy.apply_to)),
                ("priority", policy.priority.to_string()),
            ];
            (kind, fields)
        }
        Record::Global { name, value } => {
            ("global_parameter", vec![("name", name), ("value", value)])
        }
        Record::TopicPermission(known) => (
            "topic_permission",
            vec![
                ("user", known.user),
                ("vhost", known.vhost),
                ("exchange", known.exchange),
                ("write", known.write),
                ("read", known.read),
            ],
        ),
        Record::VhostLimits(vhost, limits) => (
            "vhost_limits",
            vec![("vhost", vhost), ("limits", format!("{limits:?}"))],
        ),
        Record::UserLimits(user, limits) => (
            "user_limits",
            vec![("user", user), ("limits", format!("{limits:?}"))],
        ),
        Record::VhostDetails(vhost, said) => (
            "vhost_details",
            vec![
                ("vhost", vhost),
                ("description", said.description),
                ("tags", said.tags.join(",")),
                (
                    "default_queue_type",
                    said.default_queue_type.unwrap_or_default(),
                ),
            ],
        ),
        Record::Parameter(parameter, value) => (
            "parameter",
            vec![
                ("vhost", parameter.vhost),
                ("component", parameter.component),
                ("name", parameter.name),
                ("value", value),
            ],
        ),
    };
    RecordDescription {
        kind,
        fields,
        arguments,
    }
}

fn of_queue(queue: &QueueValue<'_>) -> Vec<(&'static str, String)> {
    let place = match queue.place {
        Place::Shard(shard) => format!("shard {}", shard.0),
        Place::Node(node, incarnation) => format!("node {node}, incarnation {}", incarnation.0),
    };
    vec![
        ("id", queue.id.0.to_string()),
        ("place", place),
        ("durable", queue.durable.to_string()),
        ("auto_delete", queue.auto_delete.to_string()),
        ("exclusive", queue.exclusive.is_some().to_string()),
    ]
}

fn nodes(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Applied, Table};
    use warren_model::Command;
    use warren_model::command::{PasswordHashing, User};

    #[test]
    fn every_record_of_a_table_is_described_and_no_hash_is_told() {
        let mut table = Table::new();
        let user = User {
            name: "someone".into(),
            password_hash: b"a secret hash".to_vec(),
            hashing: PasswordHashing::Argon2id,
            tags: vec!["management".into()],
        };
        let commands = [
            Command::FoundCluster {
                cluster: 1,
                shards: 1,
            },
            Command::PutVhost { name: "v".into() },
            Command::PutUser(user),
        ];
        table.apply(1, &commands, &mut Applied::default());
        let all: Vec<RecordDescription> = table
            .records()
            .map(|(key, value)| describe_record(&key, &value).unwrap())
            .collect();
        let fields = vec![("name", "someone".into()), ("tags", "management".into())];
        assert!(all.contains(&RecordDescription {
            kind: "user",
            fields,
            arguments: None,
        }));
        let vhosts = all.iter().filter(|one| one.kind == "vhost").count();
        let exchanges = all.iter().filter(|one| one.kind == "exchange").count();
        assert_eq!((vhosts, exchanges), (2, 12));
        assert!(!format!("{all:?}").contains("secret"));
        assert!(describe_record(b"\xff", b"\x01").is_err());
    }
}
