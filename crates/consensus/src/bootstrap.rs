//! How a node comes into a cluster: it founds one, waits for one to be founded, or joins the one that is there.
//!
//! A node is fresh when its storage has never held anything of a cluster. Only a fresh node may found or promise; one that
//! has lost its data is fresh under another identity, and cannot tell that it ever belonged to a cluster, but its peers can:
//! - The node with the least configured name founds, alone, and only when every configured node is linked, answers that it
//!   is fresh, and promises, which it does only to that name and for exactly its own set of configured nodes. So no node that
//!   belongs to a cluster can be overlooked, and nodes that are configured differently found nothing.
//! - A node that knows that its data was lost founds and promises nothing, fresh as it is.
//! - A fresh node that hears of a cluster asks its leader to become a member, under its new identity. The leader agrees
//!   once no node of that name is up; the former identity is removed when the new one has caught up (see `duties`).
//!
//! After this only the stored membership counts; configured nodes are merely places to look for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;
use warren_model::NodeId;
use warren_transport::Hello;

use crate::metadata::{BOOTSTRAP, Core, PRESENCE};
use crate::raft::Member;
use crate::wire::{LeaderHint, Reply, Request};

const ASK_DEADLINE: Duration = Duration::from_millis(500);
/// Becoming a member takes a commit.
const JOIN_DEADLINE: Duration = Duration::from_secs(5);

impl Core {
    /// Whether this node has never belonged to a cluster.
    pub(crate) fn is_fresh(&self) -> bool {
        if !self.opened_fresh.load(Ordering::Acquire) {
            return false;
        }
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        now.membership_config.nodes().next().is_none() && now.last_log_index.is_none()
    }

    /// Whether this node may found a cluster, or be one of its founders.
    pub(crate) fn may_found(&self) -> bool {
        self.is_fresh() && !self.config.rejoins
    }

    /// Looks for a cluster, or founds one, whenever this node belongs to none. Never ends.
    pub(crate) async fn bootstrap(self: Arc<Self>) {
        while !self.leaving.load(Ordering::Acquire) {
            if self.is_fresh() {
                self.come_in().await;
            } else if self.estranged.swap(false, Ordering::AcqRel) && self.may_rejoin() {
                let leader = *self.leader.borrow();
                if let Some(leader) = leader {
                    self.join(leader).await;
                }
            }
            self.look_around(BOOTSTRAP).await;
        }
    }

    /// A node that was removed while it was away may come back, unless another has its name: one of that name that is down was itself replaced.
    fn may_rejoin(&self) -> bool {
        !self
            .machine
            .table()
            .read()
            .nodes()
            .any(|known| known.name == self.config.name && known.id != self.me() && known.up)
    }

    async fn come_in(&self) {
        let peers: Vec<Hello> = self.links.lock().values().cloned().collect();
        let mut fresh: BTreeMap<String, Hello> = BTreeMap::new();
        for peer in peers {
            match self.ask(peer.node, &Request::Probe, ASK_DEADLINE).await {
                Some(Reply::Standing { fresh: true, .. }) => {
                    drop(fresh.insert(peer.name.clone(), peer))
                }
                Some(Reply::Standing { leader, .. }) => {
                    return self.join_through(peer.node, leader).await;
                }
                Some(_) | None => {}
            }
        }
        let names = self.config.names();
        if names.first() != Some(&self.config.name) || !self.may_found() {
            return;
        }
        let others: Vec<&Hello> = names
            .iter()
            .filter(|name| **name != self.config.name)
            .filter_map(|name| fresh.get(name))
            .collect();
        if others.len() + 1 < names.len() {
            tracing::debug!(node = %self.config.name, fresh = others.len() + 1, of = names.len(), "waiting for all configured nodes to found a cluster");
            return;
        }
        for peer in &others {
            match self
                .ask(
                    peer.node,
                    &Request::Promise {
                        names: names.clone(),
                    },
                    ASK_DEADLINE,
                )
                .await
            {
                Some(Reply::Done) => {}
                Some(Reply::Refused(why)) => {
                    return tracing::error!(peer = %peer.name, %why, "a node refuses to be part of a new cluster");
                }
                Some(_) | None => return,
            }
        }
        self.found(&others).await;
    }

