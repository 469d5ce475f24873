//! Users.

use crate::access::Access;
use crate::error::Error;
use crate::extract::{Body, Names, Parameters};
use crate::listing::Listing;
use crate::{Shared, change, check_name, limits};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warren_model::Command;
use warren_model::command::{PasswordHashing, User};
use warren_node::Node;
use warren_routing::Table;

const SHA256: &str = "rabbit_password_hashing_sha256";
const SHA512: &str = "rabbit_password_hashing_sha512";
const SALT_BYTES: usize = 4;

pub(crate) fn described(table: &Table, user: &User) -> Value {
    let hashing = match user.hashing {
        PasswordHashing::SaltedSha256 => SHA256,
        PasswordHashing::SaltedSha512 => SHA512,
    };
    json!({"name": user.name, "password_hash": STANDARD.encode(&user.password_hash), "hashing_algorithm": hashing, "tags": user.tags, "limits": limits::of_user(table, &user.name)})
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
    let listing = Listing::new(&parameters)?;
    let table = node.metadata().table().read();
    let rows = table.users().map(|user| described(&table, user)).collect();
    drop(table);
    Ok(Json(listing.of_rows(rows)?))
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
    let user = read(&node, name, &body, known)?;
    change(&node, Command::PutUser(user)).await?;
    for limit in limits {
        change(&node, limit).await?;
    }
    Ok(status)
}

/// The user that a body describes.
pub(crate) fn read(
    node: &Node,
    name: String,
    body: &Body,
    known: Option<User>,
) -> Result<User, Error> {
    let tags = tags(body)?;
    match (
        body.optional_text("password")?,
        body.optional_text("password_hash")?,
    ) {
        (Some(_), Some(_)) => Err(Error::bad_request(
            "give password or password_hash, not both",
        )),
        (Some(password), None) => Ok(node.new_user(&name, password, tags)),
        (None, Some(hash)) => {
            let (hashing, length) = hashing(body.optional_text("hashing_algorithm")?)?;
            Ok(User {
                name,
                password_hash: password_hash(hash, length)?,
                hashing,
                tags,
            })
        }
        (None, None) => Ok(match known {
            Some(user) => User { tags, ..user },
            None => node.new_user(&name, "", tags),
        }),
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

/// The algorithm and the length of its hashes.
fn hashing(name: Option<&str>) -> Result<(PasswordHashing, usize), Error> {
    match name {
        None | Some(SHA256) => Ok((PasswordHashing::SaltedSha256, 32)),
        Some(SHA512) => Ok((PasswordHashing::SaltedSha512, 64)),
        Some(other) => Err(Error::bad_request(format!(
            "hashing_algorithm {other} is not known; use {SHA256} or {SHA512}"
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
        assert!(hashing(Some("rabbit_password_hashing_md5")).is_err());
    }
}
