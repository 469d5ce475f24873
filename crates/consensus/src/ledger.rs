//! The leader's ledger of leases: who may be routing, how far each has applied, and which answers wait for them.
//!
//! Every node that routes holds a lease that the leader granted. An answer to a proposal is held back until each possible
//! holder has applied the proposal's entry or its lease has run out, so that nobody routes by a table that lacks something
//! that was answered. Why this is safe, with clocks that are not synchronised but run at nearly the same rate:
//! - A grant lasts until `quorum ack + lease` at most, where `quorum ack` is when the leader sent what a majority last
//!   answered. Any later leader is elected after that, and takes every member for a holder until `lease` after it noticed
//!   its election. So no lease of an earlier leader outlives that wait.
//! - A node counts its lease from before it asked, the leader from after, and longer by a margin for drift.
//! - A grant names the last index that was answered before it: the node routes only once it has applied that. Answers and
//!   grants are decided under one lock, so an answer after the grant waits for the node, and one before it is named.
//! - A deposed leader may go on granting and answering for what is left of its quorum ack: what it answers lies before its
//!   successor's first entry, which is the least that the successor's grants name.
//! - What a node has applied counts for one start of its process: after a restart it may have applied less.
//! - Nodes get leases only while they are members, and leave the membership only after their lease has run out.
//!
//! Pure: time comes in with each call.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use warren_model::{Incarnation, NodeId, planted};

use crate::raft::{LeaderId, LogId};
use crate::wire::Grant;

/// The ledger. `W` is what waits for an index to be applied everywhere.
#[derive(Debug)]
pub(crate) struct Ledger<W> {
    lease: Duration,
    leading: Option<Leading<W>>,
}

#[derive(Debug)]
struct Leading<W> {
    leader: LeaderId,
    since: Instant,
    /// The last index that was answered; none before an entry of this leadership was applied here.
    answered: Option<u64>,
    holders: BTreeMap<NodeId, Holder>,
    waiting: BTreeMap<u64, Vec<W>>,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    /// From then on the node certainly holds no lease.
    until: Instant,
    /// The start of the node's process that `applied` is about.
    incarnation: Incarnation,
    applied: u64,
    /// When it was last heard of, or when this leadership began.
    seen: Instant,
    /// It gets no more leases.
    barred: bool,
}

/// What a node says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeState {
    /// The start of its process.
    pub(crate) incarnation: Incarnation,
    /// How far it has applied since.
    pub(crate) applied: u64,
}

impl Holder {
    fn hear(&mut self, state: NodeState, now: Instant) {
        self.seen = now;
        if state.incarnation > self.incarnation {
            (self.incarnation, self.applied) = (state.incarnation, state.applied);
        } else if state.incarnation == self.incarnation {
            self.applied = self.applied.max(state.applied);
        }
    }
}

/// Why no lease was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoGrant {
    /// This node does not lead, or not yet.
    NotLeading,
    /// No majority has confirmed this leader of late.
    NoQuorum,
    /// The node is not a member, or about to be removed.
    NotMember,
}

