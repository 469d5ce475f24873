//! How many connections and channels virtual hosts and users have, to hold them to their limits.
//!
//! Flow: a session counts itself in as it opens its virtual host, counts each channel, and counts itself out before its client is told that it is closed.
//! A node tells the others its counts when they change, but only those whose number is limited ([`tell`]); to these it adds what the others said last.
//! Invariant: this node's own connections never pass a limit, however many are opened at once. Between nodes a count is as old as the last message, some
//! ten milliseconds, so connections that are opened at several nodes in the same moment may pass it together; connections at nodes that are not linked do not count.
//! Cost: a lock and a few look-ups when a connection or a channel is opened or closed; nothing per message.

use crate::node::Node;
use crate::wire::{ToNode, Usage};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use warren_model::command::{UserLimit, VhostLimit};
use warren_model::{NodeId, Refusal};
use warren_routing::Table;

/// Changes within this time are told together.
const TELL_PAUSE: Duration = Duration::from_millis(10);

/// How many connections a new one may be among.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionBounds {
    vhost: Option<u64>,
    user: Option<u64>,
}

impl ConnectionBounds {
    pub(crate) fn of(table: &Table, vhost: &str, user: &str) -> Self {
        Self {
            vhost: table.vhost_bound(vhost, VhostLimit::MaxConnections),
            user: table.user_bound(user, UserLimit::MaxConnections),
        }
    }
}

/// A connection that is counted, until it is given to [`InUse::close`].
#[derive(Debug)]
pub(crate) struct Used {
    vhost: String,
    user: String,
    channels: u64,
}

impl Used {
    /// Channels that it is counted with.
    pub(crate) fn channels(&self) -> u64 {
        self.channels
    }
}

/// What is in use on this node and on others.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    counts: Mutex<Counts>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// This node's connections by virtual host.
    vhosts: BTreeMap<String, u64>,
    /// This node's connections and channels by user.
    users: BTreeMap<String, (u64, u64)>,
    others: BTreeMap<NodeId, Usage>,
}

impl Counts {
    fn connections_of_vhost(&self, vhost: &str) -> u64 {
        let others = self.others.values().map(|usage| {
            let found = usage.vhosts.iter().find(|(name, _)| name == vhost);
            found.map_or(0, |(_, connections)| *connections)
        });
        self.vhosts.get(vhost).copied().unwrap_or(0) + others.sum::<u64>()
    }

    /// Connections and channels.
    fn of_user(&self, user: &str) -> (u64, u64) {
        let own = self.users.get(user).copied().unwrap_or_default();
        let others = self
            .others
            .values()
            .flat_map(|usage| usage.users.iter().filter(|(name, ..)| name == user));
        others.fold(own, |(connections, channels), (_, more, of_them)| {
            (connections + more, channels + of_them)
        })
    }
}

