//! The Warren server: reads its configuration, opens its sockets and runs a node until it is told to stop.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod audit_file;
mod config;
mod heal;
mod listener;
mod logging;
mod memory;
mod subject;
mod tls;
mod traces;

use clap::Parser;
use config::File;
use listener::Kind;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tls::ClientTls;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use traces::Traces;
use warren_node::{
    Certificate, Config, FreeDisk, Limits, Node, NodeError, PasswordHashing, Settings, ShardLogs,
};
use warren_storage::{Storage as _, StorageError};
use warren_storage_rocksdb::RocksStorage;
use warren_transport::{PeerAddress, Tls, TokioNetwork};

/// sysexits: the configuration is unusable.
const EX_CONFIG: u8 = 78;
/// sysexits: something that the server needs is not to be had (a port, its data folder).
const EX_UNAVAILABLE: u8 = 69;
const EX_SOFTWARE: u8 = 70;

/// A clustered message broker that every RabbitMQ client already speaks to.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example: warren --config cluster-config/node1.toml\nWithout a configuration: a single node on 127.0.0.1:5672 with its data in ./warren-data"
)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Data folder, instead of the configuration's node.data_dir.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// How often the storage is asked whether it has failed.
const LOOK_AT_STORAGE: Duration = Duration::from_millis(250);
/// How soon a node whose storage has failed starts again, if there is room.
const PAUSE_BEFORE_START: Duration = Duration::from_secs(1);
/// How long such a node may take to stop.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// A task that panics leaves its part of the node's state broken: the node must not go on without it. The others take over.
fn stop_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Plants the bug that the environment names, if any.
#[cfg(feature = "planted-bugs")]
fn plant() -> Result<(), String> {
    use warren_model::planted;
    let Ok(name) = std::env::var("WARREN_PLANTED_BUG") else {
        return Ok(());
    };
    match planted::plant(&name) {
        Some(bug) => {
            eprintln!("warren: WITH A PLANTED BUG: {}", bug.what());
            Ok(())
        }
        None => {
            let names: Vec<&str> = planted::Bug::ALL.iter().map(|bug| bug.name()).collect();
            Err(format!(
                "no bug is called '{name}'; there are: {}",
                names.join(", ")
            ))
        }
    }
}

fn main() -> ExitCode {
    stop_on_panic();
    #[cfg(feature = "planted-bugs")]
    if let Err(error) = plant() {
        return fail(EX_CONFIG, &error);
    }
    let arguments = Arguments::parse();
    let file = match &arguments.config {
        None => Ok(File::default()),
        Some(path) => File::load(path),
    };
    let mut file = match file {
        Ok(file) => file,
        Err(error) => return fail(EX_CONFIG, &error),
    };
    if let Some(dir) = arguments.data_dir {
        file.node.data_dir = dir;
    }
    let traces = match Traces::of(&file, &beside(arguments.config.as_deref())) {
        Ok(traces) => traces,
        Err(error) => return fail(EX_CONFIG, &error),
    };
    if let Err(error) = logging::start(&file, traces.as_ref()) {
        let path = file.audit.file.as_deref().unwrap_or(Path::new(""));
        let what = format!(
            "the audit log {} cannot be opened ({error}); check audit.file in the configuration, and its folder",
            path.display()
        );
        return fail(EX_UNAVAILABLE, &what);
    }
    let tls = match tls(&file, arguments.config.as_deref()) {
        Ok(tls) => tls,
        Err(error) => return fail(EX_CONFIG, &error),
    };
    let links = link_certificates(&file, arguments.config.as_deref());
    let client_tls = match client_tls(&file, arguments.config.as_deref(), &links) {
        Ok(client_tls) => client_tls,
        Err(error) => return fail(EX_CONFIG, &error),
    };
    let (control, work) = match runtimes() {
        Ok(runtimes) => runtimes,
        Err(error) => return fail(EX_SOFTWARE, &error),
    };
    let result = control.block_on(run(file, tls, client_tls, links, work.handle().clone()));
    work.shutdown_timeout(Duration::from_secs(1));
    control.shutdown_timeout(Duration::from_secs(1));
    if let Some(traces) = traces {
        traces.finish();
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(EX_UNAVAILABLE, &*error),
    }
}

