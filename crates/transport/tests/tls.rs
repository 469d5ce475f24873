//! A node's own TLS files: what is wrong with them is named before any peer sees them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::Ca;
use std::{fs, path::PathBuf};
use warren_transport::{Tls, TlsError};

struct Files {
    _folder: tempfile::TempDir,
    certificate: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

fn files(certificate: &str, key: &str, ca: &str) -> Files {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key, ca) = (
        put("node.pem", certificate),
        put("node.key", key),
        put("ca.pem", ca),
    );
    Files {
        _folder: folder,
        certificate,
        key,
        ca,
    }
}

impl Files {
    fn load(&self) -> Result<Tls, TlsError> {
        Tls::load(&self.certificate, &self.key, &self.ca)
    }

    fn problem(&self) -> String {
        self.load().unwrap_err().to_string()
    }
}

#[test]
fn good_files_load() {
    let ca = Ca::new();
    let (certificate, key) = ca.issue("n1");
    files(&certificate, &key, &ca.pem()).load().unwrap();
}

#[test]
fn what_is_wrong_is_named_with_its_file() {
    let ca = Ca::new();
    let (certificate, key) = ca.issue("n1");
    let (other_certificate, other_key) = ca.issue("n2");
    let missing = Files {
        key: "/nowhere/node.key".into(),
        ..files(&certificate, &key, &ca.pem())
    };
    assert!(
        missing
            .problem()
            .starts_with("cannot read /nowhere/node.key: "),
        "{}",
        missing.problem()
    );
    for (case, file, says) in [
        (files("", &key, &ca.pem()), "node.pem", "no certificate"),
        (
            files(&certificate, &certificate, &ca.pem()),
            "node.key",
            "private key",
        ),
        (files(&certificate, &key, &key), "ca.pem", "no certificate"),
        (
            files(&certificate, &other_key, &ca.pem()),
            "node.key",
            "not the one of the certificate",
        ),
        (
            files(&other_certificate, &key, &ca.pem()),
            "node.pem",
            "not the one of the certificate",
        ),
        (
            files(&certificate, &key, &Ca::new().pem()),
            "node.pem",
            "other nodes would refuse",
        ),
        (
            files(&certificate, &key, &Ca::new().pem()),
            "ca.pem",
            "issued by that CA",
        ),
    ] {
        let problem = case.problem();
        assert!(
            problem.contains(file) && problem.contains(says),
            "{problem}"
        );
    }
}

#[test]
fn a_certificate_without_the_common_name_is_refused() {
    let ca = Ca::new();
    let (certificate, key) = ca.issue_for(vec!["n1".into()]);
    let problem = files(&certificate, &key, &ca.pem()).problem();
    assert!(problem.contains("warren-node"), "{problem}");
    assert!(!problem.contains("BEGIN"), "no key material in errors");
}
