//! rabbitmqctl's columns: where in the API's answer each is found, or why it is not to be had.

use serde_json::Value;

use super::super::listing;
use crate::failure::Failure;
use crate::output;

/// Where a column comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// The field of that name.
    Same,
    /// Another field.
    Field(&'static str),
    /// Always this.
    Always(&'static str),
    /// Tags in brackets, as rabbitmqctl writes them where it writes no JSON.
    Tags,
    /// It has no equivalent; what there is instead.
    Nothing(&'static str),
}

use Source::{Always, Field, Nothing, Same, Tags};

/// One of rabbitmqctl's lists.
pub struct Listing {
    /// What is shown if nothing is asked for.
    pub usual: &'static [&'static str],
    known: &'static [(&'static str, Source)],
}

const MIRRORS: Source =
    Nothing("no queue is mirrored; `quorum_status QUEUE` shows a queue's replicas");
const REPLICAS: Source = Nothing("`quorum_status QUEUE` shows a queue's replicas");
const NOT_COUNTED: Source = Nothing("it is not counted");

/// `list_queues`.
pub const QUEUES: Listing = Listing {
    usual: &["name", "messages"],
    known: &[
        ("name", Same),
        ("vhost", Same),
        ("type", Same),
        ("durable", Same),
        ("auto_delete", Same),
        ("exclusive", Same),
        ("arguments", Same),
        ("policy", Same),
        ("operator_policy", Same),
        ("effective_policy_definition", Same),
        ("state", Same),
        ("node", Same),
        ("messages_ready", Same),
        ("messages_unacknowledged", Same),
        ("messages", Same),
        ("message_bytes", Same),
        ("message_stats", Same),
        ("consumers", Same),
        ("leader", Field("node")),
        ("pid", Field("node")),
        ("members", REPLICAS),
        ("online", REPLICAS),
        ("slave_pids", MIRRORS),
        ("synchronised_slave_pids", MIRRORS),
        ("mirror_pids", MIRRORS),
        ("synchronised_mirror_pids", MIRRORS),
        ("memory", Nothing("message_bytes has the messages' size")),
        ("owner_pid", Nothing("`connection list` shows connections")),
        (
            "exclusive_consumer_pid",
            Nothing("`list_consumers` shows consumers"),
        ),
        (
            "exclusive_consumer_tag",
            Nothing("`list_consumers` shows consumers"),
        ),
        ("messages_ready_ram", NOT_COUNTED),
        ("messages_unacknowledged_ram", NOT_COUNTED),
        ("messages_ram", NOT_COUNTED),
        ("messages_persistent", NOT_COUNTED),
        ("message_bytes_ready", NOT_COUNTED),
        ("message_bytes_unacknowledged", NOT_COUNTED),
        ("message_bytes_ram", NOT_COUNTED),
        ("message_bytes_persistent", NOT_COUNTED),
        ("head_message_timestamp", NOT_COUNTED),
        ("disk_reads", NOT_COUNTED),
        ("disk_writes", NOT_COUNTED),
        ("consumer_utilisation", NOT_COUNTED),
        ("consumer_capacity", NOT_COUNTED),
    ],
};

/// `list_exchanges`.
pub const EXCHANGES: Listing = Listing {
    usual: &["name", "type"],
    known: &[
        ("name", Same),
        ("vhost", Same),
        ("type", Same),
        ("durable", Same),
        ("auto_delete", Same),
        ("internal", Same),
        ("arguments", Same),
        ("policy", Same),
        ("operator_policy", Same),
        ("effective_policy_definition", Same),
        ("message_stats", Same),
    ],
};

/// `list_bindings`.
pub const BINDINGS: Listing = Listing {
    usual: &[
        "source_name",
        "source_kind",
        "destination_name",
        "destination_kind",
        "routing_key",
        "arguments",
    ],
    known: &[
        ("source_name", Field("source")),
        ("source_kind", Always("exchange")),
        ("destination_name", Field("destination")),
        ("destination_kind", Field("destination_type")),
        ("routing_key", Same),
        ("arguments", Same),
        ("vhost", Same),
        ("source", Same),
        ("destination", Same),
        ("destination_type", Same),
        ("properties_key", Same),
    ],
};

