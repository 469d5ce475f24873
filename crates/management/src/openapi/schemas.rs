//! Shapes of what is sent and answered, and the meaning of names in paths and parameters after the question mark.
//!
//! Answers have more fields than those that are named here; those that are required are always there.

use super::operations::{Answer, Operation};
use serde_json::{Map, Value, json};

/// What a name in a path stands for.
pub(super) fn meaning(name: &str) -> &'static str {
    match name {
        "vhost" => "A virtual host",
        "user" => "A user",
        "exchange" => "An exchange; amq.default stands for the default exchange",
        "queue" => "A queue",
        "source" => "The exchange that is bound from; amq.default stands for the default exchange",
        "kind" => "q: the destination is a queue; e: it is an exchange",
        "destination" => "The queue or exchange that is bound to",
        "properties_key" => "What tells bindings between the same two ends apart",
        "component" => "The component that a parameter belongs to",
        "node" => "A node",
        "name" => "The name of what the path is about",
        "port" => "A port",
        "protocol" => "A protocol, such as amqp, amqp/ssl or http",
        "within" => "How many units of time",
        "unit" => "The unit of time",
        _ => "",
    }
}

/// What a name in a path looks like.
pub(super) fn of_name(name: &str) -> Value {
    match name {
        "kind" => json!({"type": "string", "enum": ["q", "e"]}),
        "unit" => json!({"type": "string", "enum": ["days", "weeks", "months", "years"]}),
        "within" => json!({"type": "integer", "minimum": 0, "maximum": 4_294_967_295_u64}),
        "port" => json!({"type": "integer", "minimum": 0, "maximum": 65_535}),
        "protocol" | "node" => json!({"type": "string", "minLength": 1}),
        _ => json!({"type": "string", "minLength": 1, "maxLength": 255}),
    }
}

/// What may stand after the question mark.
pub(super) fn query(operation: &Operation) -> Vec<Value> {
    let of = |name: &str, schema: Value, what: &str| json!({"name": name, "in": "query", "schema": schema, "description": what});
    let flag = |name, what| of(name, json!({"type": "boolean"}), what);
    let text = |name, what| of(name, json!({"type": "string"}), what);
    if let Answer::List(_) = operation.answer {
        let names = LISTING.iter().map(|(name, ..)| name);
        return names
            .map(|name| json!({"$ref": format!("#/components/parameters/{name}")}))
            .collect();
    }
    match (operation.method, operation.path) {
        ("get", "/api/overview") => vec![text(
            "columns",
            "Fields to answer, divided by commas; a.b is b within a",
        )],
        ("delete", "/api/queues/{vhost}/{queue}") => vec![
            flag("if-empty", "Only if it has no messages"),
            flag("if-unused", "Only if it has no consumers"),
        ],
        ("delete", "/api/exchanges/{vhost}/{exchange}") => {
            vec![flag("if-unused", "Only if nothing is bound from it")]
        }
        ("get", "/api/definitions" | "/api/definitions/{vhost}" | "/api/all-configuration") => {
            vec![text("download", "The name of a file to save the answer as")]
        }
        ("post", "/api/definitions" | "/api/definitions/{vhost}" | "/api/all-configuration") => {
            vec![
                flag("dry_run", "Only try it, and say what would be declared"),
                flag("report", "Say what is declared"),
                text("ignore", "Kinds to pass over, divided by commas"),
            ]
        }
        ("get", "/api/log") => {
            let whole = |name, what| of(name, json!({"type": "integer", "minimum": 0}), what);
            vec![
                whole("since", "The number of the first line"),
                whole("limit", "How many lines; 100 by default, 1000 at most"),
            ]
        }
        ("post", "/api/cluster/forget/{node}") => vec![flag(
            "force",
            "Also if shards have no majority without it: what is in them is lost",
        )],
        ("get", "/api/routing/explain") => {
            let headers = json!({"type": "array", "items": {"type": "string"}});
            vec![
                text("vhost", "The virtual host; / by default"),
                text("exchange", "The exchange; the default exchange by default"),
                text("routing_key", "The routing key"),
                text("key", "The same, if routing_key is not given"),
                of("header", headers, "NAME=VALUE, any number of times"),
                text(
                    "user",
                    "Whose publish it is: what its permissions refuse is told, and the queues that they leave out",
                ),
            ]
        }
        _ => Vec::new(),
    }
}

/// Parameters of lists: name, type, meaning.
const LISTING: [(&str, &str, &str); 7] = [
    ("page", "integer", "The page, from 1 on"),
    (
        "page_size",
        "integer",
        "Items on a page, 1 to 500; 100 by default",
    ),
    (
        "name",
        "string",
        "On pages: a part of the name, or a regular expression",
    ),
    (
        "use_regex",
        "boolean",
        "Whether name is a regular expression",
    ),
    ("sort", "string", "The field to sort by"),
    ("sort_reverse", "boolean", "Whether to turn the order round"),
    ("columns", "string", "Fields to answer, divided by commas"),
];

