//! What lets peers notice a restart at once: QUIC's stateless reset.
//!
//! A process that was killed says nothing, but the one started in its place does: packets of the old links reach it, it does not
//! know their connection, and answers each with a reset token, which the peer accepts if it is the one it was told when the
//! link opened. For that the tokens' key must outlive the process: it is derived from the node's TLS key, as is the key of connection
//! ids, which differ from start to start and need no randomness.

use crate::{Hello, Tls};
use quinn::{
    ConnectionId, ConnectionIdGenerator,
    crypto::{CryptoError, HmacKey},
};
use std::{sync::Arc, time::Duration};

/// The key of a node's reset tokens.
pub(crate) fn reset_key(tls: &Tls) -> Arc<dyn HmacKey> {
    Arc::new(ResetKey(blake3::derive_key(
        "warren transport: stateless reset",
        &tls.secret,
    )))
}

struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out
            .copy_from_slice(&blake3::keyed_hash(&self.0, data).as_bytes()[..signature_out.len()]);
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let expected = blake3::keyed_hash(&self.0, data);
        // Comparing a `Hash` takes constant time.
        match blake3::Hash::from_slice(signature) {
            Ok(given) if given == expected => Ok(()),
            Ok(_) | Err(_) => Err(CryptoError),
        }
    }
}

/// Connection ids of one start of a node.
#[derive(Clone)]
pub(crate) struct ConnectionIds {
    key: [u8; 32],
    next: u64,
}

const ID_LEN: usize = 8;

impl ConnectionIds {
    pub(crate) fn new(tls: &Tls, hello: &Hello, rng_seed: Option<[u8; 32]>) -> Self {
        let key = blake3::derive_key("warren transport: connection ids", &tls.secret);
        let mut of_this_start = blake3::Hasher::new_keyed(&key);
        of_this_start.update(&hello.node.0.to_le_bytes());
        of_this_start.update(&hello.incarnation.0.to_le_bytes());
        of_this_start.update(&rng_seed.unwrap_or_default());
        Self {
            key: *of_this_start.finalize().as_bytes(),
            next: 0,
        }
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let hash = blake3::keyed_hash(&self.key, &self.next.to_le_bytes());
        self.next += 1;
        ConnectionId::new(&hash.as_bytes()[..ID_LEN])
    }

    fn cid_len(&self) -> usize {
        ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
