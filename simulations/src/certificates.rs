//! Certificates of the simulated nodes. Ed25519: handshakes have fixed sizes, so that packets repeat.
//!
//! Made once a process, outside of the simulation; in the binary with seeded randomness, so that they are the same in each process.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    PKCS_ED25519,
};
use warren_transport::{SERVER_NAME, Tls};

/// What each node shows to the others.
#[derive(Clone, Debug)]
pub struct Certificates {
    nodes: Vec<Tls>,
}

impl Certificates {
    /// A cluster's CA, and certificates of this many nodes.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn make(nodes: usize) -> anyhow::Result<Self> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(authority, KeyPair::generate_for(&PKCS_ED25519)?)?;
        let node = |index: usize| {
            let mut own = CertificateParams::new(vec![
                SERVER_NAME.to_owned(),
                crate::options::node_name(index),
            ])?;
            own.extended_key_usages = vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ];
            let key = KeyPair::generate_for(&PKCS_ED25519)?;
            let certificate = own.signed_by(&key, &ca)?;
            Ok(Tls::from_pem(
                certificate.pem().as_bytes(),
                key.serialize_pem().as_bytes(),
                ca.pem().as_bytes(),
            )?)
        };
        Ok(Self {
            nodes: (0..nodes).map(node).collect::<anyhow::Result<_>>()?,
        })
    }

    /// A node's.
    ///
    /// # Panics
    /// If there are fewer nodes.
    #[must_use]
    pub fn of(&self, node: usize) -> Tls {
        self.nodes[node].clone()
    }
}
