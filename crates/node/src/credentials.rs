//! Passwords: Argon2id for our own hashes, and RabbitMQ's salted ones, so that its exports can be taken over as they are.
//!
//! Argon2id costs tens of milliseconds and 19 MiB, so nothing here is called with it where tasks run: see [`crate::logins`].

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use rand::RngCore;
use sha2::{Digest, Sha256, Sha512};
use warren_model::command::PasswordHashing;

/// Bytes of salt that a hash is made with; RabbitMQ's forms take the first [`SHORT_SALT`] of them.
pub(crate) const SALT_LEN: usize = 16;
const SHORT_SALT: usize = 4;

/// What OWASP recommends at the least.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// What a hash from elsewhere may cost at the most: a login must not take the machine's memory, nor seconds.
const MEMORY_KIB_MAX: u32 = 256 * 1024;
const PASSES_MAX: u32 = 16;
const LANES_MAX: u32 = 16;

/// Draws a salt, as much of it as the hash takes.
pub(crate) fn draw_salt(hashing: PasswordHashing, random: &mut impl RngCore) -> [u8; SALT_LEN] {
    let mut salt = [0; SALT_LEN];
    match hashing {
        PasswordHashing::SaltedSha256 | PasswordHashing::SaltedSha512 => {
            random.fill_bytes(&mut salt[..SHORT_SALT]);
        }
        PasswordHashing::Argon2id => random.fill_bytes(&mut salt),
    }
    salt
}

/// Hashes a password with this salt.
pub(crate) fn hash_password(
    hashing: PasswordHashing,
    salt: [u8; SALT_LEN],
    password: &[u8],
) -> Vec<u8> {
    let short = |of: fn(&[u8], &[u8]) -> Vec<u8>| {
        let salt = &salt[..SHORT_SALT];
        [salt, &of(salt, password)].concat()
    };
    match hashing {
        PasswordHashing::SaltedSha256 => short(sha256),
        PasswordHashing::SaltedSha512 => short(sha512),
        PasswordHashing::Argon2id => argon2id(&salt, password),
    }
}

fn sha256(salt: &[u8], password: &[u8]) -> Vec<u8> {
    let hash = Sha256::new().chain_update(salt).chain_update(password);
    hash.finalize().to_vec()
}

fn sha512(salt: &[u8], password: &[u8]) -> Vec<u8> {
    let hash = Sha512::new().chain_update(salt).chain_update(password);
    hash.finalize().to_vec()
}

/// The PHC string; empty, which no password matches, if the password is longer than Argon2 can take (4 GiB).
fn argon2id(salt: &[u8], password: &[u8]) -> Vec<u8> {
    let hashed = Params::new(MEMORY_KIB, PASSES, 1, None)
        .ok()
        .zip(SaltString::encode_b64(salt).ok())
        .and_then(|(params, salt)| {
            let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            let hash = argon2.hash_password(password, &salt).ok()?;
            Some(hash.to_string())
        });
    hashed.unwrap_or_default().into_bytes()
}

/// Whether a password is the one that was hashed, in time that does not tell how nearly.
pub(crate) fn verify_password(hashing: PasswordHashing, known: &[u8], password: &[u8]) -> bool {
    let short = |of: fn(&[u8], &[u8]) -> Vec<u8>| {
        let Some((salt, known)) = known.split_at_checked(SHORT_SALT) else {
            return false;
        };
        let hash = of(salt, password);
        hash.len() == known.len()
            && hash
                .iter()
                .zip(known)
                .fold(0, |differ, (a, b)| differ | (a ^ b))
                == 0
    };
    match hashing {
        PasswordHashing::SaltedSha256 => short(sha256),
        PasswordHashing::SaltedSha512 => short(sha512),
        PasswordHashing::Argon2id => std::str::from_utf8(known)
            .ok()
            .and_then(|text| PasswordHash::new(text).ok())
            // The cost is the hash's own.
            .is_some_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
    }
}

/// Checks that a text is an Argon2id hash that a login can be checked against at a reasonable cost.
///
/// # Errors
/// What is wrong with it.
pub fn check_argon2id(text: &str) -> Result<(), String> {
    let hash = PasswordHash::new(text).map_err(|error| format!("it is no PHC string: {error}"))?;
    if hash.algorithm != Algorithm::Argon2id.ident() {
        return Err(format!("its algorithm is {}, not argon2id", hash.algorithm));
    }
    if hash.salt.is_none() || hash.hash.is_none() {
        return Err("it has no salt or no hash".to_owned());
    }
    let params =
        Params::try_from(&hash).map_err(|error| format!("its parameters are bad: {error}"))?;
    if params.m_cost() > MEMORY_KIB_MAX
        || params.t_cost() > PASSES_MAX
        || params.p_cost() > LANES_MAX
    {
        return Err(format!(
            "it costs too much: at most m={MEMORY_KIB_MAX}, t={PASSES_MAX} and p={LANES_MAX} are possible"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_rabbitmqs() {
        // The example of RabbitMQ's documentation.
        let mut salt = [0; SALT_LEN];
        salt[..4].copy_from_slice(&[0x90, 0x8d, 0xc6, 0x0a]);
        let hash = hash_password(PasswordHashing::SaltedSha256, salt, b"test12");
        let hex: String = hash.iter().map(|b| format!("{b:02X}")).collect();
        assert_eq!(
            hex,
            "908DC60AA5B924B3096B8897D65A3B5F80FA5DB62A94B83122CDF4F8FEAD10D515D8F391"
        );
        let verify = |hash: &[u8], password: &[u8]| {
            verify_password(PasswordHashing::SaltedSha256, hash, password)
        };
        assert!(verify(&hash, b"test12"));
        assert!(!verify(&hash, b"test13"));
        assert!(!verify(b"", b""), "no hash: no password login");
        let long = hash_password(PasswordHashing::SaltedSha512, [1; SALT_LEN], b"x");
        assert!(!verify(&long, b"x"), "the kind of hash is the user's");
        assert!(verify_password(PasswordHashing::SaltedSha512, &long, b"x"));
    }

    #[test]
    fn our_own_are_argon2id() {
        let hash = hash_password(PasswordHashing::Argon2id, [7; SALT_LEN], b"secret");
        let text = std::str::from_utf8(&hash).unwrap();
        assert!(
            text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{text}"
        );
        assert_eq!(check_argon2id(text), Ok(()));
        let verify = |hash: &[u8], password: &[u8]| {
            verify_password(PasswordHashing::Argon2id, hash, password)
        };
        assert!(verify(&hash, b"secret"));
        assert!(!verify(&hash, b"Secret"));
        assert!(!verify(b"", b"") && !verify(b"x", b"x"));
        // The reference implementation's test vector: other parameters are the hash's own.
        let other =
            b"$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        assert!(verify(other, b"password"));
    }

    #[test]
    fn hashes_that_cost_too_much_are_refused() {
        let hash = |algorithm: &str, params: &str| {
            format!(
                "${algorithm}$v=19${params}$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
            )
        };
        assert_eq!(check_argon2id(&hash("argon2id", "m=65536,t=3,p=4")), Ok(()));
        for bad in [
            hash("argon2i", "m=256,t=2,p=1"),
            hash("argon2id", "m=4194304,t=2,p=1"),
            hash("argon2id", "m=256,t=1000,p=1"),
            "$argon2id$v=19$m=256,t=2,p=1".to_owned(),
            "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR".to_owned(),
        ] {
            assert!(check_argon2id(&bad).is_err(), "{bad}");
        }
    }
}
