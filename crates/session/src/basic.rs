//! basic.* but publish: prefetch, consumers, gets, settlement.

use crate::channel::{Channel, GETTERS_KEPT};
use crate::connection::Core;
use crate::consumers::ConsumerEntry;
use crate::requests::{Class, Waiting};
use crate::{Fault, Flow, Host, Request};
use warren_model::{Refusal, Settlement, Subscription};
use warren_protocol as wire;
use warren_protocol::{Method, NOT_ALLOWED, NOT_IMPLEMENTED, ShortStr};

impl Channel {
    pub(crate) fn qos(
        &mut self,
        core: &mut Core,
        m: &wire::BasicQos,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if m.prefetch_size != 0 {
            return Err(Fault::Connection(
                NOT_IMPLEMENTED,
                format!("NOT_IMPLEMENTED - prefetch_size!=0 ({})", m.prefetch_size),
            ));
        }
        let count = u32::from(m.prefetch_count);
        if m.global {
            let was = self.shared.limit > 0;
            self.shared.limit = count;
            if was != (count > 0) {
                self.shared.forget_leave();
                for (&number, entry) in &mut core.consumers {
                    if entry.channel == self.number && entry.active && !entry.no_ack {
                        entry.set_by_leave(count > 0);
                        host.set_by_leave(number, count > 0);
                    }
                }
            }
            core.serve(&mut self.shared, host);
        } else {
            self.prefetch = count;
        }
        self.answer(core, false, Method::BasicQosOk)
    }

    pub(crate) fn consume(
        &mut self,
        core: &mut Core,
        m: &wire::BasicConsume<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !host.may_look_up()? {
            return Ok(Flow::Hold);
        }
        let tag = match m.consumer_tag.as_str()? {
            "" => format!("amq.ctag-{}", host.unique()),
            tag if self.tags.contains_key(tag.as_bytes()) => {
                return Err(Fault::Connection(
                    NOT_ALLOWED,
                    format!("NOT_ALLOWED - attempt to reuse consumer tag '{tag}'"),
                ));
            }
            tag => tag.to_owned(),
        };
        let tag = tag.into_bytes();
        let name = self.queue_name(m.queue)?;
        host.may_read(&name)?;
        let queue = host.find_queue(&name)?;
        host.check_consumer(&name, m.arguments.as_bytes())?;
        let by_leave = self.shared.limit > 0 && !m.no_ack;
        let subscription = Subscription {
            no_ack: m.no_ack,
            exclusive: m.exclusive,
            prefetch: if m.no_ack { 0 } else { self.prefetch },
            by_leave,
        };
        let entry = ConsumerEntry::new(self.number, tag.clone(), m.no_ack, by_leave);
        let consumer = core.add_consumer(entry.with_arguments(m.arguments.as_bytes()))?;
        self.tags.insert(tag.clone(), consumer);
        let request = Request::Consume {
            consumer,
            queue,
            subscription,
            tag,
        };
        self.ask(
            core,
            Class::Alone,
            (60, 20),
            m.no_wait,
            Waiting::Consumer(consumer),
            request,
            host,
        )
    }

    pub(crate) fn cancel(
        &mut self,
        core: &mut Core,
        m: &wire::BasicCancel<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let tag = m.consumer_tag.as_str()?.as_bytes();
        let Some(consumer) = self.tags.remove(tag) else {
            // RabbitMQ answers cancelling what is not there, too.
            return self.answer(
                core,
                m.no_wait,
                Method::BasicCancelOk(wire::BasicCancelOk {
                    consumer_tag: m.consumer_tag,
                }),
            );
        };
        self.ask(
            core,
            Class::Alone,
            (60, 30),
            m.no_wait,
            Waiting::Cancelled(tag.to_vec(), consumer),
            Request::Cancel { consumer },
            host,
        )
    }

    pub(crate) fn get(
        &mut self,
        core: &mut Core,
        m: &wire::BasicGet<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !host.may_look_up()? {
            return Ok(Flow::Hold);
        }
        let name = self.queue_name(m.queue)?;
        host.may_read(&name)?;
        let queue = host.find_queue(&name)?;
        let consumer = match self.getters.get(&queue.id.0) {
            Some(&consumer) => consumer,
            None => {
                self.let_idle_getters_go(core, host);
                let consumer = core.add_consumer(ConsumerEntry::getter(self.number))?;
                self.getters.insert(queue.id.0, consumer);
                consumer
            }
        };
        self.ask(
            core,
            Class::Alone,
            (60, 70),
            false,
            Waiting::Got(consumer, m.no_ack),
            Request::Get {
                consumer,
                queue,
                no_ack: m.no_ack,
            },
            host,
        )
    }

    /// Bounds what a client that gets from ever new queues makes the session and its host remember. No get is under way.
    fn let_idle_getters_go(&mut self, core: &mut Core, host: &mut impl Host) {
        if self.getters.len() < self.getters_max {
            return;
        }
        self.getters.retain(|_, &mut getter| {
            let holds = core
                .consumers
                .get(&getter)
                .is_some_and(ConsumerEntry::holds_messages);
            if !holds {
                core.consumers.remove(&getter);
                host.release(getter);
            }
            holds
        });
        self.getters_max = GETTERS_KEPT.max(2 * self.getters.len());
    }

    /// ack, nack, reject. An error settles nothing.
    pub(crate) fn settle(
        &mut self,
        core: &mut Core,
        tag: u64,
        multiple: bool,
        settlement: Settlement,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if multiple {
            // 0 stands for all there are; any other tag must be open itself, as RabbitMQ has it.
            if tag != 0 && !self.unacked.contains(tag) {
                return Err(unknown_tag(tag));
            }
            let shared = &mut self.shared;
            self.unacked.take_through((tag != 0).then_some(tag), |u| {
                core.settled(u.consumer, shared);
                host.settle(u.consumer, u.position, settlement);
            });
        } else {
            let unacked = self.unacked.take(tag).ok_or_else(|| unknown_tag(tag))?;
            core.settled(unacked.consumer, &mut self.shared);
            host.settle(unacked.consumer, unacked.position, settlement);
        }
        core.serve(&mut self.shared, host);
        Ok(Flow::Done)
    }

    pub(crate) fn recover(
        &mut self,
        core: &mut Core,
        requeue: bool,
        reply: Option<Method<'static>>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !requeue {
            return Err(Fault::Connection(
                NOT_IMPLEMENTED,
                "NOT_IMPLEMENTED - requeue=false".into(),
            ));
        }
        if !self.unacked.is_empty() {
            self.settle(core, 0, true, Settlement::Requeue, host)?;
        }
        match reply {
            Some(method) => self.answer(core, false, method),
            None => Ok(Flow::Done),
        }
    }
}

fn unknown_tag(tag: u64) -> Fault {
    Refusal::precondition_failed(format!("unknown delivery tag {tag}")).into()
}

/// A short string from bytes that came from one.
pub(crate) fn short(bytes: &[u8]) -> ShortStr<'_> {
    ShortStr::new(bytes).unwrap_or_default()
}