    async fn found(&self, others: &[&Hello]) {
        let mut members: BTreeMap<NodeId, Member> = others
            .iter()
            .map(|peer| {
                (
                    peer.node,
                    Member {
                        name: peer.name.clone(),
                        address: peer.address.clone(),
                    },
                )
            })
            .collect();
        members.insert(
            self.me(),
            Member {
                name: self.config.name.clone(),
                address: self.config.address.clone(),
            },
        );
        if members.len() != others.len() + 1 {
            return tracing::error!(
                "two configured nodes have the same identity: one's data folder is a copy of the other's; wipe one"
            );
        }
        tracing::info!(node = %self.config.name, nodes = members.len(), "founding a cluster");
        match self.raft.initialize(members).await {
            Ok(()) => self.opened_fresh.store(false, Ordering::Release),
            Err(error) => tracing::warn!(%error, "no cluster was founded"),
        }
    }

    /// Joins by way of a node that is in a cluster.
    async fn join_through(&self, peer: NodeId, leader: Option<LeaderHint>) {
        let Some(leader) = leader else { return };
        if leader.node == self.me() {
            return;
        }
        if peer != leader.node && !self.links.lock().contains_key(&leader.node) {
            *self.hinted.lock() = Some(leader);
            return self.kicks[PRESENCE].notify_one();
        }
        self.join(leader.node).await;
    }

    async fn join(&self, leader: NodeId) {
        if let Some(next) = self.ask_to_join(leader).await {
            self.ask_to_join(next).await;
        }
    }

    /// Asks a node to make this one a member. If that does not lead: who does, as it says.
    async fn ask_to_join(&self, leader: NodeId) -> Option<NodeId> {
        let request = Request::Join {
            name: self.config.name.clone(),
            address: self.config.address.clone(),
        };
        match self.ask(leader, &request, JOIN_DEADLINE).await {
            Some(Reply::Joined) => tracing::debug!(node = %self.config.name, "is a member"),
            Some(Reply::Refused(why)) => {
                tracing::warn!(node = %self.config.name, %why, "may not join the cluster yet")
            }
            Some(Reply::NotLeader { leader: next }) => {
                let known = next.as_ref().map(|hint| hint.node);
                *self.hinted.lock() = next;
                self.kicks[PRESENCE].notify_one();
                return known.filter(|next| *next != leader && *next != self.me());
            }
            Some(_) | None => {}
        }
        None
    }

    /// Makes a node a member, if this node leads and nothing speaks against it.
    pub(crate) async fn admit_member(&self, node: NodeId, name: String, address: String) -> Reply {
        if self.ledger.with(|ledger| ledger.leading()).is_none() {
            return Reply::NotLeader {
                leader: self.leader_hint(),
            };
        }
        let namesake = self
            .machine
            .table()
            .read()
            .nodes()
            .find(|known| known.name == name && known.id != node && known.up)
            .map(|known| known.id);
        if let Some(namesake) = namesake {
            return Reply::Refused(format!(
                "node {namesake} of the name '{name}' is still up; once it is marked down, node {node} may take its name"
            ));
        }
        // Whoever was about to be removed may stay, and a new one is not taken for one that has been silent for long.
        self.ledger
            .with(|ledger| ledger.welcome(node, Instant::now()));
        let known = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            now.membership_config.get_node(&node).is_some()
        };
        if known {
            return Reply::Joined;
        }
        tracing::info!(%node, %name, "a node joins the cluster");
        match self
            .raft
            .add_learner(node, Member { name, address }, false)
            .await
        {
            Ok(_) => Reply::Joined,
            Err(error) => Reply::Refused(error.to_string()),
        }
    }
}
