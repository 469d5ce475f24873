//! Which path goes where, and what stands before all of them: deadline, size limit, login, a table that is current.

use crate::bounds::{self, Bounds};
use crate::definitions::{export, import};
use crate::error::Error;
use crate::{
    PEERS_DEADLINE, access, bindings, checks, connections, diff, exchanges, globals, limits, log,
    membership, messages, metrics, nodes, openapi, overview, parameters, permissions, policies,
    queues, replicas, spans, status, topic_permissions, users, vhosts,
};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Router};
use std::sync::Arc;
use std::time::Duration;
use warren_node::Node;

const BODY_BYTES_MAX: usize = 1 << 20;
/// From the head of a request to the head of its answer.
const REQUEST_DEADLINE: Duration = Duration::from_secs(15);
/// The same for exports and imports, which may be large.
const DEFINITIONS_DEADLINE: Duration = Duration::from_secs(120);

/// The API of a node. The caller adds `ConnectInfo` of the peer to requests: without it, users who may only log in from loopback are refused.
pub fn router(node: Arc<Node>) -> Router {
    // What is told of the node itself is told whatever state it is in.
    let own = Router::new()
        .route("/api/whoami", get(users::whoami))
        .route("/api/overview", get(overview::overview))
        .route("/api/cluster-name", get(overview::cluster_name))
        .route("/api/nodes", get(nodes::list))
        .route("/api/nodes/{node}", get(nodes::get))
        .route("/api/nodes/{node}/memory", get(nodes::memory))
        .route("/api/routing/digest", get(status::digest))
        .route("/api/routing/diff", get(diff::diff))
        .route("/api/ring", get(status::ring))
        .route("/api/ring/plan", get(status::plan))
        .route("/api/cluster", get(status::cluster))
        .route("/api/log", get(log::tail))
        .route("/api/extensions", get(checks::none))
        .route("/api/feature-flags", get(checks::none))
        .merge(health_checks())
        .route_layer(from_fn_with_state(node.clone(), access::authenticate));
    let shared = definitions()
        .route_layer(from_fn_with_state(node.clone(), current))
        .route_layer(from_fn_with_state(node.clone(), access::authenticate));
    let topology = topology()
        .route_layer(from_fn_with_state(node.clone(), current))
        .route_layer(from_fn_with_state(node.clone(), access::log_in));
    let bounds = Bounds::new();
    let messages = in_sessions(&node, &bounds)
        .route_layer(from_fn_with_state(node.clone(), current))
        .route_layer(from_fn_with_state(node.clone(), access::log_in));
    let import_max = bounds::import_body_max();
    let exports = Router::new()
        .route("/api/definitions", get(export::all).post(import::all))
        .route("/api/all-configuration", get(export::all).post(import::all))
        .route(
            "/api/definitions/{vhost}",
            get(export::vhost).post(import::vhost),
        )
        .route_layer(DefaultBodyLimit::max(import_max))
        .route_layer(from_fn_with_state(
            (bounds.clone(), import_max),
            bounds::body,
        ))
        .route_layer(from_fn_with_state(node.clone(), current))
        .route_layer(from_fn_with_state(node.clone(), access::authenticate))
        .layer(from_fn_with_state(DEFINITIONS_DEADLINE, deadline));
    let quick = Router::new()
        .route("/api/health", get(status::health))
        .route("/api/auth", get(checks::auth))
        .route("/api/openapi.json", get(openapi::document))
        .route("/metrics", get(metrics::aggregated))
        .route("/metrics/per-object", get(metrics::per_object))
        .merge(own)
        .merge(shared)
        .merge(topology)
        .merge(messages)
        .merge(
            policies()
                .route_layer(from_fn_with_state(node.clone(), current))
                .route_layer(from_fn_with_state(node.clone(), access::log_in)),
        )
        .merge(clients().route_layer(from_fn_with_state(node.clone(), access::log_in)))
        .layer(from_fn_with_state(REQUEST_DEADLINE, deadline));
    quick
        .merge(exports)
        .fallback(|| async { Error::not_found("Not Found") })
        .method_not_allowed_fallback(|| async {
            Error::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path has no such method",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(Extension(bounds))
        .layer(from_fn(spans::of_request))
        .with_state(node)
}

fn health_checks() -> Router<Arc<Node>> {
    let checks = Router::new()
        .route("/alarms", get(checks::alarms))
        .route("/local-alarms", get(checks::local_alarms))
        .route(
            "/certificate-expiration/{within}/{unit}",
            get(checks::certificate_expiration),
        )
        .route("/port-listener/{port}", get(checks::port_listener))
        .route(
            "/protocol-listener/{*protocol}",
            get(checks::protocol_listener),
        )
        .route("/virtual-hosts", get(checks::virtual_hosts))
        .route("/node-is-quorum-critical", get(checks::quorum_critical))
        .route(
            "/node-is-mirror-sync-critical",
            get(checks::mirror_sync_critical),
        )
        .route(
            "/below-node-connection-limit",
            get(checks::below_connection_limit),
        )
        .route("/ready-to-serve-clients", get(checks::ready))
        .route("/is-in-service", get(checks::ready))
        .route(
            "/metadata-store/initialized",
            get(checks::store_initialized),
        )
        .route(
            "/metadata-store/initialized/with-data",
            get(checks::store_with_data),
        );
    Router::new().nest("/api/health/checks", checks)
}

/// Client connections; what of them the user may see and close is decided for each.
fn clients() -> Router<Arc<Node>> {
    Router::new()
        .route("/api/connections", get(connections::list))
        .route(
            "/api/connections/{name}",
            get(connections::get).delete(connections::close),
        )
        .route(
            "/api/connections/{name}/channels",
            get(connections::channels_of_connection),
        )
        .route(
            "/api/connections/username/{user}",
            get(connections::of_user).delete(connections::close_of_user),
        )
        .route(
            "/api/users/{user}/connections",
            get(connections::of_user).delete(connections::close_of_user),
        )
        .route(
            "/api/vhosts/{vhost}/connections",
            get(connections::of_vhost),
        )
        .route("/api/channels", get(connections::channels))
        .route("/api/channels/{name}", get(connections::channel_named))
        .route(
            "/api/vhosts/{vhost}/channels",
            get(connections::channels_of_vhost),
        )
        .route("/api/consumers", get(connections::consumers))
        .route(
            "/api/consumers/{vhost}",
            get(connections::consumers_of_vhost),
        )
}

/// What is done in a session of the user's own.
fn in_sessions(node: &Node, bounds: &Bounds) -> Router<Arc<Node>> {
    let body_max =
        bounds::publish_body_max(node.config().settings.limits.message_max, BODY_BYTES_MAX);
    let within = |body_max: usize| from_fn_with_state((bounds.clone(), body_max), bounds::session);
    let publish = Router::new()
        .route(
            "/api/exchanges/{vhost}/{exchange}/publish",
            post(messages::publish),
        )
        .route_layer(DefaultBodyLimit::max(body_max))
        .route_layer(within(body_max));
    let others = Router::new()
        .route("/api/queues/{vhost}/{queue}/get", post(messages::get))
        .route(
            "/api/queues/{vhost}/{queue}/contents",
            delete(messages::purge),
        )
        .route("/api/aliveness-test/{vhost}", get(checks::aliveness))
        .route_layer(within(BODY_BYTES_MAX));
    publish.merge(others)
}

/// Policies and parameters; who may make them is decided for each.
fn policies() -> Router<Arc<Node>> {
    let of_kind = |kind: policies::Kind| {
        let path = kind.path();
        Router::new()
            .route(&format!("/api/{path}"), get(policies::list_all))
            .route(&format!("/api/{path}/{{vhost}}"), get(policies::list))
            .route(
                &format!("/api/{path}/{{vhost}}/{{name}}"),
                get(policies::get)
                    .put(policies::put)
                    .delete(policies::delete),
            )
            .layer(Extension(kind))
    };
    let parameters = Router::new()
        .route("/api/parameters", get(parameters::list_all))
        .route("/api/parameters/{component}", get(parameters::of_component))
        .route("/api/parameters/{component}/{vhost}", get(parameters::list))
        .route(
            "/api/parameters/{component}/{vhost}/{name}",
            get(parameters::get)
                .put(parameters::put)
                .delete(parameters::delete),
        );
    of_kind(policies::Kind::Policy)
        .merge(of_kind(policies::Kind::Operator))
        .merge(parameters)
}

/// What all nodes share.
fn definitions() -> Router<Arc<Node>> {
    Router::new()
        .route("/api/cluster/drain/{node}", post(membership::drain))
        .route("/api/cluster/revive/{node}", post(membership::revive))
        .route("/api/cluster/forget/{node}", post(membership::forget))
        .route("/api/routing/explain", get(status::explain))
        .route("/api/global-parameters", get(globals::list))
        .route(
            "/api/global-parameters/{name}",
            get(globals::get).put(globals::put).delete(globals::delete),
        )
        .route("/api/vhost-limits", get(limits::of_vhosts))
        .route("/api/vhost-limits/{vhost}", get(limits::of_vhost))
        .route(
            "/api/vhost-limits/{vhost}/{name}",
            put(limits::put_vhost).delete(limits::delete_vhost),
        )
        .route("/api/user-limits", get(limits::of_users))
        .route("/api/user-limits/{user}", get(limits::of_one_user))
        .route(
            "/api/user-limits/{user}/{name}",
            put(limits::put_user).delete(limits::delete_user),
        )
        .route("/api/vhosts", get(vhosts::list))
        .route(
            "/api/vhosts/{vhost}",
            get(vhosts::get).put(vhosts::put).delete(vhosts::delete),
        )
        .route(
            "/api/vhosts/{vhost}/permissions",
            get(permissions::of_vhost),
        )
        .route("/api/vhosts/{vhost}/start/{node}", post(vhosts::start))
        .route("/api/users", get(users::list))
        .route(
            "/api/users/without-permissions",
            get(users::without_permissions),
        )
        .route("/api/users/bulk-delete", post(users::delete_all))
        .route(
            "/api/users/{user}",
            get(users::get).put(users::put).delete(users::delete),
        )
        .route("/api/users/{user}/permissions", get(permissions::of_user))
        .route(
            "/api/users/{user}/topic-permissions",
            get(topic_permissions::of_user),
        )
        .route(
            "/api/vhosts/{vhost}/topic-permissions",
            get(topic_permissions::of_vhost),
        )
        .route("/api/topic-permissions", get(topic_permissions::list))
        .route(
            "/api/topic-permissions/{vhost}/{user}",
            get(topic_permissions::get)
                .put(topic_permissions::put)
                .delete(topic_permissions::delete),
        )
        .route(
            "/api/topic-permissions/{vhost}/{user}/{exchange}",
            delete(topic_permissions::delete_one),
        )
        .route("/api/permissions", get(permissions::list))
        .route(
            "/api/permissions/{vhost}/{user}",
            get(permissions::get)
                .put(permissions::put)
                .delete(permissions::delete),
        )
        .route("/api/rebalance/queues", post(replicas::rebalance))
        .route("/api/queues/{vhost}/{queue}/actions", post(queues::act))
        .route(
            "/api/queues/quorum/{vhost}/{queue}/leader",
            put(replicas::transfer_leader),
        )
}

/// Exchanges, queues and bindings: who sees a virtual host sees them, and changes what its permissions allow.
fn topology() -> Router<Arc<Node>> {
    Router::new()
        .route("/api/exchanges", get(exchanges::list_all))
        .route("/api/exchanges/{vhost}", get(exchanges::list))
        .route(
            "/api/exchanges/{vhost}/{exchange}",
            get(exchanges::get)
                .put(exchanges::put)
                .delete(exchanges::delete),
        )
        .route(
            "/api/exchanges/{vhost}/{exchange}/bindings/source",
            get(bindings::of_source),
        )
        .route(
            "/api/exchanges/{vhost}/{exchange}/bindings/destination",
            get(bindings::of_exchange),
        )
        .route("/api/queues", get(queues::list_all))
        .route("/api/queues/{vhost}", get(queues::list))
        .route(
            "/api/queues/{vhost}/{queue}",
            get(queues::get).put(queues::put).delete(queues::delete),
        )
        .route(
            "/api/queues/quorum/{vhost}/{queue}/status",
            get(replicas::status),
        )
        .route(
            "/api/queues/{vhost}/{queue}/bindings",
            get(bindings::of_queue),
        )
        .route("/api/bindings", get(bindings::list_all))
        .route("/api/bindings/{vhost}", get(bindings::list))
        .route(
            "/api/bindings/{vhost}/e/{source}/{kind}/{destination}",
            get(bindings::between).post(bindings::post),
        )
        .route(
            "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}",
            get(bindings::get).delete(bindings::delete),
        )
}

/// Lets a request through when the table shows everything that was answered to anybody before.
async fn current(State(node): State<Arc<Node>>, request: Request, next: Next) -> Response {
    match node.metadata().barrier(PEERS_DEADLINE).await {
        Ok(_) => next.run(request).await,
        Err(error) => {
            let reason = format!(
                "this node's definitions may be outdated: {error}; ask another node, or GET /api/cluster for what this one sees"
            );
            Error::unavailable(reason).into_response()
        }
    }
}

async fn deadline(State(deadline): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(deadline, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Error::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!("the request took longer than {} s", deadline.as_secs()),
        )
        .into_response(),
    }
}
