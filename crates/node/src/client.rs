//! The node's side of one session: routes its publishes, batches what goes to queue owners, and keeps track of what is under way.
//!
//! Flow: the session calls [`Host`] while it digests input; everything for owners is gathered and sent by [`Client::flush`] at the end of the turn, or
//! before a request, so that one owner sees one session's publishes, settlements and requests in their order.
//! Invariant: each publish with a sequence gets exactly as many outcomes as it has hops, whether its owner answers, refuses or is lost.

use crate::connection::Inbox;
use crate::node::Node;
use crate::owners::{Address, lane_of};
use crate::routes::{Hop, RouteCache};
use crate::permissions::{Access, Permissions};
use crate::wire::{Answer, Ask, Batch, Call, ConsumerCall, Deliveries, Item, Question, Settled, Settlements, ToOwner, ToSession};
use crate::worker::COMMAND_DEADLINE;
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination, Place};
use warren_model::message::{Message, append_head};
use warren_model::{Command, ConsumerId, NodeId, Outcome, QueueId, QueueRef, Refusal, SessionId, Settlement, Subscription};
use warren_placement::shard_of;
use warren_protocol::{Properties, Value, delivery_mode, property_flags};
use warren_routing::Route;
use warren_session::{Check, Delivered, Got, Host, Publish, Published, Reply, Request, Session};

/// A batch is sent before the end of the turn when it is this large.
const BATCH_BYTES: usize = 256 * 1024;
/// A session is not read from while so much of what it published has no outcome yet.
pub(crate) const IN_FLIGHT_MAX: usize = 8 * 1024 * 1024;
/// Between tries to find a queue's owner after it was lost or has moved.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Positions are 48 bits; above them is the number of the consumer's attachment, so that settlements of an earlier one are known.
const ATTACHMENT_SHIFT: u32 = 48;

/// What goes to one lane.
struct Outgoing {
    address: Address,
    block: Vec<u8>,
    items: Vec<Item>,
    /// Which items are publishes to be confirmed: item, channel, sequence.
    confirms: Vec<(u32, u16, u64)>,
    settled: Vec<Settled>,
}

/// A batch without an outcome yet.
struct InFlight {
    node: NodeId,
    bytes: usize,
    confirms: Vec<(u32, u16, u64)>,
}

/// A consumer, or what a channel got from a queue, as its owner knows it.
struct Attachment {
    queue: QueueRef,
    /// Where it is attached now; `None` while the owner is lost.
    address: Option<Address>,
    subscription: Subscription,
    tag: Vec<u8>,
    /// Counts attachments: see [`ATTACHMENT_SHIFT`].
    count: u64,
    /// It is a consumer, not a getter.
    consumes: bool,
}

/// A request that an owner is to answer.
struct Asked {
    to: Option<Address>,
    channel: u16,
    queue: QueueRef,
    ask: Ask,
    until: Instant,
    then: Then,
}

/// What an owner's answer is for.
#[derive(Clone)]
enum Then {
    Reply,
    /// The deletion of this queue, once it is sealed.
    Delete(String),
    /// A consumer whose owner was lost is attached again.
    Reattached(u32),
}

/// A request that is answered when several lanes have answered.
struct Fence {
    /// Lanes that have not answered yet, by the id that they were asked with.
    open: BTreeMap<u64, NodeId>,
    channel: u16,
    id: u64,
}

/// Marks the ids of requests that no channel waits for.
const OWN_REQUEST: u64 = 1 << 63;

pub(crate) struct Client {
    node: Arc<Node>,
    id: SessionId,
    peer: IpAddr,
    inbox: mpsc::UnboundedSender<Inbox>,
    vhost: String,
    user: String,
    permissions: Permissions,
    /// Whether this node may route now; asked anew each turn.
    routable: bool,
    unroutable_since: Option<Instant>,
    cache: RouteCache,
    route: Route,
    outgoing: Vec<Outgoing>,
    in_flight: BTreeMap<u64, InFlight>,
    in_flight_bytes: usize,
    last_batch: u64,
    /// Outcomes that came about while the session was busy: channel, sequence, ok.
    outcomes: Vec<(u16, u64, bool)>,
    attachments: HashMap<u32, Attachment>,
    asked: BTreeMap<u64, Asked>,
    fences: Vec<Fence>,
    last_own_request: u64,
    /// Has declared an exclusive queue.
    exclusive: bool,
    /// Cloned by each proposal that is under way.
    proposals: Arc<()>,
    /// Lanes that know of this session.
    known_to: BTreeSet<Address>,
}

