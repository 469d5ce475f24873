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

/// Refuses a column that no row has and that is not one of a list's own: a list may be empty, and some fields are there only now and then.
pub fn known_column(column: &str, rows: &[Value], own: &[&str]) -> Result<(), Failure> {
    let first = column.split('.').next().unwrap_or(column);
    let known = |name: &str| own.contains(&name) || rows.iter().any(|row| row.get(name).is_some());
    if known(column) || known(first) || own.iter().any(|own| own.split('.').next() == Some(first)) {
        return Ok(());
    }
    let fields = rows
        .iter()
        .take(1)
        .filter_map(Value::as_object)
        .flat_map(|row| row.keys());
    let mut all: Vec<&str> = own
        .iter()
        .copied()
        .chain(fields.map(String::as_str))
        .collect();
    all.sort_unstable();
    all.dedup();
    let near = all
        .iter()
        .max_by(|a, b| strsim::jaro(a, column).total_cmp(&strsim::jaro(b, column)));
    let tip = near.filter(|near| strsim::jaro(near, column) > 0.7);
    let tip = tip.map_or_else(
        || ";".to_owned(),
        |near| format!("; did you mean '{near}'?"),
    );
    Err(Failure::Usage(format!(
        "there is no column '{column}'{tip} there are: {}",
        all.join(", ")
    )))
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
