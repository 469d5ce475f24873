//! `warrenctl password`: salted hashes in RabbitMQ's form, so that definitions files need no passwords.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Subcommand, ValueEnum};
use sha2::{Digest as _, Sha256, Sha512};

use super::user;
use crate::failure::Failure;
use crate::output;

const SALT_BYTES: usize = 4;

/// What can be done with passwords.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Print the salted hash of a password, for password_hash in definitions.
    #[command(after_help = "Example: warrenctl password hash < secret.txt")]
    Hash(Hash),
}

/// A password to be hashed.
#[derive(Debug, clap::Args)]
pub struct Hash {
    /// The password; without it, the first line of standard input is.
    secret: Option<String>,
    /// How it is hashed.
    #[arg(long, value_enum, default_value_t = Algorithm::Sha256)]
    algorithm: Algorithm,
}

/// How passwords are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// rabbit_password_hashing_sha256
    Sha256,
    /// rabbit_password_hashing_sha512
    Sha512,
}

/// Runs one verb.
pub fn run(verb: &Verb) -> Result<(), Failure> {
    let Verb::Hash(options) = verb;
    let password = match &options.secret {
        Some(password) => password.clone(),
        None => user::first_line()?,
    };
    let mut salt = [0; SALT_BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut salt))
        .map_err(|error| Failure::Input(format!("no salt can be drawn: {error}")))?;
    output::write(&format!("{}\n", hashed(salt, &password, options.algorithm)))
}

fn hashed(salt: [u8; SALT_BYTES], password: &str, algorithm: Algorithm) -> String {
    let mut bytes = salt.to_vec();
    match algorithm {
        Algorithm::Sha256 => {
            let hash = Sha256::new().chain_update(salt).chain_update(password);
            bytes.extend_from_slice(&hash.finalize());
        }
        Algorithm::Sha512 => {
            let hash = Sha512::new().chain_update(salt).chain_update(password);
            bytes.extend_from_slice(&hash.finalize());
        }
    }
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_rabbitmqs() {
        // The example of RabbitMQ's documentation.
        let salt = [0x90, 0x8d, 0xc6, 0x0a];
        assert_eq!(
            hashed(salt, "test12", Algorithm::Sha256),
            "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
        );
        assert_eq!(hashed(salt, "", Algorithm::Sha512).len(), 92);
    }
}
