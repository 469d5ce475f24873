//! What a session asks its node: checks on the local table, publishes, requests, settlements.

use super::requests::unavailable;
use super::{ATTACHMENT_SHIFT, Attachment, Client, Target, Then};
use crate::churn::Churned;
use crate::connection::Inbox;
use crate::limits::ConnectionBounds;
use crate::logins::Begun;
use crate::node::UnderWay;
use crate::permissions::Access;
use crate::routes::Hop;
use crate::wire::{Ask, Call, Settled};
use crate::worker::COMMAND_DEADLINE;
use smallvec::SmallVec;
use tokio::time::Instant;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Place, UserLimit};
use warren_model::{Command, QueueRef, Refusal, SessionId, Settlement, Subscription};
use warren_placement::shard_of;
use warren_protocol::property_flags;
use warren_session::{Check, Host, Publish, Published, Reply, Request};

impl Host for Client {
    fn session(&self) -> SessionId {
        self.id
    }

    fn unique(&mut self) -> String {
        self.node.unique_name()
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Option<Result<(), String>> {
        match self.node.begin_login(user, password, self.peer) {
            Begun::Done(verdict) => Some(verdict),
            Begun::Check(check) => {
                let (node, inbox) = (self.node.clone(), self.inbox.clone());
                tokio::spawn(async move {
                    let verdict = tokio::select! {
                        verdict = node.check_password(check) => verdict,
                        // Whoever has left needs no verdict.
                        () = inbox.closed() => return,
                    };
                    let _ = inbox.send(Inbox::LoginChecked(verdict));
                });
                None
            }
        }
    }

    fn admit(&mut self, user: &str) -> Result<(), String> {
        self.node.admit(user, self.peer)
    }

    fn open_vhost(&mut self, user: &str, vhost: &str) -> Result<(), Refusal> {
        let table = self.node.metadata().table().read();
        if !table.vhost_exists(vhost) {
            return Err(Refusal::new(530, format!("vhost {vhost} not found")));
        }
        let permitted = table.permission(user, vhost).is_some();
        let bounds = ConnectionBounds::of(&table, vhost, user);
        drop(table);
        let in_use = self.node.in_use();
        self.used = in_use.open(vhost, user, bounds, permitted)?;
        if !permitted {
            return Err(Refusal::new(
                530,
                format!("access to vhost '{vhost}' refused for user '{user}'"),
            ));
        }
        self.vhost = vhost.to_owned();
        self.user = user.to_owned();
        self.node.usage_changed();
        Ok(())
    }

    fn open_channel(&mut self, open: usize) -> Result<(), Refusal> {
        let node = &self.node;
        let bound = {
            let table = node.metadata().table().read();
            table.user_bound(&self.user, UserLimit::MaxChannels)
        };
        if let Some(used) = &mut self.used {
            let closed = used.channels().saturating_sub(open as u64);
            let opened = node.in_use().open_channel(used, open as u64, bound);
            node.churn().count(Churned::ChannelClosed, closed);
            opened?;
            node.churn().count(Churned::ChannelOpened, 1);
            node.usage_changed();
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.node.alarm()
    }

    fn may_look_up(&mut self) -> Result<bool, Refusal> {
        if self.routable {
            return Ok(true);
        }
        let since = *self.unroutable_since.get_or_insert_with(Instant::now);
        if since.elapsed() < self.node.settings().unroutable_wait {
            return Ok(false);
        }
        Err(Refusal::new(
            320,
            "this node has lost contact with the majority of the cluster and does not know what is there; connect to another node",
        ))
    }

    fn check_exchange(&self, command: &DeclareExchange) -> Check {
        if let Err(refusal) = self.may_declare_exchange(command) {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_exchange(command))
    }

    fn find_exchange(&self, name: &str) -> Result<(), Refusal> {
        self.node
            .metadata()
            .table()
            .read()
            .check_passive_exchange(&self.vhost, name)
    }

    fn check_queue(&self, command: &DeclareQueue) -> Check {
        let may = {
            let table = self.node.metadata().table().read();
            self.permissions
                .check_queue(&table, &self.user, &self.vhost, command)
        };
        if let Err(refusal) = may {
            return Check::Refused(refusal);
        }
        self.check(|table| table.check_queue(command))
    }

    fn queue_declared(&mut self) {
        self.node.churn().count(Churned::QueueDeclared, 1);
    }

    fn may_read(&self, queue: &str) -> Result<(), Refusal> {
        self.may(Access::Read, "queue", queue)
    }

    fn may_configure(&self, queue: &str) -> Result<(), Refusal> {
        self.may(Access::Configure, "queue", queue)
    }

    fn check_consumer(&self, queue: &str, arguments: &[u8]) -> Result<(), Refusal> {
        warren_routing::check_consumer(&self.vhost, queue, arguments)
    }

    fn find_queue(&self, name: &str) -> Result<QueueRef, Refusal> {
        let table = self.node.metadata().table().read();
        let view = table.check_passive_queue(&self.vhost, name, self.id)?;
        Ok(QueueRef {
            id: view.id,
            place: view.place,
        })
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
        let placed = owners
            .ring
            .place(&self.vhost, name)
            .and_then(|node| Some(Place::Node(node, owners.incarnation(node)?)));
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
        if let Some(known) = self
            .cache
            .find(version, publish.exchange, publish.routing_key)
        {
            let hops: SmallVec<[Hop; 4]> = known.hops.into();
            self.node.denials().count(known.denied);
            self.passing.count(known.number, hops.len());
            return if hops.is_empty() {
                Published::Unroutable
            } else {
                Published::Routed(self.enqueue(publish, publish.properties, &hops))
            };
        }
        match self.find_route(publish, &[publish.routing_key]) {
            Ok(hops) if hops.is_empty() => Published::Unroutable,
            Ok(hops) => Published::Routed(self.enqueue(publish, publish.properties, &hops)),
            Err(refusal) => Published::Refused(refusal),
        }
    }

    fn request(&mut self, channel: u16, id: u64, request: Request) {
        if let Err(refusal) = self.may_request(&request) {
            let _ = self.inbox.send(Inbox::Reply {
                channel,
                id,
                reply: Reply::Refused(refusal),
            });
            return;
        }
        match request {
            Request::Propose(command) => {
                if let Command::DeclareQueue(DeclareQueue {
                    exclusive: true, ..
                }) = &command
                {
                    self.exclusive = true;
                }
                self.flush();
                let who = || self.who();
                let proposed = self.node.propose_for(&who, command, COMMAND_DEADLINE);
                let (inbox, under_way) = (self.inbox.clone(), UnderWay::one(&self.proposals));
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
            Request::Consume {
                consumer,
                queue,
                mut subscription,
                tag,
            } => {
                let settles_itself = subscription.no_ack && matches!(queue.place, Place::Shard(_));
                subscription.no_ack &= !settles_itself;
                let attachment = Attachment {
                    queue,
                    address: None,
                    subscription,
                    tag: tag.clone(),
                    count: 0,
                    consumes: true,
                    term: 0,
                    settles_itself,
                };
                self.attachments.insert(consumer, attachment);
                self.ask(
                    channel,
                    id,
                    queue,
                    Ask::Consume {
                        consumer,
                        subscription,
                        tag,
                    },
                    Then::Reply,
                );
            }
            Request::Cancel { consumer } => match self.attachments.get_mut(&consumer) {
                Some(attachment) => {
                    attachment.consumes = false;
                    let queue = attachment.queue;
                    self.ask(channel, id, queue, Ask::Cancel { consumer }, Then::Reply);
                }
                None => {
                    let _ = self.inbox.send(Inbox::Reply {
                        channel,
                        id,
                        reply: Reply::Done,
                    });
                }
            },
            Request::Get {
                consumer,
                queue,
                no_ack,
            } => {
                let subscription = Subscription {
                    no_ack: false,
                    exclusive: false,
                    prefetch: 0,
                    by_leave: false,
                };
                self.attachments.entry(consumer).or_insert(Attachment {
                    queue,
                    address: None,
                    subscription,
                    tag: Vec::new(),
                    count: 0,
                    consumes: false,
                    term: 0,
                    settles_itself: false,
                });
                let takes = no_ack && matches!(queue.place, Place::Shard(_));
                let no_ack = no_ack && !takes;
                let then = if takes { Then::Take } else { Then::Reply };
                self.ask(channel, id, queue, Ask::Get { consumer, no_ack }, then);
            }
            Request::Purge(queue) => self.ask(channel, id, queue, Ask::Purge, Then::Reply),
            Request::Delete {
                queue,
                name,
                if_unused,
                if_empty,
            } => self.ask(
                channel,
                id,
                queue,
                Ask::Seal {
                    if_unused,
                    if_empty,
                },
                Then::Delete(name),
            ),
        }
    }

    #[inline]
    fn settle(&mut self, consumer: u32, position: u64, settlement: Settlement) {
        let Some(attachment) = self.attachments.get(&consumer) else {
            return;
        };
        // Held from an owner that was lost since: it is not held any more.
        let target = match attachment.shard() {
            Some(shard) => Some(Target::Shard(shard)),
            None => attachment.address.map(Target::Lane),
        };
        let Some(target) = target.filter(|_| position >> ATTACHMENT_SHIFT == attachment.count)
        else {
            return;
        };
        let queue = attachment.queue.id;
        let index = self.outgoing(target);
        let position = position & ((1 << ATTACHMENT_SHIFT) - 1);
        self.outgoing[index].settled.push(Settled {
            queue,
            consumer,
            position,
            settlement,
        });
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
        self.permissions.check(
            &self.node.metadata().table().read(),
            &self.user,
            &self.vhost,
            access,
            kind,
            name,
        )
    }

    fn may_declare_exchange(&self, command: &DeclareExchange) -> Result<(), Refusal> {
        let table = self.node.metadata().table().read();
        self.permissions
            .check_exchange(&table, &self.user, &self.vhost, command)
    }

    fn may_bind(&self, command: &Binding) -> Result<(), Refusal> {
        let table = self.node.metadata().table().read();
        self.permissions
            .check_binding(&table, &self.user, &self.vhost, command)
    }

    /// What the look-ups before a request have not checked.
    fn may_request(&self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Propose(Command::DeleteExchange { name, .. }) => {
                self.may(Access::Configure, "exchange", name)
            }
            Request::Propose(_)
            | Request::Delete { .. }
            | Request::Consume { .. }
            | Request::Get { .. }
            | Request::Purge(_)
            | Request::Count(_)
            | Request::Cancel { .. }
            | Request::Fence => Ok(()),
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