fn fail(code: u8, error: &(impl std::fmt::Display + ?Sized)) -> ExitCode {
    eprintln!("warren: {error}");
    ExitCode::from(code)
}

/// Consensus and links have a runtime of their own, so that heartbeats and leases are kept while queues and clients use up the rest.
fn runtimes() -> std::io::Result<(Runtime, Runtime)> {
    let control = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("warren-control")
        .enable_all()
        .build()?;
    let work = Builder::new_multi_thread()
        .thread_name("warren-work")
        .enable_all()
        .build()?;
    Ok((control, work))
}

async fn run(
    file: File,
    tls: Tls,
    client_tls: Option<Arc<ClientTls>>,
    links: Vec<Certificate>,
    work: tokio::runtime::Handle,
) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // SIGHUP asks to read certificates again. Where there are none, or not yet, it must not end the process, as it would if nobody waited for it.
    let _hangup = signal(SignalKind::hangup())?;
    let listener = listener::bind(file.amqp.listen)?;
    let http = listener::bind(file.http.listen)?;
    let amqps = file.amqp.tls_listen.map(listener::bind).transpose()?;
    let https = file.http.tls_listen.map(listener::bind).transpose()?;
    heal::finish(&file.node.data_dir)?;
    let storage = RocksStorage::open(
        &file.node.data_dir,
        &warren_storage_rocksdb::Settings::default(),
    );
    let storage = match storage {
        Err(damage @ StorageError::Corrupt { .. }) => return Err(heal_or(&file, damage)),
        opened => Arc::new(opened?),
    };
    let node = Node::start(
        node_config(&file, tls),
        storage.clone(),
        Arc::new(TokioNetwork::default()),
        work.clone(),
    );
    let node = match (node.await, storage.damage()) {
        (Err(error), Some(damage)) => {
            tracing::error!(%error, "the node cannot be started");
            return Err(heal_or(&file, damage));
        }
        (Err(NodeError::Storage(damage @ StorageError::Corrupt { .. })), None) => {
            return Err(heal_or(&file, damage));
        }
        (started, _) => started?,
    };
    let mut serving = JoinSet::new();
    let mut api = JoinSet::new();
    let work = &work;
    serving.spawn_on(listener::serve(node.clone(), listener, Kind::Plain), work);
    api.spawn_on(warren_management::serve(node.clone(), http), work);
    match client_tls {
        None => node.set_certificates(links),
        Some(tls) => {
            tls.tell(&node);
            if let Some(amqps) = amqps {
                let kind = Kind::Tls(tls.clone());
                serving.spawn_on(listener::serve(node.clone(), amqps, kind), work);
            }
            if let Some(https) = https {
                let handshake = tls.clone();
                let handshake = move |stream| {
                    let tls = handshake.clone();
                    async move { tls.accept(stream).await }
                };
                let serve = warren_management::serve_with(node.clone(), https, handshake);
                api.spawn_on(serve, work);
            }
            let node = node.clone();
            api.spawn_on(
                async move {
                    if let Err(error) = tls.watch(&node).await {
                        tracing::error!(%error, "changes of certificates cannot be watched for");
                    }
                },
                work,
            );
        }
    }
    tracing::info!(amqp = %file.amqp.listen, http = %file.http.listen, "listening");
    for (protocol, address) in tls_listeners(&file) {
        tracing::info!(protocol, address, "listening with TLS");
    }
    let end = tokio::select! {
        signal = stop_signal() => {
            tracing::info!(signal = signal?, "stopping");
            End::Stopped
        }
        _ = storage_failure(&node, &file) => End::Failed,
        damage = storage_damage(&node, &file) => End::Damaged(damage),
    };
    serving.abort_all();
    match end {
        End::Stopped => {
            node.shutdown().await;
            api.abort_all();
            Ok(())
        }
        End::Failed => {
            // What it can still do in order it may do; its storage cannot be trusted to answer.
            let _ = tokio::time::timeout(LAST_WORDS, node.shutdown()).await;
            Err(start_again())
        }
        End::Damaged(damage) => {
            node.shutdown().await;
            Err(heal_or(&file, damage))
        }
    }
}

