//! Users.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::{Shared, change, check_name, limits, listing};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use warren_model::Command;
use warren_model::command::{PasswordHashing, User};
use warren_node::{Node, check_argon2id};
use warren_routing::Table;

const SHA256: &str = "rabbit_password_hashing_sha256";
const SHA512: &str = "rabbit_password_hashing_sha512";
const ARGON2ID: &str = "argon2id";
const SALT_BYTES: usize = 4;

pub(crate) fn described(table: &Table, user: &User) -> Value {
    let encoded = || STANDARD.encode(&user.password_hash);
    let (hashing, hash) = match user.hashing {
        PasswordHashing::SaltedSha256 => (SHA256, encoded()),
        PasswordHashing::SaltedSha512 => (SHA512, encoded()),
        // It is a text already.
        PasswordHashing::Argon2id => (
            ARGON2ID,
            String::from_utf8_lossy(&user.password_hash).into_owned(),
        ),
    };
    json!({"name": user.name, "password_hash": hash, "hashing_algorithm": hashing, "tags": user.tags, "limits": limits::of_user(table, &user.name)})
}

fn no_user(name: &str) -> Error {
    Error::not_found(format!("user '{name}' not found"))
}

/// Who has logged in.
pub(crate) async fn whoami(Extension(access): Extension<Access>) -> Json<Value> {
    Json(json!({"name": access.name, "tags": access.tags}))
}

pub(crate) async fn list(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        Ok(table.users().map(|user| described(table, user)).collect())
    })
}

pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Names(name): Names<String>,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    let table = node.metadata().table().read();
    table
        .user(&name)
        .map(|user| Json(described(&table, user)))
        .ok_or_else(|| no_user(&name))
}

/// Makes or replaces a user; `limits` sets the limits that it names. Without a password or its hash, a known user keeps its own, and a new one cannot log in with one.
pub(crate) async fn put(
    State(node): Shared,
    Names(name): Names<String>,
    body: Body,
) -> Result<StatusCode, Error> {
    check_name("name of the user", &name)?;
    let known = node.metadata().table().read().user(&name).cloned();
    let status = if known.is_some() {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::CREATED
    };
    let limits = limits::read_user(&name, body.0.get("limits").unwrap_or(&Value::Null))?;
    let (mut user, password) = read(&node, name, &body, known)?;
    if let Some(password) = password {
        node.set_password(&mut user, &password).await;
    }
    change(&node, Command::PutUser(user)).await?;
    for limit in limits {
        change(&node, limit).await?;
    }
    Ok(status)
}

/// The user that a body describes, and the password that it is to be given with [`Node::set_password`], if the body has one.
pub(crate) fn read(
    node: &Node,
    name: String,
    body: &Body,
    known: Option<User>,
) -> Result<(User, Option<String>), Error> {
    let tags = tags(body)?;
    match (
        body.optional_text("password")?,
        body.optional_text("password_hash")?,
    ) {
        (Some(_), Some(_)) => Err(Error::bad_request(
            "give password or password_hash, not both",
        )),
        (Some(password), None) => Ok((node.new_user(&name, tags), Some(password.to_owned()))),
        (None, Some(hash)) => {
            let algorithm = body.optional_text("hashing_algorithm")?;
            let (hashing, password_hash) = hashed(hash, algorithm)?;
            let user = User {
                name,
                password_hash,
                hashing,
                tags,
            };
            Ok((user, None))
        }
        (None, None) => {
            let user = match known {
                Some(user) => User { tags, ..user },
                None => node.new_user(&name, tags),
            };
            Ok((user, None))
        }
    }
}

