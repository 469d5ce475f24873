//! Who asks, and what they may: basic authentication, then RabbitMQ's tags.
//!
//! administrator: everything. monitoring: reads everything but users and permissions. management, policymaker: read what is in the virtual hosts that
//! they have permissions in, and the latter make policies there. Others: nothing. Invariant: [`authenticate`] stands before every route but health, and refuses changes itself, so that a
//! new handler is not open by mistake. Two kinds of routes have [`log_in`] before them instead: what is done in a session of the user's own is checked there, and changes of exchanges, queues and bindings by AMQP's permissions.

use crate::error::Error;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use warren_node::Node;
use warren_node::audit::{self, Who};
use warren_routing::Table;

/// What tags allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Own virtual hosts.
    Management,
    /// All there is to see.
    Monitoring,
    /// All there is to do.
    Administrator,
}

/// What a session on behalf of who asks logs in with.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: Vec<u8>,
    pub(crate) password: Vec<u8>,
    pub(crate) peer: SocketAddr,
}

/// A user who has logged in and may use the API.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
    level: Level,
}

impl Access {
    /// Refuses all but administrators.
    pub(crate) fn administrator(&self) -> Result<(), Error> {
        self.at_least(Level::Administrator, "Not administrator user")
    }

    /// Refuses those who may not see nodes.
    pub(crate) fn monitoring(&self) -> Result<(), Error> {
        self.at_least(Level::Monitoring, "Not monitor user")
    }

    /// Whether the user may see everything.
    pub(crate) fn is_monitor(&self) -> bool {
        self.level >= Level::Monitoring
    }

    /// Refuses those who may not see what belongs to `user`.
    pub(crate) fn own_or_monitor(&self, user: &str) -> Result<(), Error> {
        if self.name == user {
            return Ok(());
        }
        self.monitoring()
    }

    /// Refuses those who may not change what belongs to `user`.
    pub(crate) fn own_or_administrator(&self, user: &str) -> Result<(), Error> {
        if self.name == user {
            return Ok(());
        }
        self.administrator()
    }

    /// Refuses those who may not make policies: administrators and policymakers may.
    pub(crate) fn policymaker(&self) -> Result<(), Error> {
        if self.tags.iter().any(|tag| tag == "policymaker") {
            return Ok(());
        }
        self.at_least(Level::Administrator, "Not policymaker user")
    }

    fn at_least(&self, level: Level, reason: &str) -> Result<(), Error> {
        if self.level >= level {
            Ok(())
        } else {
            Err(Error::not_authorised(reason))
        }
    }

    /// Whether the user may see what is in a virtual host.
    pub(crate) fn sees(&self, table: &Table, vhost: &str) -> bool {
        self.level >= Level::Monitoring || table.permission(&self.name, vhost).is_some()
    }

    /// Refuses a virtual host that does not exist or is not to be seen.
    pub(crate) fn vhost(&self, table: &Table, vhost: &str) -> Result<(), Error> {
        if !table.vhost_exists(vhost) {
            return Err(Error::not_found(format!("vhost '{vhost}' not found")));
        }
        if self.sees(table, vhost) {
            Ok(())
        } else {
            Err(Error::not_authorised(format!(
                "User not authorised to access virtual host '{vhost}'"
            )))
        }
    }

    /// The virtual hosts that the user may see, or the one that is asked for.
    pub(crate) fn vhosts(&self, table: &Table, only: Option<&str>) -> Result<Vec<String>, Error> {
        match only {
            Some(vhost) => self.vhost(table, vhost).map(|()| vec![vhost.to_owned()]),
            None => Ok(table
                .vhosts()
                .filter(|vhost| self.sees(table, vhost))
                .map(str::to_owned)
                .collect()),
        }
    }
}

