//! The development CA and the nodes' certificates, for the links between nodes.
//!
//! Made once and kept (git-ignored): a node that is down while new ones are made could not join again. Ed25519, so that handshakes have
//! fixed sizes. A node's certificate names its node and `warren-node`, the name under which nodes greet each other, and serves at both
//! ends of a link.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};

/// The name that every node's certificate carries beside its own.
const ANY_NODE: &str = "warren-node";

/// Makes what is missing in `folder` for these nodes. Returns whether anything was made.
pub fn ensure(folder: &Path, nodes: &[String]) -> Result<bool> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let have_ca = folder.join("ca.pem").is_file() && folder.join("ca.key").is_file();
    let missing = |name: &&String| {
        !have_ca
            || !folder.join(format!("{name}.pem")).is_file()
            || !folder.join(format!("{name}.key")).is_file()
    };
    let wanted: Vec<&String> = nodes.iter().filter(missing).collect();
    if wanted.is_empty() {
        return Ok(false);
    }
    if !have_ca {
        make_ca(folder)?;
    }
    let issuer = load_ca(folder)?;
    for name in wanted {
        make_node(folder, name, &issuer)
            .with_context(|| format!("cannot make the certificate of {name}"))?;
    }
    Ok(true)
}

fn make_ca(folder: &Path) -> Result<()> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    parameters
        .distinguished_name
        .push(DnType::CommonName, "Warren development CA");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let certificate = parameters.self_signed(&key)?;
    write(&folder.join("ca.key"), &key.serialize_pem(), 0o600)?;
    write(&folder.join("ca.pem"), &certificate.pem(), 0o644)
}

fn load_ca(folder: &Path) -> Result<Issuer<'static, KeyPair>> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let unusable = || {
        format!(
            "the CA in {} is unusable; remove that folder, and all certificates are made anew",
            folder.display()
        )
    };
    let key = KeyPair::from_pem(&read("ca.key")?).with_context(unusable)?;
    Issuer::from_ca_cert_pem(&read("ca.pem")?, key).with_context(unusable)
}

fn make_node(folder: &Path, name: &str, issuer: &Issuer<'static, KeyPair>) -> Result<()> {
    let mut parameters = CertificateParams::new(vec![ANY_NODE.to_owned(), name.to_owned()])?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&PKCS_ED25519)?;
    let certificate = parameters.signed_by(&key, issuer)?;
    write(
        &folder.join(format!("{name}.key")),
        &key.serialize_pem(),
        0o600,
    )?;
    write(
        &folder.join(format!("{name}.pem")),
        &certificate.pem(),
        0o644,
    )
}

/// Writes a file as a whole: a run that is interrupted leaves no half of one.
fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let draft = path.with_extension("draft");
    let written = (|| {
        let _ = fs::remove_file(&draft);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&draft)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&draft, path)
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn certificates_are_made_once_and_added_to_under_the_same_ca() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(ensure(folder.path(), &names(&["node1"])).unwrap());
        let (ca, first) = (read("ca.pem"), read("node1.pem"));
        assert!(ensure(folder.path(), &names(&["node1", "node2"])).unwrap());
        assert_eq!((read("ca.pem"), read("node1.pem")), (ca, first));
        assert!(!ensure(folder.path(), &names(&["node1", "node2"])).unwrap());
        assert_eq!(
            fs::metadata(folder.path().join("node2.key"))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
        assert!(!folder.path().join("node2.draft").exists());
    }

    #[test]
    fn a_lost_ca_makes_every_certificate_anew() {
        let folder = tempfile::tempdir().unwrap();
        ensure(folder.path(), &names(&["node1"])).unwrap();
        let before = fs::read(folder.path().join("node1.pem")).unwrap();
        fs::remove_file(folder.path().join("ca.key")).unwrap();
        ensure(folder.path(), &names(&["node1"])).unwrap();
        assert_ne!(fs::read(folder.path().join("node1.pem")).unwrap(), before);
    }

    #[test]
    fn a_spoilt_ca_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        ensure(folder.path(), &names(&["node1"])).unwrap();
        fs::write(folder.path().join("ca.pem"), "spoilt").unwrap();
        let error = ensure(folder.path(), &names(&["node2"])).unwrap_err();
        assert!(
            format!("{error:#}").contains("remove that folder"),
            "{error:#}"
        );
    }
}
