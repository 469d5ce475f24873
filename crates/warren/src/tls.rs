//! TLS for clients: AMQPS and HTTPS, with certificates that can be replaced while connections go on.
//!
//! Flow: [`ClientTls::load`] reads the files and refuses what clients could not use; [`ClientTls::accept`] makes one handshake with the files as they
//! were read last; [`ClientTls::watch`] reads them again on SIGHUP and when they change. Connections keep what they were accepted with. Files that
//! cannot be used change nothing: the log says why, and what was read before stays.

use crate::config::{ClientTlsSection, LoginFrom, TlsVersion, Verify};
use crate::subject;
use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use warren_node::{Certificate, Node, TlsPeer};

/// For the handshake; a client that does not get on with it is dropped.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// Between looks at the files.
const WATCH_PERIOD: Duration = Duration::from_secs(10);

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// A file cannot be read, or is not what it should be.
    #[error("[client_tls] {key} = {path}: {problem}")]
    File {
        /// The key in the configuration.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The files do not go together.
    #[error("[client_tls] certificate and key: {0}")]
    Pair(rustls::Error),
    /// The CA's certificates cannot be used to check clients.
    #[error("[client_tls] ca = {path}: {problem}")]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The TLS side of the listeners for clients.
#[derive(Debug)]
pub struct ClientTls {
    section: ClientTlsSection,
    /// What the section's paths are relative to.
    beside: PathBuf,
    current: RwLock<Loaded>,
    links: Vec<Certificate>,
}

/// The files as they were read last.
#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    certificates: Vec<Certificate>,
    stamps: Vec<Option<SystemTime>>,
}

impl ClientTls {
    /// Reads the files of a section. `links` are the node's other certificates, to be told with these.
    pub fn load(
        section: ClientTlsSection,
        beside: PathBuf,
        links: Vec<Certificate>,
    ) -> Result<Self, ClientTlsError> {
        let current = read(&section, &beside)?;
        Ok(Self {
            section,
            beside,
            current: RwLock::new(current),
            links,
        })
    }

    /// Tells the node of its certificates, for health checks.
    pub fn tell(&self, node: &Node) {
        let own = self.current.read().certificates.clone();
        node.set_certificates(self.links.iter().cloned().chain(own).collect());
    }

    /// Makes the handshake of a connection.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.current.read().config.clone();
        let handshake = TlsAcceptor::from(config).accept(stream);
        tokio::time::timeout(HANDSHAKE_DEADLINE, handshake)
            .await
            .map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long")
            })?
    }

    /// What the handshake has told.
    pub fn peer(&self, stream: &TlsStream<TcpStream>) -> TlsPeer {
        let (_, connection) = stream.get_ref();
        let version = connection.protocol_version();
        let protocol = if version == Some(rustls::ProtocolVersion::TLSv1_3) {
            "tlsv1.3"
        } else {
            "tlsv1.2"
        };
        let suite = connection.negotiated_cipher_suite();
        let mut peer = TlsPeer {
            protocol: protocol.to_owned(),
            cipher: suite.map_or(String::new(), |suite| format!("{:?}", suite.suite())),
            ..TlsPeer::default()
        };
        let shown = connection.peer_certificates().and_then(|all| all.first());
        if let Some(names) = shown.and_then(|certificate| subject::read(certificate)) {
            peer.user = match self.section.login_from {
                LoginFrom::DistinguishedName => Some(names.subject.clone()),
                LoginFrom::CommonName => names.common_name,
            };
            peer.subject = Some(names.subject);
            peer.issuer = Some(names.issuer);
            peer.validity = Some(names.validity);
        }
        peer
    }

    /// Reads the files again on SIGHUP and when they have changed, until it is dropped.
    pub async fn watch(&self, node: &Node) -> io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(WATCH_PERIOD) => false,
            };
            let before = self.current.read().stamps.clone();
            if !asked && stamps(&self.section, &self.beside) == before {
                continue;
            }
            match read(&self.section, &self.beside) {
                Ok(loaded) => {
                    *self.current.write() = loaded;
                    self.tell(node);
                    tracing::info!("certificates for clients were read again");
                }
                Err(error) => {
                    // Said once for each change.
                    self.current.write().stamps = stamps(&self.section, &self.beside);
                    tracing::error!(%error, "certificates for clients cannot be read again: those read before stay in use");
                }
            }
        }
    }
}

fn paths(section: &ClientTlsSection, beside: &Path) -> Vec<PathBuf> {
    let all = [
        Some(&section.certificate),
        Some(&section.key),
        section.ca.as_ref(),
    ];
    all.into_iter().flatten().map(|p| beside.join(p)).collect()
}

fn stamps(section: &ClientTlsSection, beside: &Path) -> Vec<Option<SystemTime>> {
    let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    paths(section, beside).iter().map(modified).collect()
}

fn read(section: &ClientTlsSection, beside: &Path) -> Result<Loaded, ClientTlsError> {
    // Before the files: what changes meanwhile is read again.
    let stamps = stamps(section, beside);
    let provider = Arc::new(ring::default_provider());
    let path = beside.join(&section.certificate);
    let chain = certificates("certificate", &path)?;
    let key = beside.join(&section.key);
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| ClientTlsError::File {
        key: "key",
        path: key,
        // The error does not show what is in the file.
        problem: format!("no private key in PEM form can be read: {error}"),
    })?;
    let own = CertifiedKey::from_der(chain, private, &provider).map_err(ClientTlsError::Pair)?;
    let versions: &[&SupportedProtocolVersion] = match section.min_version {
        TlsVersion::V1_2 => &[&TLS13, &TLS12],
        TlsVersion::V1_3 => &[&TLS13],
    };
    let described = describe(&own.cert, &path);
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(ClientTlsError::Pair)?
        .with_client_cert_verifier(verifier(section, beside, provider)?)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
    Ok(Loaded {
        config: Arc::new(config),
        certificates: described,
        stamps,
    })
}

fn certificates(
    key: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ClientTlsError> {
    read_certificates(path).map_err(|problem| ClientTlsError::File {
        key,
        path: path.to_owned(),
        problem,
    })
}

/// All certificates in a PEM file, or what is wrong with it.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("no certificates in PEM form can be read: {error}"))?;
    if all.is_empty() {
        return Err("there is no certificate in PEM form in it".into());
    }
    Ok(all)
}

/// The certificates of a file as operators see them.
pub fn describe(chain: &[CertificateDer<'_>], path: &Path) -> Vec<Certificate> {
    let known = chain
        .iter()
        .filter_map(|certificate| subject::read(certificate));
    known
        .map(|names| Certificate {
            what: path.display().to_string(),
            subject: names.subject,
            not_after: names.not_after,
        })
        .collect()
}

fn verifier(
    section: &ClientTlsSection,
    beside: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ClientTlsError> {
    let (Some(ca), true) = (&section.ca, section.verify != Verify::None) else {
        return Ok(Arc::new(NoClientAuth));
    };
    let path = beside.join(ca);
    let bad = |problem: String| ClientTlsError::Authority {
        path: path.clone(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ca", &path)? {
        roots
            .add(certificate)
            .map_err(|error| bad(error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match section.verify {
        Verify::Optional => builder.allow_unauthenticated(),
        Verify::Required | Verify::None => builder,
    };
    builder.build().map_err(|error| bad(error.to_string()))
}
