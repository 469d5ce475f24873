//! Mutual TLS between nodes: who may talk to whom.
//!
//! Every node shows a certificate of the cluster's CA, as server and as client. All certificates carry the DNS name
//! [`SERVER_NAME`] beside the node's own, and dialling verifies that fixed name: a node is found by address, and who it is says
//! its [`crate::Hello`]. What is wrong with a node's own files is found when they are loaded, not by its peers' refusals.

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    RootCertStore,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
    version::TLS13,
};
use std::{fmt, fs, io, path::Path, sync::Arc};

/// The DNS name that every node's certificate carries.
pub const SERVER_NAME: &str = "warren-node";
const ALPN: &[u8] = b"warren/1";

/// A node's certificate and the CA it trusts, checked and ready.
#[derive(Clone)]
pub struct Tls {
    pub(crate) server: Arc<QuicServerConfig>,
    pub(crate) client: Arc<QuicClientConfig>,
    /// Known to this node alone and the same at each start; what must survive a restart without being stored is derived from it.
    pub(crate) secret: [u8; 32],
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

/// What is wrong with a node's TLS files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{file} is not what it should be, {expected} in PEM form: {problem}")]
    Content {
        /// The file.
        file: String,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The key is not the certificate's.
    #[error("the key in {key} is not the one of the certificate in {certificate}")]
    KeyMismatch {
        /// The key's file.
        key: String,
        /// The certificate's file.
        certificate: String,
    },
    /// The peers would refuse the certificate.
    #[error(
        "other nodes would refuse the certificate in {certificate} (CA: {ca}): {problem}; it must be issued by that CA, be valid now, be for both server and client use, and carry the DNS name \"{SERVER_NAME}\""
    )]
    Unacceptable {
        /// The certificate's file.
        certificate: String,
        /// The CA's file.
        ca: String,
        /// What is wrong.
        problem: String,
    },
}

impl Tls {
    /// Reads and checks a node's certificate (with intermediates, if any), its key and the cluster's CA from PEM files.
    pub fn load(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        ca: impl AsRef<Path>,
    ) -> Result<Tls, TlsError> {
        let read = |path: &Path| -> Result<Pem, TlsError> {
            let file = path.display().to_string();
            match fs::read(path) {
                Ok(bytes) => Ok(Pem { file, bytes }),
                Err(source) => Err(TlsError::Read { file, source }),
            }
        };
        Self::build(
            &read(certificate.as_ref())?,
            &read(key.as_ref())?,
            &read(ca.as_ref())?,
        )
    }

    /// The same of PEM text.
    pub fn from_pem(certificate: &[u8], key: &[u8], ca: &[u8]) -> Result<Tls, TlsError> {
        let named = |name: &str, bytes: &[u8]| Pem {
            file: name.into(),
            bytes: bytes.to_vec(),
        };
        Self::build(
            &named("the certificate", certificate),
            &named("the key", key),
            &named("the CA", ca),
        )
    }

    fn build(certificate: &Pem, key: &Pem, ca: &Pem) -> Result<Tls, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificate.certificates("a node's certificate, with its intermediates")?;
        let private =
            PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|e| key.wrong("a private key", e))?;
        let secret = blake3::derive_key("warren transport: node secret", private.secret_der());
        let mut roots = RootCertStore::empty();
        for authority in ca.certificates("the cluster CA's certificates")? {
            roots
                .add(authority)
                .map_err(|e| ca.wrong("the cluster CA's certificates", e))?;
        }
        let roots = Arc::new(roots);
        let unacceptable = |problem: String| TlsError::Unacceptable {
            certificate: certificate.file.clone(),
            ca: ca.file.clone(),
            problem,
        };
        let verify_server =
            WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .map_err(|e| unacceptable(e.to_string()))?;
        let verify_client = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| unacceptable(e.to_string()))?;
        match CertifiedKey::from_der(chain.clone(), private.clone_key(), &provider) {
            Ok(_) => {}
            Err(rustls::Error::InconsistentKeys(_)) => {
                return Err(TlsError::KeyMismatch {
                    key: key.file.clone(),
                    certificate: certificate.file.clone(),
                });
            }
            Err(e) => return Err(key.wrong("the certificate's private key", e)),
        }
        check_own(&chain, &*verify_server, &*verify_client).map_err(unacceptable)?;
        let server = server_config(&provider, verify_client, chain.clone(), private.clone_key())
            .map_err(|e| unacceptable(e.to_string()))?;
        let client = client_config(&provider, verify_server, chain, private)
            .map_err(|e| unacceptable(e.to_string()))?;
        Ok(Tls {
            server: Arc::new(server),
            client: Arc::new(client),
            secret,
        })
    }
}

/// What peers will check of this node's certificate.
fn check_own(
    chain: &[CertificateDer<'_>],
    server: &dyn ServerCertVerifier,
    client: &dyn ClientCertVerifier,
) -> Result<(), String> {
    let (own, intermediates) = chain.split_first().ok_or("there is none")?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|e| e.to_string())?;
    server
        .verify_server_cert(own, intermediates, &name, &[], UnixTime::now())
        .map_err(|e| e.to_string())?;
    client
        .verify_client_cert(own, intermediates, UnixTime::now())
        .map_err(|e| e.to_string())?;
    Ok(())
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<QuicServerConfig, Box<dyn std::error::Error>> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Every link shows its certificate: no resumption.
    config.send_tls13_tickets = 0;
    Ok(QuicServerConfig::try_from(config)?)
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<WebPkiServerVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<QuicClientConfig, Box<dyn std::error::Error>> {
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(QuicClientConfig::try_from(config)?)
}

/// PEM text and what it is called in errors.
struct Pem {
    file: String,
    bytes: Vec<u8>,
}

impl Pem {
    fn certificates(
        &self,
        expected: &'static str,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all: Vec<_> = CertificateDer::pem_slice_iter(&self.bytes)
            .collect::<Result<_, _>>()
            .map_err(|e| self.wrong(expected, e))?;
        if all.is_empty() {
            return Err(self.wrong(expected, "there is no certificate in it"));
        }
        Ok(all)
    }

    fn wrong(&self, expected: &'static str, problem: impl fmt::Display) -> TlsError {
        TlsError::Content {
            file: self.file.clone(),
            expected,
            problem: problem.to_string(),
        }
    }
}