/// `list_connections`.
pub const CONNECTIONS: Listing = Listing {
    usual: &["user", "peer_host", "peer_port", "state"],
    known: &[
        ("pid", Field("name")),
        ("name", Same),
        ("user_provided_name", Same),
        ("node", Same),
        ("type", Same),
        ("host", Same),
        ("port", Same),
        ("peer_host", Same),
        ("peer_port", Same),
        ("protocol", Same),
        ("auth_mechanism", Same),
        ("user", Same),
        ("user_who_performed_action", Same),
        ("vhost", Same),
        ("timeout", Same),
        ("frame_max", Same),
        ("channel_max", Same),
        ("channels", Same),
        ("client_properties", Same),
        ("connected_at", Same),
        ("state", Same),
        ("ssl", Same),
        ("ssl_protocol", Same),
        ("ssl_cipher", Same),
        ("ssl_key_exchange", Same),
        ("ssl_hash", Same),
        ("peer_cert_subject", Same),
        ("peer_cert_issuer", Same),
        ("peer_cert_validity", Same),
        ("recv_oct", Same),
        ("recv_oct_details", Same),
        ("recv_cnt", Same),
        ("send_oct", Same),
        ("send_oct_details", Same),
        ("send_cnt", Same),
        ("send_pend", Same),
        (
            "garbage_collection",
            Nothing("Warren has no garbage collector"),
        ),
        ("reductions", Nothing("there are no Erlang processes")),
    ],
};

/// `list_channels`.
pub const CHANNELS: Listing = Listing {
    usual: &["pid", "user", "consumer_count", "messages_unacknowledged"],
    known: &[
        ("pid", Field("name")),
        ("connection", Field("connection_details.name")),
        ("name", Same),
        ("number", Same),
        ("node", Same),
        ("user", Same),
        ("vhost", Same),
        ("state", Same),
        ("transactional", Same),
        ("confirm", Same),
        ("consumer_count", Same),
        ("messages_unacknowledged", Same),
        ("messages_uncommitted", Same),
        ("acks_uncommitted", Same),
        ("messages_unconfirmed", Same),
        ("prefetch_count", Same),
        ("global_prefetch_count", Same),
        ("message_stats", Same),
        ("connection_details", Same),
        ("reductions", Nothing("there are no Erlang processes")),
    ],
};

/// `list_consumers`.
pub const CONSUMERS: Listing = Listing {
    usual: &[
        "queue_name",
        "channel_pid",
        "consumer_tag",
        "ack_required",
        "prefetch_count",
        "active",
        "arguments",
    ],
    known: &[
        ("queue_name", Field("queue.name")),
        ("channel_pid", Field("channel_details.name")),
        ("consumer_tag", Same),
        ("ack_required", Same),
        ("prefetch_count", Same),
        ("active", Same),
        ("activity_status", Same),
        ("exclusive", Same),
        ("arguments", Same),
        ("queue", Same),
        ("channel_details", Same),
    ],
};

/// `list_vhosts`.
pub const VHOSTS: Listing = Listing {
    usual: &["name"],
    known: &[
        ("name", Same),
        ("tracing", Same),
        ("description", Same),
        ("tags", Tags),
        ("default_queue_type", Same),
        ("metadata", Same),
        ("cluster_state", Nothing("`cluster_status` shows the nodes")),
    ],
};

/// `list_users`.
pub const USERS: Listing = Listing {
    usual: &["user", "tags"],
    known: &[("user", Field("name")), ("tags", Tags)],
};

/// `list_permissions`.
pub const PERMISSIONS: Listing = Listing {
    usual: &["user", "configure", "write", "read"],
    known: &[],
};

/// `list_user_permissions`.
pub const USER_PERMISSIONS: Listing = Listing {
    usual: &["vhost", "configure", "write", "read"],
    known: &[],
};

/// `list_topic_permissions`.
pub const TOPIC_PERMISSIONS: Listing = Listing {
    usual: &["user", "exchange", "write", "read"],
    known: &[],
};

/// `list_user_topic_permissions`.
pub const USER_TOPIC_PERMISSIONS: Listing = Listing {
    usual: &["vhost", "exchange", "write", "read"],
    known: &[],
};

/// `list_policies` and `list_operator_policies`.
pub const POLICIES: Listing = Listing {
    usual: &[
        "vhost",
        "name",
        "pattern",
        "apply-to",
        "definition",
        "priority",
    ],
    known: &[],
};

/// `list_parameters`.
pub const PARAMETERS: Listing = Listing {
    usual: &["component", "name", "value"],
    known: &[],
};

/// `list_global_parameters`.
pub const GLOBAL_PARAMETERS: Listing = Listing {
    usual: &["name", "value"],
    known: &[],
};

