//! The nodes by their configuration files, and the folder that holds what they leave behind.
//!
//! ```text
//! DIR/layout        how many nodes the cluster in this folder has: 1 or 3
//! DIR/nodeN/        the node's data, and beside it
//! DIR/nodeN/log     what it printed, over all its runs
//! DIR/nodeN/pid     the running process: its id, and on the second line its start time
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::process::Record;
use crate::repository::Repository;
use crate::run::{EX_DATA, EX_USAGE, Stop};

/// One node as its configuration file has it.
#[derive(Debug)]
pub struct Node {
    /// Its number, from 1.
    pub number: usize,
    /// Its name in the cluster.
    pub name: String,
    /// Its configuration file.
    pub config: PathBuf,
    /// Its data folder.
    pub data: PathBuf,
    /// Where clients connect.
    pub amqp: SocketAddr,
    /// Where the HTTP API is.
    pub http: SocketAddr,
    /// Where the other nodes connect.
    pub cluster: SocketAddr,
}

/// All nodes of one data folder.
pub struct Cluster {
    /// The data folder.
    pub data: PathBuf,
    /// The nodes in order.
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// A cluster of one or three nodes with its data in `data`.
    pub fn new(repository: &Repository, data: PathBuf, size: usize) -> Result<Self> {
        let file = |number: usize| {
            if size == 1 {
                "single.toml".to_owned()
            } else {
                format!("node{number}.toml")
            }
        };
        let node = |number: usize| {
            Node::load(
                number,
                &repository.cluster_config().join(file(number)),
                &data,
            )
        };
        Ok(Self {
            nodes: (1..=size).map(node).collect::<Result<_>>()?,
            data,
        })
    }

    /// The cluster whose data is in `data`.
    pub fn existing(repository: &Repository, data: PathBuf) -> Result<Self> {
        let size = layout(&data).unwrap_or(3);
        Self::new(repository, data, size)
    }

    /// Makes the data folder ready: empty of an earlier cluster if `fresh`, and never holding two different clusters.
    pub fn prepare(&self, fresh: bool) -> Result<()> {
        let shown = self.data.display();
        let found = layout(&self.data);
        if found.is_none()
            && fs::read_dir(&self.data).is_ok_and(|mut entries| entries.next().is_some())
        {
            let text = format!(
                "{shown} is not empty and holds no cluster of this program; give another --data-dir, or empty it"
            );
            return Err(Stop::error(EX_DATA, text));
        }
        if fresh {
            self.wipe()?;
        } else if let Some(found) = found.filter(|found| *found != self.nodes.len()) {
            let text = format!(
                "{shown} holds a cluster of {found}; give --nodes {found}, another --data-dir, or --fresh to remove it"
            );
            return Err(Stop::error(EX_DATA, text));
        }
        for node in &self.nodes {
            fs::create_dir_all(&node.data)
                .with_context(|| format!("cannot make {}", node.data.display()))?;
        }
        fs::write(self.data.join("layout"), format!("{}\n", self.nodes.len()))
            .with_context(|| format!("cannot write in {shown}"))
    }

    fn wipe(&self) -> Result<()> {
        for number in 1..=3 {
            let folder = self.data.join(format!("node{number}"));
            if let Some(record) = Record::load(&folder.join("pid")) {
                let text = format!(
                    "node{number} runs on {} (process {}); stop it with `cargo xtask cluster down` first",
                    folder.display(),
                    record.pid
                );
                return Err(Stop::error(EX_DATA, text));
            }
            if folder.exists() {
                fs::remove_dir_all(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
        }
        Ok(())
    }

    /// The node with this number.
    pub fn node(&self, number: usize) -> Result<&Node> {
        let missing = || {
            Stop::error(
                EX_USAGE,
                format!(
                    "there is no node {number}: the cluster has nodes 1 to {}",
                    self.nodes.len()
                ),
            )
        };
        self.nodes
            .iter()
            .find(|node| node.number == number)
            .ok_or_else(missing)
    }

    /// The nodes that run, by their records.
    pub fn running(&self) -> Vec<(&Node, Record)> {
        self.nodes
            .iter()
            .filter_map(|node| Some((node, node.record()?)))
            .collect()
    }
}

fn layout(data: &Path) -> Option<usize> {
    fs::read_to_string(data.join("layout"))
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|size| [1, 3].contains(size))
}

impl Node {
    fn load(number: usize, config: &Path, data: &Path) -> Result<Self> {
        let shown = config.display();
        let text = fs::read_to_string(config).with_context(|| format!("cannot read {shown}"))?;
        let table: toml::Table = text
            .parse()
            .with_context(|| format!("cannot understand {shown}"))?;
        let word = |section: &str, key: &str| match table
            .get(section)
            .and_then(|section| section.get(key)?.as_str())
        {
            Some(word) => Ok(word.to_owned()),
            None => bail!("{shown} has no text for {key} in [{section}]"),
        };
        let address = |section: &str| {
            let word = word(section, "listen")?;
            word.parse::<SocketAddr>()
                .with_context(|| format!("{shown}: listen in [{section}] is no address: {word}"))
        };
        Ok(Self {
            number,
            name: word("node", "name")?,
            config: config.to_path_buf(),
            data: data.join(format!("node{number}")),
            amqp: address("amqp")?,
            http: address("http")?,
            cluster: address("cluster")?,
        })
    }

