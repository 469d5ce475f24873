//! The HTTP listener: bounded in connections, in what one may hold, and in how long.
//!
//! A client that sends its request slowly or not at all is dropped after [`HEAD_DEADLINE`], one that reads its answer slowly after [`LIFETIME`].
//! What is no HTTP is answered with 400 and closed. Empty parts of a path are passed over, as RabbitMQ does it and some of its tools rely on.

use crate::router;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use warren_node::Node;

/// Connections at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 512;
/// For the head of a request, and between requests of one connection.
const HEAD_DEADLINE: Duration = Duration::from_secs(20);
/// After this, the request under way is the connection's last.
const LIFETIME: Duration = Duration::from_secs(600);
/// For that last request.
const LAST_REQUEST: Duration = Duration::from_secs(60);
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves the API of a node until it is dropped, which closes all its connections.
pub async fn serve(node: Arc<Node>, listener: TcpListener) {
    serve_with(node, listener, |stream| std::future::ready(Ok(stream))).await;
}

/// The same over what a handshake makes of each connection; it ends in its own time.
pub async fn serve_with<S, F>(
    node: Arc<Node>,
    listener: TcpListener,
    handshake: impl Fn(TcpStream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = std::io::Result<S>> + Send + 'static,
{
    let api = router(node);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Answers go out whole: there is nothing to gain from waiting for more.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%peer, %error, "TCP_NODELAY could not be set");
                }
                let (api, shaking) = (api.clone(), handshake(stream));
                connections.spawn(async move {
                    match shaking.await {
                        Ok(stream) => serve_one(api, stream, peer).await,
                        Err(error) => {
                            tracing::debug!(%peer, %error, "a handshake with the HTTP API failed");
                        }
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection to the HTTP API could not be accepted");
                // Out of file descriptors, most likely: accepting at once would only fail again.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_one(api: Router, stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr) {
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        if let Some(uri) = without_empty_parts(request.uri()) {
            *request.uri_mut() = uri;
        }
        TowerToHyperService::new(api.clone()).call(request)
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let result = match tokio::time::timeout(LIFETIME, connection.as_mut()).await {
        Ok(result) => result,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST_REQUEST, connection).await {
                Ok(result) => result,
                Err(_) => {
                    return tracing::info!(%peer, "a connection to the HTTP API was dropped: its client reads too slowly");
                }
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, %error, "a connection to the HTTP API ended badly");
    }
}

/// The address without empty parts of its path, if it has any: `/api/queues//` is `/api/queues`.
fn without_empty_parts(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let has_empty = path.contains("//") || (path.ends_with('/') && path.len() > 1);
    if !has_empty {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let query = uri
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let tidy = format!("/{}{query}", parts.join("/"));
    let mut all = uri.clone().into_parts();
    all.path_and_query = Some(PathAndQuery::try_from(tidy).ok()?);
    Uri::from_parts(all).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_parts_of_a_path_are_passed_over() {
        let tidy =
            |uri: &str| without_empty_parts(&uri.parse().unwrap()).map(|uri| uri.to_string());
        for (given, expected) in [
            ("/api/queues//", "/api/queues"),
            ("//api///queues/%2F/?a=//&b", "/api/queues/%2F?a=//&b"),
            ("http://host:1/api/", "http://host:1/api"),
            ("//", "/"),
        ] {
            assert_eq!(tidy(given).as_deref(), Some(expected));
        }
        for fine in ["/", "/api/queues", "/api/queues/%2F/%2F%2F?x=/"] {
            assert_eq!(tidy(fine), None);
        }
    }
}
