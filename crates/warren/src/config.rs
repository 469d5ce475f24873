//! The configuration file: TOML, every key known, every mistake told with its line.

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or a key is unknown, missing or of the wrong type. TOML's message shows the line.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What and where.
        message: String,
    },
    /// A value is out of its range.
    #[error("{path}: {key} = {value}: {allowed}")]
    Value {
        /// The file, with the line where the key stands.
        path: String,
        /// The key.
        key: &'static str,
        /// What it is set to.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

/// The whole file. Everything has a default: an empty file, or none, is a node on its own.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// The node itself.
    pub node: NodeSection,
    /// Clients.
    pub amqp: Amqp,
    /// The HTTP API.
    pub http: Http,
    /// The other nodes.
    pub cluster: Cluster,
    /// Certificates for the links between nodes; required where there are other nodes.
    pub tls: Option<TlsSection>,
    /// Certificates for clients; required where there is a `tls_listen`.
    pub client_tls: Option<ClientTlsSection>,
    /// Limits.
    pub limits: LimitsSection,
    /// What clients may do, beyond RabbitMQ's permissions.
    pub authorization: Authorization,
    /// The log.
    pub log: Log,
    /// The audit log.
    pub audit: Audit,
    /// Traces.
    pub tracing: Tracing,
}

/// `[node]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeSection {
    /// Unique in the cluster.
    pub name: String,
    /// Data folder; relative to the working directory.
    pub data_dir: PathBuf,
}

impl Default for NodeSection {
    fn default() -> Self {
        Self {
            name: "node1".into(),
            data_dir: "warren-data".into(),
        }
    }
}

/// `[amqp]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Amqp {
    /// TCP address.
    pub listen: SocketAddr,
    /// TCP address for clients with TLS (AMQPS).
    pub tls_listen: Option<SocketAddr>,
}

impl Default for Amqp {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 5672).into(),
            tls_listen: None,
        }
    }
}

/// `[http]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// TCP address.
    pub listen: SocketAddr,
    /// TCP address of HTTPS.
    pub tls_listen: Option<SocketAddr>,
    /// Queues that `/metrics/per-object` may show; 0: it shows none.
    pub metrics_objects_max: usize,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 15672).into(),
            tls_listen: None,
            metrics_objects_max: 0,
        }
    }
}

/// `[cluster]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Shown to clients.
    pub name: String,
    /// UDP address of the links between nodes.
    pub listen: SocketAddr,
    /// The nodes that found the cluster, this one among them; none: this node alone.
    pub peers: Vec<Peer>,
    /// Shards, 1 to 4096; fixed when the cluster is founded.
    pub shards: u16,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            name: "warren".into(),
            listen: ([127, 0, 0, 1], 7671).into(),
            peers: Vec::new(),
            shards: 12,
        }
    }
}

/// One of `cluster.peers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The node's name.
    pub name: String,
    /// `host:port` of its links.
    pub address: String,
}

/// `[tls]`: paths are relative to the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// The cluster's CA.
    pub ca: PathBuf,
    /// The node's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// `[client_tls]`: paths are relative to the configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientTlsSection {
    /// What the node shows to clients: its certificate, then those that lead to a CA that clients trust.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// CAs of clients' certificates.
    pub ca: Option<PathBuf>,
    /// Whether clients have to show a certificate.
    #[serde(default)]
    pub verify: Verify,
    /// The oldest version that is spoken.
    #[serde(default)]
    pub min_version: TlsVersion,
    /// What names the user in a client's certificate, for logins with EXTERNAL.
    #[serde(default)]
    pub login_from: LoginFrom,
}

/// `client_tls.verify`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Clients are not asked for one.
    None,
    /// They may show one, which must then be good. Without `ca` there is none that could be.
    #[default]
    Optional,
    /// Without a good one there is no connection.
    Required,
}

/// `client_tls.min_version`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
pub enum TlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3 alone.
    #[serde(rename = "1.3")]
    V1_3,
}

/// `client_tls.login_from`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoginFrom {
    /// `CN=name,O=organisation`, the most specific part first.
    #[default]
    DistinguishedName,
    /// The common name alone.
    CommonName,
}

