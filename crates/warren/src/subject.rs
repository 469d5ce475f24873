//! Names in certificates, as RabbitMQ writes them: `CN=name,O=organisation`, the most specific part first (RFC 4514).

use std::time::{Duration, SystemTime};
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Name};

/// What is told of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The subject's distinguished name.
    pub subject: String,
    /// Its common name, if it has one.
    pub common_name: Option<String>,
    /// The issuer's distinguished name.
    pub issuer: String,
    /// From when to when it is valid.
    pub validity: String,
    /// The last moment at which it is.
    pub not_after: SystemTime,
}

/// Reads a certificate in DER form. None if it is none.
pub fn read(certificate: &[u8]) -> Option<Names> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let validity = certificate.validity();
    let seconds = u64::try_from(validity.not_after.timestamp()).unwrap_or(0);
    let common_name = certificate.subject().iter_common_name().last();
    Some(Names {
        subject: written(certificate.subject()),
        common_name: common_name.and_then(|name| Some(name.as_str().ok()?.to_owned())),
        issuer: written(certificate.issuer()),
        validity: format!("{} - {}", validity.not_before, validity.not_after),
        not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
    })
}

fn written(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in name.iter() {
        let values = part.iter().map(|value| {
            let kind = oid2abbrev(value.attr_type(), oid_registry())
                .map_or_else(|_| value.attr_type().to_id_string(), str::to_owned);
            let text = value.as_str().map_or_else(
                |_| {
                    let bytes = value.as_slice().iter();
                    bytes.fold("#".to_owned(), |hex, b| format!("{hex}{b:02X}"))
                },
                escaped,
            );
            format!("{kind}={text}")
        });
        parts.push(values.collect::<Vec<_>>().join("+"));
    }
    parts.reverse();
    parts.join(",")
}

/// What a reader would take for something else gets a backslash.
fn escaped(text: &str) -> String {
    let last = text.chars().count().saturating_sub(1);
    let mut out = String::with_capacity(text.len());
    for (i, c) in text.chars().enumerate() {
        let at_end = (i == 0 && matches!(c, ' ' | '#')) || (i == last && c == ' ');
        if at_end || matches!(c, ',' | '+' | '"' | '\\' | '<' | '>' | ';') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519};

    #[test]
    fn names_are_written_from_the_most_specific_part_on() {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, text) in [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Rabbits, Hares + Co"),
            (DnType::CommonName, "alice"),
        ] {
            parameters.distinguished_name.push(kind, text);
        }
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        let names = read(certificate.der()).unwrap();
        assert_eq!(names.subject, r"CN=alice,O=Rabbits\, Hares \+ Co,C=DE");
        assert_eq!(names.issuer, names.subject);
        assert_eq!(names.common_name.as_deref(), Some("alice"));
        assert!(names.not_after > SystemTime::now(), "{names:?}");
        assert_eq!(read(b"no certificate"), None);
    }

    #[test]
    fn what_could_be_mistaken_is_escaped() {
        assert_eq!(escaped(" #a "), r"\ #a\ ");
        assert_eq!(escaped("#"), r"\#");
        assert_eq!(escaped(" "), r"\ ");
        assert_eq!(escaped(r#"a"b\c<d>;e=f"#), r#"a\"b\\c\<d\>\;e=f"#);
    }
}
