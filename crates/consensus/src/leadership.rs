//! Who leads, and this node's lease: the task that tells the ledger of this node's elections, and the one that keeps the lease.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, ServerState};
use openraft_rt_tokio::TokioInstant;
use tokio::time::Instant;
use warren_model::NodeId;
use warren_transport::{Frame, Lane};

use crate::entry::Proposal;
use crate::metadata::{BOOTSTRAP, Core};
use crate::proposer::Landing;
use crate::raft::LeaderId;
use crate::wire::{LeaderHint, Reply, Request};

/// The shortest time between two looks at openraft's metrics, which change with every entry.
const METRICS_STEP: Duration = Duration::from_millis(2);

impl Core {
    /// Tells the ledger of elections of this node and the others of who leads. Never ends.
    pub(crate) async fn follow_leadership(self: Arc<Self>) {
        let mut metrics = self.raft.server_metrics();
        loop {
            let (elected, leader) = {
                let now = metrics.borrow_watched();
                let mine = now.vote.committed && now.vote.leader_id.node_id == self.me();
                (
                    (now.state == ServerState::Leader && mine).then_some(now.vote.leader_id),
                    now.current_leader,
                )
            };
            if self.ledger.with(|ledger| ledger.elected()) != elected {
                match elected {
                    Some(leader) => self.begin_leading(leader),
                    None => self.ledger.disown(|ledger| ledger.resign()),
                }
            }
            // As long as this node is not ready to lead, nobody should ask it to.
            let leader = leader.filter(|leader| *leader != self.me() || elected.is_some());
            let changed = self.leader.send_if_modified(|known| {
                let changed = *known != leader;
                *known = leader;
                changed
            });
            if changed {
                tracing::info!(node = %self.config.name, ?leader, "metadata leader changed");
                self.kick_all();
            }
            if metrics.changed().await.is_err() {
                // openraft has stopped.
                self.ledger.disown(|ledger| ledger.resign());
                self.leader.send_replace(None);
                return;
            }
            tokio::time::sleep(METRICS_STEP).await;
        }
    }

    fn begin_leading(&self, leader: LeaderId) {
        let members: Vec<NodeId> = {
            let metrics = self.raft.metrics();
            let now = metrics.borrow_watched();
            let effective = now.membership_config.nodes().map(|(node, _)| *node);
            effective
                .chain(
                    now.committed_membership_config
                        .nodes()
                        .map(|(node, _)| *node),
                )
                .filter(|node| *node != self.me())
                .collect()
        };
        // The applied id is read under the ledger's lock: what is applied later, the ledger will be told.
        self.ledger
            .disown(|ledger| ledger.lead(leader, members, self.machine.applied(), Instant::now()));
    }

    /// When this leader sent what a majority has answered last, if it leads.
    pub(crate) fn quorum_ack(&self) -> Option<Instant> {
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        if now.state != ServerState::Leader {
            return None;
        }
        let alone = now
            .membership_config
            .voter_ids()
            .all(|voter| voter == self.me());
        // The clock is read before the age is taken, so that the result is no later than the truth.
        let read = Instant::now();
        if alone {
            return Some(read);
        }
        let age = TokioInstant::now() - now.last_quorum_acked?.into_inner();
        read.checked_sub(age)
    }