/// `[limits]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSection {
    /// Highest channel number of a connection; 0: none.
    pub channel_max: u16,
    /// Largest AMQP frame in bytes, at least 8192; 0: none.
    pub frame_max: u32,
    /// Heartbeat suggested to clients, in seconds; 0: none.
    pub heartbeat_s: u16,
    /// Largest message body in bytes, at most 512 MiB.
    pub message_bytes_max: u64,
    /// Part of the memory of the machine, or of the container or service, that queued messages may take before publishers are blocked, above 0 and at most 1.
    pub memory_watermark: f64,
    /// Bytes that must be free where the data lies, else publishers are blocked on all nodes.
    pub disk_free_bytes_min: u64,
    /// How long a publish waits, in milliseconds, on a node without contact to the majority before it is refused.
    pub unroutable_wait_ms: u64,
    /// Users that may connect from loopback addresses only.
    pub loopback_users: Vec<String>,
    /// How many logins from one address may fail a minute before its logins are refused unseen; 0: any number.
    pub login_failures_per_minute: u32,
}

impl Default for LimitsSection {
    fn default() -> Self {
        Self {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: 60,
            message_bytes_max: 16 << 20,
            memory_watermark: 0.6,
            disk_free_bytes_min: 50_000_000,
            unroutable_wait_ms: 5_000,
            loopback_users: vec!["guest".into()],
            login_failures_per_minute: 60,
        }
    }
}

/// `[authorization]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Authorization {
    /// Whoever publishes to an exchange needs write permission on each queue that a message goes to as well; queues without are left out. The same on all nodes.
    pub queue_write_checks: bool,
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Least level that is written.
    pub level: Level,
    /// How lines look.
    pub format: Format,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: Level::Info,
            format: Format::Text,
        }
    }
}

/// `[audit]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Where logins, connections and changes are recorded, one JSON object a line; relative to the working directory. None by default.
    pub file: Option<PathBuf>,
}

/// `[tracing]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Where spans go: the address of a collector that takes OTLP over HTTP, like `http://127.0.0.1:4318`. Nowhere by default.
    pub otlp_endpoint: Option<String>,
    /// For an `https:` address: the file of the CA that has signed the collector's certificate; relative to the configuration file.
    pub otlp_ca: Option<PathBuf>,
}

/// Log levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Failures.
    Error,
    /// What an operator should look at.
    Warn,
    /// What an operator wants to know.
    Info,
    /// For finding faults.
    Debug,
    /// Everything.
    Trace,
}

/// Log formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    Text,
    /// For log collectors.
    Json,
}