impl Client {
    pub(crate) fn new(node: Arc<Node>, id: SessionId, peer: IpAddr, inbox: mpsc::UnboundedSender<Inbox>) -> Self {
        Self {
            node,
            id,
            peer,
            inbox,
            vhost: String::new(),
            user: String::new(),
            permissions: Permissions::default(),
            routable: false,
            unroutable_since: None,
            cache: RouteCache::default(),
            route: Route::default(),
            outgoing: Vec::new(),
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            last_batch: 0,
            outcomes: Vec::new(),
            attachments: HashMap::new(),
            asked: BTreeMap::new(),
            fences: Vec::new(),
            last_own_request: OWN_REQUEST,
            exclusive: false,
            proposals: Arc::new(()),
            known_to: BTreeSet::new(),
        }
    }

    pub(crate) fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// Called at the start of each turn.
    pub(crate) fn refresh(&mut self) {
        self.routable = self.node.metadata().may_route();
        if self.routable {
            self.unroutable_since = None;
        }
    }

    /// Whether publishes are taken now.
    pub(crate) fn can_publish(&self) -> bool {
        self.routable && !self.node.alarm()
    }

    /// Sends what the turn has gathered.
    pub(crate) fn flush(&mut self) {
        for index in 0..self.outgoing.len() {
            self.flush_one(index);
        }
    }

    fn flush_one(&mut self, index: usize) {
        let out = &mut self.outgoing[index];
        if !out.items.is_empty() {
            let (block, items) = (std::mem::take(&mut out.block), std::mem::take(&mut out.items));
            let confirms = std::mem::take(&mut out.confirms);
            let (address, bytes) = (out.address, block.len());
            // The next batch will be about as large.
            out.block.reserve(bytes.min(BATCH_BYTES));
            out.items.reserve(items.len().min(4096));
            self.last_batch += 1;
            let number = self.last_batch;
            self.in_flight_bytes += bytes;
            self.in_flight.insert(number, InFlight { node: address.node, bytes, confirms });
            self.known_to.insert(address);
            let batch = Batch { session: self.id, number, items, block: block.into() };
            if self.node.send_to_lane(address, ToOwner::Publish(batch)).is_err() {
                self.batch_failed(number);
            }
        }
        let out = &mut self.outgoing[index];
        if !out.settled.is_empty() {
            let (address, items) = (out.address, std::mem::take(&mut out.settled));
            // If the owner is lost, so is what was held there: it is delivered again.
            let _ = self.node.send_to_lane(address, ToOwner::Settle(Settlements { session: self.id, items }));
        }
    }

    fn outgoing(&mut self, address: Address) -> usize {
        match self.outgoing.iter().position(|o| o.address == address) {
            Some(index) => index,
            None => {
                self.outgoing.push(Outgoing { address, block: Vec::new(), items: Vec::new(), confirms: Vec::new(), settled: Vec::new() });
                self.outgoing.len() - 1
            }
        }
    }

    /// A batch's outcome.
    pub(crate) fn published(&mut self, number: u64, refused: &[u32]) {
        let Some(batch) = self.in_flight.remove(&number) else { return };
        self.in_flight_bytes -= batch.bytes;
        let mut refused = refused.iter().peekable();
        for (item, channel, sequence) in batch.confirms {
            while refused.peek().is_some_and(|&&r| r < item) {
                refused.next();
            }
            self.outcomes.push((channel, sequence, refused.peek() != Some(&&item)));
        }
    }

    fn batch_failed(&mut self, number: u64) {
        let Some(batch) = self.in_flight.remove(&number) else { return };
        self.in_flight_bytes -= batch.bytes;
        self.outcomes.extend(batch.confirms.into_iter().map(|(_, channel, sequence)| (channel, sequence, false)));
    }

    /// Tells the session the outcomes that have come about.
    pub(crate) fn settle_outcomes(&mut self, session: &mut Session) {
        for (channel, sequence, ok) in self.outcomes.drain(..) {
            session.confirm(channel, sequence, ok);
        }
    }

