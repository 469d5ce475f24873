//! The cluster's nodes and what their coming and going takes along.
//!
//! A node's incarnation that ends (`NodeDown`, `NodeForgotten`, or `NodeUp` of a later one) takes along, in the same command: the exclusive
//! queues of its sessions, the queues that lived in its memory, their bindings, and whatever auto-delete exchanges that leaves unused.
//!
//! Rule for non-durable exchanges: they live as long as the cluster does, that is, they are deleted by the first `NodeUp` that finds no other
//! node up, because then every incarnation that could have known them has ended (nodes that were all killed at once are marked down before the first of them
//! may come up: `consensus`, `continuity.rs`). So are non-durable queues that do not live in a node's memory.
//!
//! A node that was marked down may come up again under the same incarnation (it was only cut off): its sessions find their queues gone.

use crate::apply::{Applied, Event};
use crate::record;
use crate::table::Table;
use warren_model::command::{NodeUp, Placement};
use warren_model::{Incarnation, Level, NodeId, Outcome, QueueId, Refusal, SessionId, ShardId};

/// A node as the table knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Identity.
    pub id: NodeId,
    /// Name from its configuration.
    pub name: String,
    /// QUIC address, `host:port`.
    pub address: String,
    /// AMQP address to show to people, `host:port`.
    pub amqp: String,
    /// HTTP address to show to people, `host:port`.
    pub http: String,
    /// Its latest incarnation.
    pub incarnation: Incarnation,
    /// Whether that incarnation is in service.
    pub up: bool,
}

impl NodeRecord {
    /// Whether an incarnation of the node has ended: a later one came, or this one is not in service any more.
    pub fn has_ended(&self, incarnation: Incarnation) -> bool {
        self.incarnation > incarnation || (self.incarnation == incarnation && !self.up)
    }

    /// The last incarnation that has ended.
    pub fn last_ended(&self) -> Incarnation {
        if self.up {
            Incarnation(self.incarnation.0.saturating_sub(1))
        } else {
            self.incarnation
        }
    }
}

/// Where a shard's replicas are, or are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The nodes of its first placement, which found its group. Never changes.
    pub founders: Vec<NodeId>,
    /// Nodes that are to hold replicas, the preferred leader first.
    pub replicas: Vec<NodeId>,
}

impl Table {
    pub(crate) fn place_shards(
        &mut self,
        placements: &[Placement],
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let shards = self.cluster.map_or(0, |(_, shards)| shards);
        for Placement { shard, replicas } in placements {
            let mut distinct = replicas.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let known = replicas.iter().all(|node| self.nodes.contains_key(node));
            if shard.0 >= shards
                || replicas.is_empty()
                || distinct.len() != replicas.len()
                || !known
            {
                return Err(Refusal::precondition_failed(format!(
                    "shard {} cannot be placed on {replicas:?}: the cluster has {shards} shards, and replicas lie on one or more of its nodes, each named once",
                    shard.0
                )));
            }
        }
        let mut changed = false;
        for Placement { shard, replicas } in placements {
            let before = self.placements.get(shard).cloned();
            let founders = before
                .as_ref()
                .map_or_else(|| replicas.clone(), |placed| placed.founders.clone());
            let after = Placed {
                founders,
                replicas: replicas.clone(),
            };
            if before.as_ref() == Some(&after) {
                continue;
            }
            changed = true;
            let (key, value) = (
                record::placement_key(*shard),
                record::placement_value(&after),
            );
            match before {
                None => self.put(applied, key, value),
                Some(before) => {
                    self.replace(applied, key, &record::placement_value(&before), value)
                }
            }
            self.placements.insert(*shard, after);
        }
        if changed {
            self.next_epoch(applied);
            applied.events.push(Event::ShardsPlaced);
        }
        Ok(())
    }

    pub(crate) fn found_cluster(
        &mut self,
        cluster: u128,
        shards: u16,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if let Some((known, _)) = self.cluster {
            return Err(Refusal::precondition_failed(format!(
                "cluster {known:032x} is founded already"
            )));
        }
        if shards == 0 {
            return Err(Refusal::precondition_failed(
                "a cluster has at least one shard",
            ));
        }
        self.cluster = Some((cluster, shards));
        self.put(
            applied,
            record::cluster_key(),
            record::cluster_value(cluster, shards),
        );
        self.put_vhost("/", applied)
    }

