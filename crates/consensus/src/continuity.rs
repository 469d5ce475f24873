//! Whether the cluster has gone on without a break. Exchanges that are not durable live as long as it does.
//!
//! The table deletes them with the first `NodeUp` that finds no other node up. Nodes that were all killed at once are still up in the table,
//! though, under incarnations that have ended, and the first one back would find them there. So while there is something to lose, a node
//! that starts comes up only once the leader knows which it is: it has heard of a node that is up under the incarnation that the table
//! has (the cluster went on), or no other is up in the table any more. In doubt the leader marks down those whose process has
//! begun anew at once, and silent ones when their time is up, as ever.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use warren_model::{Incarnation, Level, NodeId};

use crate::metadata::{Core, DUTIES};
use crate::wire::{Reply, Request};

/// How long a node that may not come up yet waits before it asks again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl Core {
    /// Whether this node, which the table does not show as up, may come up now. Asks the leader if need be, and takes its time if not.
    pub(crate) async fn may_come_up(&self) -> bool {
        if self.machine.table().read().level() < Level::CONTINUITY {
            // The leader may be of a release that does not know the question.
            return true;
        }
        // Only the leader is sure to have all of the table.
        let leader = *self.leader.borrow();
        let may = match leader {
            None => false,
            Some(leader) if leader == self.me() => self.knows_continuity_for(self.me()),
            Some(leader) => {
                let reply = self.ask(leader, &Request::ComeUp, self.config.lease / 2);
                matches!(reply.await, Some(Reply::Done))
            }
        };
        if !may {
            tracing::debug!(node = %self.config.name, "waits until it is known whether any node has been up all the time");
            tokio::time::sleep(ASK_AGAIN).await;
        }
        may
    }

    /// Whether this node leads and knows if any other node than this one, which is about to come up, has been up all the time.
    pub(crate) fn knows_continuity_for(&self, node: NodeId) -> bool {
        if self.ledger.with(|ledger| ledger.leading()).is_none() {
            return false;
        }
        let now = Instant::now();
        let table = self.machine.table().read();
        let mut others = table
            .nodes()
            .filter(|known| known.up && known.id != node)
            .peekable();
        let known = others.peek().is_none()
            || !table.has_transient_exchanges()
            || others.any(|known| {
                self.runs(known.id).is_some_and(|(incarnation, at)| {
                    incarnation <= known.incarnation
                        && now.saturating_duration_since(at) < self.config.lease
                })
            });
        if !known {
            self.in_doubt.store(true, Ordering::Release);
            self.kicks[DUTIES].notify_one();
        }
        known
    }

    /// If somebody waits for it: nodes that are up in the table under an incarnation that has ended, since their process has begun anew.
    pub(crate) fn begun_anew(&self) -> Vec<(NodeId, Incarnation)> {
        if !self.in_doubt.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let table = self.machine.table().read();
        let up = table.nodes().filter(|known| known.up);
        up.filter(|known| {
            self.runs(known.id)
                .is_some_and(|(incarnation, _)| incarnation > known.incarnation)
        })
        .map(|known| (known.id, known.incarnation))
        .collect()
    }

    /// The start of its process that the leader has heard of from a node, and when. An incarnation that was renewed since is a later one.
    fn runs(&self, node: NodeId) -> Option<(Incarnation, Instant)> {
        if node == self.me() {
            return Some((self.config.incarnation, Instant::now()));
        }
        self.ledger.with(|ledger| ledger.heard(node))
    }
}
