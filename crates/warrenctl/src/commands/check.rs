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
    known(check)?;
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

/// All checks, and how many words each needs besides.
const CHECKS: [(&str, usize, &str); 12] = [
    ("alarms", 0, ""),
    ("local-alarms", 0, ""),
    ("certificate-expiration", 2, "N days|weeks|months|years"),
    ("port-listener", 1, "PORT"),
    ("protocol-listener", 1, "NAME"),
    ("virtual-hosts", 0, ""),
    ("node-is-quorum-critical", 0, ""),
    ("node-is-mirror-sync-critical", 0, ""),
    ("below-node-connection-limit", 0, ""),
    ("ready-to-serve-clients", 0, ""),
    ("is-in-service", 0, ""),
    ("metadata-store", 1, "initialized"),
];

/// Refuses a check that there is not, or that lacks what it needs to know.
fn known(check: &[String]) -> Result<(), Failure> {
    let name = check.first().map(String::as_str).unwrap_or_default();
    let Some((_, words, shown)) = CHECKS.iter().find(|(known, ..)| *known == name) else {
        let near = CHECKS.iter().map(|(known, ..)| *known);
        let near = near.max_by(|a, b| strsim::jaro(a, name).total_cmp(&strsim::jaro(b, name)));
        let tip = near.filter(|near| strsim::jaro(near, name) > 0.7);
        let tip = tip.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
        return Err(Failure::Usage(format!(
            "there is no check '{name}'{tip}; `warrenctl check --help` names all"
        )));
    };
    // `metadata-store initialized with-data` has one more.
    let more = usize::from(name == "metadata-store");
    if (*words..=words + more).contains(&(check.len() - 1)) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "use: warrenctl check {}",
        format!("{name} {shown}").trim_end()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_before_anybody_is_asked() {
        let known = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            known(&words).map_err(|failure| failure.to_string())
        };
        for good in [
            "alarms",
            "certificate-expiration 4 weeks",
            "metadata-store initialized",
            "metadata-store initialized with-data",
        ] {
            assert_eq!(known(good), Ok(()), "{good}");
        }
        let unknown = known("alarm").err().unwrap_or_default();
        assert!(unknown.contains("did you mean 'alarms'?"), "{unknown}");
        let lacks = known("port-listener").err().unwrap_or_default();
        assert!(lacks.contains("check port-listener PORT"), "{lacks}");
        assert!(known("alarms now").is_err() && known("xyz").is_err());
    }
}
