//! `warrenctl routing explain`: the node's own account of how it would route a message. Nothing is published.

use super::Context;
use crate::failure::Failure;
use crate::output;

/// The message to explain.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The exchange; "" is the default exchange.
    exchange: String,
    /// The routing key.
    key: String,
    /// The virtual host.
    #[arg(long, default_value = "/")]
    vhost: String,
    /// Whose publish it is: tells what its permissions refuse, and which queues they leave out.
    #[arg(long, value_name = "USER")]
    of_user: Option<String>,
    /// A header of the message, as NAME=VALUE; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<String>,
}

fn header(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        Some(_) | None => Err("a header is NAME=VALUE".to_owned()),
    }
}

/// Runs the verb.
pub fn run(context: &Context, options: &Options) -> Result<(), Failure> {
    let mut query = vec![
        ("vhost", options.vhost.as_str()),
        ("exchange", options.exchange.as_str()),
        ("key", options.key.as_str()),
    ];
    if let Some(user) = &options.of_user {
        query.push(("user", user));
    }
    query.extend(
        options
            .header
            .iter()
            .map(|header| ("header", header.as_str())),
    );
    let answer = context.client.get("/api/routing/explain", &query)?;
    output::print(context.format, &answer, || output::outline(&answer))
}
