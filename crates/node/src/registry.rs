//! The client connections of a node, as operators see them.
//!
//! What does not change stands in the registry; what does is asked of the connection's own task, so that serving costs nothing for being looked at. A
//! connection whose client does not read may not answer in time: then it is shown without numbers. It can be closed all the same ([`Known::kill`]).

use crate::connection::Inbox;
use crate::meter::{MessageStats, Rated};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use warren_session::Session;

/// Where a client's bytes come from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The client's address.
    pub peer: SocketAddr,
    /// The address that it connected to; none for a session of the HTTP API's.
    pub local: Option<SocketAddr>,
    /// What TLS says, where there is TLS.
    pub tls: Option<TlsPeer>,
}

/// What TLS says of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsPeer {
    /// Version: `tlsv1.2` or `tlsv1.3`.
    pub protocol: String,
    /// Cipher suite.
    pub cipher: String,
    /// The client certificate's subject, if it showed one that a trusted CA has signed.
    pub subject: Option<String>,
    /// Who issued it.
    pub issuer: Option<String>,
    /// From when to when it is valid.
    pub validity: Option<String>,
    /// The user that it may log in as with EXTERNAL.
    pub user: Option<String>,
}

/// A certificate that a node shows, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Where it is used, and its file.
    pub what: String,
    /// Its subject.
    pub subject: String,
    /// The last moment at which it is valid.
    pub not_after: SystemTime,
}

/// How much is told of connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Detail {
    /// The connections alone.
    #[default]
    Connections,
    /// Their channels, too.
    Channels,
    /// Their consumers, too, instead.
    Consumers,
}

/// A client connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionInfo {
    /// Its number at its node.
    pub number: u64,
    /// RabbitMQ's name of it.
    pub name: String,
    /// The client's host and port.
    pub peer: Option<SocketAddr>,
    /// The host and port that it connected to; none for a session of the HTTP API's.
    pub local: Option<SocketAddr>,
    /// What TLS says, where there is TLS.
    pub tls: Option<TlsPeer>,
    /// User.
    pub user: String,
    /// Virtual host.
    pub vhost: String,
    /// SASL mechanism.
    pub mechanism: String,
    /// Raw field table entries.
    pub client_properties: Vec<u8>,
    /// Milliseconds since 1970.
    pub connected_at: u64,
    /// Highest channel number; 0: no limit.
    pub channel_max: u16,
    /// Largest frame; 0: no limit.
    pub frame_max: u32,
    /// Heartbeat in seconds; 0: none.
    pub heartbeat_s: u16,
    /// What changes; none if the connection did not answer in time.
    pub live: Option<Live>,
}

/// What changes about a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    /// `running`, `blocked` or `closing`.
    pub state: String,
    /// Open channels.
    pub channel_count: u64,
    /// Bytes from the client.
    pub received: Rated,
    /// Bytes to the client.
    pub sent: Rated,
    /// Reads and writes.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that wait to be written.
    pub pending: u64,
    /// Messages.
    pub stats: MessageStats,
    /// If asked for.
    pub channels: Vec<ChannelInfo>,
    /// If asked for.
    pub consumers: Vec<ConsumerInfo>,
}

/// A channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelInfo {
    /// Number.
    pub number: u16,
    /// Publishes are confirmed.
    pub confirm: bool,
    /// Publishes without an outcome.
    pub unconfirmed: u64,
    /// Deliveries without an acknowledgement.
    pub unacked: u64,
    /// Consumers.
    pub consumers: u32,
    /// Prefetch of consumers to come.
    pub prefetch: u32,
    /// Prefetch that they share.
    pub global_prefetch: u32,
    /// It is being closed.
    pub closing: bool,
    /// Messages.
    pub stats: MessageStats,
}

/// A consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumerInfo {
    /// Its channel.
    pub channel: u16,
    /// Its tag.
    pub tag: String,
    /// Its queue's id.
    pub queue: u64,
    /// It acknowledges.
    pub acks: bool,
    /// It is the only one.
    pub exclusive: bool,
    /// At most so many unacknowledged messages; 0: no limit.
    pub prefetch: u32,
    /// What it was declared with, unless that is large: raw entries of a field table.
    pub arguments: Vec<u8>,
    /// Its queue's owner serves it now.
    pub active: bool,
}

