//! `warrenctl cert`: certificates of a CA of one's own, for the links between nodes and for clients.

use std::path::PathBuf;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output;

/// What can be done with certificates.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make the certificates of nodes in a folder, and the CA that signs them unless it is there already.
    ///
    /// What is there is kept. A node needs ca.pem and its own NAME.pem and NAME.key; ca.key stays where certificates are made. With --host the same certificates
    /// serve AMQPS and HTTPS under these names.
    #[command(
        after_help = "Example: warrenctl cert generate node1 node2 node3 --folder certificates --host broker.example.com"
    )]
    Generate(Generate),
}

/// Which certificates.
#[derive(Debug, clap::Args)]
pub struct Generate {
    /// The nodes' names.
    #[arg(required = true)]
    nodes: Vec<String>,
    /// Where they go.
    #[arg(long, default_value = "certificates")]
    folder: PathBuf,
    /// A name or address under which clients reach the nodes; may be repeated.
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
}

/// Runs one verb.
pub fn run(verb: &Verb, quiet: bool) -> Result<(), Failure> {
    let Verb::Generate(options) = verb;
    // Names become names of files.
    if let Some(name) = options.nodes.iter().find(|name| {
        name.is_empty() || name.starts_with('.') || name.contains('/') || *name == "ca"
    }) {
        return Err(Failure::Usage(format!(
            "'{name}' cannot be the name of a node"
        )));
    }
    let made = warren_certificates::ensure(&options.folder, &options.nodes, &options.hosts);
    let made = made.map_err(|error| match error {
        warren_certificates::Error::File { .. } => Failure::Output(error.to_string()),
        warren_certificates::Error::Authority { .. }
        | warren_certificates::Error::Certificate { .. } => Failure::Data(error.to_string()),
    })?;
    for name in &options.nodes {
        let file = options.folder.join(format!("{name}.pem"));
        let word = if made.contains(name) { "made" } else { "kept" };
        if !quiet {
            output::write(&format!("{word} {}\n", file.display()))?;
        }
    }
    Ok(())
}
