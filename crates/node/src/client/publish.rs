//! The publish path of a session: routes, batches, outcomes.

use super::{BATCH_BYTES, Client, InFlight, Outgoing};
use crate::owners::{Address, lane_of};
use crate::permissions::Access;
use crate::routes::Hop;
use crate::wire::{Batch, Item, Settlements, ToOwner};
use smallvec::SmallVec;
use warren_model::Refusal;
use warren_model::message::append_head;
use warren_protocol::{Properties, Value, delivery_mode};
use warren_session::{Publish, Published, Session};

impl Client {
    /// Sends what the turn has gathered.
    pub(crate) fn flush(&mut self) {
        for index in 0..self.outgoing.len() {
            self.flush_one(index);
        }
    }

    pub(super) fn flush_one(&mut self, index: usize) {
        let out = &mut self.outgoing[index];
        if !out.items.is_empty() {
            let (block, items) = (
                std::mem::take(&mut out.block),
                std::mem::take(&mut out.items),
            );
            let confirms = std::mem::take(&mut out.confirms);
            let (address, bytes) = (out.address, block.len());
            // The next batch will be about as large.
            out.block.reserve(bytes.min(BATCH_BYTES));
            out.items.reserve(items.len().min(4096));
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
            let (address, items) = (out.address, std::mem::take(&mut out.settled));
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

    pub(super) fn outgoing(&mut self, address: Address) -> usize {
        match self.outgoing.iter().position(|o| o.address == address) {
            Some(index) => index,
            None => {
                self.outgoing.push(Outgoing {
                    address,
                    block: Vec::new(),
                    items: Vec::new(),
                    confirms: Vec::new(),
                    settled: Vec::new(),
                });
                self.outgoing.len() - 1
            }
        }
    }

    /// A batch's outcome.
    pub(crate) fn published(&mut self, number: u64, refused: &[u32]) {
        let Some(batch) = self.in_flight.remove(&number) else {
            return;
        };
        self.in_flight_bytes -= batch.bytes;
        let mut refused = refused.iter().peekable();
        for (item, channel, sequence) in batch.confirms {
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
        table
            .route(&ask, &mut self.route)
            .map_err(|e| e.refusal())?;
        let exchange = String::from_utf8_lossy(publish.exchange);
        self.permissions.check(
            &table,
            &self.user,
            &self.vhost,
            Access::Write,
            "exchange",
            if exchange.is_empty() {
                "amq.default"
            } else {
                &exchange
            },
        )?;
        self.permissions.check_topic(
            &table,
            &self.user,
            &self.vhost,
            Access::Write,
            &exchange,
            publish.routing_key,
        )?;
        let owners = node.owners(&table);
        let mut hops = SmallVec::with_capacity(self.route.queues.len());
        for i in 0..self.route.queues.len() {
            let target = self.route.queues[i];
            let outgoing = owners.of_place(target.place).map(|n| {
                self.outgoing(Address {
                    node: n,
                    lane: lane_of(target.id),
                }) as u16
            });
            hops.push(Hop {
                queue: target.id,
                outgoing,
            });
        }
        if self.route.cacheable && keys.len() == 1 {
            self.cache
                .remember(table.index(), publish.exchange, publish.routing_key, &hops);
        }
        Ok(hops)
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
