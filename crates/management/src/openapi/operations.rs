//! The operations, one a line: method, path, what it does, what it takes, what it answers.

/// One method of one path.
#[derive(Debug)]
pub(super) struct Operation {
    /// In small letters, as OpenAPI has it.
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) what: &'static str,
    /// The schema of its body, if it takes one.
    pub(super) body: Option<&'static str>,
    pub(super) answer: Answer,
}

/// What is answered when all goes well; schemas by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// An object.
    One(&'static str),
    /// Objects, all of them.
    Array(&'static str),
    /// Objects, all of them or a page.
    List(&'static str),
    /// 201 or 204.
    Put,
    /// 204.
    Done,
    /// 201 with a place.
    Bound,
    /// 204, or 200 with counts.
    Imported,
    /// 200 or 503.
    Check,
    /// A text for Prometheus.
    Metrics,
}

impl Operation {
    /// Unique: the method and the path's parts.
    pub(super) fn id(&self) -> String {
        let parts = self.path.trim_start_matches("/api").split('/');
        let words = parts
            .map(|part| part.trim_matches(['{', '}']).replace(['-', '.'], "_"))
            .filter(|word| !word.is_empty());
        let words: Vec<String> = words.collect();
        format!("{}_{}", self.method, words.join("_"))
    }

    /// What it is about: the first part of its path.
    pub(super) fn tag(&self) -> &'static str {
        let path = self.path.trim_start_matches("/api/");
        path.trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or_default()
    }

    /// Whether it is answered without a login.
    pub(super) fn is_open(&self) -> bool {
        self.answer == Answer::Metrics
            || ["/api/health", "/api/auth", "/api/openapi.json"].contains(&self.path)
    }
}

const fn get(path: &'static str, what: &'static str, answer: Answer) -> Operation {
    Operation {
        method: "get",
        path,
        what,
        body: None,
        answer,
    }
}

const fn put(path: &'static str, what: &'static str, body: &'static str) -> Operation {
    Operation {
        method: "put",
        path,
        what,
        body: Some(body),
        answer: Answer::Put,
    }
}

const fn post(
    path: &'static str,
    what: &'static str,
    body: Option<&'static str>,
    answer: Answer,
) -> Operation {
    Operation {
        method: "post",
        path,
        what,
        body,
        answer,
    }
}

const fn delete(path: &'static str, what: &'static str) -> Operation {
    Operation {
        method: "delete",
        path,
        what,
        body: None,
        answer: Answer::Done,
    }
}

/// A limit that is set: there is no telling whether it was before.
const fn limit(path: &'static str, what: &'static str) -> Operation {
    Operation {
        method: "put",
        path,
        what,
        body: Some("NewLimit"),
        answer: Answer::Done,
    }
}

/// A leadership that is given to another: answered with what is known of the replicas.
const fn transfer(path: &'static str, what: &'static str) -> Operation {
    Operation {
        method: "put",
        path,
        what,
        body: Some("NewLeader"),
        answer: Answer::One("Replicas"),
    }
}

use Answer::{Array, Bound, Check, Done, Imported, List, Metrics, One};

#[rustfmt::skip]
pub(super) const OPERATIONS: &[Operation] = &[
    get("/api/log", "The last lines of this node's log", One("Log")),
    get("/api/overview", "What there is, in numbers", One("Overview")),
    get("/api/cluster-name", "The cluster's name", One("Name")),
    get("/api/nodes", "The nodes", List("Node")),
    get("/api/nodes/{node}", "A node", One("Node")),
    get("/api/nodes/{node}/memory", "How much memory a node takes", One("Memory")),
    get("/api/extensions", "Extensions of the web page, of which there are none", Array("Nothing")),
    get("/api/feature-flags", "Feature flags, of which there are none", Array("Nothing")),
    get("/api/whoami", "Who has logged in", One("Whoami")),
    get("/api/auth", "How to log in", One("Auth")),
    get("/api/openapi.json", "This document", One("Document")),
    get("/api/health", "Whether this node serves clients", Check),
    get("/api/health/checks/alarms", "Whether publishers are blocked anywhere", Check),
    get("/api/health/checks/local-alarms", "Whether publishers are blocked on this node", Check),
    get("/api/health/checks/certificate-expiration/{within}/{unit}", "Whether a certificate of this node expires within a time", Check),
    get("/api/health/checks/port-listener/{port}", "Whether this node listens at a port", Check),
    get("/api/health/checks/protocol-listener/{protocol}", "Whether this node listens for a protocol", Check),
    get("/api/health/checks/virtual-hosts", "Whether clients can use the virtual hosts on this node", Check),
    get("/api/health/checks/node-is-quorum-critical", "Whether the cluster would lose its majority without this node", Check),
    get("/api/health/checks/node-is-mirror-sync-critical", "There are no mirrored queues: always passes", Check),
    get("/api/health/checks/below-node-connection-limit", "There is no such limit: always passes", Check),
    get("/api/health/checks/ready-to-serve-clients", "Whether this node serves clients", Check),
    get("/api/health/checks/is-in-service", "Whether this node serves clients", Check),
    get("/api/health/checks/metadata-store/initialized", "Whether this node is part of a cluster", Check),
    get("/api/health/checks/metadata-store/initialized/with-data", "Whether it also has a virtual host and a user", Check),
    get("/api/aliveness-test/{vhost}", "Declares a queue, publishes to it and gets the message back", One("Passed")),
    get("/metrics", "This node's numbers for Prometheus", Metrics),
    get("/metrics/per-object", "This node's queues one by one, as many as http.metrics_objects_max allows", Metrics),

    get("/api/all-configuration", "All definitions, by their old name", One("Definitions")),
    post("/api/all-configuration", "Imports definitions, by their old name", Some("Definitions"), Imported),
    get("/api/definitions", "All definitions, for an import elsewhere", One("Definitions")),
    post("/api/definitions", "Imports definitions", Some("Definitions"), Imported),
    get("/api/definitions/{vhost}", "The definitions of a virtual host", One("Definitions")),
    post("/api/definitions/{vhost}", "Imports definitions into a virtual host", Some("Definitions"), Imported),

    get("/api/connections", "Client connections", List("Connection")),
    get("/api/connections/{name}", "A connection", One("Connection")),
    delete("/api/connections/{name}", "Closes a connection; the header X-Reason says why"),
    get("/api/connections/{name}/channels", "Channels of a connection", List("Channel")),
    get("/api/connections/username/{user}", "Connections of a user", List("Connection")),
    delete("/api/connections/username/{user}", "Closes all connections of a user"),
    get("/api/users/{user}/connections", "Connections of a user", List("Connection")),
    delete("/api/users/{user}/connections", "Closes all connections of a user"),
    get("/api/vhosts/{vhost}/connections", "Connections to a virtual host", List("Connection")),
    get("/api/channels", "Channels", List("Channel")),
    get("/api/channels/{name}", "A channel", One("Channel")),
    get("/api/vhosts/{vhost}/channels", "Channels in a virtual host", List("Channel")),
    get("/api/consumers", "Consumers", List("Consumer")),
    get("/api/consumers/{vhost}", "Consumers in a virtual host", List("Consumer")),

    get("/api/exchanges", "Exchanges", List("Exchange")),
    get("/api/exchanges/{vhost}", "Exchanges of a virtual host", List("Exchange")),
    get("/api/exchanges/{vhost}/{exchange}", "An exchange", One("Exchange")),
    put("/api/exchanges/{vhost}/{exchange}", "Declares an exchange", "NewExchange"),
    delete("/api/exchanges/{vhost}/{exchange}", "Deletes an exchange"),
    get("/api/exchanges/{vhost}/{exchange}/bindings/source", "Bindings from an exchange", List("Binding")),
    get("/api/exchanges/{vhost}/{exchange}/bindings/destination", "Bindings to an exchange", List("Binding")),
    post("/api/exchanges/{vhost}/{exchange}/publish", "Publishes a message, for tests", Some("NewMessage"), One("Routed")),
    get("/api/queues", "Queues", List("Queue")),
    get("/api/queues/{vhost}", "Queues of a virtual host", List("Queue")),
    get("/api/queues/{vhost}/{queue}", "A queue", One("Queue")),
    put("/api/queues/{vhost}/{queue}", "Declares a queue", "NewQueue"),
    delete("/api/queues/{vhost}/{queue}", "Deletes a queue"),
    get("/api/queues/{vhost}/{queue}/bindings", "Bindings to a queue", List("Binding")),
    delete("/api/queues/{vhost}/{queue}/contents", "Takes all messages that are ready out of a queue"),
    post("/api/queues/{vhost}/{queue}/get", "Gets messages, for tests", Some("NewGet"), Array("Message")),
    get("/api/queues/quorum/{vhost}/{queue}/status", "Where a queue's replicas are and who leads them", One("Replicas")),
    transfer("/api/queues/quorum/{vhost}/{queue}/leader", "Gives the leadership of a queue's shard to a node that has a replica"),
    post("/api/queues/{vhost}/{queue}/actions", "Starts or stops the synchronisation of mirrors, of which there are none: changes nothing", Some("NewAction"), Done),
    post("/api/rebalance/queues", "Lets the ring decide again who leads each shard", None, Done),
    get("/api/bindings", "Bindings", List("Binding")),
    get("/api/bindings/{vhost}", "Bindings of a virtual host", List("Binding")),
    get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", "Bindings between two ends", List("Binding")),
    post("/api/bindings/{vhost}/e/{source}/{kind}/{destination}", "Binds", Some("NewBinding"), Bound),
    get("/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}", "A binding", One("Binding")),
    delete("/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}", "Takes a binding away"),

    get("/api/vhosts", "Virtual hosts", List("Vhost")),
    get("/api/vhosts/{vhost}", "A virtual host", One("Vhost")),
    put("/api/vhosts/{vhost}", "Makes or changes a virtual host", "NewVhost"),
    delete("/api/vhosts/{vhost}", "Deletes a virtual host with all that is in it"),
    post("/api/vhosts/{vhost}/start/{node}", "Starts a virtual host on a node: it runs wherever the node does, so that nothing changes", None, Done),
    get("/api/vhosts/{vhost}/permissions", "Permissions in a virtual host", List("Permission")),
    get("/api/vhosts/{vhost}/topic-permissions", "Topic permissions in a virtual host", List("TopicPermission")),
    get("/api/users", "Users", List("User")),
    get("/api/users/without-permissions", "Users who may do nothing in any virtual host", List("User")),
    post("/api/users/bulk-delete", "Deletes users", Some("OldUsers"), Done),
    get("/api/users/{user}", "A user", One("User")),
    put("/api/users/{user}", "Makes or changes a user", "NewUser"),
    delete("/api/users/{user}", "Deletes a user"),
    get("/api/users/{user}/permissions", "Permissions of a user", List("Permission")),
    get("/api/users/{user}/topic-permissions", "Topic permissions of a user", List("TopicPermission")),
    get("/api/permissions", "Permissions", List("Permission")),
    get("/api/permissions/{vhost}/{user}", "A user's permissions in a virtual host", One("Permission")),
    put("/api/permissions/{vhost}/{user}", "Gives permissions", "NewPermission"),
    delete("/api/permissions/{vhost}/{user}", "Takes permissions away"),
    get("/api/topic-permissions", "Topic permissions", List("TopicPermission")),
    get("/api/topic-permissions/{vhost}/{user}", "A user's topic permissions in a virtual host", List("TopicPermission")),
    put("/api/topic-permissions/{vhost}/{user}", "Gives topic permissions", "NewTopicPermission"),
    delete("/api/topic-permissions/{vhost}/{user}", "Takes topic permissions away"),
    delete("/api/topic-permissions/{vhost}/{user}/{exchange}", "Takes the topic permission for an exchange away"),

    get("/api/policies", "Policies", List("Policy")),
    get("/api/policies/{vhost}", "Policies of a virtual host", List("Policy")),
    get("/api/policies/{vhost}/{name}", "A policy", One("Policy")),
    put("/api/policies/{vhost}/{name}", "Makes or changes a policy", "NewPolicy"),
    delete("/api/policies/{vhost}/{name}", "Deletes a policy"),
    get("/api/operator-policies", "Operator policies", List("Policy")),
    get("/api/operator-policies/{vhost}", "Operator policies of a virtual host", List("Policy")),
    get("/api/operator-policies/{vhost}/{name}", "An operator policy", One("Policy")),
    put("/api/operator-policies/{vhost}/{name}", "Makes or changes an operator policy", "NewPolicy"),
    delete("/api/operator-policies/{vhost}/{name}", "Deletes an operator policy"),
    get("/api/parameters", "Parameters", List("Parameter")),
    get("/api/parameters/{component}", "Parameters of a component", List("Parameter")),
    get("/api/parameters/{component}/{vhost}", "Parameters of a component in a virtual host", List("Parameter")),
    get("/api/parameters/{component}/{vhost}/{name}", "A parameter", One("Parameter")),
    put("/api/parameters/{component}/{vhost}/{name}", "Sets a parameter", "NewParameter"),
    delete("/api/parameters/{component}/{vhost}/{name}", "Deletes a parameter"),
    get("/api/global-parameters", "Parameters of the cluster", List("GlobalParameter")),
    get("/api/global-parameters/{name}", "A parameter of the cluster", One("GlobalParameter")),
    put("/api/global-parameters/{name}", "Sets a parameter of the cluster", "NewParameter"),
    delete("/api/global-parameters/{name}", "Deletes a parameter of the cluster"),
    get("/api/vhost-limits", "Limits of virtual hosts", List("VhostLimits")),
    get("/api/vhost-limits/{vhost}", "Limits of a virtual host", List("VhostLimits")),
    limit("/api/vhost-limits/{vhost}/{name}", "Sets a limit of a virtual host"),
    delete("/api/vhost-limits/{vhost}/{name}", "Takes a limit of a virtual host away"),
    get("/api/user-limits", "Limits of users", List("UserLimits")),
    get("/api/user-limits/{user}", "Limits of a user", List("UserLimits")),
    limit("/api/user-limits/{user}/{name}", "Sets a limit of a user"),
    delete("/api/user-limits/{user}/{name}", "Takes a limit of a user away"),

    get("/api/cluster", "The metadata group and its members as this node sees them", One("Cluster")),
    post("/api/cluster/drain/{node}", "Empties a node of replicas and leaderships", None, One("Membership")),
    post("/api/cluster/revive/{node}", "Gives a drained node its share again", None, One("Membership")),
    post("/api/cluster/forget/{node}", "Takes a node that is down out of the cluster for good", None, One("Membership")),
    get("/api/ring/plan", "Leaderships that are to move", One("Plan")),
    get("/api/ring", "Shards, their replicas and who leads them", One("Ring")),
    get("/api/routing/digest", "The routing table's digest and the index that it belongs to", One("Digest")),
    get("/api/routing/diff", "Whether the nodes' routing tables are equal, and what they differ in", One("Diff")),
    get("/api/routing/explain", "Where a message would go, and why", One("Explanation")),
];
