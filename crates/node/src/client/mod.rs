//! The node's side of one session: routes its publishes, batches what goes to queue owners, and keeps track of what is under way.
//!
//! Flow: the session calls [`Host`] while it digests input; everything for owners is gathered and sent by [`Client::flush`] at the end of the turn, or
//! before a request, so that one owner sees one session's publishes, settlements and requests in their order.
//! Batches for shards are kept until their outcome is known, and sent again, in order, to the shard's next leader: which knows by their numbers what is in
//! its log already. Consumers of replicated queues are attached to the next leader with what they hold.
//! Invariant: each publish with a sequence gets exactly as many outcomes as it has hops, whether its owner answers, refuses or is lost.

mod host;
mod publish;
mod requests;

use crate::audit::Who;
use crate::churn::Churned;
use crate::connection::Inbox;
use crate::limits::Used;
use crate::node::{Node, UnderWay};
use crate::owners::Address;
use crate::permissions::Permissions;
use crate::registry::ConsumerInfo;
use crate::routes::RouteCache;
use crate::traffic::Passing;
use crate::wire::{Ask, Call, ConsumerCall, Deliveries, Item, Settled, ShardBatch, ToOwner};
use bytes::Bytes;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use warren_model::command::Place;
use warren_model::message::Message;
use warren_model::{ConsumerId, NodeId, QueueRef, SessionId, Settlement, ShardId, Subscription};
use warren_routing::Route;
use warren_session::{Delivered, Host as _, Phase, Session};

/// A batch is sent before the end of the turn when it is this large.
const BATCH_BYTES: usize = 256 * 1024;
/// A session is not read from while so much of what it published has no outcome yet.
pub(crate) const IN_FLIGHT_MAX: usize = 1024 * 1024;
/// Between tries to find a queue's owner after it was lost or has moved.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Positions are 48 bits; above them is the number of the consumer's attachment, so that settlements of an earlier one are known.
const ATTACHMENT_SHIFT: u32 = 48;

/// A publish to a replicated queue, or its settlement, may be under way for so long before the client is told that nobody knows what became of it.
const OUTCOME_DEADLINE: Duration = Duration::from_secs(15);

/// Where a batch goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Target {
    /// To a lane, for queues that are not replicated.
    Lane(Address),
    /// To whoever leads the shard.
    Shard(ShardId),
}

/// Which items of a batch are publishes to be confirmed: item, channel, sequence.
type Confirms = Vec<(u32, u16, u64)>;

/// What goes to one lane or shard.
struct Outgoing {
    target: Target,
    block: Vec<u8>,
    items: Vec<Item>,
    /// Which items are publishes to be confirmed: item, channel, sequence.
    confirms: Confirms,
    settled: Vec<Settled>,
    takes: Vec<Take>,
}

/// A message that a client without acknowledgements got from a replicated queue, while it is being settled. The client is given it when that is in the log: then it is gone wherever
/// one looks, and no change of leader can lose or double it.
struct Take {
    channel: u16,
    /// The request's.
    id: u64,
    block: Bytes,
    offset: u32,
    position: u64,
    redelivered: bool,
    remaining: u64,
    /// It could not be settled: no leader was there.
    refused: bool,
}

/// A batch for a lane without an outcome yet.
struct InFlight {
    node: NodeId,
    bytes: usize,
    confirms: Confirms,
}

/// A batch for a shard without an outcome yet.
struct ShardInFlight {
    batch: ShardBatch,
    confirms: Confirms,
    takes: Vec<Take>,
    since: Instant,
    /// It was sent to a leader, so nobody but the log knows whether it counts.
    sent: bool,
}

/// Batches of one shard, numbered without gaps.
#[derive(Default)]
struct ToShard {
    last: u64,
    in_flight: BTreeMap<u64, ShardInFlight>,
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
    /// Of a replicated queue: the leader's term that it is attached to. What leaders of earlier terms still send does not count.
    term: u64,
    /// Of a replicated queue, by a consumer that does not acknowledge: what was written to the client is acknowledged for it, so that a leader that dies does
    /// not take along the knowledge that it was delivered.
    settles_itself: bool,
}

impl Attachment {
    fn shard(&self) -> Option<ShardId> {
        match self.queue.place {
            Place::Shard(shard) => Some(shard),
            Place::Node(..) => None,
        }
    }
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
    /// A get from a replicated queue whose client does not acknowledge: see [`Take`].
    Take,
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
    /// What it is counted as, while it is open.
    used: Option<Used>,
    /// Whether this node may route now; asked anew each turn.
    routable: bool,
    unroutable_since: Option<Instant>,
    cache: RouteCache,
    passing: Passing,
    route: Route,
    outgoing: Vec<Outgoing>,
    in_flight: BTreeMap<u64, InFlight>,
    to_shards: BTreeMap<ShardId, ToShard>,
    in_flight_bytes: usize,
    last_batch: u64,
    /// Outcomes that came about while the session was busy: channel, sequence, ok.
    outcomes: Vec<(u16, u64, bool)>,
    /// Takes that have come to their end while the session was busy.
    taken: Vec<Take>,
    attachments: HashMap<u32, Attachment>,
    asked: BTreeMap<u64, Asked>,
    fences: Vec<Fence>,
    last_own_request: u64,
    /// Has declared an exclusive queue.
    exclusive: bool,
    /// Proposals that are under way.
    proposals: Arc<UnderWay>,
    /// Lanes that know of this session.
    known_to: BTreeSet<Address>,
}