impl<W> Ledger<W> {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            leading: None,
        }
    }

    /// By how much the leader's clock may run ahead of a holder's while a lease lasts.
    fn margin(&self) -> Duration {
        if planted!(LeaseMarginMissing) {
            return Duration::ZERO;
        }
        self.lease / 16 + Duration::from_millis(2)
    }

    /// This node was elected. `members` are all that may hold a lease of an earlier leader, `applied` is the entry applied
    /// last here. What waited under an earlier leadership is returned.
    pub(crate) fn lead(
        &mut self,
        leader: LeaderId,
        members: impl IntoIterator<Item = NodeId>,
        applied: Option<LogId>,
        now: Instant,
    ) -> Vec<W> {
        let dropped = self.resign();
        let until = now + self.lease + self.margin();
        let holder = Holder {
            until,
            incarnation: Incarnation(0),
            applied: 0,
            seen: now,
            barred: false,
        };
        let holders = members.into_iter().map(|node| (node, holder)).collect();
        self.leading = Some(Leading {
            leader,
            since: now,
            answered: None,
            holders,
            waiting: BTreeMap::new(),
        });
        if let Some(id) = applied {
            self.applied_here(id);
        }
        dropped
    }

    /// This node leads no more. What waited is returned.
    pub(crate) fn resign(&mut self) -> Vec<W> {
        self.leading
            .take()
            .map(|leading| leading.waiting.into_values().flatten().collect())
            .unwrap_or_default()
    }

    /// An entry was applied on this node.
    pub(crate) fn applied_here(&mut self, id: LogId) {
        if let Some(leading) = &mut self.leading
            && leading.answered.is_none()
            && *id.committed_leader_id() == leading.leader
        {
            leading.answered = Some(id.index);
        }
    }

    /// As whom this node leads, once it has applied an entry of that leadership: everything answered before lies before it.
    pub(crate) fn leading(&self) -> Option<LeaderId> {
        self.leading
            .as_ref()
            .filter(|leading| leading.answered.is_some())
            .map(|leading| leading.leader)
    }

    /// As whom this node was elected, ready or not.
    pub(crate) fn elected(&self) -> Option<LeaderId> {
        self.leading.as_ref().map(|leading| leading.leader)
    }

    /// The last index that was answered.
    pub(crate) fn answered(&self) -> Option<u64> {
        self.leading.as_ref()?.answered
    }

    /// A node asks for its lease. `quorum_ack` is when this leader sent what a majority last answered. [`Self::expire`]
    /// should follow, as the node's applied index may have been awaited.
    pub(crate) fn renew(
        &mut self,
        node: NodeId,
        state: NodeState,
        quorum_ack: Option<Instant>,
        is_member: bool,
        now: Instant,
    ) -> Result<Grant, NoGrant> {
        let (lease, margin) = (self.lease, self.margin());
        let Some(Leading {
            answered: Some(answered),
            holders,
            ..
        }) = &mut self.leading
        else {
            return Err(NoGrant::NotLeading);
        };
        if let Some(holder) = holders.get_mut(&node) {
            holder.hear(state, now);
        }
        if !is_member || holders.get(&node).is_some_and(|holder| holder.barred) {
            return Err(NoGrant::NotMember);
        }
        let end = quorum_ack.map_or(now, |at| at + lease);
        let left = end.saturating_duration_since(now);
        if left.is_zero() {
            return Err(NoGrant::NoQuorum);
        }
        let NodeState {
            incarnation,
            applied,
        } = state;
        let holder = holders.entry(node).or_insert(Holder {
            until: now,
            incarnation,
            applied,
            seen: now,
            barred: false,
        });
        holder.until = holder.until.max(end + margin);
        Ok(Grant {
            nanos: u64::try_from(left.as_nanos()).unwrap_or(u64::MAX),
            must_apply: *answered,
        })
    }

    /// A node says how far it has applied. Returns what need not wait any more.
    pub(crate) fn report(&mut self, node: NodeId, state: NodeState, now: Instant) -> Vec<W> {
        let Some(leading) = &mut self.leading else {
            return Vec::new();
        };
        let Some(holder) = leading.holders.get_mut(&node) else {
            return Vec::new();
        };
        holder.hear(state, now);
        leading.settle(now)
    }

    /// A start of a node's process has given its lease up, for good.
    pub(crate) fn release(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        now: Instant,
    ) -> Vec<W> {
        let Some(leading) = &mut self.leading else {
            return Vec::new();
        };
        if let Some(holder) = leading.holders.get_mut(&node)
            && holder.incarnation <= incarnation
        {
            holder.until = now;
        }
        leading.settle(now)
    }

    /// Holds an answer back until `index` is applied wherever it must be. Returns what need not wait any more, or `what`
    /// itself as an error if this node no longer leads as `leader`.
    pub(crate) fn wait(
        &mut self,
        leader: LeaderId,
        index: u64,
        what: W,
        now: Instant,
    ) -> Result<Vec<W>, W> {
        match &mut self.leading {
            Some(leading) if leading.leader == leader => {
                leading.waiting.entry(index).or_default().push(what);
                Ok(leading.settle(now))
            }
            Some(_) | None => Err(what),
        }
    }

    /// Returns what need not wait any more, because leases have run out.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<W> {
        self.leading
            .as_mut()
            .map(|leading| leading.settle(now))
            .unwrap_or_default()
    }

    /// When to call [`Self::expire`] next; none if nothing waits for a lease to run out.
    pub(crate) fn next_expiry(&self, now: Instant) -> Option<Instant> {
        let leading = self.leading.as_ref()?;
        let first = *leading.waiting.keys().next()?;
        leading
            .holders
            .values()
            .filter(|holder| holder.applied < first && holder.until > now)
            .map(|holder| holder.until)
            .min()
    }

    /// Refuses leases to a node from now on, so that it can be removed; false while it may still hold one.
    pub(crate) fn bar(&mut self, node: NodeId, now: Instant) -> bool {
        let Some(leading) = &mut self.leading else {
            return false;
        };
        match leading.holders.get_mut(&node) {
            Some(holder) => {
                holder.barred = true;
                holder.until <= now
            }
            None => true,
        }
    }

    /// A node becomes a member: takes [`Self::bar`] back, and counts as heard of just now, whenever this leadership began.
    pub(crate) fn welcome(&mut self, node: NodeId, now: Instant) {
        let Some(leading) = &mut self.leading else {
            return;
        };
        let holder = leading.holders.entry(node).or_insert(Holder {
            until: now,
            incarnation: Incarnation(0),
            applied: 0,
            seen: now,
            barred: false,
        });
        (holder.seen, holder.barred) = (now, false);
    }

    /// The start of a node's process that was heard of under this leadership, and when last.
    pub(crate) fn heard(&self, node: NodeId) -> Option<(Incarnation, Instant)> {
        let holder = self.leading.as_ref()?.holders.get(&node)?;
        (holder.incarnation != Incarnation(0)).then_some((holder.incarnation, holder.seen))
    }

    /// When a node was last heard of under this leadership, or else when that began.
    pub(crate) fn seen(&self, node: NodeId) -> Option<Instant> {
        let leading = self.leading.as_ref()?;
        Some(
            leading
                .holders
                .get(&node)
                .map_or(leading.since, |holder| holder.seen),
        )
    }
}

