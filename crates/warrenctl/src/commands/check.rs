//! `warrenctl check`: the node's health checks. Exit code 69 if one fails.

use serde_json::Value;

use super::Context;
use crate::client::{Method, Request, segment};
use crate::failure::Failure;

/// Which check.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Checks: alarms, local-alarms, certificate-expiration N days|weeks|months|years, port-listener PORT, protocol-listener NAME, virtual-hosts, \
node-is-quorum-critical, ready-to-serve-clients, is-in-service, metadata-store initialized.

Example: warrenctl check certificate-expiration 4 weeks"
)]
pub struct Options {
    /// The check, and what it needs to know.
    #[arg(required = true)]
    check: Vec<String>,
}

impl Options {
    /// A check that needs to know nothing.
    pub fn of(check: &str) -> Self {
        Self {
            check: vec![check.to_owned()],
        }
    }
}

/// Runs the check.
pub fn run(context: &Context, Options { check }: &Options) -> Result<(), Failure> {
    let parts: Vec<String> = check.iter().map(|part| segment(part)).collect();
    let path = format!("/api/health/checks/{}", parts.join("/"));
    let answer = context.client.exchange(&Request::of(Method::Get, &path))?;
    let body: Option<Value> = serde_json::from_str(&answer.text).ok();
    let status = body.as_ref().and_then(|body| body.get("status"));
    if answer.status == 503 && status.and_then(Value::as_str) == Some("failed") {
        let body = body.unwrap_or_default();
        context.object(&body)?;
        let reason = body["reason"].as_str().unwrap_or("it gives no reason");
        return Err(Failure::Unhealthy(format!(
            "the check has failed: {reason}"
        )));
    }
    let body = context.client.expected(answer)?;
    context.object(&body)
}