    /// Renews this node's lease. Never ends.
    pub(crate) async fn keep_lease(self: Arc<Self>) {
        let mut leaders = self.leader.subscribe();
        let period = self.config.lease / 5;
        loop {
            let leader = *leaders.borrow_and_update();
            let pause = match leader {
                None => period,
                Some(leader) if leader == self.me() => {
                    self.grant_own();
                    self.config.heartbeat / 2
                }
                Some(leader) => {
                    if self.renew_with(leader).await {
                        period
                    } else {
                        self.config.heartbeat / 4
                    }
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // The sender lives as long as `self`.
                _ = leaders.changed() => {}
            }
        }
    }

    /// The leader's own lease: as long as the quorum's word, once everything answered before is applied here.
    pub(crate) fn grant_own(&self) {
        let answered = self
            .ledger
            .with(|ledger| ledger.leading().and_then(|_| ledger.answered()));
        if let (Some(answered), Some(ack)) = (answered, self.quorum_ack()) {
            self.lease.grant(ack, ack + self.config.lease, answered);
        }
    }

    async fn renew_with(&self, leader: NodeId) -> bool {
        let applied = self.machine.table().version();
        let request = Request::Renew {
            incarnation: self.config.incarnation,
            applied,
        };
        // The lease counts from here: whatever happens on the way makes it shorter.
        let asked = Instant::now();
        match self.ask(leader, &request, self.config.lease / 2).await {
            Some(Reply::Granted(grant)) => {
                self.lease.grant(
                    asked,
                    asked + Duration::from_nanos(grant.nanos),
                    grant.must_apply,
                );
                true
            }
            Some(Reply::NotMember) => {
                self.note_estranged();
                false
            }
            // A leader that does not know this node as a member sends nothing that would tell it who leads.
            Some(Reply::NotLeader { leader: Some(hint) })
                if hint.node != leader && hint.node != self.me() =>
            {
                let asked = self.ask(hint.node, &request, self.config.lease / 2);
                if let Some(Reply::NotMember) = asked.await {
                    self.note_estranged();
                }
                false
            }
            Some(_) | None => false,
        }
    }

    /// The leader does not know this node as a member.
    fn note_estranged(&self) {
        self.estranged.store(true, Ordering::Release);
        self.kicks[BOOTSTRAP].notify_one();
    }

    /// The index that the leader says must be applied to see everything that is answered.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a reply that does not fit the request is one error, whichever it is"
    )]
    pub(crate) async fn read_index(&self, deadline: Duration) -> Option<u64> {
        let leader = (*self.leader.borrow())?;
        if leader == self.me() {
            self.grant_own();
            return None;
        }
        match self
            .ask(leader, &Request::ReadIndex, deadline.min(self.config.lease))
            .await?
        {
            Reply::Index(index) => Some(index),
            _ => None,
        }
    }

    /// Sends a request on the Control lane; none if no reply that can be read comes.
    pub(crate) async fn ask(
        &self,
        node: NodeId,
        request: &Request,
        deadline: Duration,
    ) -> Option<Reply> {
        let head = request
            .encode()
            .inspect_err(|error| tracing::error!(%error, "a request cannot be encoded"))
            .ok()?;
        let reply = self
            .wire
            .request(
                node,
                Lane::Control,
                Frame {
                    head,
                    bulk: Bytes::new(),
                },
                deadline,
            )
            .await
            .ok()?;
        Reply::decode(&reply.head)
            .inspect_err(|error| tracing::warn!(%node, %error, "a reply cannot be read"))
            .ok()
    }

    /// Sends a batch of this node's proposals to the leader, within the call, and calls back once.
    pub(crate) fn send_proposals(
        &self,
        leader: NodeId,
        proposals: Vec<Proposal>,
        landed: Box<dyn FnOnce(Landing) + Send>,
    ) {
        if leader == self.me() {
            return self.desk.submit(
                proposals,
                Box::new(move |answer| landed(answer.ok_or("this node leads no more"))),
            );
        }
        let head = match (Request::Propose { proposals }).encode() {
            Ok(head) => head,
            Err(error) => {
                tracing::error!(%error, "proposals cannot be encoded");
                return landed(Err("encoding failed"));
            }
        };
        // The leader holds answers back for as long as a silent node may hold a lease.
        let deadline = self.config.lease * 2 + Duration::from_secs(1);
        let reply = self.wire.request(
            leader,
            Lane::Control,
            Frame {
                head,
                bulk: Bytes::new(),
            },
            deadline,
        );
        let land = async move {
            landed(match reply.await.map(|reply| Reply::decode(&reply.head)) {
                Ok(Ok(Reply::Proposed { results })) => Ok(results),
                Ok(Ok(_)) => Err("the asked node does not lead"),
                Ok(Err(_)) => Err("the leader's reply cannot be read"),
                Err(_) => Err("no reply from the leader"),
            });
        };
        // The first poll queues the request.
        let mut land = Box::pin(land);
        if land
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
        {
            drop(self.spawn(land));
        }
    }

    /// Whom to ask instead of this node.
    pub(crate) fn leader_hint(&self) -> Option<LeaderHint> {
        let leader = (*self.leader.borrow())?;
        if let Some(known) = self.machine.table().read().node(leader) {
            return Some(LeaderHint {
                node: leader,
                name: known.name.clone(),
                address: known.address.clone(),
            });
        }
        let metrics = self.raft.metrics();
        let now = metrics.borrow_watched();
        let member = now.membership_config.get_node(&leader)?;
        Some(LeaderHint {
            node: leader,
            name: member.name.clone(),
            address: member.address.clone(),
        })
    }
}
