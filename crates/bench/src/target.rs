//! A broker's address: `host:port`, or `amqp://user:password@host:port/vhost`. Loopback only: a load test is an attack elsewhere.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

/// Where, and as whom, to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// A loopback address.
    pub address: SocketAddr,
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
    /// Virtual host.
    pub vhost: String,
    /// As it was written, without user and password.
    pub shown: String,
}

const DEFAULT_PORT: u16 = 5672;

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        // The command line's parser shows only an error's outermost message.
        Self::parse(text).map_err(|error| anyhow!("{error:#}"))
    }
}

impl Target {
    fn parse(text: &str) -> Result<Self> {
        let rest = match text.split_once("://") {
            Some(("amqp", rest)) => rest,
            Some((scheme, _)) => {
                bail!("{text}: the scheme {scheme} is not supported, only amqp is")
            }
            None => text,
        };
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (credentials, rest),
            None => ("guest:guest", rest),
        };
        let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
        let (host, vhost) = match rest.split_once('/') {
            Some((host, vhost)) => (host, unescape(vhost)?),
            None => (rest, "/".to_owned()),
        };
        ensure!(!host.is_empty(), "{text}: no host; write host:port");
        Ok(Self {
            address: loopback(host).with_context(|| format!("{host} cannot be used"))?,
            user: unescape(user)?,
            password: unescape(password)?,
            vhost,
            shown: host.to_owned(),
        })
    }
}

/// The one address that `host` means, if every address that it means is this machine's own.
fn loopback(host: &str) -> Result<SocketAddr> {
    let has_port = host.rsplit_once(':').is_some_and(|(name, port)| {
        port.parse::<u16>().is_ok() && (!name.contains(':') || name.ends_with(']'))
    });
    let host = if has_port {
        host.to_owned()
    } else {
        format!("{host}:{DEFAULT_PORT}")
    };
    let mut addresses = host.to_socket_addrs()?.peekable();
    let first = *addresses.peek().context("it has no address")?;
    for address in addresses {
        ensure!(
            address.ip().is_loopback(),
            "{} is no loopback address, and only those are loaded",
            address.ip()
        );
    }
    Ok(first)
}

/// Undoes percent-encoding, which names in URLs need for `/`, `:` and `@`.
fn unescape(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest
            .split_at_checked(2)
            .with_context(|| format!("{text}: % without two digits"))?;
        let digits = std::str::from_utf8(digits)?;
        bytes.push(u8::from_str_radix(digits, 16).with_context(|| format!("{text}: %{digits}"))?);
        rest = tail;
    }
    Ok(String::from_utf8(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_forms() {
        let short: Target = "127.0.0.1:5673".parse().unwrap();
        assert_eq!(
            (
                short.address.port(),
                short.user.as_str(),
                short.vhost.as_str()
            ),
            (5673, "guest", "/")
        );
        let long: Target = "amqp://me:p%40ss@127.0.0.2/a%2Fb".parse().unwrap();
        assert_eq!(long.address, "127.0.0.2:5672".parse().unwrap());
        assert_eq!(
            (
                long.user.as_str(),
                long.password.as_str(),
                long.vhost.as_str()
            ),
            ("me", "p@ss", "a/b")
        );
        assert_eq!(
            "[::1]:7".parse::<Target>().unwrap().address,
            "[::1]:7".parse().unwrap()
        );
    }

    #[test]
    fn only_loopback() {
        for other in [
            "10.0.0.1:5672",
            "0.0.0.0:5672",
            "amqp://127.0.0.1@192.0.2.7:5672",
            "[2001:db8::1]:5672",
        ] {
            let error = other.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("no loopback address"), "{other}: {error}");
        }
        assert!("amqps://127.0.0.1".parse::<Target>().is_err());
        assert!("".parse::<Target>().is_err());
    }
}
