//! This node's presence in the cluster: it is up in the table, linked with its peers, and leaves in good order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::Instant;
use warren_model::command::NodeUp;
use warren_model::{Command, Incarnation, NodeId, Outcome};
use warren_transport::PeerAddress;

use crate::metadata::{Core, PRESENCE};
use crate::wire::Request;

const PROPOSE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a node that leaves waits for the cluster to take note.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);
/// A node that comes up again and again waits longer each time: from the first pause, doubled, up to the last.
const FLAP_PAUSE_MIN: Duration = Duration::from_millis(250);
const FLAP_PAUSE_MAX: Duration = Duration::from_secs(8);
const FLAP_MEMORY: Duration = Duration::from_secs(60);

impl Core {
    /// Keeps this node up in the table and the transport informed. Ends when the node leaves.
    pub(crate) async fn keep_present(self: Arc<Self>) {
        let mut known_peers = Vec::new();
        let mut known_cluster = None;
        let mut ups: VecDeque<Instant> = VecDeque::new();
        while !self.leaving.load(Ordering::Acquire) {
            let peers = self.peers();
            if peers != known_peers {
                if let Some(wire) = self.wire.get() {
                    wire.set_peers(peers.clone());
                }
                known_peers = peers;
            }
            let cluster = self
                .machine
                .table()
                .read()
                .cluster()
                .map(|(cluster, _)| cluster);
            if let Some(cluster) = cluster.filter(|_| cluster != known_cluster) {
                if let Some(wire) = self.wire.get() {
                    wire.set_cluster(cluster);
                }
                known_cluster = Some(cluster);
            }
            if let Some(up) = self.due_up() {
                if !self.may_come_up().await {
                    continue;
                }
                let now = Instant::now();
                ups.retain(|at| now - *at < FLAP_MEMORY);
                if !ups.is_empty() {
                    let doublings = u32::try_from(ups.len() - 1).unwrap_or(u32::MAX).min(16);
                    tokio::time::sleep((FLAP_PAUSE_MIN * 2u32.pow(doublings)).min(FLAP_PAUSE_MAX))
                        .await;
                }
                if self.come_up(up).await {
                    ups.push_back(Instant::now());
                }
            }
            self.look_around(PRESENCE).await;
        }
    }

    /// Everyone to be linked with: configured, members, and nodes of the table, whose addresses are the newest.
    fn peers(&self) -> Vec<PeerAddress> {
        let mut peers: BTreeMap<String, String> = self
            .config
            .seeds
            .iter()
            .map(|seed| (seed.name.clone(), seed.address.clone()))
            .collect();
        {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            peers.extend(
                now.membership_config
                    .nodes()
                    .map(|(_, member)| (member.name.clone(), member.address.clone())),
            );
        }
        peers.extend(
            self.machine
                .table()
                .read()
                .nodes()
                .map(|known| (known.name.clone(), known.address.clone())),
        );
        if let Some(hint) = &*self.hinted.lock() {
            peers
                .entry(hint.name.clone())
                .or_insert_with(|| hint.address.clone());
        }
        peers.remove(&self.config.name);
        peers
            .into_iter()
            .map(|(name, address)| PeerAddress { name, address })
            .collect()
    }

    fn target_incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    pub(crate) fn is_marked_down(&self) -> bool {
        let target = self.target_incarnation();
        let table = self.machine.table().read();
        let known = table.node(self.me());
        known.is_some_and(|known| known.has_ended(target))
    }

    /// The command that brings this node up as it is now, if the table shows it otherwise and it may come up.
    fn due_up(&self) -> Option<NodeUp> {
        let up = NodeUp {
            node: self.me(),
            name: self.config.name.clone(),
            address: self.config.address.clone(),
            amqp: self.config.amqp.clone(),
            http: self.config.http.clone(),
            incarnation: self.target_incarnation(),
        };
        (*self.leader.borrow())?;
        let table = self.machine.table().read();
        table.cluster()?;
        let due = match table.node(self.me()) {
            None => true,
            Some(known) if known.incarnation < up.incarnation => true,
            // Marked down: its owner renews the incarnation first.
            Some(known) if known.incarnation > up.incarnation || !known.up => false,
            Some(known) => {
                (&known.name, &known.address, &known.amqp, &known.http)
                    != (&up.name, &up.address, &up.amqp, &up.http)
            }
        };
        due.then_some(up)
    }

