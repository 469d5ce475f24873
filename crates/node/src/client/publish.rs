//! The publish path of a session: routes, batches, outcomes.

use super::{
    BATCH_BYTES, Client, Confirms, InFlight, OUTCOME_DEADLINE, Outgoing, ShardInFlight, Take,
    Target,
};
use crate::owners::{Address, lane_of};
use crate::permissions::Access;
use crate::routes::{Hop, Known};
use crate::wire::{Batch, Item, Settlements, ShardBatch, ToOwner};
use smallvec::SmallVec;
use tokio::time::Instant;
use warren_model::command::Place;
use warren_model::message::append_head;
use warren_model::planted;
use warren_model::{QueueId, Refusal, ShardId};
use warren_protocol::{Properties, Value, delivery_mode};
use warren_routing::Table;
use warren_session::{Publish, Published, Session};

impl Outgoing {
    /// Takes the records, items and confirms, and makes room for as much again: the next batch will be about as large.
    fn take_publishes(&mut self) -> (Vec<u8>, Vec<Item>, Confirms) {
        let (block, items) = (
            std::mem::take(&mut self.block),
            std::mem::take(&mut self.items),
        );
        let confirms = std::mem::take(&mut self.confirms);
        self.block.reserve(block.len().min(BATCH_BYTES));
        self.items.reserve(items.len().min(4096));
        (block, items, confirms)
    }
}

impl Client {
    /// Sends what the turn has gathered.
    pub(crate) fn flush(&mut self) {
        for index in 0..self.outgoing.len() {
            self.flush_one(index);
        }
    }

    pub(super) fn flush_one(&mut self, index: usize) {
        match self.outgoing[index].target {
            Target::Lane(address) => self.flush_to_lane(index, address),
            Target::Shard(shard) => self.flush_to_shard(index, shard),
        }
    }

    fn flush_to_lane(&mut self, index: usize, address: Address) {
        let out = &mut self.outgoing[index];
        if !out.items.is_empty() {
            let (block, items, confirms) = out.take_publishes();
            let bytes = block.len();
            self.last_batch += 1;
            let number = self.last_batch;
            self.in_flight_bytes += bytes;
            self.in_flight.insert(
                number,
                InFlight {
                    node: address.node,
                    bytes,
                    confirms,
                },
            );
            self.known_to.insert(address);
            let batch = Batch {
                session: self.id,
                number,
                items,
                block: block.into(),
            };
            if self
                .node
                .send_to_lane(address, ToOwner::Publish(batch))
                .is_err()
            {
                self.batch_failed(number);
            }
        }
        let out = &mut self.outgoing[index];
        if !out.settled.is_empty() {
            let items = std::mem::take(&mut out.settled);
            // If the owner is lost, so is what was held there: it is delivered again.
            let _ = self.node.send_to_lane(
                address,
                ToOwner::Settle(Settlements {
                    session: self.id,
                    items,
                }),
            );
        }
    }

    fn flush_to_shard(&mut self, index: usize, shard: ShardId) {
        let out = &mut self.outgoing[index];
        if out.items.is_empty() && out.settled.is_empty() {
            return;
        }
        let (block, items, confirms) = out.take_publishes();
        let settled = std::mem::take(&mut out.settled);
        let takes = std::mem::take(&mut out.takes);
        let to = self.to_shards.entry(shard).or_default();
        to.last += 1;
        self.in_flight_bytes += block.len();
        let batch = ShardBatch {
            shard,
            session: self.id,
            number: to.last,
            items,
            settled,
            block: block.into(),
        };
        let in_flight = ShardInFlight {
            batch,
            confirms,
            takes,
            since: Instant::now(),
            sent: false,
        };
        let number = to.last;
        to.in_flight.insert(number, in_flight);
        self.send_batch(shard, number);
    }

