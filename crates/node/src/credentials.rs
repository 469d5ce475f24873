//! Passwords: RabbitMQ's salted hashes, so that its exports can be taken over as they are.

use sha2::{Digest, Sha256, Sha512};
use warren_model::command::{PasswordHashing, User};

const SALT_LEN: usize = 4;

/// Hashes a password with this salt.
pub(crate) fn hash_password(
    hashing: PasswordHashing,
    salt: [u8; SALT_LEN],
    password: &[u8],
) -> Vec<u8> {
    let mut hash = salt.to_vec();
    match hashing {
        PasswordHashing::SaltedSha256 => hash.extend_from_slice(
            &Sha256::new()
                .chain_update(salt)
                .chain_update(password)
                .finalize(),
        ),
        PasswordHashing::SaltedSha512 => hash.extend_from_slice(
            &Sha512::new()
                .chain_update(salt)
                .chain_update(password)
                .finalize(),
        ),
    }
    hash
}

/// Whether a password is the user's, in time that does not tell how nearly.
pub(crate) fn verify_password(user: &User, password: &[u8]) -> bool {
    let Some((&salt, _)) = user.password_hash.split_first_chunk::<SALT_LEN>() else {
        return false;
    };
    let hash = hash_password(user.hashing, salt, password);
    hash.len() == user.password_hash.len()
        && hash
            .iter()
            .zip(&user.password_hash)
            .fold(0, |differ, (a, b)| differ | (a ^ b))
            == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_rabbitmqs() {
        // The example of RabbitMQ's documentation.
        let hash = hash_password(
            PasswordHashing::SaltedSha256,
            [0x90, 0x8d, 0xc6, 0x0a],
            b"test12",
        );
        let hex: String = hash.iter().map(|b| format!("{b:02X}")).collect();
        assert_eq!(
            hex,
            "908DC60AA5B924B3096B8897D65A3B5F80FA5DB62A94B83122CDF4F8FEAD10D515D8F391"
        );
        let user = |password_hash| User {
            name: "u".into(),
            password_hash,
            hashing: PasswordHashing::SaltedSha256,
            tags: vec![],
        };
        assert!(verify_password(&user(hash.clone()), b"test12"));
        assert!(!verify_password(&user(hash), b"test13"));
        assert!(
            !verify_password(&user(vec![]), b""),
            "no hash: no password login"
        );
        let long = hash_password(PasswordHashing::SaltedSha512, [1; 4], b"x");
        assert!(
            !verify_password(&user(long), b"x"),
            "the kind of hash is the user's"
        );
    }
}
