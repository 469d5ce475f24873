//! What is logged, and where: lines for operators on standard error, and the audit log in a file of its own.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io::{Error, ErrorKind};
use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, LevelFilter, filter_fn};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt as _;
use warren_management::LogWriter;
use warren_node::{audit, spans};

use crate::audit_file::AuditFile;
use crate::config::{File, Format, Level};
use crate::traces::Traces;

/// Libraries that speak of their own affairs; `RUST_LOG` shows them.
const QUIET: &str = "openraft=error,quinn=warn,quinn_proto=warn,rustls=warn,h2=warn,hyper=warn";

/// Starts logging as the configuration says; `RUST_LOG` stands above it.
pub(crate) fn start(file: &File, traces: Option<&Traces>) -> std::io::Result<()> {
    let level = match file.log.level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    };
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("{level},{QUIET}")));
    let audit = file
        .audit
        .file
        .as_deref()
        .map(AuditFile::open)
        .transpose()?;
    let provider = traces.map(Traces::provider);
    subscriber(filter, file.log.format, audit, provider)?.init();
    Ok(())
}

/// All that listens to what is logged. What nobody wants to see must cost nothing: the libraries below make spans for everything they do.
fn subscriber(
    filter: EnvFilter,
    format: Format,
    audit: Option<AuditFile>,
    traces: Option<&SdkTracerProvider>,
) -> std::io::Result<impl Subscriber + Send + Sync + use<>> {
    // The audit log and spans have places of their own.
    let mut filter = filter;
    for elsewhere in [audit::TARGET, spans::TARGET] {
        let directive = format!("{elsewhere}=off").parse();
        let directive = directive.map_err(|error| Error::new(ErrorKind::InvalidInput, error))?;
        filter = filter.add_directive(directive);
    }
    // The last lines are kept, too, for people who ask over HTTP.
    let log = fmt::layer().with_writer(std::io::stderr.and(|| LogWriter));
    let log = match format {
        Format::Text => log.with_ansi(false).with_filter(filter).boxed(),
        Format::Json => log.json().with_filter(filter).boxed(),
    };
    // A list, not a layer that may be `None`: such a layer wants each span of each library to be made.
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> = vec![log];
    if let Some(audit) = audit {
        let of_audit =
            filter_fn(|m| m.target() == audit::TARGET).with_max_level_hint(LevelFilter::INFO);
        let audit = fmt::layer()
            .json()
            .flatten_event(true)
            .with_target(false)
            .with_level(false)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(audit)
            .with_filter(of_audit);
        layers.push(audit.boxed());
    }
    if let Some(traces) = traces {
        let of_spans =
            filter_fn(|m| m.target() == spans::TARGET).with_max_level_hint(LevelFilter::INFO);
        let traces = tracing_opentelemetry::layer()
            .with_tracer(traces.tracer("warren"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_level(false)
            .with_target(false)
            .with_filter(of_spans);
        layers.push(traces.boxed());
    }
    Ok(tracing_subscriber::registry().with(layers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    fn is_made(audit: Option<AuditFile>, traces: Option<&SdkTracerProvider>) -> [bool; 6] {
        let filter = EnvFilter::new(format!("info,{QUIET}"));
        let subscriber = subscriber(filter, Format::Text, audit, traces).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            [
                !tracing::debug_span!(target: "openraft::core", "span").is_disabled(),
                tracing::enabled!(target: "warren", Level::INFO),
                tracing::enabled!(target: audit::TARGET, Level::INFO),
                spans::are_on(),
                !tracing::info_span!(target: spans::TARGET, "span").is_disabled(),
                !tracing::info_span!(target: "quinn::connection", "span").is_disabled(),
            ]
        })
    }

    #[test]
    fn spans_that_nobody_sees_are_not_made() {
        let quiet = [false, true, false, false, false, false];
        assert_eq!(is_made(None, None), quiet);
        let folder = tempfile::tempdir().unwrap();
        let audit = AuditFile::open(&folder.path().join("audit.log")).unwrap();
        let audited = [false, true, true, false, false, false];
        assert_eq!(is_made(Some(audit), None), audited);
        let traces = SdkTracerProvider::builder().build();
        let traced = [false, true, false, true, true, false];
        assert_eq!(is_made(None, Some(&traces)), traced);
    }
}