    /// Messages for the session's consumers.
    pub(crate) fn deliveries(&mut self, session: &mut Session, deliveries: &Deliveries) {
        let mut attached: Option<(u32, u64)> = None;
        for item in &deliveries.items {
            if attached.is_none_or(|(consumer, _)| consumer != item.consumer) {
                let Some(attachment) = self.attachments.get(&item.consumer) else { continue };
                attached = Some((item.consumer, attachment.count << ATTACHMENT_SHIFT));
            }
            let Some((_, count)) = attached else { continue };
            let Some(block) = deliveries.blocks.get(item.block as usize) else { continue };
            match Message::read(block, item.offset) {
                Ok(message) => session.deliver(&Delivered { consumer: item.consumer, position: item.position | count, redelivered: item.redelivered, message }, self),
                Err(error) => tracing::error!(%error, session = %self.id, "a delivery could not be read"),
            }
        }
    }

    pub(crate) fn cancelled(&mut self, session: &mut Session, consumer: u32) {
        self.attachments.remove(&consumer);
        session.cancelled(consumer, self);
    }

    /// Asks every lane that knows of this session whether it has dealt with what was sent before.
    fn fence(&mut self, channel: u16, id: u64) {
        self.flush();
        let mut open = BTreeMap::new();
        for &address in &self.known_to {
            if channel == 0 {
                let _ = self.node.send_to_lane(address, ToOwner::SessionGone(self.id));
            }
            self.last_own_request += 1;
            let question = Question { session: self.id, id: self.last_own_request, queue: QueueId::default(), ask: Ask::Fence };
            if self.node.send_to_lane(address, ToOwner::Ask(question)).is_ok() {
                open.insert(self.last_own_request, address.node);
            }
        }
        if channel == 0 && self.exclusive {
            self.exclusive = false;
            self.last_own_request += 1;
            let own = self.last_own_request;
            open.insert(own, self.node.id());
            let (inbox, deleted) = (self.inbox.clone(), self.node.clone().delete_exclusive(self.id, self.proposals.clone()));
            tokio::spawn(async move {
                // However it ends, the client is not kept waiting for longer than a command may take.
                let _ = tokio::time::timeout(COMMAND_DEADLINE, deleted).await;
                let _ = inbox.send(Inbox::Owner(ToSession::Answer { id: own, answer: Answer::Done }));
            });
        }
        if open.is_empty() {
            let _ = self.inbox.send(Inbox::Reply { channel, id, reply: Reply::Done });
        } else {
            self.fences.push(Fence { open, channel, id });
        }
    }

    /// Takes lanes that have answered, or never will, out of the fences; answers those that are done.
    fn pass_fences(&mut self, session: &mut Session, passed: impl Fn(u64, NodeId) -> bool) {
        for fence in &mut self.fences {
            fence.open.retain(|&id, node| !passed(id, *node));
        }
        let done: Vec<Fence> = self.fences.extract_if(.., |f| f.open.is_empty()).collect();
        for fence in done {
            session.reply(fence.channel, fence.id, Reply::Done, self);
        }
    }

    /// An owner's answer.
    pub(crate) fn answered(&mut self, session: &mut Session, id: u64, answer: Answer) {
        if self.fences.iter().any(|f| f.open.contains_key(&id)) {
            return self.pass_fences(session, |open, _| open == id);
        }
        let Some(asked) = self.asked.remove(&id) else { return };
        match (answer, &asked.then) {
            (Answer::NotHere, _) => self.ask_later(id, asked),
            (Answer::Counted(count), Then::Delete(name)) => self.delete_sealed(asked.channel, id, asked.queue, name.clone(), count),
            (Answer::Refused { .. }, &Then::Reattached(consumer)) => self.cancelled(session, consumer),
            (_, &Then::Reattached(consumer)) => {
                if let Some(attachment) = self.attachments.get_mut(&consumer) {
                    attachment.address = asked.to;
                }
            }
            (Answer::Got { remaining, deliveries }, _) => {
                let Some((item, block)) = deliveries.items.first().and_then(|i| Some((i, deliveries.blocks.get(i.block as usize)?))) else { return };
                let count = self.attachments.get(&item.consumer).map_or(0, |a| a.count << ATTACHMENT_SHIFT);
                match Message::read(block, item.offset) {
                    Ok(message) => {
                        let got = Got { position: item.position | count, redelivered: item.redelivered, remaining, message };
                        session.got(asked.channel, id, &got, self);
                    }
                    Err(error) => session.reply(asked.channel, id, Reply::Refused(Refusal::new(541, error.to_string())), self),
                }
            }
            (answer, Then::Reply | Then::Delete(_)) => {
                if let (Ask::Consume { consumer, .. }, Answer::Refused { .. }) = (&asked.ask, &answer) {
                    self.attachments.remove(consumer);
                }
                session.reply(asked.channel, id, reply_of(answer), self);
            }
        }
    }