    /// Sends a batch to the shard's leader, if there is one; else it waits for the next.
    fn send_batch(&mut self, shard: ShardId, number: u64) {
        let Some(address) = self.node.address_of_shard(shard) else {
            return;
        };
        let Some(in_flight) = self
            .to_shards
            .get_mut(&shard)
            .and_then(|to| to.in_flight.get_mut(&number))
        else {
            return;
        };
        self.known_to.insert(address);
        let mut batch = in_flight.batch.clone();
        if planted!(SettlesNotSentAgain) && in_flight.sent {
            batch.settled.clear();
        }
        let message = ToOwner::Shard(batch);
        in_flight.sent |= self.node.send_to_lane(address, message).is_ok();
    }

    /// The shard's leader may lack what has no outcome yet: sends it again, in order.
    pub(super) fn send_batches_again(&mut self, shard: ShardId) {
        let numbers: Vec<u64> = self
            .to_shards
            .get(&shard)
            .map_or_else(Vec::new, |to| to.in_flight.keys().copied().collect());
        for number in numbers {
            if planted!(BatchesNotSentAgain) {
                self.published(Some(shard), number, &[]);
                continue;
            }
            self.send_batch(shard, number);
        }
    }

    /// Gives up what cannot be decided in time: publishes that no leader was there for are refused; where one may have taken them, the reason why the
    /// connection must end is returned, since nobody can say what became of them.
    pub(crate) fn give_up(&mut self) -> Option<String> {
        if self.to_shards.values().all(|to| to.in_flight.is_empty()) {
            return None;
        }
        let (now, patience) = (Instant::now(), self.node.settings().unroutable_wait);
        for (shard, to) in &mut self.to_shards {
            let Some(first) = to.in_flight.values().next() else {
                continue;
            };
            if first.sent && now >= first.since + OUTCOME_DEADLINE {
                return Some(format!(
                    "shard {} has had no leader that could be reached for {} s: whether the last publishes count is unknown",
                    shard.0,
                    OUTCOME_DEADLINE.as_secs()
                ));
            }
            let unsent = to
                .in_flight
                .iter()
                .find(|(_, b)| (!b.sent || planted!(RefusedButSent)) && now >= b.since + patience);
            let Some((&from, _)) = unsent else { continue };
            // None behind it was sent either: a leader would have been there for all.
            let refused = to.in_flight.split_off(&from);
            to.last = from - 1;
            for (_, batch) in refused {
                self.in_flight_bytes -= batch.batch.block.len();
                let lost = batch.confirms.into_iter();
                self.outcomes
                    .extend(lost.map(|(_, channel, sequence)| (channel, sequence, false)));
                let refused = batch.takes.into_iter();
                self.taken.extend(refused.map(|take| Take {
                    refused: true,
                    ..take
                }));
            }
        }
        None
    }