    pub(crate) fn node_up(&mut self, up: &NodeUp, applied: &mut Applied) -> Result<(), Refusal> {
        let namesake = self
            .nodes
            .values()
            .find(|known| known.name == up.name && known.id != up.node);
        if let Some(namesake) = namesake.filter(|known| known.up) {
            return Err(Refusal::precondition_failed(format!(
                "node name '{}' is in use by node {}, which is up: stop that one first or choose another name",
                up.name, namesake.id
            )));
        }
        let before = self.nodes.get(&up.node).cloned();
        if let Some(ended) = before
            .as_ref()
            .filter(|known| known.incarnation > up.incarnation)
        {
            return Err(Refusal::precondition_failed(format!(
                "incarnation {} of node {} has ended: incarnation {} came later",
                up.incarnation.0, up.node, ended.incarnation.0
            )));
        }
        let record = NodeRecord {
            id: up.node,
            name: up.name.clone(),
            address: up.address.clone(),
            amqp: up.amqp.clone(),
            http: up.http.clone(),
            incarnation: up.incarnation,
            up: true,
        };
        let replaced = namesake.map(|known| known.id);
        if before.as_ref() == Some(&record) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            self.forget(replaced, applied);
        }
        if before
            .as_ref()
            .is_some_and(|known| known.incarnation < up.incarnation)
        {
            self.take_down(up.node, applied);
        }
        if !self.nodes.values().any(|known| known.up) {
            self.drop_transients(applied);
        }
        self.write_node(record, applied);
        self.members_changed(applied);
        Ok(())
    }

    pub(crate) fn node_down(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if self.is_up(node, incarnation) {
            self.take_down(node, applied);
            self.members_changed(applied);
        }
        Ok(())
    }

    pub(crate) fn node_forgotten(
        &mut self,
        node: NodeId,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if self.nodes.contains_key(&node) {
            self.forget(node, applied);
            self.members_changed(applied);
        }
        Ok(())
    }

    pub(crate) fn move_shard(
        &mut self,
        shard: ShardId,
        to: NodeId,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let shards = self.cluster.map_or(0, |(_, shards)| shards);
        if shard.0 >= shards {
            return Err(Refusal::precondition_failed(format!(
                "no shard {}: the cluster has {shards}",
                shard.0
            )));
        }
        if !self.nodes.get(&to).is_some_and(|node| node.up) {
            return Ok(Outcome::Retry);
        }
        // Where the ring puts it, it is not given to anybody, so that it follows the ring.
        let placed = self.placements.get(&shard);
        let is_home = placed.is_some_and(|placed| placed.replicas.first() == Some(&to));
        let from = if is_home {
            self.shards.remove(&shard)
        } else {
            self.shards.insert(shard, to)
        };
        let (key, value) = (record::shard_key(shard), record::shard_value(to));
        match from {
            None if is_home => return Ok(Outcome::Done),
            Some(from) if from == to && !is_home => return Ok(Outcome::Done),
            None => self.put(applied, key, value),
            Some(from) if is_home => self.erase(applied, key, &record::shard_value(from)),
            Some(from) => self.replace(applied, key, &record::shard_value(from), value),
        }
        self.next_epoch(applied);
        applied.events.push(Event::ShardMoved { shard, from, to });
        Ok(Outcome::Done)
    }

    pub(crate) fn session_closed(
        &mut self,
        session: SessionId,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let queues: Vec<QueueId> = self
            .session_queues
            .get(&session)
            .into_iter()
            .flatten()
            .copied()
            .collect();
        self.delete_queues(&queues, applied);
        Ok(())
    }

    /// Marks a node as one to be emptied, or as one that takes its share. The epoch grows, so that everybody makes the ring anew.
    pub(crate) fn drain_node(
        &mut self,
        node: NodeId,
        draining: bool,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let Some(known) = self.nodes.get(&node) else {
            return Err(Refusal::not_found(format!("no node {node} in the cluster")));
        };
        if self.draining.contains(&node) == draining {
            return Ok(());
        }
        if draining {
            let others = || {
                let all = self.nodes.values();
                all.filter(|other| other.id != node && !self.draining.contains(&other.id))
            };
            if others().next().is_none() {
                return Err(Refusal::precondition_failed(format!(
                    "node '{}' cannot be drained: no other node could take what it holds; add or revive one first",
                    known.name
                )));
            }
            // A shard that moved to nodes of which too few are up would stand still.
            if let Some(down) = others().find(|other| !other.up) {
                return Err(Refusal::precondition_failed(format!(
                    "node '{}' cannot be drained while node '{}' is down: what it holds would depend on that one; bring '{}' back, or forget it, first",
                    known.name, down.name, down.name
                )));
            }
            self.draining.insert(node);
            self.put(
                applied,
                record::draining_key(node),
                record::draining_value(),
            );
        } else {
            self.erase_draining(node, applied);
        }
        self.members_changed(applied);
        Ok(())
    }

    fn erase_draining(&mut self, node: NodeId, applied: &mut Applied) {
        if self.draining.remove(&node) {
            let value = record::draining_value();
            self.erase(applied, record::draining_key(node), &value);
        }
    }

    fn forget(&mut self, node: NodeId, applied: &mut Applied) {
        self.take_down(node, applied);
        self.erase_draining(node, applied);
        if let Some(known) = self.nodes.remove(&node) {
            self.erase(applied, record::node_key(node), &record::node_value(&known));
        }
    }

    /// Ends the node's incarnation, if it is up: the node stays, marked down.
    fn take_down(&mut self, node: NodeId, applied: &mut Applied) {
        let Some(known) = self.nodes.get(&node).filter(|known| known.up).cloned() else {
            return;
        };
        let incarnation = known.incarnation;
        self.write_node(NodeRecord { up: false, ..known }, applied);
        let given: Vec<ShardId> = self
            .shards
            .iter()
            .filter(|(_, owner)| **owner == node)
            .map(|(shard, _)| *shard)
            .collect();
        for shard in given {
            self.shards.remove(&shard);
            self.erase(
                applied,
                record::shard_key(shard),
                &record::shard_value(node),
            );
        }
        let first = SessionId {
            node,
            incarnation,
            number: 0,
        };
        let last = SessionId {
            number: u64::MAX,
            ..first
        };
        let exclusive = self
            .session_queues
            .range(first..=last)
            .flat_map(|(_, queues)| queues);
        let in_memory = self
            .memory_queues
            .get(&(node, incarnation))
            .into_iter()
            .flatten();
        let mut queues: Vec<QueueId> = exclusive.chain(in_memory).copied().collect();
        queues.sort_unstable();
        queues.dedup();
        self.delete_queues(&queues, applied);
    }

    fn write_node(&mut self, node: NodeRecord, applied: &mut Applied) {
        let (key, value) = (record::node_key(node.id), record::node_value(&node));
        match self.nodes.insert(node.id, node) {
            None => self.put(applied, key, value),
            Some(before) => self.replace(applied, key, &record::node_value(&before), value),
        }
    }

    fn members_changed(&mut self, applied: &mut Applied) {
        self.next_epoch(applied);
        applied
            .events
            .push(Event::MembersChanged { epoch: self.epoch });
    }

    fn next_epoch(&mut self, applied: &mut Applied) {
        self.epoch += 1;
        let value = record::epoch_value(self.epoch);
        match self.epoch {
            1 => self.put(applied, record::epoch_key(), value),
            epoch => self.replace(
                applied,
                record::epoch_key(),
                &record::epoch_value(epoch - 1),
                value,
            ),
        }
    }

    pub(crate) fn raise_level(&mut self, level: Level, applied: &mut Applied) {
        if level <= self.level() {
            return;
        }
        let value = record::level_value(level);
        match self.level.replace(level) {
            None => self.put(applied, record::level_key(), value),
            Some(before) => self.replace(
                applied,
                record::level_key(),
                &record::level_value(before),
                value,
            ),
        }
    }

    /// Deletes all that is not durable.
    fn drop_transients(&mut self, applied: &mut Applied) {
        let vhosts: Vec<u32> = self.vhost_numbers.values().copied().collect();
        for vhost in vhosts {
            let queues = self.vhosts[vhost]
                .queues
                .values()
                .map(|slot| &self.queues[*slot]);
            let queues: Vec<QueueId> = queues
                .filter(|queue| !queue.durable)
                .map(|queue| queue.id)
                .collect();
            self.delete_queues(&queues, applied);
            let exchanges: Vec<u32> = self.vhosts[vhost].exchanges.values().copied().collect();
            for slot in exchanges {
                // An earlier one of the list may have taken this one along.
                if self
                    .exchanges
                    .get(slot)
                    .is_some_and(|exchange| !exchange.durable)
                {
                    self.delete_exchange(slot, applied);
                }
            }
        }
    }
}