    /// The queue is sealed at its owner: deletes it.
    fn delete_sealed(&mut self, channel: u16, id: u64, queue: QueueRef, name: String, messages: u64) {
        let command = Command::DeleteQueue { vhost: self.vhost.clone(), name, only: Some(queue.id), session: self.id };
        let proposed = self.node.metadata().propose(command, COMMAND_DEADLINE);
        let (node, inbox, session) = (self.node.clone(), self.inbox.clone(), self.id);
        tokio::spawn(async move {
            let reply = match proposed.await {
                Ok(proposed) => match proposed.outcome {
                    Outcome::Refused(refusal) => Reply::Refused(refusal),
                    Outcome::Done | Outcome::Queue { .. } | Outcome::Retry => Reply::Counted(messages),
                },
                Err(error) => Reply::Refused(unavailable(&error)),
            };
            if matches!(reply, Reply::Refused(_)) {
                // It goes on living.
                let address = node.owner_of(queue);
                if let Some(address) = address {
                    let question = Question { session, id: u64::MAX, queue: queue.id, ask: Ask::Unseal };
                    let _ = node.send_to_lane(address, ToOwner::Ask(question));
                }
            }
            let _ = inbox.send(Inbox::Reply { channel, id, reply });
        });
    }

    fn ask(&mut self, channel: u16, id: u64, queue: QueueRef, ask: Ask, then: Then) {
        let asked = Asked { to: None, channel, queue, ask, until: Instant::now() + COMMAND_DEADLINE, then };
        self.ask_owner(id, asked);
    }

    fn ask_owner(&mut self, id: u64, mut asked: Asked) {
        self.flush();
        asked.to = self.node.owner_of(asked.queue);
        let Some(address) = asked.to else { return self.ask_later(id, asked) };
        if let Ask::Consume { consumer, .. } | Ask::Get { consumer, .. } = asked.ask
            && let Some(attachment) = self.attachments.get_mut(&consumer)
        {
            attachment.address = Some(address);
        }
        self.known_to.insert(address);
        let question = Question { session: self.id, id, queue: asked.queue.id, ask: asked.ask.clone() };
        if self.node.send_to_lane(address, ToOwner::Ask(question)).is_err() {
            return self.ask_later(id, asked);
        }
        self.asked.insert(id, asked);
    }

    /// The owner cannot be reached, or is another one by now: tries again after a pause, until the deadline.
    fn ask_later(&mut self, id: u64, mut asked: Asked) {
        asked.to = None;
        self.asked.insert(id, asked);
        let inbox = self.inbox.clone();
        tokio::spawn(async move {
            tokio::time::sleep(RETRY_PAUSE).await;
            let _ = inbox.send(Inbox::AskAgain(id));
        });
    }

    pub(crate) fn ask_again(&mut self, session: &mut Session, id: u64) {
        if self.asked.get(&id).is_none_or(|a| a.to.is_some()) {
            return;
        }
        let Some(asked) = self.asked.remove(&id) else { return };
        let gone = self.node.metadata().table().read().queue_by_id(asked.queue.id).is_none();
        if !gone && Instant::now() < asked.until {
            return self.ask_owner(id, asked);
        }
        if let Then::Reattached(consumer) = asked.then {
            if gone {
                return self.cancelled(session, consumer);
            }
            // A consumer whose queue exists is never given up: its owner comes back or is replaced.
            return self.ask_owner(id, Asked { until: Instant::now() + COMMAND_DEADLINE, ..asked });
        }
        let reply = match asked.ask {
            Ask::Cancel { .. } => Reply::Done,
            Ask::Seal { if_unused: false, if_empty: false } => {
                // Nobody holds contents that could be asked about.
                if let Then::Delete(name) = asked.then {
                    return self.delete_sealed(asked.channel, id, asked.queue, name, 0);
                }
                Reply::Counted(0)
            }
            Ask::Count | Ask::Consume { .. } | Ask::Get { .. } | Ask::Purge | Ask::Seal { .. } | Ask::Unseal | Ask::Fence => {
                if let Ask::Consume { consumer, .. } = asked.ask {
                    self.attachments.remove(&consumer);
                }
                let text = if gone { "the queue was deleted meanwhile" } else { "the home node of the durable queue is down or inaccessible; try again when it is back" };
                Reply::Refused(Refusal::not_found(text))
            }
        };
        session.reply(asked.channel, id, reply, self);
    }