pub(crate) async fn delete(
    State(node): Shared,
    Names(name): Names<String>,
) -> Result<StatusCode, Error> {
    if node.metadata().table().read().user(&name).is_none() {
        return Err(no_user(&name));
    }
    change(&node, Command::DeleteUser { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Users who may do nothing in any virtual host.
pub(crate) async fn without_permissions(
    State(node): Shared,
    Extension(access): Extension<Access>,
    parameters: Parameters,
) -> Result<Json<Value>, Error> {
    access.administrator()?;
    listing::of_table(&node, &parameters, |table| {
        let with: BTreeSet<&str> = table.permissions().map(|p| p.user.as_str()).collect();
        let without = table.users().filter(|u| !with.contains(u.name.as_str()));
        Ok(without.map(|user| described(table, user)).collect())
    })
}

/// Deletes the users that the body names, as far as they are there, as in RabbitMQ.
pub(crate) async fn delete_all(State(node): Shared, body: Body) -> Result<StatusCode, Error> {
    let bad = || Error::bad_request("users must be a list of names");
    let names = body.0.get("users").ok_or_else(bad)?;
    let names = names.as_array().ok_or_else(bad)?.iter();
    let names: Vec<&str> = names
        .map(|name| name.as_str().ok_or_else(bad))
        .collect::<Result<_, _>>()?;
    for name in names {
        if node.metadata().table().read().user(name).is_some() {
            let name = name.to_owned();
            change(&node, Command::DeleteUser { name }).await?;
        }
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Tags as a list or in one text, divided by commas.
pub(crate) fn tags(body: &Body) -> Result<Vec<String>, Error> {
    let bad = |other: &Value| Error::bad_request(format!("tags must be strings, not {other}"));
    let texts: Vec<&str> = match body.0.get("tags") {
        None | Some(Value::Null) => return Err(Error::bad_request("key_missing: tags")),
        Some(Value::String(text)) => text.split(',').collect(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| item.as_str().ok_or_else(|| bad(item)))
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(bad(other)),
    };
    Ok(texts
        .into_iter()
        .map(str::trim)
        .filter(|tag| !tag.is_empty())
        .map(str::to_owned)
        .collect())
}

/// A hash and how it was made: RabbitMQ's in base64, Argon2id's as it is. What begins as such a one needs no name of its algorithm.
fn hashed(hash: &str, algorithm: Option<&str>) -> Result<(PasswordHashing, Vec<u8>), Error> {
    match algorithm {
        Some(SHA512) => Ok((PasswordHashing::SaltedSha512, password_hash(hash, 64)?)),
        Some(ARGON2ID) if hash.is_empty() => Ok((PasswordHashing::Argon2id, Vec::new())),
        None | Some(ARGON2ID) if algorithm.is_some() || hash.starts_with("$argon2") => {
            check_argon2id(hash)
                .map_err(|why| Error::bad_request(format!("password_hash: {why}")))?;
            Ok((PasswordHashing::Argon2id, hash.as_bytes().to_vec()))
        }
        None | Some(SHA256) => Ok((PasswordHashing::SaltedSha256, password_hash(hash, 32)?)),
        Some(other) => Err(Error::bad_request(format!(
            "hashing_algorithm {other} is not known; use {ARGON2ID}, {SHA256} or {SHA512}"
        ))),
    }
}

/// A salted hash; empty for a user who cannot log in with a password.
fn password_hash(encoded: &str, length: usize) -> Result<Vec<u8>, Error> {
    let hash = STANDARD
        .decode(encoded)
        .map_err(|error| Error::bad_request(format!("password_hash is not base64: {error}")))?;
    if hash.is_empty() || hash.len() == SALT_BYTES + length {
        return Ok(hash);
    }
    Err(Error::bad_request(format!(
        "password_hash has {} bytes; {SALT_BYTES} of salt and {length} of hash are needed",
        hash.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_as_list_or_text() {
        let read = |value: Value| tags(&Body(value.as_object().unwrap().clone()));
        assert_eq!(
            read(json!({"tags": "administrator, x,"})).unwrap(),
            ["administrator", "x"]
        );
        assert_eq!(read(json!({"tags": ["a", "b"]})).unwrap(), ["a", "b"]);
        assert!(read(json!({"tags": ""})).unwrap().is_empty());
        for bad in [json!({}), json!({"tags": 1}), json!({"tags": [1]})] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn hashes_have_their_length() {
        let of = |bytes: usize, length| password_hash(&STANDARD.encode(vec![7; bytes]), length);
        assert_eq!(of(36, 32).unwrap().len(), 36);
        assert!(of(0, 32).unwrap().is_empty());
        assert!(of(36, 64).is_err() && of(35, 32).is_err() && password_hash("*", 32).is_err());
        assert!(hashed("", Some("rabbit_password_hashing_md5")).is_err());
    }

    #[test]
    fn argon2id_is_known_by_its_beginning_and_checked() {
        let hash =
            "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        let expected = (PasswordHashing::Argon2id, hash.as_bytes().to_vec());
        for algorithm in [None, Some(ARGON2ID)] {
            assert_eq!(hashed(hash, algorithm).unwrap(), expected);
        }
        let none = (PasswordHashing::Argon2id, Vec::new());
        assert_eq!(hashed("", Some(ARGON2ID)).unwrap(), none);
        assert!(hashed(hash, Some(SHA256)).is_err());
        let dear = hash.replace("m=256", "m=9999999");
        assert!(hashed(&dear, None).is_err() && hashed("x", Some(ARGON2ID)).is_err());
    }
}
