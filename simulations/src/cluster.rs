//! The simulated hosts that run nodes: disks that outlive them, and what each start does.

use crate::certificates::Certificates;
use crate::network::HostNetwork;
use crate::options::{Options, node_name};
use crate::oracle::Oracle;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use turmoil::net::TcpListener;
use warren_node::{Config, Node, Settings};
use warren_storage::memory::{Completion, Disk, Job};
use warren_transport::PeerAddress;

/// UDP port of the links between nodes.
const LINKS: u16 = 25_672;
/// TCP port of AMQP.
pub(crate) const AMQP: u16 = 5_672;
/// How often a node is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// The nodes of a run.
#[derive(Clone)]
pub(crate) struct Cluster {
    inner: Rc<Inner>,
}

struct Inner {
    options: Options,
    certificates: Certificates,
    disks: Vec<Disk>,
    networks: Vec<HostNetwork>,
    clients: Vec<String>,
}

impl Cluster {
    /// Disks and certificates; hosts come with [`Self::add_hosts`].
    pub(crate) fn new(
        options: &Options,
        certificates: &Certificates,
        clients: Vec<String>,
    ) -> Self {
        let disks: Vec<Disk> = (0..options.nodes).map(|_| Disk::new()).collect();
        for disk in &disks {
            disk.set_completion(Completion::Spawned(Arc::new(
                |after: Duration, job: Job| {
                    // On the host that has the disk: its clock, and gone with its process.
                    tokio::spawn(async move {
                        tokio::time::sleep(after).await;
                        job();
                    });
                },
            )));
            disk.set_sync_delay(options.sync_delay);
        }
        let networks = (0..options.nodes).map(|_| HostNetwork::default()).collect();
        Self {
            inner: Rc::new(Inner {
                options: options.clone(),
                certificates: certificates.clone(),
                disks,
                networks,
                clients,
            }),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.options.nodes
    }

    /// Names of the client hosts.
    pub(crate) fn clients(&self) -> &[String] {
        &self.inner.clients
    }

    pub(crate) fn disk(&self, node: usize) -> &Disk {
        &self.inner.disks[node]
    }

    /// The disk is as fast again as the run's options say.
    pub(crate) fn reset_disk(&self, node: usize) {
        self.disk(node)
            .set_sync_delay(self.inner.options.sync_delay);
    }

    /// Adds a host for each node. It starts at once.
    pub(crate) fn add_hosts(&self, sim: &mut turmoil::Sim<'_>, oracle: &Oracle) {
        for node in 0..self.size() {
            let (cluster, oracle) = (self.clone(), oracle.clone());
            sim.host(node_name(node), move || {
                let (cluster, oracle) = (cluster.clone(), oracle.clone());
                async move {
                    if let Err(error) = cluster.run(node, &oracle).await {
                        oracle.violated(
                            "nodes-start",
                            format_args!(
                                "{} does not start or stops by itself: {error}",
                                node_name(node)
                            ),
                        );
                    }
                    Ok(())
                }
            });
        }
    }

    /// One process's life.
    async fn run(&self, number: usize, oracle: &Oracle) -> Result<(), Box<dyn std::error::Error>> {
        let start = oracle.node_starts(number);
        // What an earlier process had open, the system has closed.
        self.inner.networks[number].close_all();
        let (storage, network) = (
            Arc::new(self.disk(number).open()),
            Arc::new(self.inner.networks[number].clone()),
        );
        let node = Node::start(
            self.config(number, start),
            storage,
            network,
            tokio::runtime::Handle::current(),
        )
        .await?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, AMQP)).await?;
        oracle.node_up(number, node.clone());
        let (looked_at, looker) = (node.clone(), oracle.clone());
        tokio::task::spawn_local(async move {
            loop {
                looker.look_at(number, &looked_at);
                tokio::time::sleep(LOOK).await;
            }
        });
        loop {
            let (stream, peer) = listener.accept().await?;
            tokio::spawn(node.clone().serve(stream, peer));
        }
    }

    fn config(&self, number: usize, start: u64) -> Config {
        let options = &self.inner.options;
        let address = |node: usize| format!("{}:{LINKS}", node_name(node));
        let peers = (0..self.size())
            .map(|node| PeerAddress {
                name: node_name(node),
                address: address(node),
            })
            .collect();
        // Simulated clients are on hosts of their own.
        let settings = Settings {
            loopback_users: Vec::new(),
            ..Settings::default()
        };
        Config {
            name: node_name(number),
            cluster_name: "simulated".into(),
            bind: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), LINKS).into(),
            address: address(number),
            amqp: format!("{}:{AMQP}", node_name(number)),
            http: String::new(),
            listeners: Vec::new(),
            peers,
            shards: options.shards,
            tls: self.inner.certificates.of(number),
            seed: Some(
                options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ (number as u64) << 48
                    ^ start << 56,
            ),
            settings,
            free_disk: None,
            first_user: Some(("guest".into(), "guest".into())),
        }
    }
}