    /// The link to a node broke, or the node is gone: nothing that is under way there will be answered.
    pub(crate) fn node_lost(&mut self, session: &mut Session, node: NodeId) {
        let lost: Vec<u64> = self.in_flight.iter().filter(|(_, b)| b.node == node).map(|(n, _)| *n).collect();
        for number in lost {
            self.batch_failed(number);
        }
        let unanswered: Vec<u64> = self.asked.iter().filter(|(_, a)| a.to.is_some_and(|to| to.node == node)).map(|(id, _)| *id).collect();
        for id in unanswered {
            if let Some(asked) = self.asked.remove(&id) {
                self.ask_later(id, asked);
            }
        }
        self.pass_fences(session, |_, at| at == node);
        self.detach(session, |a| a.address.is_some_and(|address| address.node == node));
    }

    /// The ring has changed: consumers whose queue has another owner now are attached there.
    pub(crate) fn members_changed(&mut self, session: &mut Session) {
        let owners = self.node.current_owners();
        self.detach(session, |a| a.address.is_some() && owners.address(a.queue) != a.address);
    }

    fn detach(&mut self, session: &mut Session, lost: impl Fn(&Attachment) -> bool) {
        let mut consumers: Vec<u32> = self.attachments.iter().filter(|(_, a)| lost(a)).map(|(c, _)| *c).collect();
        consumers.sort_unstable();
        for consumer in consumers {
            // Grants that are under way to the owner that was are lost.
            session.leave_back(consumer, u32::MAX, self);
            let pending = self.asked.values().any(|a| matches!(a.ask, Ask::Consume { consumer: c, .. } if c == consumer));
            let Some(attachment) = self.attachments.get_mut(&consumer) else { continue };
            attachment.address = None;
            attachment.count += 1;
            if !attachment.consumes || pending {
                continue;
            }
            let ask = Ask::Consume { consumer, subscription: attachment.subscription, tag: attachment.tag.clone() };
            let queue = attachment.queue;
            self.last_own_request += 1;
            self.ask_later(self.last_own_request, Asked { to: None, channel: 0, queue, ask, until: Instant::now() + COMMAND_DEADLINE, then: Then::Reattached(consumer) });
        }
    }

    fn consumer_call(&mut self, consumer: u32, call: Call) {
        let Some(attachment) = self.attachments.get(&consumer) else { return };
        let (Some(address), queue) = (attachment.address, attachment.queue.id) else { return };
        let call = ConsumerCall { consumer: ConsumerId { session: self.id, number: consumer }, queue, call };
        // If the owner is lost, the consumer is attached anew.
        let _ = self.node.send_to_lane(address, ToOwner::Consumer(call));
    }

    /// The connection is over.
    pub(crate) fn gone(&mut self) {
        self.flush();
        for &address in &self.known_to {
            let _ = self.node.send_to_lane(address, ToOwner::SessionGone(self.id));
        }
        if self.exclusive {
            self.node.clone().delete_exclusive(self.id, self.proposals.clone());
        }
    }

    /// Finds the way of a publish in the routing table.
    fn find_route(&mut self, publish: &Publish<'_>, keys: &[&[u8]]) -> Result<SmallVec<[Hop; 1]>, Refusal> {
        let node = self.node.clone();
        let table = node.metadata().table().read();
        let ask = warren_routing::Publish { vhost: &self.vhost, exchange: publish.exchange, routing_keys: keys, properties: publish.properties };
        table.route(&ask, &mut self.route).map_err(|e| e.refusal())?;
        let exchange = String::from_utf8_lossy(publish.exchange);
        self.permissions.check(&table, &self.user, &self.vhost, Access::Write, "exchange", if exchange.is_empty() { "amq.default" } else { &exchange })?;
        let owners = node.owners(&table);
        let mut hops = SmallVec::with_capacity(self.route.queues.len());
        for i in 0..self.route.queues.len() {
            let target = self.route.queues[i];
            let outgoing = owners.of_place(target.place).map(|n| self.outgoing(Address { node: n, lane: lane_of(target.id) }) as u16);
            hops.push(Hop { queue: target.id, outgoing });
        }
        if self.route.cacheable && keys.len() == 1 {
            self.cache.remember(table.index(), publish.exchange, publish.routing_key, &hops);
        }
        Ok(hops)
    }