/// Why a node no longer runs.
enum End {
    /// It was told to stop.
    Stopped,
    /// Its storage takes no more writes, and there is room for it again.
    Failed,
    /// What it stored is damaged, and the others can do without it.
    Damaged(StorageError),
}

/// Sets damaged data aside and starts again, to be given everything by the other nodes; returns only if that cannot be.
fn heal_or(file: &File, damage: StorageError) -> anyhow::Error {
    if file.cluster.peers.len() < 2 {
        return damage.into();
    }
    match heal::set_aside(&file.node.data_dir, &damage) {
        Ok(()) => start_again(),
        Err(error) => error,
    }
}

/// Waits until damage has been found, and the others can do without this node while it is given everything anew.
async fn storage_damage(node: &Arc<Node>, file: &File) -> StorageError {
    let mut said = false;
    loop {
        tokio::time::sleep(LOOK_AT_STORAGE).await;
        let Some(damage) = node.storage_damage() else {
            continue;
        };
        let why_not = if file.cluster.peers.len() < 2 {
            "there is no other node to restore it from"
        } else if heal::was_set_aside(&file.node.data_dir) {
            "damaged data was set aside here before: look at the disk, and remove that folder"
        } else if !node.is_dispensable() {
            "the other nodes are not all up: once they are, this node restores itself from them"
        } else {
            return damage;
        };
        if !std::mem::replace(&mut said, true) {
            tracing::error!(%damage, why_not, "stored data is damaged; what is damaged is not served, and this node goes on with the rest");
        }
    }
}

/// Waits until the storage has failed and there is room for it again.
async fn storage_failure(node: &Arc<Node>, file: &File) -> StorageError {
    let free = free_disk(file.node.data_dir.clone());
    let failure = loop {
        tokio::time::sleep(LOOK_AT_STORAGE).await;
        if let Some(failure) = node.storage_failure() {
            break failure;
        }
    };
    tracing::error!(%failure, "the storage has failed: this node takes part in nothing until it can start again");
    loop {
        tokio::time::sleep(PAUSE_BEFORE_START).await;
        if free
            .ask()
            .is_none_or(|free| free >= file.limits.disk_free_bytes_min)
        {
            return failure;
        }
    }
}

/// Starts this program again in this process, from what is on the disk. Returns only if that fails.
fn start_again() -> anyhow::Error {
    use std::os::unix::process::CommandExt;
    tracing::warn!("starting again");
    match std::env::current_exe() {
        Ok(program) => std::process::Command::new(program)
            .args(std::env::args_os().skip(1))
            .exec()
            .into(),
        Err(error) => error.into(),
    }
}

async fn stop_signal() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    })
}

/// The certificate of the links between nodes, to be watched over; nobody else has to trust the one that a node on its own makes itself.
fn link_certificates(file: &File, config: Option<&Path>) -> Vec<Certificate> {
    let Some(section) = &file.tls else {
        return Vec::new();
    };
    let path = beside(config).join(&section.certificate);
    let chain = CertificateDer::pem_file_iter(&path);
    // What is wrong with it has been found when it was loaded.
    let chain: Vec<_> = chain.into_iter().flatten().flatten().collect();
    tls::describe(&chain, &path)
}

/// TLS for clients, where there is any.
fn client_tls(
    file: &File,
    config: Option<&Path>,
    links: &[Certificate],
) -> anyhow::Result<Option<Arc<ClientTls>>> {
    let Some(section) = &file.client_tls else {
        return Ok(None);
    };
    let tls = ClientTls::load(section.clone(), beside(config), links.to_vec())?;
    Ok(Some(Arc::new(tls)))
}