impl File {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let file: Self = toml::from_str(&text).map_err(|e| ConfigError::Parse {
            path: path.to_owned(),
            message: e.to_string(),
        })?;
        file.check(path, &text)?;
        Ok(file)
    }

    fn check(&self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let bad = |key: &'static str, value: String, allowed: String| {
            let last = key.rsplit('.').next().unwrap_or(key);
            let line = text
                .lines()
                .position(|l| l.trim_start().starts_with(last))
                .map_or(String::new(), |n| format!(":{}", n + 1));
            Err(ConfigError::Value {
                path: format!("{}{line}", path.display()),
                key,
                value,
                allowed,
            })
        };
        let name = &self.node.name;
        if name.is_empty() || name.len() > 255 {
            return bad(
                "node.name",
                format!("\"{name}\""),
                "1 to 255 bytes are allowed".into(),
            );
        }
        let peers = &self.cluster.peers;
        if !peers.is_empty() && !peers.iter().any(|p| p.name == *name) {
            let names: Vec<&str> = peers.iter().map(|p| p.name.as_str()).collect();
            return bad(
                "node.name",
                format!("\"{name}\""),
                format!(
                    "the name must be one of cluster.peers: {}",
                    names.join(", ")
                ),
            );
        }
        for (i, peer) in peers.iter().enumerate() {
            if peers[..i].iter().any(|p| p.name == peer.name) {
                return bad(
                    "cluster.peers",
                    format!("\"{}\"", peer.name),
                    "each node's name may stand there once".into(),
                );
            }
            if peer
                .address
                .rsplit_once(':')
                .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
            {
                return bad(
                    "cluster.peers",
                    format!("\"{}\"", peer.address),
                    "an address has the form host:port".into(),
                );
            }
        }
        if !(1..=4096).contains(&self.cluster.shards) {
            return bad(
                "cluster.shards",
                self.cluster.shards.to_string(),
                "1 to 4096 are allowed".into(),
            );
        }
        if peers.len() > 1 && self.tls.is_none() {
            return bad(
                "tls",
                "(missing)".into(),
                "nodes talk to each other over TLS only: give [tls] ca, certificate and key".into(),
            );
        }
        let tls_listens = [self.amqp.tls_listen, self.http.tls_listen];
        let listens = tls_listens.into_iter().flatten().next();
        if let (Some(address), None) = (listens, &self.client_tls) {
            return bad(
                "tls_listen",
                format!("\"{address}\""),
                "a certificate is needed: give [client_tls] certificate and key".into(),
            );
        }
        if let Some(section) = &self.client_tls
            && section.verify == Verify::Required
            && section.ca.is_none()
        {
            return bad(
                "client_tls.verify",
                "\"required\"".into(),
                "clients' certificates can only be checked with client_tls.ca".into(),
            );
        }
        if let Some(endpoint) = &self.tracing.otlp_endpoint
            && !crate::traces::is_usable(endpoint)
        {
            return bad(
                "tracing.otlp_endpoint",
                format!("\"{endpoint}\""),
                "an address of the form http://host:port or https://host:port is needed".into(),
            );
        }
        let is_https = |endpoint: &String| endpoint.starts_with("https:");
        let with_tls = self.tracing.otlp_endpoint.as_ref().is_some_and(is_https);
        if with_tls != self.tracing.otlp_ca.is_some() {
            let value = match &self.tracing.otlp_ca {
                Some(ca) => format!("\"{}\"", ca.display()),
                None => "missing".into(),
            };
            return bad(
                "tracing.otlp_ca",
                value,
                "the file of a CA goes with an otlp_endpoint of the form https://host:port, and with no other".into(),
            );
        }
        let limits = &self.limits;
        if limits.frame_max != 0 && limits.frame_max < 8192 {
            return bad(
                "limits.frame_max",
                limits.frame_max.to_string(),
                "0 (no limit) or at least 8192 bytes are allowed".into(),
            );
        }
        if limits.message_bytes_max == 0 || limits.message_bytes_max > 512 << 20 {
            return bad(
                "limits.message_bytes_max",
                limits.message_bytes_max.to_string(),
                "1 to 536870912 bytes are allowed".into(),
            );
        }
        if !(limits.memory_watermark > 0.0 && limits.memory_watermark <= 1.0) {
            return bad(
                "limits.memory_watermark",
                limits.memory_watermark.to_string(),
                "above 0 and at most 1 is allowed".into(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        std::fs::write(&path, text).unwrap();
        File::load(&path).unwrap_err().to_string()
    }

    #[test]
    fn mistakes_name_file_line_key_and_what_is_allowed() {
        let unknown = error("[node]\nname = \"a\"\n\n[amqp]\nlisen = \"127.0.0.1:1\"\n");
        assert!(
            unknown.contains("node.toml")
                && unknown.contains("line 5")
                && unknown.contains("lisen")
                && unknown.contains("listen"),
            "{unknown}"
        );
        let level = error("[log]\nlevel = \"loud\"\n");
        assert!(
            level.contains("line 2") && level.contains("loud") && level.contains("debug"),
            "{level}"
        );
        let range = error("[cluster]\nname = \"c\"\nshards = 0\n");
        assert!(
            range.contains("node.toml:3")
                && range.contains("cluster.shards")
                && range.contains("1 to 4096"),
            "{range}"
        );
        let tls = error("[amqp]\ntls_listen = \"127.0.0.1:5671\"\n");
        assert!(
            tls.contains("node.toml:2") && tls.contains("[client_tls]"),
            "{tls}"
        );
        let verify =
            error("[client_tls]\ncertificate = \"a\"\nkey = \"b\"\nverify = \"required\"\n");
        assert!(
            verify.contains("node.toml:4") && verify.contains("client_tls.ca"),
            "{verify}"
        );
        let version =
            error("[client_tls]\ncertificate = \"a\"\nkey = \"b\"\nmin_version = \"1.1\"\n");
        assert!(
            version.contains("line 4") && version.contains("1.2"),
            "{version}"
        );
        let checks = error("[authorization]\nqueue_write_checks = \"some\"\n");
        assert!(
            checks.contains("line 2") && checks.contains("boolean"),
            "{checks}"
        );
        let endpoint = error("[tracing]\notlp_endpoint = \"127.0.0.1:4318\"\n");
        assert!(
            endpoint.contains("node.toml:2") && endpoint.contains("http://host:port"),
            "{endpoint}"
        );
        for text in [
            "[tracing]\notlp_endpoint = \"https://127.0.0.1:4318\"\n",
            "[tracing]\notlp_endpoint = \"http://127.0.0.1:4318\"\notlp_ca = \"ca.pem\"\n",
            "[tracing]\notlp_ca = \"ca.pem\"\n",
        ] {
            let ca = error(text);
            assert!(
                ca.contains("tracing.otlp_ca") && ca.contains("https://host:port"),
                "{ca}"
            );
        }
        let peer = error(
            "[node]\nname = \"x\"\n[cluster]\npeers = [{ name = \"a\", address = \"127.0.0.1:1\" }]\n",
        );
        assert!(
            peer.contains("node.name") && peer.contains("must be one of cluster.peers: a"),
            "{peer}"
        );
    }
}