impl InUse {
    /// Counts a connection in, unless it would be one too many or is not `permitted` for another reason, which is found after the limits, as in RabbitMQ.
    pub(crate) fn open(
        &self,
        vhost: &str,
        user: &str,
        bounds: ConnectionBounds,
        permitted: bool,
    ) -> Result<Option<Used>, Refusal> {
        let mut counts = self.counts.lock();
        if let Some(limit) = bounds.vhost
            && counts.connections_of_vhost(vhost) >= limit
        {
            return Err(not_allowed(format!(
                "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            )));
        }
        if let Some(limit) = bounds.user
            && counts.of_user(user).0 >= limit
        {
            return Err(not_allowed(format!(
                "connection refused for user '{user}': user connection limit ({limit}) is reached"
            )));
        }
        if !permitted {
            return Ok(None);
        }
        *counts.vhosts.entry(vhost.to_owned()).or_default() += 1;
        counts.users.entry(user.to_owned()).or_default().0 += 1;
        Ok(Some(Used {
            vhost: vhost.to_owned(),
            user: user.to_owned(),
            channels: 0,
        }))
    }

    /// Counts a channel in beside `open` ones of its connection, unless it would be one too many.
    pub(crate) fn open_channel(
        &self,
        used: &mut Used,
        open: u64,
        bound: Option<u64>,
    ) -> Result<(), Refusal> {
        let mut counts = self.counts.lock();
        set_channels(&mut counts, used, open);
        if let Some(limit) = bound
            && counts.of_user(&used.user).1 >= limit
        {
            return Err(not_allowed(format!(
                "number of channels opened for user '{}' has reached the maximum allowed user limit of ({limit})",
                used.user
            )));
        }
        set_channels(&mut counts, used, open + 1);
        Ok(())
    }

    /// A connection has so many channels now. Returns whether that is news.
    pub(crate) fn count_channels(&self, used: &mut Used, open: u64) -> bool {
        if used.channels == open {
            return false;
        }
        set_channels(&mut self.counts.lock(), used, open);
        true
    }

    /// Counts a connection out.
    pub(crate) fn close(&self, mut used: Used) {
        let mut counts = self.counts.lock();
        set_channels(&mut counts, &mut used, 0);
        if let Some(connections) = counts.vhosts.get_mut(&used.vhost) {
            *connections -= 1;
            if *connections == 0 {
                counts.vhosts.remove(&used.vhost);
            }
        }
        if let Some((connections, _)) = counts.users.get_mut(&used.user) {
            *connections -= 1;
            if *connections == 0 {
                counts.users.remove(&used.user);
            }
        }
    }

    /// What another node says of itself; `None`: it is not linked any more.
    pub(crate) fn heard(&self, from: NodeId, usage: Option<Usage>) {
        let others = &mut self.counts.lock().others;
        match usage {
            Some(usage) => others.insert(from, usage),
            None => others.remove(&from),
        };
    }

    /// Something may be other than the others were told.
    pub(crate) fn kick(&self) {
        self.changed.notify_one();
    }

    /// This node's counts, of what is limited.
    fn limited(&self, table: &Table) -> Usage {
        let counts = self.counts.lock();
        let vhosts = table.all_vhost_limits().filter_map(|(vhost, _)| {
            table.vhost_bound(vhost, VhostLimit::MaxConnections)?;
            Some((vhost.to_owned(), *counts.vhosts.get(vhost)?))
        });
        let users = table.all_user_limits().filter_map(|(user, _)| {
            let (connections, channels) = counts.users.get(user)?;
            Some((user.to_owned(), *connections, *channels))
        });
        Usage {
            vhosts: vhosts.collect(),
            users: users.collect(),
        }
    }
}

fn set_channels(counts: &mut Counts, used: &mut Used, channels: u64) {
    if let Some((_, all)) = counts.users.get_mut(&used.user) {
        *all = *all - used.channels + channels;
    }
    used.channels = channels;
}

fn not_allowed(text: String) -> Refusal {
    Refusal::new(530, text)
}

impl Node {
    /// Connections or channels have come or gone.
    pub(crate) fn usage_changed(&self) {
        if self.metadata().table().read().has_limits() {
            self.in_use().kick();
        }
    }

    /// Tells a node that is linked now.
    pub(crate) fn tell_usage(self: &Arc<Self>, peer: NodeId) {
        let usage = self.usage();
        if usage != Usage::default() {
            self.send_to_node(peer, ToNode::Usage(usage));
        }
    }

    fn usage(&self) -> Usage {
        self.in_use().limited(&self.metadata().table().read())
    }
}

/// Tells the other nodes what changes, until the node stops.
pub(crate) async fn tell(node: Arc<Node>) {
    let mut told = Usage::default();
    loop {
        node.in_use().changed.notified().await;
        if node.is_stopping() {
            return;
        }
        let usage = node.usage();
        if usage != told {
            for peer in node.linked() {
                node.send_to_node(peer, ToNode::Usage(usage.clone()));
            }
            told = usage;
        }
        tokio::time::sleep(TELL_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(vhost: Option<u64>, user: Option<u64>) -> ConnectionBounds {
        ConnectionBounds { vhost, user }
    }

    #[test]
    fn connections_count_on_all_nodes_and_not_twice() {
        let in_use = InUse::default();
        let open = |bounds| in_use.open("v", "u", bounds, true);
        let none = bounds(None, None);
        let first = open(none).unwrap().unwrap();
        let two = bounds(Some(2), None);
        let second = open(two).unwrap().unwrap();
        assert_eq!(
            open(two).unwrap_err().text,
            "access to vhost 'v' refused for user 'u': connection limit (2) is reached"
        );
        in_use.close(second);
        let second = open(two).unwrap().unwrap();
        in_use.close(first);
        let told = |connections| Usage {
            vhosts: vec![("v".into(), connections)],
            users: vec![("u".into(), connections, 5)],
        };
        in_use.heard(NodeId(2), Some(told(3)));
        assert_eq!(
            open(bounds(Some(9), Some(4))).unwrap_err().text,
            "connection refused for user 'u': user connection limit (4) is reached"
        );
        in_use.heard(NodeId(2), Some(told(2)));
        in_use.close(open(bounds(Some(4), Some(4))).unwrap().unwrap());
        in_use.heard(NodeId(2), None);
        assert!(open(bounds(Some(0), None)).is_err(), "0 allows none");
        // Whoever may not enter is told of the limit first, and is not counted.
        assert!(in_use.open("v", "u", bounds(Some(1), None), false).is_err());
        assert!(in_use.open("v", "u", two, false).unwrap().is_none());
        in_use.close(second);
        let counts = in_use.counts.lock();
        assert!(counts.vhosts.is_empty() && counts.users.is_empty());
    }

    #[test]
    fn channels_count_for_their_user() {
        let in_use = InUse::default();
        let open = || {
            in_use
                .open("v", "u", bounds(None, None), true)
                .unwrap()
                .unwrap()
        };
        let (mut one, mut other) = (open(), open());
        in_use.open_channel(&mut one, 0, Some(3)).unwrap();
        in_use.open_channel(&mut one, 1, Some(3)).unwrap();
        in_use.open_channel(&mut other, 0, Some(3)).unwrap();
        assert_eq!(
            in_use
                .open_channel(&mut other, 1, Some(3))
                .unwrap_err()
                .text,
            "number of channels opened for user 'u' has reached the maximum allowed user limit of (3)"
        );
        // One that was closed in the same turn counts no more.
        in_use.open_channel(&mut one, 1, Some(3)).unwrap();
        assert!(in_use.count_channels(&mut one, 1));
        assert!(!in_use.count_channels(&mut one, 1));
        in_use.open_channel(&mut other, 1, Some(3)).unwrap();
        in_use.close(one);
        in_use.close(other);
        assert!(in_use.counts.lock().users.is_empty());
    }
}
