//! Logins: who may log in from where, with a password that is checked where that does not hold anybody up.
//!
//! Flow: [`Node::begin_login`] settles what costs nothing (an unknown user, RabbitMQ's hashes, a login that was right a moment ago); the rest is Argon2id, and
//! waits in [`Node::check_password`] for one of a few places on threads of their own, so that a burst of logins takes no more than a part of the machine.
//! Right logins are remembered for a short time, since HTTP's basic authentication sends the password with each request: not the password, but a hash of
//! user, password and stored hash under a key that this process has drawn, so that a changed password or user is another entry. Memory is bounded.

use crate::credentials::{draw_salt, hash_password, verify_password};
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use warren_model::command::{PasswordHashing, User};

/// How long a right login is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
const REMEMBERED_MAX: usize = 10_000;

/// What is known of logins.
pub(crate) struct Logins {
    /// Places for password hashing at a time.
    places: Semaphore,
    key: [u8; 32],
    /// Right logins, by what [`Logins::entry`] makes of them, and until when they are remembered.
    right: Mutex<HashMap<[u8; 32], Instant>>,
}

/// What has become of a login at once.
pub(crate) enum Begun {
    /// It is settled.
    Done(Result<(), String>),
    /// The password has to be checked with [`Node::check_password`].
    Check(Check),
}

/// A password that is to be checked.
pub(crate) struct Check {
    user: String,
    password: Vec<u8>,
    /// The user's Argon2id hash.
    hash: Vec<u8>,
    peer: IpAddr,
}

impl Logins {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            places: Semaphore::new((processors / 2).max(1)),
            key,
            right: Mutex::default(),
        }
    }

    fn entry(&self, user: &str, password: &[u8], hash: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [user.as_bytes(), password, hash] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }

    fn was_right(&self, entry: &[u8; 32], now: Instant) -> bool {
        let until = self.right.lock().get(entry).copied();
        until.is_some_and(|until| now < until)
    }

    fn remember(&self, entry: [u8; 32], now: Instant) {
        let mut right = self.right.lock();
        if right.len() >= REMEMBERED_MAX {
            right.retain(|_, until| now < *until);
        }
        if right.len() >= REMEMBERED_MAX {
            // Whoever is forgotten is checked again.
            right.clear();
        }
        right.insert(entry, now + REMEMBERED);
    }
}

impl Node {
    /// Checks a login. The error says why not, for the log. An address whose logins fail too often has to wait.
    pub async fn authenticate(
        self: &Arc<Self>,
        user: &[u8],
        password: &[u8],
        peer: IpAddr,
    ) -> Result<(), String> {
        match self.begin_login(user, password, peer) {
            Begun::Done(verdict) => verdict,
            Begun::Check(check) => self.check_password(check).await,
        }
    }

    /// Begins a login.
    pub(crate) fn begin_login(&self, user: &[u8], password: &[u8], peer: IpAddr) -> Begun {
        let (from, now) = (peer.to_canonical(), Instant::now());
        let a_minute = self.settings().login_failures_a_minute;
        if !self.failed_logins().may_try(from, a_minute, now) {
            return Begun::Done(Err(format!(
                "too many logins from {from} have failed; they are refused for a while"
            )));
        }
        match self.quick_check(user, password, peer) {
            Ok(begun) => begun,
            Err(why) => Begun::Done(self.settled(Err(why), peer)),
        }
    }

    fn quick_check(&self, user: &[u8], password: &[u8], peer: IpAddr) -> Result<Begun, String> {
        let name = user_name(user)?;
        let (hashing, hash) = {
            let table = self.metadata().table().read();
            let record = table
                .user(name)
                .ok_or_else(|| format!("there is no user '{name}'"))?;
            (record.hashing, record.password_hash.clone())
        };
        let right = match hashing {
            PasswordHashing::SaltedSha256 | PasswordHashing::SaltedSha512 => {
                verify_password(hashing, &hash, password)
            }
            PasswordHashing::Argon2id if hash.is_empty() => false,
            PasswordHashing::Argon2id => {
                let entry = self.logins().entry(name, password, &hash);
                if !self.logins().was_right(&entry, Instant::now()) {
                    return Ok(Begun::Check(Check {
                        user: name.to_owned(),
                        password: password.to_vec(),
                        hash,
                        peer,
                    }));
                }
                true
            }
        };
        if !right {
            return Err(wrong_password(name));
        }
        self.may_come_from(name, peer)?;
        Ok(Begun::Done(Ok(())))
    }

