//! A span for each request, where traces are exported.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;
use tracing::field::Empty;
use warren_node::spans::{self, TARGET};

/// Puts a request into a span of its own; what it changes is below that.
pub(crate) async fn of_request(request: Request, next: Next) -> Response {
    if !spans::are_on() {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>();
    let span = tracing::info_span!(
        target: TARGET, parent: None, "http.request", otel.kind = "server", http.request.method = request.method().as_str(), url.path = request.uri().path(),
        http.route = route.map(MatchedPath::as_str), http.response.status_code = Empty,
    );
    let response = next.run(request).instrument(span.clone()).await;
    let status = i64::from(response.status().as_u16());
    span.record("http.response.status_code", status);
    response
}