/// Asks for a login and tells the handlers who it is. Changes are for administrators.
pub(crate) async fn authenticate(
    State(node): State<Arc<Node>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (access, login) = identify(&node, login(&request)?).await?;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        access.administrator()?;
    }
    let who = login.who();
    request.extensions_mut().insert(access);
    request.extensions_mut().insert(login);
    Ok(WHO.scope(who, next.run(request)).await)
}

/// Asks for a login and tells the handlers who it is, to be checked by the session that they open.
pub(crate) async fn log_in(
    State(node): State<Arc<Node>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (access, login) = identify(&node, login(&request)?).await?;
    let who = login.who();
    request.extensions_mut().insert(access);
    request.extensions_mut().insert(login);
    Ok(WHO.scope(who, next.run(request)).await)
}

tokio::task_local! {
    /// Who asks in the request that is being answered.
    static WHO: Who;
}

/// Who asks in the request that is being answered, for the audit log.
pub(crate) fn who() -> Who {
    WHO.try_with(Clone::clone).unwrap_or_default()
}

impl Login {
    fn who(&self) -> Who {
        Who {
            user: String::from_utf8_lossy(&self.user).into_owned(),
            peer: self.peer.to_string(),
            via: "http",
        }
    }
}

/// What the request logs in with.
fn login(request: &Request) -> Result<Login, Error> {
    let (user, password) =
        credentials(request.headers()).ok_or_else(|| Error::not_authorised("Login failed"))?;
    // Whoever cannot be told apart from a remote client is taken for one.
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |peer| peer.0);
    Ok(Login {
        user,
        password,
        peer,
    })
}

async fn identify(node: &Arc<Node>, login: Login) -> Result<(Access, Login), Error> {
    let Login {
        user,
        password,
        peer,
    } = &login;
    if let Err(why) = node.authenticate(user, password, peer.ip()).await {
        if node.metadata().table().read().users().next().is_none() {
            // Nobody could log in, whatever the password: the node has just been started.
            return Err(Error::unavailable(
                "this node has no users yet: it has not founded or joined a cluster so far",
            ));
        }
        audit::login_refused(&login.who(), &why);
        tracing::info!(%peer, why, "a login to the HTTP API was refused");
        return Err(Error::not_authorised("Login failed"));
    }
    let name = String::from_utf8_lossy(user).into_owned();
    let tags = node
        .metadata()
        .table()
        .read()
        .user(&name)
        .map_or_else(Vec::new, |user| user.tags.clone());
    let level = level(&tags).ok_or_else(|| Error::not_authorised("Not management user"))?;
    Ok((Access { name, tags, level }, login))
}

fn credentials(headers: &HeaderMap) -> Option<(Vec<u8>, Vec<u8>)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(secret.trim())
        .ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some((decoded[..colon].to_vec(), decoded[colon + 1..].to_vec()))
}

fn level(tags: &[String]) -> Option<Level> {
    let of_tag = |tag: &String| match tag.as_str() {
        "administrator" => Some(Level::Administrator),
        "monitoring" => Some(Level::Monitoring),
        "management" | "policymaker" => Some(Level::Management),
        _ => None,
    };
    tags.iter().filter_map(of_tag).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_tag_counts() {
        let of =
            |tags: &[&str]| level(&tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["Administrator", "x"]), None);
        assert_eq!(of(&["policymaker"]), Some(Level::Management));
        assert_eq!(
            of(&["management", "administrator", "monitoring"]),
            Some(Level::Administrator)
        );
    }

    #[test]
    fn credentials_are_read_as_sent() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            credentials(&headers)
        };
        assert_eq!(
            read("Basic Z3Vlc3Q6Z3Vlc3Q="),
            Some((b"guest".to_vec(), b"guest".to_vec()))
        );
        assert_eq!(
            read("basic dTphOmI="),
            Some((b"u".to_vec(), b"a:b".to_vec())),
            "a password may hold colons"
        );
        for bad in [
            "Bearer Z3Vlc3Q6Z3Vlc3Q=",
            "Basic",
            "Basic ***",
            "Basic Z3Vlc3Q=",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