impl Client {
    pub(crate) fn new(
        node: Arc<Node>,
        id: SessionId,
        peer: IpAddr,
        inbox: mpsc::UnboundedSender<Inbox>,
    ) -> Self {
        Self {
            node,
            id,
            peer,
            inbox,
            vhost: String::new(),
            user: String::new(),
            permissions: Permissions::default(),
            used: None,
            routable: false,
            unroutable_since: None,
            cache: RouteCache::default(),
            passing: Passing::default(),
            route: Route::default(),
            outgoing: Vec::new(),
            in_flight: BTreeMap::new(),
            to_shards: BTreeMap::new(),
            in_flight_bytes: 0,
            last_batch: 0,
            outcomes: Vec::new(),
            taken: Vec::new(),
            attachments: HashMap::new(),
            asked: BTreeMap::new(),
            fences: Vec::new(),
            last_own_request: OWN_REQUEST,
            exclusive: false,
            proposals: Arc::default(),
            known_to: BTreeSet::new(),
        }
    }

    /// Who the client is, for the audit log.
    pub(crate) fn who(&self) -> Who {
        Who {
            user: self.user.clone(),
            peer: self.peer.to_string(),
            via: "amqp",
        }
    }

    /// The session's number.
    pub(crate) fn number(&self) -> u64 {
        self.id.number
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

    /// Keeps the account of connections and channels: after a turn, so that a close has counted before the client is told of it.
    pub(crate) fn count_use(&mut self, session: &Session) {
        let in_use = self.node.in_use();
        let changed = match (&mut self.used, session.phase()) {
            (None, _) => false,
            (Some(used), Phase::Running) => {
                let open = session.channel_count() as u64;
                let closed = used.channels().saturating_sub(open);
                self.node.churn().count(Churned::ChannelClosed, closed);
                in_use.count_channels(used, open)
            }
            (Some(_), _) => self.count_out(),
        };
        if changed {
            self.node.usage_changed();
        }
    }

    /// Tells the node what was published to exchanges since the last time.
    pub(crate) fn count_traffic(&mut self, at: Instant) {
        if !self.passing.flush(at) {
            self.cache = RouteCache::default();
        }
    }

    fn count_out(&mut self) -> bool {
        let Some(used) = self.used.take() else {
            return false;
        };
        let closed = used.channels();
        self.node.churn().count(Churned::ChannelClosed, closed);
        self.node.in_use().close(used);
        true
    }

    /// Messages for the session's consumers.
    pub(crate) fn deliveries(&mut self, session: &mut Session, deliveries: &Deliveries) {
        let mut attached: Option<(u32, u64, bool)> = None;
        let term = deliveries.term;
        for item in &deliveries.items {
            if attached.is_none_or(|(consumer, ..)| consumer != item.consumer) {
                let Some(attachment) = self
                    .attachments
                    .get(&item.consumer)
                    .filter(|a| term >= a.term)
                else {
                    attached = None;
                    continue;
                };
                attached = Some((
                    item.consumer,
                    attachment.count << ATTACHMENT_SHIFT,
                    attachment.settles_itself,
                ));
            }
            let Some((_, count, settles_itself)) = attached else {
                continue;
            };
            let Some(block) = deliveries.blocks.get(item.block as usize) else {
                continue;
            };
            match Message::read(block, item.offset) {
                Ok(message) => {
                    let delivered = Delivered {
                        consumer: item.consumer,
                        position: item.position | count,
                        redelivered: item.redelivered,
                        message,
                    };
                    if session.deliver(&delivered, self) && settles_itself {
                        self.settle(item.consumer, delivered.position, Settlement::Taken);
                    }
                }
                Err(error) => {
                    tracing::error!(%error, session = %self.id, "a delivery could not be read")
                }
            }
        }
    }

    /// The session's consumers, for operators.
    pub(crate) fn consumers(&self, session: &Session) -> Vec<ConsumerInfo> {
        let known = session.consumers();
        known
            .filter_map(|consumer| {
                let attachment = self.attachments.get(&consumer.number)?;
                Some(ConsumerInfo {
                    channel: consumer.channel,
                    tag: String::from_utf8_lossy(consumer.tag).into_owned(),
                    queue: attachment.queue.id.0,
                    acks: !consumer.no_ack,
                    exclusive: attachment.subscription.exclusive,
                    prefetch: attachment.subscription.prefetch,
                    arguments: consumer.arguments.to_vec(),
                    active: attachment.address.is_some(),
                })
            })
            .collect()
    }

    pub(crate) fn cancelled(&mut self, session: &mut Session, consumer: u32) {
        self.attachments.remove(&consumer);
        session.cancelled(consumer, self);
    }
    pub(super) fn consumer_call(&mut self, consumer: u32, call: Call) {
        let Some(attachment) = self.attachments.get(&consumer) else {
            return;
        };
        let queue = attachment.queue.id;
        let address = match attachment.shard() {
            Some(shard) => self.node.address_of_shard(shard),
            None => attachment.address,
        };
        let Some(address) = address else { return };
        let call = ConsumerCall {
            consumer: ConsumerId {
                session: self.id,
                number: consumer,
            },
            queue,
            call,
        };
        // If the owner is lost, the consumer is attached anew.
        let _ = self.node.send_to_lane(address, ToOwner::Consumer(call));
    }

    /// The connection is over.
    pub(crate) fn gone(&mut self) {
        self.flush();
        if self.count_out() {
            self.node.usage_changed();
        }
        for &address in &self.known_to {
            let _ = self
                .node
                .send_to_lane(address, ToOwner::SessionGone(self.id));
        }
        if self.exclusive {
            self.node
                .clone()
                .delete_exclusive(self.id, self.proposals.clone());
        }
    }
}