/// What paths in the configuration are relative to.
fn beside(config: Option<&Path>) -> PathBuf {
    config
        .and_then(Path::parent)
        .unwrap_or(Path::new(""))
        .to_owned()
}

/// Where clients connect with TLS.
fn tls_listeners(file: &File) -> Vec<(String, String)> {
    let all = [
        ("amqp/ssl", file.amqp.tls_listen),
        ("https", file.http.tls_listen),
    ];
    let listens = all.into_iter();
    listens
        .filter_map(|(protocol, address)| Some((protocol.to_owned(), address?.to_string())))
        .collect()
}

fn node_config(file: &File, tls: Tls) -> Config {
    let address = |peer: &config::Peer| PeerAddress {
        name: peer.name.clone(),
        address: peer.address.clone(),
    };
    let own = file
        .cluster
        .peers
        .iter()
        .find(|p| p.name == file.node.name)
        .map(address);
    let own = own.unwrap_or_else(|| PeerAddress {
        name: file.node.name.clone(),
        address: file.cluster.listen.to_string(),
    });
    let peers = if file.cluster.peers.is_empty() {
        vec![own.clone()]
    } else {
        file.cluster.peers.iter().map(address).collect()
    };
    let limits = &file.limits;
    Config {
        name: file.node.name.clone(),
        cluster_name: file.cluster.name.clone(),
        bind: file.cluster.listen,
        address: own.address,
        amqp: file.amqp.listen.to_string(),
        http: file.http.listen.to_string(),
        listeners: tls_listeners(file),
        peers,
        rejoins: heal::was_set_aside(&file.node.data_dir),
        shards: file.cluster.shards,
        tls,
        seed: None,
        free_disk: Some(free_disk(file.node.data_dir.clone())),
        settings: Settings {
            limits: Limits {
                channel_max: limits.channel_max,
                frame_max: limits.frame_max,
                heartbeat_s: limits.heartbeat_s,
                message_max: limits.message_bytes_max,
            },
            unroutable_wait: Duration::from_millis(limits.unroutable_wait_ms),
            memory_limit_bytes: (memory::available() as f64 * limits.memory_watermark) as u64,
            disk_free_limit_bytes: limits.disk_free_bytes_min,
            loopback_users: limits.loopback_users.clone(),
            password_hashing: PasswordHashing::Argon2id,
            login_failures_a_minute: limits.login_failures_per_minute,
            queue_write_checks: file.authorization.queue_write_checks,
            metrics_objects_max: file.http.metrics_objects_max,
            logs: ShardLogs::default(),
        },
        knows: warren_model::Level::NEWEST,
        first_user: Some(("guest".into(), "guest".into())),
    }
}

/// The certificates of the links between nodes. A node on its own makes itself some: nobody else has to trust them.
fn tls(file: &File, config: Option<&Path>) -> anyhow::Result<Tls> {
    let Some(section) = &file.tls else {
        return alone(&file.node.name);
    };
    let beside = beside(config);
    Ok(Tls::load(
        beside.join(&section.certificate),
        beside.join(&section.key),
        beside.join(&section.ca),
    )?)
}

fn alone(name: &str) -> anyhow::Result<Tls> {
    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        PKCS_ED25519,
    };
    let ca_key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = authority.self_signed(&ca_key)?;
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let mut own = CertificateParams::new(vec![
        warren_transport::SERVER_NAME.to_owned(),
        name.to_owned(),
    ])?;
    own.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let certificate = own.signed_by(&key, &Issuer::new(authority, ca_key))?;
    Ok(Tls::from_pem(
        certificate.pem().as_bytes(),
        key.serialize_pem().as_bytes(),
        ca.pem().as_bytes(),
    )?)
}

/// Free space for whoever runs the server, where the data lies.
fn free_disk(folder: PathBuf) -> FreeDisk {
    FreeDisk::new(move || {
        let room = rustix::fs::statvfs(&folder).ok()?;
        Some(room.f_bavail * room.f_frsize)
    })
}