    /// Where its process is recorded.
    pub fn pid_file(&self) -> PathBuf {
        self.data.join("pid")
    }

    /// Where its output goes.
    pub fn log_file(&self) -> PathBuf {
        self.data.join("log")
    }

    /// Its process, if it runs.
    pub fn record(&self) -> Option<Record> {
        Record::load(&self.pid_file())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::run::exit_code;

    fn repository() -> Repository {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap()
            .to_path_buf();
        Repository {
            binaries: root.join("target/release"),
            root,
        }
    }

    #[test]
    fn the_shipped_configuration_names_distinct_loopback_addresses_and_its_peers() {
        for size in [1, 3] {
            let cluster = Cluster::new(&repository(), PathBuf::from("data"), size).unwrap();
            let mut addresses: Vec<SocketAddr> = cluster
                .nodes
                .iter()
                .flat_map(|node| [node.amqp, node.http, node.cluster])
                .collect();
            assert!(addresses.iter().all(|address| address.ip().is_loopback()));
            addresses.sort();
            addresses.dedup();
            assert_eq!(addresses.len(), 3 * size);
            for node in &cluster.nodes {
                let table: toml::Table = fs::read_to_string(&node.config).unwrap().parse().unwrap();
                let peers: Vec<(String, String)> = table["cluster"]["peers"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|peer| {
                        (
                            peer["name"].as_str().unwrap().to_owned(),
                            peer["address"].as_str().unwrap().to_owned(),
                        )
                    })
                    .collect();
                let nodes: Vec<(String, String)> = cluster
                    .nodes
                    .iter()
                    .map(|node| (node.name.clone(), node.cluster.to_string()))
                    .collect();
                assert_eq!(peers, nodes, "{}", node.config.display());
                assert_eq!(
                    table["tls"]["certificate"].as_str(),
                    Some(format!("certificates/{}.pem", node.name).as_str())
                );
            }
        }
    }

    #[test]
    fn a_folder_never_holds_two_clusters() {
        let folder = tempfile::tempdir().unwrap();
        let cluster =
            |size| Cluster::new(&repository(), folder.path().to_path_buf(), size).unwrap();
        cluster(3).prepare(false).unwrap();
        fs::write(folder.path().join("node3/left"), "").unwrap();
        assert_eq!(exit_code(&cluster(1).prepare(false).unwrap_err()), EX_DATA);
        cluster(1).prepare(true).unwrap();
        assert!(!folder.path().join("node3").exists());
        assert_eq!(
            Cluster::existing(&repository(), folder.path().to_path_buf())
                .unwrap()
                .nodes
                .len(),
            1
        );
    }

    #[test]
    fn a_strangers_folder_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("node1")).unwrap();
        let cluster = Cluster::new(&repository(), folder.path().to_path_buf(), 3).unwrap();
        assert_eq!(exit_code(&cluster.prepare(true).unwrap_err()), EX_DATA);
        assert!(folder.path().join("node1").exists());
    }

    #[test]
    fn a_folder_in_use_is_not_wiped() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::new(&repository(), folder.path().to_path_buf(), 3).unwrap();
        cluster.prepare(false).unwrap();
        let own = Record::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        own.save(&cluster.nodes[0].pid_file()).unwrap();
        assert!(
            cluster
                .prepare(true)
                .unwrap_err()
                .to_string()
                .contains("stop it")
        );
        assert_eq!(cluster.running().len(), 1);
    }
}