impl<W> Leading<W> {
    fn settle(&mut self, now: Instant) -> Vec<W> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let applied = self
            .holders
            .values()
            .filter(|holder| holder.until > now)
            .map(|holder| holder.applied)
            .min();
        let mut settled = Vec::new();
        while let Some(first) = self.waiting.first_entry()
            && applied.is_none_or(|applied| *first.key() <= applied)
        {
            let (index, done) = first.remove_entry();
            self.answered = self.answered.max(Some(index));
            settled.extend(done);
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(1600);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const NONE: Vec<u64> = Vec::new();
    const LEADER: LeaderId = LeaderId {
        term: 3,
        node_id: NodeId(9),
    };

    fn id(index: u64) -> LogId {
        LogId::new(LEADER, index)
    }

    fn at(applied: u64) -> NodeState {
        NodeState {
            incarnation: Incarnation(1),
            applied,
        }
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A ledger whose leader was elected at the returned time and has applied its first entry, 10.
    fn leading(members: &[NodeId]) -> (Ledger<u64>, Instant) {
        let (mut ledger, now) = (Ledger::new(LEASE), Instant::now());
        ledger.lead(LEADER, members.iter().copied(), None, now);
        ledger.applied_here(LogId::new(
            LeaderId {
                term: 2,
                node_id: NodeId(9),
            },
            9,
        ));
        assert_eq!(
            ledger.leading(),
            None,
            "an entry of an earlier leader does not make it ready"
        );
        ledger.applied_here(id(10));
        (ledger, now)
    }

    #[test]
    fn an_answer_waits_for_every_holder() {
        let (mut ledger, now) = leading(&[A, B]);
        assert_eq!(ledger.wait(LEADER, 11, 11, now), Ok(NONE));
        assert_eq!(ledger.report(A, at(12), now), NONE);
        assert_eq!(ledger.report(B, at(10), now), NONE);
        assert_eq!(ledger.wait(LEADER, 12, 12, now), Ok(NONE));
        assert_eq!(ledger.report(B, at(11), now), vec![11]);
        assert_eq!(ledger.report(B, at(12), now), vec![12]);
        assert_eq!(ledger.answered(), Some(12));
    }

    #[test]
    fn a_silent_member_is_waited_for_until_its_lease_has_run_out() {
        let (mut ledger, now) = leading(&[A, B]);
        ledger.report(A, at(11), now);
        assert_eq!(ledger.wait(LEADER, 11, 11, now), Ok(NONE));
        let until = ledger.next_expiry(now).unwrap();
        assert!(
            until > now + LEASE,
            "a lease of an earlier leader may last so long"
        );
        assert_eq!(ledger.expire(until - ms(1)), NONE);
        assert_eq!(ledger.expire(until), vec![11]);
        assert_eq!(ledger.next_expiry(until), None);
    }

    #[test]
    fn only_leases_that_still_run_are_awaited() {
        let (mut ledger, now) = leading(&[A, B]);
        let late = now + LEASE * 2;
        assert!(ledger.renew(B, at(10), Some(late), true, late).is_ok());
        assert_eq!(ledger.wait(LEADER, 11, 11, late), Ok(NONE));
        assert!(
            ledger.next_expiry(late).unwrap() > late + LEASE,
            "A's lease, which has run out, is nothing to wait for"
        );
    }

    #[test]
    fn a_grant_ends_with_the_quorum_and_names_what_was_answered() {
        let (mut ledger, now) = leading(&[A]);
        ledger.report(A, at(11), now);
        assert_eq!(ledger.wait(LEADER, 11, 11, now), Ok(vec![11]));
        let grant = ledger
            .renew(A, at(5), Some(now), true, now + ms(600))
            .unwrap();
        assert_eq!(
            (Duration::from_nanos(grant.nanos), grant.must_apply),
            (ms(1000), 11)
        );
        assert_eq!(
            ledger.renew(A, at(5), Some(now), true, now + LEASE),
            Err(NoGrant::NoQuorum)
        );
        assert_eq!(
            ledger.renew(A, at(5), None, true, now),
            Err(NoGrant::NoQuorum)
        );
        assert_eq!(
            ledger.renew(B, at(5), Some(now), false, now),
            Err(NoGrant::NotMember)
        );
        assert!(ledger.renew(B, at(5), Some(now), true, now).is_ok());
        assert!(!ledger.bar(B, now + LEASE), "who got a lease is a holder");
    }

    #[test]
    fn a_lease_regained_is_waited_for_again() {
        let (mut ledger, now) = leading(&[A]);
        let late = now + LEASE * 2;
        assert_eq!(
            ledger.wait(LEADER, 11, 11, late),
            Ok(vec![11]),
            "its lease has run out"
        );
        let grant = ledger.renew(A, at(7), Some(late), true, late).unwrap();
        assert_eq!(grant.must_apply, 11);
        assert_eq!(ledger.wait(LEADER, 12, 12, late), Ok(NONE));
        assert_eq!(ledger.report(A, at(12), late), vec![12]);
    }

    #[test]
    fn a_restarted_node_counts_as_what_it_is_now() {
        let (mut ledger, now) = leading(&[A, B]);
        assert_eq!(ledger.report(A, at(12), now), NONE);
        let restarted = NodeState {
            incarnation: Incarnation(2),
            applied: 9,
        };
        assert!(ledger.renew(A, restarted, Some(now), true, now).is_ok());
        assert_eq!(
            ledger.report(A, at(13), now),
            NONE,
            "a late word of the start before"
        );
        assert_eq!(ledger.report(B, at(12), now), NONE);
        assert_eq!(ledger.wait(LEADER, 12, 12, now), Ok(NONE));
        assert_eq!(
            ledger.report(
                A,
                NodeState {
                    incarnation: Incarnation(2),
                    applied: 12
                },
                now
            ),
            vec![12]
        );
    }

    #[test]
    fn before_its_first_entry_a_leader_grants_nothing() {
        let (mut ledger, now): (Ledger<u64>, _) = (Ledger::new(LEASE), Instant::now());
        assert_eq!(
            ledger.renew(A, at(5), Some(now), true, now),
            Err(NoGrant::NotLeading)
        );
        ledger.lead(LEADER, [A], None, now);
        assert_eq!(
            ledger.renew(A, at(5), Some(now), true, now),
            Err(NoGrant::NotLeading)
        );
        ledger.lead(LEADER, [A], Some(id(4)), now);
        assert_eq!(
            ledger
                .renew(A, at(5), Some(now), true, now)
                .map(|grant| grant.must_apply),
            Ok(4)
        );
    }

    #[test]
    fn who_leaves_is_first_barred_until_it_holds_nothing() {
        let (mut ledger, now) = leading(&[A]);
        assert!(!ledger.bar(A, now));
        assert_eq!(
            ledger.renew(A, at(5), Some(now), true, now),
            Err(NoGrant::NotMember)
        );
        assert!(ledger.bar(A, now + LEASE * 2));
        ledger.welcome(A, now);
        assert!(ledger.renew(A, at(5), Some(now), true, now).is_ok());
    }

    #[test]
    fn who_joins_counts_as_heard_of() {
        let (mut ledger, now) = leading(&[]);
        let later = now + LEASE * 5;
        assert_eq!(ledger.seen(A), Some(now), "as old as the leadership");
        ledger.welcome(A, later);
        assert_eq!(ledger.seen(A), Some(later));
        assert_eq!(
            ledger.wait(LEADER, 11, 11, later),
            Ok(vec![11]),
            "it holds no lease"
        );
    }

    #[test]
    fn a_released_lease_is_not_waited_for() {
        let (mut ledger, now) = leading(&[A]);
        assert_eq!(ledger.wait(LEADER, 11, 11, now), Ok(NONE));
        assert_eq!(ledger.release(A, Incarnation(1), now), vec![11]);
    }

    #[test]
    fn a_new_leadership_drops_what_waited() {
        let (mut ledger, now) = leading(&[A]);
        assert_eq!(ledger.wait(LEADER, 11, 11, now), Ok(NONE));
        let next = LeaderId {
            term: 5,
            node_id: NodeId(9),
        };
        assert_eq!(ledger.lead(next, [A], Some(id(11)), now), vec![11]);
        assert_eq!(ledger.wait(LEADER, 12, 12, now), Err(12));
        assert_eq!(
            ledger.leading(),
            None,
            "it has applied nothing of its own yet"
        );
    }
}
