//! `warrenctl password`: hashes of passwords, our own and in RabbitMQ's form, so that definitions files need no passwords.

use std::io::Read as _;

use argon2::password_hash::{PasswordHasher as _, SaltString};
use argon2::{Argon2, Params, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Subcommand, ValueEnum};
use sha2::{Digest as _, Sha256, Sha512};

use super::user;
use crate::failure::Failure;
use crate::output;

const SALT_BYTES: usize = 16;
/// Of RabbitMQ's hashes.
const SHORT_SALT: usize = 4;
/// What OWASP recommends at the least, and the server takes for itself.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;

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
    #[arg(long, value_enum, default_value_t = Algorithm::Argon2id)]
    algorithm: Algorithm,
}

/// How passwords are hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// Argon2id, which RabbitMQ does not know.
    Argon2id,
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
    let hash = hashed(salt, &password, options.algorithm)?;
    output::write(&format!("{hash}\n"))
}

fn hashed(full: [u8; SALT_BYTES], password: &str, algorithm: Algorithm) -> Result<String, Failure> {
    let mut bytes = full[..SHORT_SALT].to_vec();
    let salt = bytes.clone();
    match algorithm {
        Algorithm::Argon2id => return argon2id(full, password),
        Algorithm::Sha256 => {
            let hash = Sha256::new().chain_update(&salt).chain_update(password);
            bytes.extend_from_slice(&hash.finalize());
        }
        Algorithm::Sha512 => {
            let hash = Sha512::new().chain_update(&salt).chain_update(password);
            bytes.extend_from_slice(&hash.finalize());
        }
    }
    Ok(STANDARD.encode(bytes))
}

fn argon2id(salt: [u8; SALT_BYTES], password: &str) -> Result<String, Failure> {
    let cannot = |why: String| Failure::Input(format!("the password cannot be hashed: {why}"));
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).map_err(|e| cannot(e.to_string()))?;
    let salt = SaltString::encode_b64(&salt).map_err(|e| cannot(e.to_string()))?;
    let hash = Argon2::new(argon2::Algorithm::Argon2id, Version::V0x13, params)
        .hash_password(password.as_bytes(), &salt)
        .map_err(|e| cannot(e.to_string()))?;
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_rabbitmqs() {
        // The example of RabbitMQ's documentation.
        let mut salt = [0; SALT_BYTES];
        salt[..4].copy_from_slice(&[0x90, 0x8d, 0xc6, 0x0a]);
        let hashed = |password, algorithm| hashed(salt, password, algorithm).unwrap_or_default();
        assert_eq!(
            hashed("test12", Algorithm::Sha256),
            "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
        );
        assert_eq!(hashed("", Algorithm::Sha512).len(), 92);
        let own = hashed("x", Algorithm::Argon2id);
        assert!(own.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{own}");
    }
}
