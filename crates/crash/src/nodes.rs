//! The three nodes: their configuration, their processes, and what they say of their health.

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::network::{NODES, Network};

/// How long the HTTP API may take.
const REQUEST: Duration = Duration::from_secs(1);

/// The nodes. They are killed when it is dropped.
pub struct Nodes {
    network: Network,
    warren: PathBuf,
    folder: PathBuf,
    children: Vec<Option<Child>>,
}

impl Nodes {
    /// Writes their configuration into a folder.
    pub fn prepare(
        network: Network,
        warren: &Path,
        certificates: &Path,
        folder: &Path,
    ) -> Result<Self> {
        let absolute = |path: &Path| {
            fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))
        };
        let certificates = absolute(certificates)?;
        let nodes = Self {
            network,
            warren: absolute(warren)?,
            folder: absolute(folder)?,
            children: (0..NODES).map(|_| None).collect(),
        };
        for node in 0..NODES {
            let path = nodes.file(node, "toml");
            fs::write(&path, nodes.configuration(node, &certificates)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(nodes)
    }

    fn file(&self, node: usize, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", name(node)))
    }

    fn configuration(&self, node: usize, certificates: &Path) -> Result<String> {
        let own = name(node);
        let at = self.network.addresses(node);
        let peers: Vec<String> = (0..NODES)
            .map(|peer| {
                let address = self.network.addresses(peer).cluster;
                format!("{{ name = \"{}\", address = \"{address}\" }}", name(peer))
            })
            .collect();
        let file = |name: &str| -> Result<String> {
            let path = certificates.join(name);
            ensure!(path.is_file(), "{} is missing", path.display());
            Ok(format!("{:?}", path.display().to_string()))
        };
        Ok(format!(
            "[node]\nname = \"{own}\"\n\n[amqp]\nlisten = \"{}\"\n\n[http]\nlisten = \"{}\"\n\n\
             [cluster]\nname = \"crash\"\nlisten = \"{}\"\npeers = [{}]\n\n\
             [limits]\nloopback_users = []\n\n[tls]\nca = {}\ncertificate = {}\nkey = {}\n",
            at.amqp,
            at.http,
            at.cluster,
            peers.join(", "),
            file("ca.pem")?,
            file(&format!("{own}.pem"))?,
            file(&format!("{own}.key"))?,
        ))
    }

    /// The network.
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The nodes' logs.
    pub fn logs(&self) -> Vec<PathBuf> {
        (0..NODES).map(|node| self.file(node, "log")).collect()
    }

    /// Starts a node.
    pub fn start(&mut self, node: usize) -> Result<()> {
        let path = self.file(node, "log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        // In a process group of its own: Ctrl-C is for this program alone.
        let child = self
            .network
            .command(node, &self.warren)
            .arg("--config")
            .arg(self.file(node, "toml"))
            .arg("--data-dir")
            .arg(self.folder.join(name(node)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", self.warren.display()))?;
        self.children[node] = Some(child);
        Ok(())
    }

    /// Sends a node's process a signal.
    pub fn signal(&self, node: usize, signal: Signal) -> Result<()> {
        let Some(child) = &self.children[node] else {
            return Ok(());
        };
        // Not collected yet, so the id is still its own.
        let pid = Pid::from_raw(i32::try_from(child.id()).context("a process id out of range")?);
        kill(pid, signal).with_context(|| format!("cannot send {signal} to {}", name(node)))
    }

    /// Kills a node and collects it.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        if let Some(mut child) = self.children[node].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// How a node's process ended, if it has; told once.
    pub fn ended(&mut self, node: usize) -> Result<Option<ExitStatus>> {
        let Some(child) = &mut self.children[node] else {
            return Ok(None);
        };
        let status = child.try_wait()?;
        if status.is_some() {
            self.children[node] = None;
        }
        Ok(status)
    }

    /// Whether a node says that it routes.
    pub fn routes(&self, node: usize) -> bool {
        self.health(node).is_ok_and(|healthy| healthy)
    }

    fn health(&self, node: usize) -> Result<bool> {
        let address = self.network.addresses(node).http;
        let mut stream = TcpStream::connect_timeout(&address, REQUEST)?;
        stream.set_read_timeout(Some(REQUEST))?;
        stream.set_write_timeout(Some(REQUEST))?;
        write!(
            stream,
            "GET /api/health HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        )?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status.ends_with(b" 200"))
    }

    /// The last lines of a node's log.
    pub fn log_tail(&self, node: usize) -> String {
        const LINES: usize = 8;
        let bytes = fs::read(self.file(node, "log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        tail.join("\n      ")
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A node's name.
pub fn name(node: usize) -> String {
    format!("node{}", node + 1)
}

/// An exit status in words.
pub fn words(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("ended with code {}", status.code().unwrap_or(-1)),
    }
}
