//! The two SASL responses that carry a password. Both borrow from the response; neither checks the password.

use memchr::memchr;

use crate::table::{Table, Value};

/// User and password of a `PLAIN` response (RFC 4616): `NUL user NUL password`.
///
/// As in RabbitMQ the authorization identity before the first NUL must be empty, and the password has no NUL.
#[must_use]
pub fn parse_plain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = response.strip_prefix(b"\0")?;
    let (user, password) = rest.split_at_checked(memchr(0, rest)?)?;
    let password = password.strip_prefix(b"\0")?;
    if memchr(0, password).is_some() {
        return None;
    }
    Some((user, password))
}

/// User and password of an `AMQPLAIN` response: the entries of a field table, without its length, with `LOGIN` and `PASSWORD`.
#[must_use]
pub fn parse_amqplain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let table = Table::parse(response).ok()?;
    match (table.get("LOGIN")?, table.get("PASSWORD")?) {
        (Value::LongStr(user), Value::LongStr(password)) => Some((user, password)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain() {
        assert_eq!(
            parse_plain(b"\0guest\0secret"),
            Some((&b"guest"[..], &b"secret"[..]))
        );
        assert_eq!(parse_plain(b"\0guest\0"), Some((&b"guest"[..], &b""[..])));
        assert_eq!(parse_plain(b"\0\0"), Some((&b""[..], &b""[..])));
        for bad in [
            &b""[..],
            b"\0",
            b"\0guest",
            b"admin\0guest\0secret",
            b"\0guest\0sec\0ret",
        ] {
            assert_eq!(parse_plain(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn amqplain() {
        let response = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x06secret";
        assert_eq!(
            parse_amqplain(response),
            Some((&b"guest"[..], &b"secret"[..]))
        );
        assert_eq!(parse_amqplain(b"\x05LOGINS\0\0\0\x05guest"), None);
        assert_eq!(parse_amqplain(&response[..response.len() - 1]), None);
        assert_eq!(
            parse_amqplain(b"\x05LOGINI\0\0\0\x05\x08PASSWORDS\0\0\0\0"),
            None
        );
    }
}
