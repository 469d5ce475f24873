//! What a node is told by its storage, and what it makes at its first start.

use super::NodeError;
use crate::credentials::{draw_salt, hash_password};
use rand::RngCore;
use rand::rngs::StdRng;
use warren_model::command::{PasswordHashing, Permission, User};
use warren_model::{Command, Incarnation, NodeId};
use warren_storage::{Space, Storage, StorageError, Write};

/// The node's identity, made at its first start, and the incarnation of this start.
pub(super) fn identity(
    storage: &dyn Storage,
    random: &mut StdRng,
) -> Result<(NodeId, Incarnation), NodeError> {
    let state = storage.state();
    let number = |what: &'static str| -> Result<Option<u64>, NodeError> {
        match state.get(Space::Node, what.as_bytes())? {
            None => Ok(None),
            Some(bytes) => bytes
                .as_ref()
                .try_into()
                .map(|b| Some(u64::from_be_bytes(b)))
                .map_err(|_| NodeError::Identity { what }),
        }
    };
    let id = match number("identity")? {
        Some(id) => NodeId(id),
        None => {
            let id = random.next_u64().max(1);
            state.write(
                Space::Node,
                vec![Write::Put(
                    "identity".into(),
                    id.to_be_bytes().to_vec().into(),
                )],
            )?;
            NodeId(id)
        }
    };
    let incarnation = Incarnation(number("incarnation")?.unwrap_or(0) + 1);
    store_incarnation(storage, incarnation)?;
    Ok((id, incarnation))
}

pub(super) fn store_incarnation(
    storage: &dyn Storage,
    incarnation: Incarnation,
) -> Result<(), StorageError> {
    let state = storage.state();
    state.write(
        Space::Node,
        vec![Write::Put(
            "incarnation".into(),
            incarnation.0.to_be_bytes().to_vec().into(),
        )],
    )?;
    state.sync()
}

pub(super) fn random_bytes<const N: usize>(random: &mut StdRng) -> [u8; N] {
    let mut bytes = [0; N];
    random.fill_bytes(&mut bytes);
    bytes
}

pub(super) fn first_user(
    name: &str,
    password: &str,
    hashing: PasswordHashing,
    random: &mut StdRng,
) -> Vec<Command> {
    let salt = draw_salt(hashing, random);
    let password_hash = hash_password(hashing, salt, password.as_bytes());
    let all = || ".*".to_owned();
    vec![
        Command::PutUser(User {
            name: name.to_owned(),
            password_hash,
            hashing,
            tags: vec!["administrator".into()],
        }),
        Command::SetPermission(Permission {
            user: name.to_owned(),
            vhost: "/".into(),
            configure: all(),
            write: all(),
            read: all(),
        }),
    ]
}