    /// Checks a password, when there is room for it.
    pub(crate) async fn check_password(self: &Arc<Self>, check: Check) -> Result<(), String> {
        let Check {
            user,
            password,
            hash,
            peer,
        } = check;
        let entry = self.logins().entry(&user, &password, &hash);
        let right = match self.logins().places.acquire().await {
            // Many may have waited with the same login.
            Ok(_) if self.logins().was_right(&entry, Instant::now()) => true,
            Ok(_place) => {
                let stored = hash.clone();
                let verify = move || verify_password(PasswordHashing::Argon2id, &stored, &password);
                tokio::task::spawn_blocking(verify).await.unwrap_or(false)
            }
            Err(_) => false,
        };
        let verdict = if right {
            self.logins().remember(entry, Instant::now());
            self.is_still(&user, &hash)
                .and_then(|()| self.may_come_from(&user, peer))
        } else {
            Err(wrong_password(&user))
        };
        self.settled(verdict, peer)
    }

    /// Refuses a user who was changed while the password was checked.
    fn is_still(&self, user: &str, hash: &[u8]) -> Result<(), String> {
        let table = self.metadata().table().read();
        let same = table.user(user).is_some_and(|u| u.password_hash == hash);
        if same {
            Ok(())
        } else {
            Err(format!("user '{user}' was changed meanwhile"))
        }
    }

    fn settled(&self, verdict: Result<(), String>, peer: IpAddr) -> Result<(), String> {
        if verdict.is_err() {
            let a_minute = self.settings().login_failures_a_minute;
            let from = peer.to_canonical();
            self.failed_logins().failed(from, a_minute, Instant::now());
        }
        verdict
    }

    /// Checks a login of a client whose certificate stands for the user. The error says why not, for the log.
    pub fn admit(&self, user: &str, peer: IpAddr) -> Result<(), String> {
        if self.metadata().table().read().user(user).is_none() {
            return Err(format!("there is no user '{user}'"));
        }
        self.may_come_from(user, peer)
    }

    fn may_come_from(&self, user: &str, peer: IpAddr) -> Result<(), String> {
        let only_loopback = self.settings().loopback_users.iter().any(|u| u == user);
        if only_loopback && !peer.to_canonical().is_loopback() {
            return Err(format!("user '{user}' can only connect via localhost"));
        }
        Ok(())
    }

    /// A record of a user who cannot log in with a password, for [`warren_model::Command::PutUser`].
    pub fn new_user(&self, name: &str, tags: Vec<String>) -> User {
        User {
            name: name.to_owned(),
            password_hash: Vec::new(),
            hashing: self.settings().password_hashing,
            tags,
        }
    }

    /// Gives a user this password; an empty one takes it away.
    pub async fn set_password(self: &Arc<Self>, user: &mut User, password: &str) {
        user.hashing = self.settings().password_hashing;
        user.password_hash = Vec::new();
        if password.is_empty() {
            return;
        }
        let (hashing, password) = (user.hashing, password.as_bytes().to_vec());
        let salt = draw_salt(hashing, &mut *self.random().lock());
        let hash = move || hash_password(hashing, salt, &password);
        user.password_hash = match hashing {
            PasswordHashing::SaltedSha256 | PasswordHashing::SaltedSha512 => hash(),
            PasswordHashing::Argon2id => {
                let _place = self.logins().places.acquire().await;
                // One that could not be made stays empty: nobody logs in with it.
                tokio::task::spawn_blocking(hash).await.unwrap_or_default()
            }
        };
    }
}

fn user_name(user: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(user).map_err(|_| "the user name is not UTF-8".to_owned())
}

fn wrong_password(user: &str) -> String {
    format!("wrong password for user '{user}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_one_password_of_one_hash_for_a_while() {
        let (logins, now) = (Logins::new([1; 32]), Instant::now());
        let entry = logins.entry("u", b"p", b"hash");
        assert!(!logins.was_right(&entry, now));
        logins.remember(entry, now);
        assert!(logins.was_right(&entry, now));
        assert!(!logins.was_right(&entry, now + REMEMBERED));
        for (user, password, hash) in [
            ("v", "p", "hash"),
            ("u", "q", "hash"),
            ("u", "p", "other"),
            ("up", "", "hash"),
        ] {
            let other = logins.entry(user, password.as_bytes(), hash.as_bytes());
            assert!(!logins.was_right(&other, now), "{user} {password} {hash}");
        }
        assert_ne!(entry, Logins::new([2; 32]).entry("u", b"p", b"hash"));
    }

    #[test]
    fn memory_is_bounded() {
        let (logins, now) = (Logins::new([1; 32]), Instant::now());
        for n in 0..=REMEMBERED_MAX {
            logins.remember(logins.entry(&n.to_string(), b"", b""), now);
        }
        assert_eq!(logins.right.lock().len(), 1);
        let later = now + REMEMBERED;
        for n in 0..REMEMBERED_MAX {
            logins.remember(logins.entry(&n.to_string(), b"", b"x"), later);
        }
        assert_eq!(logins.right.lock().len(), REMEMBERED_MAX);
    }
}
