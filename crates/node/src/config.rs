//! What a node needs to be told.

use crate::alarms::FreeDisk;
use std::net::SocketAddr;
use std::time::Duration;
use warren_model::Level;
use warren_model::command::PasswordHashing;
use warren_session::Limits;
use warren_transport::{PeerAddress, Tls};

/// A node's configuration; files and defaults are the server binary's business.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name, unique in the cluster.
    pub name: String,
    /// Name of the cluster, to show to clients.
    pub cluster_name: String,
    /// Local UDP address of the links between nodes.
    pub bind: SocketAddr,
    /// `host:port` at which the other nodes reach that.
    pub address: String,
    /// `host:port` of AMQP, to show to people.
    pub amqp: String,
    /// `host:port` of HTTP, to show to people.
    pub http: String,
    /// Listeners beside those two, to show to people: protocol (`amqp/ssl`, `https`) and `host:port`.
    pub listeners: Vec<(String, String)>,
    /// The nodes that the cluster is founded with, this one among them.
    pub peers: Vec<PeerAddress>,
    /// This node has belonged to a cluster and lost its data: it joins one again, under a new identity, and founds none.
    pub rejoins: bool,
    /// Shards of a cluster that this node founds.
    pub shards: u16,
    /// The newest level that this node knows: [`Level::NEWEST`], unless it plays an older release in a simulation.
    pub knows: Level,
    /// Certificates for the links between nodes.
    pub tls: Tls,
    /// Where randomness comes from; `None`: the system. Given in simulation.
    pub seed: Option<u64>,
    /// Free space where the data lies; `None`: never low.
    pub free_disk: Option<FreeDisk>,
    /// What clients may do.
    pub settings: Settings,
    /// A user that the founder makes, with all permissions in vhost `/`: name and password.
    pub first_user: Option<(String, String)>,
}

/// Limits and waits.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What is offered to clients.
    pub limits: Limits,
    /// How long a publish waits on a node that may not route before it is nacked, or its connection closed.
    pub unroutable_wait: Duration,
    /// Record bytes that this node's queues may hold before publishers are blocked.
    pub memory_limit_bytes: u64,
    /// Bytes that must be free where the data lies, else publishers are blocked.
    pub disk_free_limit_bytes: u64,
    /// Users that may log in from loopback addresses only.
    pub loopback_users: Vec<String>,
    /// How passwords are hashed that are set from now on. The default is quick, for simulations and tests: servers take Argon2id.
    pub password_hashing: PasswordHashing,
    /// How many logins from one address may fail a minute before its logins are refused unseen; 0: any number.
    pub login_failures_a_minute: u32,
    /// Whoever publishes to an exchange needs write permission on each queue that a message goes to as well: queues without are left out.
    pub queue_write_checks: bool,
    /// Queues that `/metrics/per-object` may show; 0: it shows none.
    pub metrics_objects_max: usize,
    /// How much of the shards' logs is kept.
    pub logs: ShardLogs,
}

/// How much of a shard's log is kept. The usual sizes suit disks; a simulation takes smaller ones, so that checkpoints, purges and transfers of whole states
/// happen within its short time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardLogs {
    /// Bytes of entries between checkpoints: what a restart has to apply again.
    pub checkpoint_bytes: u64,
    /// Bytes of entries that a shard's log may have before old messages move to the store.
    pub log_bytes_max: u64,
}

impl Default for ShardLogs {
    fn default() -> Self {
        Self {
            checkpoint_bytes: 16 << 20,
            log_bytes_max: 64 << 20,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            unroutable_wait: Duration::from_secs(5),
            memory_limit_bytes: 1 << 30,
            disk_free_limit_bytes: 50_000_000,
            loopback_users: vec!["guest".into()],
            password_hashing: PasswordHashing::SaltedSha256,
            login_failures_a_minute: 0,
            queue_write_checks: false,
            metrics_objects_max: 0,
            logs: ShardLogs::default(),
        }
    }
}
