//! `warrenctl cluster join`: what a node needs to join, checked against the cluster and written as its configuration.
//!
//! A node joins by itself when it starts with the names and addresses of nodes of the cluster, the cluster's name, and a certificate of the cluster's CA;
//! nothing has to be told to the cluster beforehand. So this command writes the new node's file, and says what else is to be done.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::{Context, cluster};
use crate::failure::Failure;
use crate::output;

/// The node that is to join.
#[derive(Debug, clap::Args)]
pub struct Join {
    /// Its name: a new one, or that of a node that is down for good and that it replaces.
    node: String,
    /// Its address for the other nodes, which is a UDP port.
    #[arg(long, value_name = "ADDRESS:PORT")]
    address: SocketAddr,
    /// Where it listens for AMQP.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5672")]
    amqp: SocketAddr,
    /// Where it listens for HTTP.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:15672")]
    http: SocketAddr,
    /// Its data folder, as the node sees it.
    #[arg(long, default_value = "warren-data")]
    data_dir: PathBuf,
    /// Where ca.pem, NAME.pem and NAME.key lie, as seen from the configuration file.
    #[arg(long, default_value = "certificates")]
    certificates: PathBuf,
    /// Write the configuration to this file, which must not exist; without it, to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Checks that the node can join, and writes its configuration.
pub fn join(context: &Context, options: &Join) -> Result<(), Failure> {
    let answer = context.client.get("/api/cluster", &[])?;
    let members = cluster::members(&answer)?;
    let replaces = check(options, members)?;
    if answer.get("leader").is_none_or(Value::is_null) {
        return Err(Failure::Unavailable(
            "the cluster has no leader now, and takes no node before it has one; see `warrenctl cluster status`".to_owned(),
        ));
    }
    let name = context.client.get("/api/cluster-name", &[])?;
    let ring = context.client.get("/api/ring", &[])?;
    let text = configuration(options, members, &name["name"], &ring["shards"]);
    match &options.out {
        None => output::write(&text)?,
        Some(file) => {
            let mut new = std::fs::OpenOptions::new();
            let written = new.write(true).create_new(true).open(file);
            written
                .and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()))
                .map_err(|error| Failure::Output(format!("{}: {error}", file.display())))?;
        }
    }
    let file = options
        .out
        .as_deref()
        .map(|file| file.display().to_string());
    let file = file.unwrap_or_else(|| "FILE".to_owned());
    let node = &options.node;
    if replaces {
        context.done(&format!(
            "'{node}' is down: the new node replaces it, and needs an empty data folder"
        ));
    }
    context.done(&format!(
        "to be done: 1. where ca.key is, `warrenctl cert generate {node}`, and put ca.pem, {node}.pem and {node}.key into {}; \
         2. on the new node, `warren --config {file}`; 3. `warrenctl cluster await-ready --nodes {}`",
        options.certificates.display(),
        members.len() + usize::from(!replaces),
    ));
    Ok(())
}

/// Whether it replaces a node that is down; an error if it cannot join.
fn check(options: &Join, members: &[Value]) -> Result<bool, Failure> {
    let Join { node, address, .. } = options;
    let text = |member: &Value, key: &str| member[key].as_str().unwrap_or_default().to_owned();
    let same = members.iter().find(|member| text(member, "name") == *node);
    if same.is_some_and(|member| member["up"] == true) {
        return Err(Failure::Data(format!(
            "node '{node}' is up in this cluster already; choose another name"
        )));
    }
    let mut others = members
        .iter()
        .filter(|member| text(member, "name") != *node);
    if let Some(other) = others.find(|member| text(member, "address") == address.to_string()) {
        return Err(Failure::Data(format!(
            "{address} is the address of node '{}'; choose another port",
            text(other, "name")
        )));
    }
    Ok(same.is_some())
}

fn configuration(options: &Join, members: &[Value], cluster: &Value, shards: &Value) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let path = |path: &std::path::Path| quoted(&path.to_string_lossy());
    let Join {
        node,
        address,
        amqp,
        http,
        ..
    } = options;
    let peer = |name: &str, address: &str| {
        format!(
            "    {{ name = {}, address = {} }},\n",
            quoted(name),
            quoted(address)
        )
    };
    let known = members.iter().filter_map(|member| {
        let (name, address) = (member["name"].as_str()?, member["address"].as_str()?);
        (name != node && member["up"] == true).then(|| peer(name, address))
    });
    let peers: String = known.chain([peer(node, &address.to_string())]).collect();
    let file = |name: &str| path(&options.certificates.join(name));
    format!(
        "# Node {node}, which joins the cluster that these peers are.\n\n\
         [node]\nname = {}\ndata_dir = {}\n\n\
         [amqp]\nlisten = \"{amqp}\"\n\n\
         [http]\nlisten = \"{http}\"\n\n\
         [cluster]\nname = {}\nlisten = \"{address}\"\npeers = [\n{peers}]\nshards = {shards}\n\n\
         [tls]\nca = {}\ncertificate = {}\nkey = {}\n",
        quoted(node),
        path(&options.data_dir),
        quoted(cluster.as_str().unwrap_or_default()),
        file("ca.pem"),
        file(&format!("{node}.pem")),
        file(&format!("{node}.key")),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::json;

    fn options(node: &str, port: u16) -> Join {
        Join {
            node: node.to_owned(),
            address: ([127, 0, 0, 1], port).into(),
            amqp: ([127, 0, 0, 1], 1).into(),
            http: ([127, 0, 0, 1], 2).into(),
            data_dir: "data \"4\"".into(),
            certificates: "certs".into(),
            out: None,
        }
    }

    fn members() -> Vec<Value> {
        vec![
            json!({"name": "node1", "address": "127.0.0.1:7671", "up": true}),
            json!({"name": "node2", "address": "127.0.0.1:7672", "up": false}),
        ]
    }

    #[test]
    fn names_and_addresses_in_use_are_refused() {
        assert_eq!(check(&options("node4", 7674), &members()), Ok(false));
        assert_eq!(check(&options("node2", 7672), &members()), Ok(true));
        for (node, port) in [("node1", 7674), ("node4", 7671)] {
            let failure = check(&options(node, port), &members()).unwrap_err();
            assert_eq!(failure.exit_code(), 65, "{failure}");
        }
    }

    #[test]
    fn the_configuration_is_toml_and_names_who_is_up() {
        let text = configuration(&options("node4", 7674), &members(), &json!("c"), &json!(12));
        let file: toml::Table = text.parse().unwrap();
        assert_eq!(file["node"]["data_dir"].as_str(), Some("data \"4\""));
        assert_eq!(file["cluster"]["shards"].as_integer(), Some(12));
        let peers = file["cluster"]["peers"].as_array().unwrap();
        let names: Vec<_> = peers.iter().map(|peer| peer["name"].as_str()).collect();
        assert_eq!(names, [Some("node1"), Some("node4")]);
        assert_eq!(file["tls"]["key"].as_str(), Some("certs/node4.key"));
    }
}
