//! Which path goes where, and what stands before all of them: deadline, size limit, login, a table that is current.

use crate::error::Error;
use crate::{
    PEERS_DEADLINE, access, bindings, exchanges, overview, permissions, queues, status, users,
    vhosts,
};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use warren_node::Node;

const BODY_BYTES_MAX: usize = 1 << 20;
/// From the head of a request to the head of its answer.
const REQUEST_DEADLINE: Duration = Duration::from_secs(15);

/// The API of a node. The caller adds `ConnectInfo` of the peer to requests: without it, users who may only log in from loopback are refused.
pub fn router(node: Arc<Node>) -> Router {
    // What is told of the node itself is told whatever state it is in.
    let own = Router::new()
        .route("/api/whoami", get(users::whoami))
        .route("/api/overview", get(overview::overview))
        .route("/api/cluster-name", get(overview::cluster_name))
        .route("/api/nodes", get(overview::nodes))
        .route("/api/nodes/{node}", get(overview::node))
        .route("/api/routing/digest", get(status::digest))
        .route("/api/ring", get(status::ring))
        .route("/api/cluster", get(status::cluster))
        .route_layer(from_fn_with_state(node.clone(), access::authenticate));
    let shared = definitions()
        .route_layer(from_fn_with_state(node.clone(), current))
        .route_layer(from_fn_with_state(node.clone(), access::authenticate));
    Router::new()
        .route("/api/health", get(status::health))
        .merge(own)
        .merge(shared)
        .fallback(|| async { Error::not_found("Not Found") })
        .method_not_allowed_fallback(|| async {
            Error::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this path has no such method",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(deadline))
        .with_state(node)
}

/// What all nodes share.
fn definitions() -> Router<Arc<Node>> {
    Router::new()
        .route("/api/routing/explain", get(status::explain))
        .route("/api/vhosts", get(vhosts::list))
        .route(
            "/api/vhosts/{vhost}",
            get(vhosts::get).put(vhosts::put).delete(vhosts::delete),
        )
        .route(
            "/api/vhosts/{vhost}/permissions",
            get(permissions::of_vhost),
        )
        .route("/api/users", get(users::list))
        .route(
            "/api/users/{user}",
            get(users::get).put(users::put).delete(users::delete),
        )
        .route("/api/users/{user}/permissions", get(permissions::of_user))
        .route("/api/permissions", get(permissions::list))
        .route(
            "/api/permissions/{vhost}/{user}",
            get(permissions::get)
                .put(permissions::put)
                .delete(permissions::delete),
        )
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

async fn deadline(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Error::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!(
                "the request took longer than {} s",
                REQUEST_DEADLINE.as_secs()
            ),
        )
        .into_response(),
    }
}