pub(super) fn listing_parameters() -> Value {
    let described = LISTING.iter().map(|(name, kind, what)| {
        let schema = match *name {
            "page" => json!({"type": kind, "minimum": 1}),
            "page_size" => json!({"type": kind, "minimum": 1, "maximum": 500}),
            _ => json!({"type": kind}),
        };
        let parameter = json!({"name": name, "in": "query", "schema": schema, "description": what});
        ((*name).to_owned(), parameter)
    });
    Value::Object(described.collect())
}

pub(super) fn responses() -> Value {
    let error = |what: &str| json!({"description": what, "content": {"application/json": {"schema": super::reference("Error")}}});
    json!({
        "Refused": error("Not logged in, or not allowed to"),
        "Error": error("Refused (400, 405, 413), not there (404), or not possible now (408, 503)"),
    })
}

/// The fields that an object always has, `NAME:TYPE`, divided by spaces. A type is a letter: s(tring), n(umber), b(oolean), o(bject), a(rray), x: any of them.
fn object(fields: &str) -> Value {
    let mut properties = Map::new();
    for field in fields.split_whitespace() {
        let (name, kind) = field.split_once(':').unwrap_or((field, "o"));
        let kind = match kind {
            "s" => json!({"type": "string"}),
            "n" => json!({"type": "number"}),
            "b" => json!({"type": "boolean"}),
            "a" => json!({"type": "array", "items": {}}),
            "x" => json!({}),
            _ => json!({"type": "object"}),
        };
        properties.insert(name.to_owned(), kind);
    }
    let required: Vec<&String> = properties.keys().collect();
    if required.is_empty() {
        return json!({"type": "object"});
    }
    json!({"type": "object", "required": required, "properties": properties})
}

/// What a list may be narrowed to by `columns`: then nothing is required.
fn row(fields: &str) -> Value {
    let mut schema = object(fields);
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
    schema
}

pub(super) fn all() -> Value {
    let mut schemas = answered();
    schemas.extend(sent());
    Value::Object(schemas)
}

fn answered() -> Map<String, Value> {
    let objects = [
        ("Error", "error:s reason:s"),
        ("Passed", "status:s"),
        ("Failed", "status:s reason:s"),
        ("Nothing", ""),
        ("Document", "openapi:s info:o paths:o"),
        ("Auth", "oauth_enabled:b"),
        ("Name", "name:s"),
        ("Whoami", "name:s tags:a"),
        ("Routed", "routed:b"),
        (
            "Message",
            "payload:s payload_encoding:s payload_bytes:n redelivered:b exchange:s routing_key:s message_count:n properties:o",
        ),
        ("Membership", "name:s node:s"),
        (
            "Cluster",
            "node:s term:n applied_index:n level:n lease_held:b members:a",
        ),
        (
            "Ring",
            "epoch:n shards:n members:a owners:a placements:a moves:a given:a",
        ),
        ("Plan", "epoch:n moves:a"),
        ("Memory", "memory:x"),
        ("Log", "node:s lines:a next:n lost:n"),
        ("Replicas", "replicas:a"),
        ("Diff", "nodes:a differences:a more:b"),
        ("Digest", "node:s applied_index:n digest:s ring_epoch:n"),
        (
            "Explanation",
            "node:s applied_index:n ring_epoch:n queue_write_checks:b vhost:s exchange:s routing_key:s headers:o queues:a steps:a",
        ),
        (
            "Page",
            "page:n page_size:n page_count:n item_count:n filtered_count:n total_count:n",
        ),
    ];
    let rows = [
        (
            "Overview",
            "product_name:s product_version:s rabbitmq_version:s management_version:s cluster_name:s node:s object_totals:o queue_totals:o message_stats:o churn_rates:o exchange_types:a listeners:a",
        ),
        ("Node", "name:s type:s running:b"),
        (
            "Connection",
            "name:s node:s user:s vhost:s type:s protocol:s client_properties:o ssl:b connected_at:n channel_max:n frame_max:n timeout:n",
        ),
        (
            "Channel",
            "name:s number:n node:s user:s vhost:s state:s confirm:b consumer_count:n messages_unacknowledged:n messages_unconfirmed:n prefetch_count:n global_prefetch_count:n connection_details:o",
        ),
        (
            "Consumer",
            "consumer_tag:s queue:o ack_required:b exclusive:b prefetch_count:n arguments:o active:b channel_details:o",
        ),
        (
            "Exchange",
            "name:s vhost:s type:s durable:b auto_delete:b internal:b arguments:o",
        ),
        (
            "Queue",
            "name:s vhost:s type:s durable:b auto_delete:b exclusive:b arguments:o state:s",
        ),
        (
            "Binding",
            "source:s vhost:s destination:s destination_type:s routing_key:s arguments:o properties_key:s",
        ),
        (
            "Vhost",
            "name:s description:s tags:a default_queue_type:s metadata:o tracing:b cluster_state:o messages:n messages_ready:n messages_unacknowledged:n",
        ),
        (
            "User",
            "name:s password_hash:s hashing_algorithm:s tags:a limits:o",
        ),
        ("Permission", "user:s vhost:s configure:s write:s read:s"),
        (
            "TopicPermission",
            "user:s vhost:s exchange:s write:s read:s",
        ),
        (
            "Policy",
            "vhost:s name:s pattern:s apply-to:s definition:o priority:n",
        ),
        ("VhostLimits", "vhost:s value:o"),
        ("UserLimits", "user:s value:o"),
    ];
    let mut schemas = Map::new();
    schemas.extend(objects.map(|(name, fields)| (name.to_owned(), object(fields))));
    schemas.extend(rows.map(|(name, fields)| (name.to_owned(), row(fields))));
    // Their values are whatever somebody has set.
    let mut parameter = row("vhost:s component:s name:s");
    parameter["properties"]["value"] = json!({});
    schemas.insert("Parameter".into(), parameter);
    let mut global = row("name:s");
    global["properties"]["value"] = json!({});
    schemas.insert("GlobalParameter".into(), global);
    let counts = [
        "vhosts",
        "users",
        "permissions",
        "exchanges",
        "queues",
        "bindings",
        "policies",
    ];
    let counts = counts.map(|kind| format!("{kind}:n")).join(" ");
    let report = format!("{counts} creates:o changes:o without_effect:a");
    schemas.insert("Imported".into(), object(&report));
    schemas
}