/// A connection in the registry.
pub(crate) struct Known {
    pub(crate) info: ConnectionInfo,
    inbox: mpsc::UnboundedSender<Inbox>,
    /// Ends the connection whatever its client does.
    pub(crate) kill: Arc<Notify>,
}

/// All opened connections, by number.
#[derive(Default)]
pub(crate) struct Registry {
    all: RwLock<BTreeMap<u64, Arc<Known>>>,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Registry {
    /// A connection is open.
    pub(crate) fn insert(
        &self,
        number: u64,
        session: &Session,
        origin: &Origin,
        inbox: mpsc::UnboundedSender<Inbox>,
        kill: Arc<Notify>,
    ) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let (channel_max, frame_max) = session.tuned();
        let info = ConnectionInfo {
            number,
            name: name(number, origin),
            peer: Some(origin.peer),
            local: origin.local,
            tls: origin.tls.clone(),
            user: session.user().to_owned(),
            vhost: session.vhost().to_owned(),
            mechanism: session.mechanism().to_owned(),
            client_properties: session.client_properties().to_vec(),
            connected_at: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            channel_max,
            frame_max,
            heartbeat_s: session.heartbeat_s(),
            live: None,
        };
        let known = Known { info, inbox, kill };
        self.all.write().insert(number, Arc::new(known));
    }

    /// Returns whether it was open.
    pub(crate) fn remove(&self, number: u64) -> bool {
        self.all.write().remove(&number).is_some()
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Known>> {
        self.all.read().get(&number).cloned()
    }

    /// Bytes came from clients and went to them.
    pub(crate) fn count_bytes(&self, received: u64, sent: u64) {
        self.received.fetch_add(received, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }

    /// Bytes from clients and to them since the node started.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (load(&self.received), load(&self.sent))
    }

    pub(crate) fn len(&self) -> usize {
        self.all.read().len()
    }

    /// Connections with numbers above `after`, at most so many, with what those say of themselves that answer in time.
    pub(crate) async fn describe(
        &self,
        after: u64,
        most: usize,
        detail: Detail,
        deadline: Duration,
    ) -> Vec<ConnectionInfo> {
        let range = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let chosen: Vec<Arc<Known>> = {
            let all = self.all.read();
            all.range(range)
                .take(most)
                .map(|(_, k)| k.clone())
                .collect()
        };
        let until = Instant::now() + deadline;
        let ask = |known: &Arc<Known>| {
            let (sender, receiver) = oneshot::channel();
            // A connection that has just ended does not answer.
            let _ = known.inbox.send(Inbox::Describe(detail, sender));
            receiver
        };
        let answers: Vec<_> = chosen.iter().map(ask).collect();
        let mut infos = Vec::with_capacity(chosen.len());
        for (known, answer) in chosen.iter().zip(answers) {
            let live = tokio::time::timeout_at(until, answer).await;
            infos.push(ConnectionInfo {
                live: live.ok().and_then(Result::ok),
                ..known.info.clone()
            });
        }
        infos
    }
}

impl Known {
    /// Tells the connection's task to end it.
    pub(crate) fn close(&self, reason: &str) {
        let _ = self.inbox.send(Inbox::Close(reason.to_owned()));
    }
}

/// `127.0.0.1:40000 -> 127.0.0.1:5672`, as RabbitMQ has it.
fn name(number: u64, origin: &Origin) -> String {
    match origin.local {
        Some(local) => format!("{} -> {}", plain(origin.peer), plain(local)),
        None => format!("{} (direct) {number}", plain(origin.peer)),
    }
}

/// An address as RabbitMQ writes it: IPv4 as such also where a socket for both has taken it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_rabbitmqs() {
        let origin = |peer: &str, local: Option<&str>| Origin {
            peer: peer.parse().unwrap(),
            local: local.map(|local| local.parse().unwrap()),
            tls: None,
        };
        assert_eq!(
            name(
                7,
                &origin("[::ffff:192.0.2.1]:4000", Some("127.0.0.1:5672"))
            ),
            "192.0.2.1:4000 -> 127.0.0.1:5672"
        );
        assert_eq!(
            name(7, &origin("[::1]:9", Some("[::1]:1"))),
            "[::1]:9 -> [::1]:1"
        );
        assert_eq!(
            name(7, &origin("127.0.0.1:9", None)),
            "127.0.0.1:9 (direct) 7"
        );
    }
}
