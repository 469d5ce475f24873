//! Spans that go to a collector: OTLP over HTTP or HTTPS, in protobuf.
//!
//! Spans that have ended wait in a queue of bounded length for a thread of their own, which sends them in batches. When the collector is slow or away, what
//! the queue has no room for is dropped, and nothing else waits. The log says when sending begins to fail and when it works again.

use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use rustls::crypto::ring;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::config::File;
use crate::tls::read_certificates;

/// How long the collector may take to take a batch.
const SEND_DEADLINE: Duration = Duration::from_secs(3);
/// How long spans wait for others to be sent with.
const GATHER: Duration = Duration::from_secs(1);
/// Spans that wait; more are dropped.
const WAITING_MAX: usize = 2048;
/// Spans that are sent together.
const BATCH_MAX: usize = 512;
/// The largest answer of a collector that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// How long the last spans may take when the node stops.
const LAST_DEADLINE: Duration = Duration::from_secs(2);

/// Whether a collector could be at an address.
pub(crate) fn is_usable(endpoint: &str) -> bool {
    let uri: Result<Uri, _> = endpoint.parse();
    uri.is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
}

/// The traces of a node that exports them.
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// What sends spans where the configuration says; none if it says nothing. The path of the CA is relative to `beside`.
    pub(crate) fn of(file: &File, beside: &Path) -> Result<Option<Self>, HttpError> {
        let Some(endpoint) = &file.tracing.otlp_endpoint else {
            return Ok(None);
        };
        let ca = file.tracing.otlp_ca.as_ref().map(|ca| beside.join(ca));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(ca.as_deref())?)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(SEND_DEADLINE)
            .build()?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING_MAX)
            .with_max_export_batch_size(BATCH_MAX)
            .with_scheduled_delay(GATHER)
            .build();
        let processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches)
            .build();
        let resource = Resource::builder()
            .with_service_name("warren")
            .with_attributes([
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", file.node.name.clone()),
                KeyValue::new("warren.cluster", file.cluster.name.clone()),
            ])
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(processor)
            .build();
        Ok(Some(Self(provider)))
    }

    pub(crate) fn provider(&self) -> &SdkTracerProvider {
        &self.0
    }

    /// Sends what waits, if that can be done soon.
    pub(crate) fn finish(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_DEADLINE) {
            tracing::info!(%error, "the last spans were not sent");
        }
    }
}

/// Sends batches, on the thread that they are gathered on.
#[derive(Debug)]
struct Collector {
    agent: ureq::Agent,
    fails: AtomicBool,
}

impl Collector {
    fn new(ca: Option<&Path>) -> Result<Self, HttpError> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(SEND_DEADLINE))
            .http_status_as_error(true)
            .proxy(None);
        let config = match ca {
            Some(ca) => config.tls_config(trusting(ca)?),
            None => config,
        };
        Ok(Self {
            agent: config.build().into(),
            fails: AtomicBool::new(false),
        })
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let answer = self.agent.run(request.map(|body| body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

/// Trusts this CA, and nobody else.
fn trusting(ca: &Path) -> Result<TlsConfig, HttpError> {
    let roots = read_certificates(ca).map_err(|problem| {
        format!(
            "tracing.otlp_ca: {} cannot be used: {problem}",
            ca.display()
        )
    })?;
    let roots = roots
        .iter()
        .map(|root| Certificate::from_der(root).to_owned())
        .collect();
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .build())
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let to = request.uri().to_string();
        let result = self.send(request);
        match &result {
            Ok(_) if self.fails.swap(false, Ordering::Relaxed) => {
                tracing::info!(to, "spans are exported again");
            }
            Err(error) if !self.fails.swap(true, Ordering::Relaxed) => {
                tracing::warn!(to, %error, "spans cannot be exported: they are dropped until the collector takes them");
            }
            Ok(_) | Err(_) => {}
        }
        Ok(result?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors() {
        for usable in [
            "http://127.0.0.1:4318",
            "http://collector/",
            "https://collector:4318",
            "http://[::1]:4318/otlp",
        ] {
            assert!(is_usable(usable), "{usable}");
        }
        for not in ["", "127.0.0.1:4318", "https://", "http://", "grpc://c:4317"] {
            assert!(!is_usable(not), "{not}");
        }
    }

    #[test]
    fn a_collector_that_is_away_holds_nobody_up() {
        let mut file = File::default();
        assert!(Traces::of(&file, Path::new("")).unwrap().is_none());
        // A port that was just free and is closed again.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        file.tracing.otlp_endpoint = Some(format!("http://{address}"));
        let traces = Traces::of(&file, Path::new("")).unwrap().unwrap();
        let tracer = opentelemetry::trace::TracerProvider::tracer(traces.provider(), "test");
        let begun = std::time::Instant::now();
        for _ in 0..10 * WAITING_MAX {
            drop(opentelemetry::trace::Tracer::start(&tracer, "span"));
        }
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        traces.finish();
        assert!(
            begun.elapsed() < Duration::from_secs(8),
            "{:?}",
            begun.elapsed()
        );
    }
}