fn sent() -> Map<String, Value> {
    let text = || json!({"type": "string"});
    let flag =
        || json!({"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]});
    let any = || json!({"type": "object"});
    let one_of = |texts: &[&str]| json!({"type": "string", "enum": texts});
    let whole = || json!({"type": "integer", "format": "int64"});
    let pattern = || json!({"type": "string", "format": "regex"});
    let list = || json!({"type": "array", "items": {"type": "object"}});
    let tags =
        json!({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});
    let schema = |required: &[&str], properties: Value| {
        let mut schema = json!({"type": "object", "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    };
    let schemas = [
        (
            "NewExchange",
            schema(
                &[],
                json!({
                    "type": one_of(&["direct", "fanout", "headers", "topic", "x-consistent-hash"]),
                    "durable": flag(), "auto_delete": flag(), "internal": flag(), "arguments": any(),
                }),
            ),
        ),
        (
            "NewQueue",
            schema(
                &[],
                json!({"durable": flag(), "auto_delete": flag(), "arguments": any()}),
            ),
        ),
        (
            "NewBinding",
            schema(&[], json!({"routing_key": text(), "arguments": any()})),
        ),
        (
            "NewMessage",
            schema(
                &["properties", "routing_key", "payload", "payload_encoding"],
                json!({
                    "properties": any(), "routing_key": text(), "payload": text(),
                    "payload_encoding": one_of(&["string", "base64"]),
                }),
            ),
        ),
        (
            "NewGet",
            schema(
                &["count", "ackmode", "encoding"],
                json!({
                    "count": {"type": "integer", "minimum": 0}, "truncate": {"type": "integer", "minimum": 0},
                    "ackmode": one_of(&["ack_requeue_true", "ack_requeue_false", "reject_requeue_true", "reject_requeue_false"]),
                    "encoding": one_of(&["auto", "base64"]),
                }),
            ),
        ),
        (
            "NewVhost",
            schema(
                &[],
                json!({
                    "description": text(), "tags": tags,
                    "default_queue_type": one_of(&["classic", "quorum", "undefined"]),
                }),
            ),
        ),
        (
            "NewUser",
            schema(
                &["tags"],
                json!({
                    "password": text(), "password_hash": text(), "tags": tags,
                    "hashing_algorithm": one_of(&["argon2id", "rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"]),
                }),
            ),
        ),
        (
            "NewPermission",
            schema(
                &["configure", "write", "read"],
                json!({"configure": pattern(), "write": pattern(), "read": pattern()}),
            ),
        ),
        (
            "NewTopicPermission",
            schema(
                &["exchange", "write", "read"],
                json!({"exchange": text(), "write": pattern(), "read": pattern()}),
            ),
        ),
        (
            "NewPolicy",
            schema(
                &["pattern", "definition"],
                json!({
                    "pattern": pattern(), "definition": any(), "priority": whole(),
                    "apply-to": one_of(&["all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams"]),
                }),
            ),
        ),
        (
            "OldUsers",
            schema(
                &["users"],
                json!({"users": {"type": "array", "items": {"type": "string"}}}),
            ),
        ),
        ("NewLeader", schema(&["node"], json!({"node": text()}))),
        ("NewAction", schema(&["action"], json!({"action": text()}))),
        ("NewParameter", schema(&["value"], json!({"value": {}}))),
        ("NewLimit", schema(&["value"], json!({"value": whole()}))),
        (
            "Definitions",
            schema(
                &[],
                json!({
                    "vhosts": list(), "users": list(), "permissions": list(), "topic_permissions": list(),
                    "exchanges": list(), "queues": list(), "bindings": list(), "policies": list(),
                    "parameters": list(), "global_parameters": list(),
                }),
            ),
        ),
    ];
    schemas
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}
