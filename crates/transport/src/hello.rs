//! What two nodes say of themselves when a link opens.
//!
//! On the wire, integers little-endian, and first of all the version, so that even versions that share nothing else can name each other:
//! `u32 version`, `u16 len` (bytes that follow), `u8 has_cluster`, `u128 cluster`, `u64 node`, `u64 incarnation`, `u16 len` name, `u16 len` address,
//! `u8 level`. What follows is of a newer release, and passed over.

use bytes::BufMut;
use quinn::RecvStream;
use warren_model::{Incarnation, Level, NodeId};

/// What a node says of itself when a link opens; both sides check the other's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The cluster that the node belongs to; none before it has joined one.
    pub cluster: Option<u128>,
    /// Identity of the node's data.
    pub node: NodeId,
    /// Name of the node, unique in a cluster. Decides who dials.
    pub name: String,
    /// Which start of the node this is.
    pub incarnation: Incarnation,
    /// `host:port` at which the other nodes reach this one.
    pub address: String,
    /// Version of the protocol of links, of their frames and lanes; links are opened between equal versions only.
    pub version: u32,
    /// The newest level that the node knows of what is said over links.
    pub level: Level,
}

/// Longest name, in bytes.
pub(crate) const NAME_LEN_MAX: usize = 255;
/// Longest address, in bytes.
pub(crate) const ADDRESS_LEN_MAX: usize = 1_024;
/// Room for what newer releases say.
const MORE_LEN_MAX: usize = 256;
const BODY_LEN_MAX: usize =
    1 + 16 + 8 + 8 + 2 + NAME_LEN_MAX + 2 + ADDRESS_LEN_MAX + 1 + MORE_LEN_MAX;

impl Hello {
    /// Whether it can be sent at all: names and addresses have limits.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.len() > NAME_LEN_MAX {
            return Err(format!(
                "a node's name has 1 to {NAME_LEN_MAX} bytes, this one has {}",
                self.name.len()
            ));
        }
        if self.address.len() > ADDRESS_LEN_MAX {
            return Err(format!(
                "a node's address has at most {ADDRESS_LEN_MAX} bytes, this one has {}",
                self.address.len()
            ));
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.put_u8(u8::from(self.cluster.is_some()));
        body.put_u128_le(self.cluster.unwrap_or_default());
        body.put_u64_le(self.node.0);
        body.put_u64_le(self.incarnation.0);
        for text in [&self.name, &self.address] {
            // `validate` has bounded both.
            body.put_u16_le(u16::try_from(text.len()).unwrap_or(u16::MAX));
            body.put_slice(text.as_bytes());
        }
        body.put_u8(self.level.0);
        let mut bytes = Vec::new();
        bytes.put_u32_le(self.version);
        bytes.put_u16_le(u16::try_from(body.len()).unwrap_or(u16::MAX));
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads a peer's Hello. `own_version` is what it must speak.
    pub(crate) async fn read(
        stream: &mut RecvStream,
        own_version: u32,
    ) -> Result<Hello, ReadError> {
        let mut prefix = [0; 6];
        stream
            .read_exact(&mut prefix)
            .await
            .map_err(ReadError::stream)?;
        let version = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]);
        if version != own_version {
            return Err(ReadError::Unacceptable(format!(
                "protocol versions differ: one node speaks version {version}, the other {own_version}; run neighbouring releases of Warren"
            )));
        }
        let len = usize::from(u16::from_le_bytes([prefix[4], prefix[5]]));
        if len > BODY_LEN_MAX {
            return Err(ReadError::Unacceptable(format!(
                "a greeting of {len} bytes was announced; allowed are {BODY_LEN_MAX}"
            )));
        }
        let mut body = vec![0; len];
        stream
            .read_exact(&mut body)
            .await
            .map_err(ReadError::stream)?;
        Self::decode(version, &body)
            .ok_or_else(|| ReadError::Unacceptable("the peer's greeting is malformed".into()))
    }

    fn decode(version: u32, mut body: &[u8]) -> Option<Hello> {
        let has_cluster = *body.split_off(..1)?.first()? != 0;
        let cluster = u128::from_le_bytes(body.split_off(..16)?.try_into().ok()?);
        let node = u64::from_le_bytes(body.split_off(..8)?.try_into().ok()?);
        let incarnation = u64::from_le_bytes(body.split_off(..8)?.try_into().ok()?);
        let mut text = || {
            let len = u16::from_le_bytes(body.split_off(..2)?.try_into().ok()?);
            String::from_utf8(body.split_off(..usize::from(len))?.to_vec()).ok()
        };
        let (name, address) = (text()?, text()?);
        let level = Level(*body.first()?);
        let hello = Hello {
            cluster: has_cluster.then_some(cluster),
            node: NodeId(node),
            name,
            incarnation: Incarnation(incarnation),
            address,
            version,
            level,
        };
        hello.validate().is_ok().then_some(hello)
    }
}

/// Why no Hello could be read.
pub(crate) enum ReadError {
    /// The stream or connection ended.
    Lost(String),
    /// It came, and the link cannot be.
    Unacceptable(String),
}

impl ReadError {
    fn stream(error: quinn::ReadExactError) -> Self {
        ReadError::Lost(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            cluster: Some(u128::MAX - 5),
            node: NodeId(7),
            name: "rabbit-ü".into(),
            incarnation: Incarnation(3),
            address: "host:25672".into(),
            version: 9,
            level: Level(3),
        }
    }

    #[test]
    fn a_greeting_survives_the_wire() {
        for sent in [
            hello(),
            Hello {
                cluster: None,
                address: String::new(),
                ..hello()
            },
        ] {
            assert_eq!(Hello::decode(9, &sent.encode()[6..]), Some(sent));
        }
    }

    #[test]
    fn damaged_greetings_are_refused() {
        let body = hello().encode()[6..].to_vec();
        for cut in 0..body.len() {
            assert_eq!(Hello::decode(9, &body[..cut]), None, "cut to {cut}");
        }
        assert_eq!(
            Hello::decode(9, &[body, vec![0]].concat()),
            Some(hello()),
            "what a newer release adds is passed over"
        );
        let unnamed = Hello {
            name: String::new(),
            ..hello()
        };
        assert_eq!(
            Hello::decode(9, &unnamed.encode()[6..]),
            None,
            "without a name"
        );
    }
}