    /// Puts a message into the batches of its queues' owners. Returns how many outcomes will come.
    fn enqueue(&mut self, publish: &Publish<'_>, properties: &[u8], hops: &[Hop]) -> u32 {
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
            let known = if hops.len() == 1 { None } else { written.iter().find(|(i, _)| *i == index).map(|(_, offset)| *offset) };
            let offset = known.unwrap_or_else(|| {
                let offset = out.block.len() as u32;
                append_head(&mut out.block, publish.exchange, publish.routing_key, properties, publish.body.len(), persistent);
                out.block.extend_from_slice(publish.body);
                if hops.len() > 1 {
                    written.push((index, offset));
                }
                offset
            });
            if let Some(sequence) = publish.sequence {
                out.confirms.push((out.items.len() as u32, publish.channel, sequence));
            }
            let len = (warren_model::message::RECORD_HEADER + publish.exchange.len() + publish.routing_key.len() + properties.len() + publish.body.len()) as u32;
            out.items.push(Item { queue: hop.queue, offset, len });
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
    fn publish_with_headers(&mut self, publish: &Publish<'_>) -> Published {
        let Ok(properties) = Properties::parse(publish.properties) else {
            return Published::Refused(Refusal::new(502, "malformed properties"));
        };
        let headers = properties.headers.unwrap_or_default();
        let mut keys: SmallVec<[&[u8]; 4]> = SmallVec::new();
        keys.push(publish.routing_key);
        for name in ["CC", "BCC"] {
            let Some(value) = headers.get(name) else { continue };
            let Value::Array(list) = value else {
                return Published::Refused(Refusal::precondition_failed(format!("invalid type '{}' for header '{name}': expected an array of longstr", value.type_name())));
            };
            for entry in list.iter() {
                let Value::LongStr(key) = entry else {
                    return Published::Refused(Refusal::precondition_failed(format!("invalid type '{}' in header '{name}': expected longstr", entry.type_name())));
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
        Properties { headers: Some(kept.as_table()), ..properties }.encode(&mut rewritten);
        Published::Routed(self.enqueue(publish, &rewritten, &hops))
    }
}

impl Host for Client {
    fn session(&self) -> SessionId {
        self.id
    }

    fn unique(&mut self) -> String {
        self.node.unique_name()
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), String> {
        self.node.authenticate(user, password, self.peer)
    }

    fn open_vhost(&mut self, user: &str, vhost: &str) -> Result<(), Refusal> {
        let table = self.node.metadata().table().read();
        if !table.vhost_exists(vhost) {
            return Err(Refusal::new(530, format!("vhost {vhost} not found")));
        }
        if table.permission(user, vhost).is_none() {
            return Err(Refusal::new(530, format!("access to vhost '{vhost}' refused for user '{user}'")));
        }
        self.vhost = vhost.to_owned();
        self.user = user.to_owned();
        Ok(())
    }

    fn check_exchange(&self, command: &DeclareExchange) -> Check {
        if let Err(refusal) = self.may_declare_exchange(command) {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_exchange(command))
    }

    fn find_exchange(&self, name: &str) -> Result<(), Refusal> {
        self.node.metadata().table().read().check_passive_exchange(&self.vhost, name)
    }

    fn check_queue(&self, command: &DeclareQueue) -> Check {
        if let Err(refusal) = self.may(Access::Configure, "queue", &command.name) {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_queue(command))
    }

    fn find_queue(&self, name: &str) -> Result<QueueRef, Refusal> {
        let table = self.node.metadata().table().read();
        let view = table.check_passive_queue(&self.vhost, name, self.id)?;
        Ok(QueueRef { id: view.id, place: view.place })
    }

    fn check_bind(&self, command: &Binding) -> Check {
        if let Err(refusal) = self.may_bind(command) {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_bind(command))
    }

    fn check_unbind(&self, command: &Binding) -> Check {
        if let Err(refusal) = self.may_bind(command) {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_unbind(command))
    }

    fn choose_place(&mut self, name: &str, durable: bool, exclusive: bool) -> Place {
        let own = Place::Node(self.node.id(), self.id.incarnation);
        if exclusive {
            return own;
        }
        let owners = self.node.current_owners();
        if durable {
            return Place::Shard(shard_of(&self.vhost, name, owners.shards().max(1)));
        }
        let placed = owners.ring.place(&self.vhost, name).and_then(|node| Some(Place::Node(node, owners.incarnation(node)?)));
        placed.unwrap_or(own)
    }

    #[inline]
    fn publish(&mut self, publish: &Publish<'_>) -> Published {
        if !self.routable {
            let since = *self.unroutable_since.get_or_insert_with(Instant::now);
            if since.elapsed() < self.node.settings().unroutable_wait {
                return Published::Hold;
            }
            return Published::Unavailable("this node has lost contact with the majority of the cluster and does not route; connect to another node".into());
        }
        if self.node.alarm() {
            return Published::Hold;
        }
        if property_flags(publish.properties).is_ok_and(|f| f.has_headers()) {
            return self.publish_with_headers(publish);
        }
        let version = self.node.metadata().table().version();
        if let Some(hops) = self.cache.find(version, publish.exchange, publish.routing_key) {
            let hops: SmallVec<[Hop; 4]> = hops.into();
            return if hops.is_empty() { Published::Unroutable } else { Published::Routed(self.enqueue(publish, publish.properties, &hops)) };
        }
        match self.find_route(publish, &[publish.routing_key]) {
            Ok(hops) if hops.is_empty() => Published::Unroutable,
            Ok(hops) => Published::Routed(self.enqueue(publish, publish.properties, &hops)),
            Err(refusal) => Published::Refused(refusal),
        }
    }

    fn request(&mut self, channel: u16, id: u64, request: Request) {
        if let Err(refusal) = self.may_request(&request) {
            let _ = self.inbox.send(Inbox::Reply { channel, id, reply: Reply::Refused(refusal) });
            return;
        }
        match request {
            Request::Propose(command) => {
                if let Command::DeclareQueue(DeclareQueue { exclusive: true, .. }) = &command {
                    self.exclusive = true;
                }
                self.flush();
                let proposed = self.node.metadata().propose(command, COMMAND_DEADLINE);
                let (inbox, under_way) = (self.inbox.clone(), self.proposals.clone());
                tokio::spawn(async move {
                    let reply = match proposed.await {
                        Ok(proposed) => Reply::Outcome(proposed.outcome),
                        Err(error) => Reply::Refused(unavailable(&error)),
                    };
                    drop(under_way);
                    let _ = inbox.send(Inbox::Reply { channel, id, reply });
                });
            }
            Request::Fence => self.fence(channel, id),
            Request::Count(queue) => self.ask(channel, id, queue, Ask::Count, Then::Reply),
            Request::Consume { consumer, queue, subscription, tag } => {
                let attachment = Attachment { queue, address: None, subscription, tag: tag.clone(), count: 0, consumes: true };
                self.attachments.insert(consumer, attachment);
                self.ask(channel, id, queue, Ask::Consume { consumer, subscription, tag }, Then::Reply);
            }
            Request::Cancel { consumer } => match self.attachments.get_mut(&consumer) {
                Some(attachment) => {
                    attachment.consumes = false;
                    let queue = attachment.queue;
                    self.ask(channel, id, queue, Ask::Cancel { consumer }, Then::Reply);
                }
                None => {
                    let _ = self.inbox.send(Inbox::Reply { channel, id, reply: Reply::Done });
                }
            },
            Request::Get { consumer, queue, no_ack } => {
                let subscription = Subscription { no_ack: false, exclusive: false, prefetch: 0, by_leave: false };
                self.attachments.entry(consumer).or_insert(Attachment { queue, address: None, subscription, tag: Vec::new(), count: 0, consumes: false });
                self.ask(channel, id, queue, Ask::Get { consumer, no_ack }, Then::Reply);
            }
            Request::Purge(queue) => self.ask(channel, id, queue, Ask::Purge, Then::Reply),
            Request::Delete { queue, name, if_unused, if_empty } => self.ask(channel, id, queue, Ask::Seal { if_unused, if_empty }, Then::Delete(name)),
        }
    }

    #[inline]
    fn settle(&mut self, consumer: u32, position: u64, settlement: Settlement) {
        let Some(attachment) = self.attachments.get(&consumer) else { return };
        // Held from an owner that was lost since: it is not held any more.
        let Some(address) = attachment.address.filter(|_| position >> ATTACHMENT_SHIFT == attachment.count) else { return };
        let queue = attachment.queue.id;
        let index = self.outgoing(address);
        let position = position & ((1 << ATTACHMENT_SHIFT) - 1);
        self.outgoing[index].settled.push(Settled { queue, consumer, position, settlement });
    }

    fn credit(&mut self, consumer: u32, bytes: u32) {
        self.consumer_call(consumer, Call::Credit(bytes));
    }

    fn grant(&mut self, consumer: u32, count: u32) {
        self.flush();
        self.consumer_call(consumer, Call::Grant(count));
    }

    fn set_by_leave(&mut self, consumer: u32, by_leave: bool) {
        if let Some(attachment) = self.attachments.get_mut(&consumer) {
            attachment.subscription.by_leave = by_leave;
        }
        self.consumer_call(consumer, Call::ByLeave(by_leave));
    }

    fn release(&mut self, consumer: u32) {
        self.flush();
        self.consumer_call(consumer, Call::Release);
        self.attachments.remove(&consumer);
    }
}

impl Client {
    fn may(&self, access: Access, kind: &str, name: &str) -> Result<(), Refusal> {
        self.permissions.check(&self.node.metadata().table().read(), &self.user, &self.vhost, access, kind, name)
    }

    fn may_declare_exchange(&self, command: &DeclareExchange) -> Result<(), Refusal> {
        self.may(Access::Configure, "exchange", &command.name)?;
        let arguments = warren_protocol::Table::parse(&command.arguments).unwrap_or_default();
        if let Some(Value::LongStr(alternate)) = arguments.get("alternate-exchange") {
            self.may(Access::Read, "exchange", &command.name)?;
            self.may(Access::Write, "exchange", &String::from_utf8_lossy(alternate))?;
        }
        Ok(())
    }

    /// Binding and unbinding: write to the destination, read from the source.
    fn may_bind(&self, command: &Binding) -> Result<(), Refusal> {
        match &command.destination {
            Destination::Queue(name) => self.may(Access::Write, "queue", name)?,
            Destination::Exchange(name) => self.may(Access::Write, "exchange", name)?,
        }
        self.may(Access::Read, "exchange", &command.source)
    }

    /// What the look-ups before a request have not checked.
    fn may_request(&self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Propose(Command::DeleteExchange { name, .. }) => self.may(Access::Configure, "exchange", name),
            Request::Delete { name, .. } => self.may(Access::Configure, "queue", name),
            Request::Consume { queue, .. } | Request::Get { queue, .. } | Request::Purge(queue) => {
                let table = self.node.metadata().table().read();
                match table.queue_by_id(queue.id) {
                    Some(view) => self.permissions.check(&table, &self.user, &self.vhost, Access::Read, "queue", view.name),
                    // Its owner will say that it is gone.
                    None => Ok(()),
                }
            }
            Request::Propose(_) | Request::Count(_) | Request::Cancel { .. } | Request::Fence => Ok(()),
        }
    }

    fn check(&self, ask: impl FnOnce(&warren_routing::Table) -> warren_routing::Check) -> Check {
        let metadata = self.node.metadata();
        // Without a lease the table may be old: then only the log can say.
        let current = metadata.may_route();
        match ask(&metadata.table().read()) {
            _ if !current => Check::New,
            warren_routing::Check::Equivalent(outcome) => Check::Equivalent(outcome),
            warren_routing::Check::New => Check::New,
            warren_routing::Check::Refused(refusal) => Check::Refused(refusal),
        }
    }
}

fn reply_of(answer: Answer) -> Reply {
    match answer {
        Answer::Done => Reply::Done,
        Answer::Counts { messages, consumers } => Reply::Counts { messages, consumers },
        Answer::Counted(count) => Reply::Counted(count),
        Answer::Empty => Reply::Empty,
        Answer::Refused { code, text } => Reply::Refused(Refusal { code, text }),
        Answer::Got { .. } | Answer::NotHere => Reply::Refused(Refusal::new(541, "unexpected answer of a queue's owner")),
    }
}

/// A command that the cluster could not take in time.
fn unavailable(error: &warren_consensus::ProposeError) -> Refusal {
    Refusal::new(506, format!("the cluster could not agree on the change: {error}"))
}