    async fn come_up(&self, up: NodeUp) -> bool {
        let incarnation = up.incarnation;
        match self.propose(Command::NodeUp(up), PROPOSE_DEADLINE).await {
            Some(Outcome::Refused(refusal)) => {
                tracing::warn!(node = %self.config.name, why = %refusal.text, "may not come up yet");
                false
            }
            Some(Outcome::Done | Outcome::Retry | Outcome::Queue { .. }) => {
                tracing::info!(node = %self.config.name, incarnation = incarnation.0, "is up");
                true
            }
            None => false,
        }
    }

    /// Proposes a command of the node itself; none if it was not answered in time.
    pub(crate) async fn propose(&self, command: Command, deadline: Duration) -> Option<Outcome> {
        let answer = self.proposer.propose([command], deadline).pop()?;
        let proposed = answer.await.ok()?.inspect_err(|error| tracing::debug!(node = %self.config.name, %error, "a proposal was not answered")).ok()?;
        self.wait_applied(proposed.index).await;
        Some(proposed.outcome)
    }

    /// Marks this node down, hands leadership over, gives the lease up: in this order, so that nobody waits for this node.
    pub(crate) async fn leave(&self) {
        if self.leaving.swap(true, Ordering::AcqRel) {
            return;
        }
        self.kick_all();
        self.lease.release();
        let is_up = self
            .machine
            .table()
            .read()
            .node(self.me())
            .is_some_and(|known| known.up);
        if is_up && self.leader.borrow().is_some() {
            let down = Command::NodeDown {
                node: self.me(),
                incarnation: self.target_incarnation(),
            };
            self.propose(down, LEAVE_DEADLINE).await;
        }
        if *self.leader.borrow() == Some(self.me()) {
            self.hand_over().await;
        }
        let leader = *self.leader.borrow();
        if let Some(leader) = leader.filter(|leader| *leader != self.me()) {
            self.ask(
                leader,
                &Request::Release {
                    incarnation: self.config.incarnation,
                },
                LEAVE_DEADLINE / 4,
            )
            .await;
        }
    }

    /// Hands leadership over to a voter that has everything, and waits until another leads. Without one, the others elect.
    async fn hand_over(&self) {
        let Some(to) = self.successor() else { return };
        if self.raft.trigger().transfer_leader(to).await.is_err() {
            return;
        }
        let mut leaders = self.leader.subscribe();
        let me = self.me();
        let another = leaders.wait_for(|leader| leader.is_some_and(|leader| leader != me));
        if tokio::time::timeout(self.config.election_timeout.1 * 2, another)
            .await
            .is_err()
        {
            tracing::warn!(node = %self.config.name, %to, "leadership was not taken over in time");
        }
    }

    /// The voter that has most of the log, of those heard of lately.
    fn successor(&self) -> Option<NodeId> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched().clone();
        let replicated = now.replication?;
        let heard_of = |node: NodeId| {
            self.ledger
                .with(|ledger| ledger.seen(node))
                .is_some_and(|at| at.elapsed() < self.config.lease)
        };
        let candidates = now
            .membership_config
            .voter_ids()
            .filter(|voter| *voter != self.me() && heard_of(*voter));
        let with_log = candidates
            .filter_map(|voter| Some((replicated.get(&voter).copied().flatten()?.index, voter)));
        let (index, to) = with_log.max()?;
        // A hand-over to one that lags would leave the group without a leader for a while.
        (Some(index) == now.last_log_index).then_some(to)
    }
}