/// `list_vhost_limits`.
pub const VHOST_LIMITS: Listing = Listing {
    usual: &["vhost", "limits"],
    known: &[("limits", Field("value"))],
};

/// `list_user_limits`.
pub const USER_LIMITS: Listing = Listing {
    usual: &["user", "limits"],
    known: &[("limits", Field("value"))],
};

/// `list_feature_flags`.
pub const FEATURE_FLAGS: Listing = Listing {
    usual: &["name", "state"],
    known: &[],
};

/// The fields that the rows of a list may have, even if none has them now; of the lists that are empty or lack fields now and then.
pub fn fields(path: &str) -> Vec<&'static str> {
    let lists = [
        ("queues", &QUEUES),
        ("exchanges", &EXCHANGES),
        ("bindings", &BINDINGS),
        ("connections", &CONNECTIONS),
        ("channels", &CHANNELS),
        ("consumers", &CONSUMERS),
    ];
    let of = lists
        .iter()
        .filter(|(kind, _)| path.split('/').any(|part| part == *kind));
    let known = of.flat_map(|(_, listing)| listing.known);
    let same = known.filter(|(_, source)| matches!(source, Same));
    same.map(|(name, _)| *name).collect()
}

impl Listing {
    fn source(&self, column: &str, rows: &[Value]) -> Result<Source, Failure> {
        let known = self.known.iter().find(|(name, _)| *name == column);
        if let Some((_, source)) = known {
            return match source {
                Nothing(instead) => Err(Failure::Usage(format!(
                    "there is no '{column}' in Warren: {instead}"
                ))),
                Same | Field(_) | Always(_) | Tags => Ok(*source),
            };
        }
        let usable = self.known.iter().filter(|(_, s)| !matches!(s, Nothing(_)));
        let names: Vec<&str> = usable
            .map(|(name, _)| *name)
            .chain(self.usual.iter().copied())
            .collect();
        listing::known_column(column, rows, &names)?;
        Ok(Same)
    }

    /// Rows that have these columns by these names. `plain`: for people, and not for JSON.
    pub fn rows(
        &self,
        columns: &[&str],
        rows: &[Value],
        plain: bool,
    ) -> Result<Vec<Value>, Failure> {
        let mut sources = Vec::new();
        for column in columns {
            sources.push((*column, self.source(column, rows)?));
        }
        let shown = rows.iter().map(|row| {
            let fields = sources.iter().map(|(column, source)| {
                let found = |path: &str| output::field(row, path).cloned().unwrap_or_default();
                let value = match source {
                    Same => found(column),
                    Field(path) => found(path),
                    Always(text) => Value::from(*text),
                    Tags if plain => bracketed(&found(column)),
                    Tags => found(column),
                    Nothing(_) => Value::Null,
                };
                ((*column).to_owned(), value)
            });
            Value::Object(fields.collect())
        });
        Ok(shown.collect())
    }
}

fn bracketed(tags: &Value) -> Value {
    let tags: Vec<&str> = tags
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    Value::from(format!("[{}]", tags.join(", ")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn rows_have_rabbitmqctls_names() {
        let binding = json!({"source": "", "destination": "q", "destination_type": "queue", "routing_key": "q", "arguments": {}});
        let shown = BINDINGS.rows(BINDINGS.usual, &[binding], true).unwrap();
        assert_eq!(
            shown,
            [
                json!({"source_name": "", "source_kind": "exchange", "destination_name": "q", "destination_kind": "queue", "routing_key": "q", "arguments": {}})
            ]
        );
        let user = json!({"name": "a", "tags": ["x", "y"]});
        let shown = |plain| {
            USERS
                .rows(USERS.usual, std::slice::from_ref(&user), plain)
                .unwrap()[0]["tags"]
                .clone()
        };
        assert_eq!(
            (shown(true), shown(false)),
            (json!("[x, y]"), json!(["x", "y"]))
        );
    }

    #[test]
    fn what_is_not_there_is_told_with_what_there_is() {
        let why = |listing: &Listing, column: &str| {
            listing.rows(&[column], &[], true).unwrap_err().to_string()
        };
        assert!(why(&QUEUES, "slave_pids").contains("quorum_status"));
        assert!(why(&QUEUES, "mesages").contains("did you mean 'messages'?"));
        assert!(QUEUES.rows(&["policy"], &[], true).is_ok());
    }
}