    /// When to look whether something must be given up.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let patience = self.node.settings().unroutable_wait;
        let first = self
            .to_shards
            .values()
            .filter_map(|to| {
                to.in_flight
                    .values()
                    .find(|b| !b.sent || planted!(RefusedButSent))
            })
            .map(|b| b.since + patience);
        let oldest = self
            .to_shards
            .values()
            .filter_map(|to| to.in_flight.values().next())
            .map(|b| b.since + OUTCOME_DEADLINE);
        first.chain(oldest).chain(self.answer_deadline()).min()
    }

    pub(super) fn outgoing(&mut self, target: Target) -> usize {
        match self.outgoing.iter().position(|o| o.target == target) {
            Some(index) => index,
            None => {
                self.outgoing.push(Outgoing {
                    target,
                    block: Vec::new(),
                    items: Vec::new(),
                    confirms: Vec::new(),
                    settled: Vec::new(),
                    takes: Vec::new(),
                });
                self.outgoing.len() - 1
            }
        }
    }

    /// A batch's outcome.
    pub(crate) fn published(&mut self, shard: Option<ShardId>, number: u64, refused: &[u32]) {
        let (bytes, confirms) = match shard {
            None => match self.in_flight.remove(&number) {
                Some(batch) => (batch.bytes, batch.confirms),
                None => return,
            },
            Some(shard) => {
                let to = self.to_shards.get_mut(&shard);
                match to.and_then(|to| to.in_flight.remove(&number)) {
                    Some(batch) => {
                        self.taken.extend(batch.takes);
                        (batch.batch.block.len(), batch.confirms)
                    }
                    None => return,
                }
            }
        };
        self.in_flight_bytes -= bytes;
        let mut refused = refused.iter().peekable();
        for (item, channel, sequence) in confirms {
            while refused.peek().is_some_and(|&&r| r < item) {
                refused.next();
            }
            self.outcomes
                .push((channel, sequence, refused.peek() != Some(&&item)));
        }
    }

    pub(super) fn batch_failed(&mut self, number: u64) {
        let Some(batch) = self.in_flight.remove(&number) else {
            return;
        };
        self.in_flight_bytes -= batch.bytes;
        self.outcomes.extend(
            batch
                .confirms
                .into_iter()
                .map(|(_, channel, sequence)| (channel, sequence, false)),
        );
    }

    /// Tells the session the outcomes that have come about.
    pub(crate) fn settle_outcomes(&mut self, session: &mut Session) {
        for (channel, sequence, ok) in self.outcomes.drain(..) {
            session.confirm(channel, sequence, ok);
        }
        for take in std::mem::take(&mut self.taken) {
            self.give(session, &take);
        }
    }

    /// Finds the way of a publish in the routing table.
    pub(super) fn find_route(
        &mut self,
        publish: &Publish<'_>,
        keys: &[&[u8]],
    ) -> Result<SmallVec<[Hop; 1]>, Refusal> {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let ask = warren_routing::Publish {
            vhost: &self.vhost,
            exchange: publish.exchange,
            routing_keys: keys,
            properties: publish.properties,
        };
        let exchange = String::from_utf8_lossy(publish.exchange);
        self.permissions.check_publish(
            &table,
            &self.user,
            &self.vhost,
            &exchange,
            publish.routing_key,
        )?;
        table
            .route(&ask, &mut self.route)
            .map_err(|e| e.refusal())?;
        let number = self
            .passing
            .number(node.traffic(), &self.vhost, publish.exchange);
        let owners = node.owners(&table);
        let mut hops = SmallVec::with_capacity(self.route.queues.len());
        let checks = node.settings().queue_write_checks;
        let mut denied = 0;
        for i in 0..self.route.queues.len() {
            let target = self.route.queues[i];
            if checks && self.is_denied(&table, target.id, &exchange) {
                denied += 1;
                continue;
            }
            let to = match target.place {
                Place::Shard(shard) => Some(Target::Shard(shard)),
                Place::Node(node, incarnation) => {
                    owners.of_incarnation(node, incarnation).map(|node| {
                        Target::Lane(Address {
                            node,
                            lane: lane_of(target.id),
                        })
                    })
                }
            };
            let outgoing = to.map(|to| self.outgoing(to) as u16);
            hops.push(Hop {
                queue: target.id,
                outgoing,
            });
        }
        if self.route.cacheable && keys.len() == 1 {
            let hops = &hops;
            self.cache.remember(
                table.index(),
                publish.exchange,
                publish.routing_key,
                Known {
                    hops,
                    denied,
                    number,
                },
            );
        }
        node.denials().count(denied);
        self.passing.count(number, hops.len());
        Ok(hops)
    }

    /// Whether the publisher may not write to a queue that a message of its was routed to.
    fn is_denied(&self, table: &Table, queue: QueueId, exchange: &str) -> bool {
        let Some(view) = table.queue_by_id(queue) else {
            return false;
        };
        let (user, vhost) = (&self.user, &self.vhost);
        let name = view.name;
        let is_allowed = self
            .permissions
            .allow(table, user, vhost, Access::Write, name);
        if !is_allowed {
            let denials = self.node.denials();
            denials.tell(&|| self.who(), vhost, exchange, name);
        }
        !is_allowed
    }

    /// Puts a message into the batches of its queues' owners. Returns how many outcomes will come.
    pub(super) fn enqueue(
        &mut self,
        publish: &Publish<'_>,
        properties: &[u8],
        hops: &[Hop],
    ) -> u32 {
        let persistent = delivery_mode(properties) == Some(2);
        // Where the record lies in the batch of an owner that has more than one of the queues.
        let mut written: SmallVec<[(u16, u32); 4]> = SmallVec::new();
        for hop in hops {
            let Some(index) = hop.outgoing else {
                if let Some(sequence) = publish.sequence {
                    self.outcomes.push((publish.channel, sequence, false));
                }
                continue;
            };
            let out = &mut self.outgoing[usize::from(index)];
            let known = if hops.len() == 1 {
                None
            } else {
                written
                    .iter()
                    .find(|(i, _)| *i == index)
                    .map(|(_, offset)| *offset)
            };
            let offset = known.unwrap_or_else(|| {
                let offset = out.block.len() as u32;
                append_head(
                    &mut out.block,
                    publish.exchange,
                    publish.routing_key,
                    properties,
                    publish.body.len(),
                    persistent,
                );
                out.block.extend_from_slice(publish.body);
                if hops.len() > 1 {
                    written.push((index, offset));
                }
                offset
            });
            if let Some(sequence) = publish.sequence {
                out.confirms
                    .push((out.items.len() as u32, publish.channel, sequence));
            }
            let len = (warren_model::message::RECORD_HEADER
                + publish.exchange.len()
                + publish.routing_key.len()
                + properties.len()
                + publish.body.len()) as u32;
            out.items.push(Item {
                queue: hop.queue,
                offset,
                len,
            });
        }
        for hop in hops {
            if let Some(index) = hop.outgoing
                && self.outgoing[usize::from(index)].block.len() >= BATCH_BYTES
            {
                self.flush_one(usize::from(index));
            }
        }
        hops.len() as u32
    }

    /// A publish with headers: CC and BCC add keys, and BCC is taken out.
    pub(super) fn publish_with_headers(&mut self, publish: &Publish<'_>) -> Published {
        let Ok(properties) = Properties::parse(publish.properties) else {
            return Published::Refused(Refusal::new(502, "malformed properties"));
        };
        let headers = properties.headers.unwrap_or_default();
        let mut keys: SmallVec<[&[u8]; 4]> = SmallVec::new();
        keys.push(publish.routing_key);
        for name in ["CC", "BCC"] {
            let Some(value) = headers.get(name) else {
                continue;
            };
            let Value::Array(list) = value else {
                return Published::Refused(Refusal::precondition_failed(format!(
                    "invalid type '{}' for header '{name}': expected an array of longstr",
                    value.type_name()
                )));
            };
            for entry in list.iter() {
                let Value::LongStr(key) = entry else {
                    return Published::Refused(Refusal::precondition_failed(format!(
                        "invalid type '{}' in header '{name}': expected longstr",
                        entry.type_name()
                    )));
                };
                // A longer key can match no binding key but by '#', and cannot have been meant.
                if key.len() <= 255 {
                    keys.push(key);
                }
            }
        }
        let hops = match self.find_route(publish, &keys) {
            Ok(hops) => hops,
            Err(refusal) => return Published::Refused(refusal),
        };
        if hops.is_empty() {
            return Published::Unroutable;
        }
        if headers.get("BCC").is_none() {
            return Published::Routed(self.enqueue(publish, publish.properties, &hops));
        }
        let mut kept = warren_protocol::TableBuilder::default();
        for (name, value) in headers.iter().filter(|(name, _)| name.as_bytes() != b"BCC") {
            kept.put_value(name.as_bytes(), &value);
        }
        let mut rewritten = Vec::with_capacity(publish.properties.len());
        Properties {
            headers: Some(kept.as_table()),
            ..properties
        }
        .encode(&mut rewritten);
        Published::Routed(self.enqueue(publish, &rewritten, &hops))
    }
}
