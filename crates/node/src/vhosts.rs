//! What is in virtual hosts: each node adds up its own queues and connections, so that an answer is as long as there are virtual hosts, however many queues there are.

use crate::counts::QueueStats;
use crate::meter::{MessageStats, Rated, add_stats};
use crate::node::Node;
use crate::observe::{LIVE_DEADLINE, Observed, Question};
use crate::registry::Detail;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use warren_model::QueueId;
use warren_queue::Counts;

/// Queues that are looked up in the table at a time.
const CHUNK: usize = 512;

/// Sums over the queues and open connections of a virtual host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VhostTotals {
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that consumers hold.
    pub unacked: u64,
    /// What went through its queues.
    pub stats: MessageStats,
    /// Bytes from the clients that are connected.
    pub received: Rated,
    /// Bytes to the clients that are connected.
    pub sent: Rated,
}

impl VhostTotals {
    fn add(&mut self, more: &Self) {
        self.ready += more.ready;
        self.unacked += more.unacked;
        add_stats(&mut self.stats, &more.stats);
        add(&mut self.received, more.received);
        add(&mut self.sent, more.sent);
    }
}

fn add(to: &mut Rated, more: Rated) {
    to.total += more.total;
    to.rate += more.rate;
}

type Totals = BTreeMap<String, VhostTotals>;

impl Node {
    /// What is in virtual hosts, summed over the nodes that answer before the deadline, and which those are. One with neither messages nor connections may lack.
    pub async fn vhost_totals(
        self: &Arc<Self>,
        deadline: Duration,
    ) -> (BTreeMap<String, VhostTotals>, Observed<()>) {
        let until = Instant::now() + deadline;
        let observed: Observed<Totals> = self
            .of_all(|node| async move { self.ask(node, &Question::Vhosts, until).await })
            .await;
        let mut sums = Totals::new();
        for (vhost, totals) in observed.answers.iter().flat_map(|(_, all)| all) {
            sums.entry(vhost.clone()).or_default().add(totals);
        }
        let who = Observed {
            answers: observed.answers.iter().map(|(id, _)| (*id, ())).collect(),
            silent: observed.silent,
        };
        (sums, who)
    }

    /// What of virtual hosts is with this node.
    pub(crate) async fn own_vhosts(&self) -> Totals {
        let mut sums = Totals::new();
        let counted: Vec<_> = self.own_queue_counts().await.into_iter().collect();
        for chunk in counted.chunks(CHUNK) {
            self.add_queues(chunk, &mut sums);
            tokio::task::yield_now().await;
        }
        let connections =
            self.registry()
                .describe(0, usize::MAX, Detail::Connections, LIVE_DEADLINE);
        for connection in connections.await {
            if let Some(live) = &connection.live {
                let totals = of(&mut sums, &connection.vhost);
                add(&mut totals.received, live.received);
                add(&mut totals.sent, live.sent);
            }
        }
        sums
    }

    fn add_queues(&self, counted: &[(QueueId, (Counts, QueueStats))], to: &mut Totals) {
        let table = self.metadata().table().read();
        for (id, (counts, stats)) in counted {
            let Some(queue) = table.queue_by_id(*id) else {
                continue;
            };
            let totals = of(to, queue.vhost);
            totals.ready += counts.ready;
            totals.unacked += counts.unacked;
            add_stats(&mut totals.stats, &stats.messages());
        }
    }
}

fn of<'a>(sums: &'a mut Totals, vhost: &str) -> &'a mut VhostTotals {
    sums.entry(vhost.to_owned()).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_nodes_add_up() {
        let rated = |total, rate| Rated { total, rate };
        let one = VhostTotals {
            ready: 1,
            unacked: 2,
            stats: MessageStats::from([("publish".to_owned(), rated(3, 0.5))]),
            received: rated(10, 1.0),
            sent: rated(20, 2.0),
        };
        let mut sum = VhostTotals::default();
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.ready, sum.unacked), (2, 4));
        assert_eq!(sum.stats["publish"], rated(6, 1.0));
        assert_eq!((sum.received, sum.sent), (rated(20, 2.0), rated(40, 4.0)));
    }
}
