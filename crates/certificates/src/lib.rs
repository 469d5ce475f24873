//! A CA of one's own and the nodes' certificates under it: for the links between nodes, and, with the hosts' names in them, for clients.
//!
//! Made once and kept: a node that is down while new ones are made could not join again. Ed25519, so that handshakes have fixed sizes. A node's
//! certificate names its node and `warren-node`, the name under which nodes greet each other, and serves at both ends of a link.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};

/// The name that every node's certificate carries beside its own.
const ANY_NODE: &str = "warren-node";

/// Certificates that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// What was to be done.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The CA that is there is no use.
    #[error(
        "the CA in {folder} is unusable ({source}); remove that folder, and all certificates are made anew"
    )]
    Authority {
        /// Where it lies.
        folder: PathBuf,
        /// What is wrong.
        source: rcgen::Error,
    },
    /// A name cannot stand in a certificate, or no key could be made.
    #[error("cannot make the certificate of {name}: {source}")]
    Certificate {
        /// Whose.
        name: String,
        /// Why not.
        source: rcgen::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

/// Makes what is missing in `folder` for these nodes: `ca.pem` and `ca.key`, and `NAME.pem` and `NAME.key` of each. Certificates that are made carry `hosts`,
/// names or addresses, beside the node's own. Returns the names of those that were made; all anew if there was no CA.
///
/// # Errors
/// When a file cannot be read or written, the CA that is there is no use, or a name cannot stand in a certificate.
pub fn ensure(folder: &Path, nodes: &[String], hosts: &[String]) -> Result<Vec<String>> {
    fs::create_dir_all(folder).map_err(file("make", folder))?;
    let have_ca = folder.join("ca.pem").is_file() && folder.join("ca.key").is_file();
    let missing = |name: &&String| {
        !have_ca
            || !folder.join(format!("{name}.pem")).is_file()
            || !folder.join(format!("{name}.key")).is_file()
    };
    let wanted: Vec<String> = nodes.iter().filter(missing).cloned().collect();
    if wanted.is_empty() && have_ca {
        return Ok(wanted);
    }
    if !have_ca {
        make_ca(folder)?;
    }
    let issuer = load_ca(folder)?;
    for name in &wanted {
        make_node(folder, name, hosts, &issuer)?;
    }
    Ok(wanted)
}

fn file<'a>(what: &'static str, path: &'a Path) -> impl Fn(std::io::Error) -> Error + use<'a> {
    move |source| Error::File {
        what,
        path: path.to_owned(),
        source,
    }
}

fn make_ca(folder: &Path) -> Result<()> {
    let signed = || {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters
            .distinguished_name
            .push(DnType::CommonName, "Warren CA");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        Ok((parameters.self_signed(&key)?, key))
    };
    let (certificate, key) = signed().map_err(|source| Error::Certificate {
        name: "the CA".to_owned(),
        source,
    })?;
    write(&folder.join("ca.key"), &key.serialize_pem(), 0o600)?;
    write(&folder.join("ca.pem"), &certificate.pem(), 0o644)
}

fn load_ca(folder: &Path) -> Result<Issuer<'static, KeyPair>> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(file("read", &path))
    };
    let unusable = |source| Error::Authority {
        folder: folder.to_owned(),
        source,
    };
    let key = KeyPair::from_pem(&read("ca.key")?).map_err(unusable)?;
    Issuer::from_ca_cert_pem(&read("ca.pem")?, key).map_err(unusable)
}

fn make_node(
    folder: &Path,
    name: &str,
    hosts: &[String],
    issuer: &Issuer<'static, KeyPair>,
) -> Result<()> {
    let signed = || {
        let mut names = vec![ANY_NODE.to_owned(), name.to_owned()];
        names.extend(hosts.iter().cloned());
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        parameters.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        Ok((parameters.signed_by(&key, issuer)?, key))
    };
    let (certificate, key) = signed().map_err(|source| Error::Certificate {
        name: name.to_owned(),
        source,
    })?;
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
    written.map_err(file("write", path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn certificates_are_made_once_and_added_to_under_the_same_ca() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(
            ensure(folder.path(), &names(&["node1"]), &[]).unwrap(),
            ["node1"]
        );
        let (ca, first) = (read("ca.pem"), read("node1.pem"));
        let both = names(&["node1", "node2"]);
        assert_eq!(
            ensure(folder.path(), &both, &names(&["localhost", "127.0.0.1"])).unwrap(),
            ["node2"]
        );
        assert_eq!((read("ca.pem"), read("node1.pem")), (ca, first));
        assert!(ensure(folder.path(), &both, &[]).unwrap().is_empty());
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
        ensure(folder.path(), &names(&["node1"]), &[]).unwrap();
        let before = fs::read(folder.path().join("node1.pem")).unwrap();
        fs::remove_file(folder.path().join("ca.key")).unwrap();
        ensure(folder.path(), &names(&["node1"]), &[]).unwrap();
        assert_ne!(fs::read(folder.path().join("node1.pem")).unwrap(), before);
    }

    #[test]
    fn a_spoilt_ca_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        ensure(folder.path(), &names(&["node1"]), &[]).unwrap();
        fs::write(folder.path().join("ca.pem"), "spoilt").unwrap();
        let error = ensure(folder.path(), &names(&["node2"]), &[]).unwrap_err();
        assert!(error.to_string().contains("remove that folder"), "{error}");
    }

    #[test]
    fn a_name_that_no_certificate_can_carry_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = ensure(folder.path(), &names(&["n\u{f6}de"]), &[]).unwrap_err();
        assert!(matches!(error, Error::Certificate { .. }), "{error}");
    }
}
