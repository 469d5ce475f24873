//! What the `list` verbs of exchanges, queues and bindings share: all virtual hosts or one, as rows of a table.

use serde_json::Value;

use super::Context;
use crate::client::segment;
use crate::failure::Failure;

/// The options of every `list`.
#[derive(Debug, clap::Args)]
pub struct ListOptions {
    /// Only this virtual host; without it, all of them.
    #[arg(long)]
    pub vhost: Option<String>,
}

/// Prints `GET /api/{kind}[/{vhost}]` with these columns.
pub fn list(
    context: &Context,
    kind: &str,
    options: &ListOptions,
    columns: &[&str],
) -> Result<(), Failure> {
    let path = match &options.vhost {
        Some(vhost) => format!("/api/{kind}/{}", segment(vhost)),
        None => format!("/api/{kind}"),
    };
    let answer = context.client.get(&path, &[])?;
    context.list(&answer, &path, columns)
}

/// The options of a command about one thing in a virtual host.
#[derive(Debug, clap::Args)]
pub struct InVhost {
    /// Its name.
    pub name: String,
    /// Its virtual host.
    #[arg(long, default_value = "/")]
    pub vhost: String,
}

impl InVhost {
    /// `/api/{kind}/{vhost}/{name}`
    pub fn path(&self, kind: &str) -> String {
        format!(
            "/api/{kind}/{}/{}",
            segment(&self.vhost),
            segment(&self.name)
        )
    }
}

/// The array that `value` must be.
pub fn rows<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], Failure> {
    match value.as_array() {
        Some(rows) => Ok(rows),
        None => Err(Failure::Protocol(format!(
            "{path} did not answer with a list; is this a node of another release? Check --url"
        ))),
    }
}
