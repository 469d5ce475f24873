//! The nodes' network: each node in a namespace with two links, one to the other nodes and one to its clients.
//!
//! ```text
//!  node1 ── peers0 ──┐                       10.77.0.N   QUIC between nodes, over the bridge "peers"
//!  node2 ── peers0 ──┼── bridge peers
//!  node3 ── peers0 ──┘
//!  nodeN ── clients0 ── bridge clients       10.77.1.N   AMQP and HTTP; the test itself is 10.77.1.100
//! ```
//!
//! A cut takes the node's port out of the bridge: packets vanish in both directions, and neither side is told, as with a dead switch. Without
//! the right to make namespaces the nodes listen on loopback, on ports that were free, and nothing can be cut.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// How many nodes there are.
pub const NODES: usize = 3;

/// Where a node listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// For clients.
    pub amqp: SocketAddr,
    /// For the HTTP API.
    pub http: SocketAddr,
    /// For the other nodes.
    pub cluster: SocketAddr,
}

/// The network.
#[derive(Debug)]
pub enum Network {
    /// Each node in a namespace of its own.
    Namespaces,
    /// All nodes on loopback, at these ports.
    Loopback(Vec<Addresses>),
}

impl Network {
    /// Lays the links, inside the [sandbox](crate::sandbox).
    pub fn namespaces() -> Result<Self> {
        // Where `ip netns` keeps its names, for this tree alone.
        run("mount", "-t tmpfs tmpfs /run")?;
        run("ip", "link set lo up")?;
        for bridge in ["peers", "clients"] {
            run("ip", &format!("link add {bridge} type bridge"))?;
            run("ip", &format!("link set {bridge} up"))?;
        }
        run("ip", "addr add 10.77.1.100/24 dev clients")?;
        for node in 1..=NODES {
            run("ip", &format!("netns add node{node}"))?;
            run("ip", &format!("-n node{node} link set lo up"))?;
            for (net, bridge) in ["peers", "clients"].into_iter().enumerate() {
                let (inner, outer) = (format!("{bridge}0"), format!("{bridge}{node}"));
                run(
                    "ip",
                    &format!("link add {outer} type veth peer name {inner} netns node{node}"),
                )?;
                run("ip", &format!("link set {outer} master {bridge} up"))?;
                run(
                    "ip",
                    &format!("-n node{node} addr add 10.77.{net}.{node}/24 dev {inner}"),
                )?;
                run("ip", &format!("-n node{node} link set {inner} up"))?;
            }
        }
        Ok(Self::Namespaces)
    }

    /// Chooses ports that are free now.
    pub fn loopback() -> Result<Self> {
        // Held until all are chosen, so that none is chosen twice.
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            let mut listener = || -> Result<SocketAddr> {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let address = listener.local_addr()?;
                tcp.push(listener);
                Ok(address)
            };
            let (amqp, http) = (listener()?, listener()?);
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let cluster = socket.local_addr()?;
            udp.push(socket);
            nodes.push(Addresses {
                amqp,
                http,
                cluster,
            });
        }
        Ok(Self::Loopback(nodes))
    }

    /// Where a node (from 0) listens.
    pub fn addresses(&self, node: usize) -> Addresses {
        match self {
            Self::Namespaces => {
                let at = |net: u8, port: u16| {
                    let host = u8::try_from(node + 1).unwrap_or(u8::MAX);
                    SocketAddr::from((Ipv4Addr::new(10, 77, net, host), port))
                };
                Addresses {
                    amqp: at(1, 5672),
                    http: at(1, 15672),
                    cluster: at(0, 7671),
                }
            }
            Self::Loopback(nodes) => nodes[node],
        }
    }

    /// A command that runs a program where a node (from 0) is, and that ends with this process.
    pub fn command(&self, node: usize, program: &Path) -> Command {
        let mut words: Vec<String> = Vec::new();
        if let Self::Namespaces = self {
            words.push("nsenter".to_owned());
            words.push(format!("--net=/run/netns/node{}", node + 1));
            words.push("--".to_owned());
        }
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Cuts a node (from 0) off from the others, and from its clients too if told so.
    pub fn cut(&self, node: usize, clients_too: bool) -> Result<()> {
        let number = node + 1;
        run("ip", &format!("link set peers{number} nomaster"))?;
        if clients_too {
            run("ip", &format!("link set clients{number} nomaster"))?;
        }
        Ok(())
    }

    /// Undoes every cut of a node (from 0).
    pub fn heal(&self, node: usize) -> Result<()> {
        let number = node + 1;
        for bridge in ["peers", "clients"] {
            run("ip", &format!("link set {bridge}{number} master {bridge}"))?;
        }
        Ok(())
    }
}

fn run(program: &str, arguments: &str) -> Result<()> {
    let output = Command::new(program)
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
