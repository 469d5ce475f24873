//! exchange.* and queue.*: from methods to commands and requests.

use crate::channel::Channel;
use crate::connection::Core;
use crate::requests::{Class, Waiting};
use crate::{Check, Fault, Flow, Host, Request};
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination};
use warren_model::{Command, Refusal};
use warren_protocol as wire;
use warren_protocol::{Method, ShortStr};

impl Channel {
    pub(crate) fn exchange_declare(
        &mut self,
        core: &mut Core,
        m: &wire::ExchangeDeclare<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let name = m.exchange.as_str()?;
        if m.passive {
            if !host.may_look_up()? {
                return Ok(Flow::Hold);
            }
            host.find_exchange(name)?;
            return self.answer(core, m.no_wait, Method::ExchangeDeclareOk);
        }
        let command = DeclareExchange {
            vhost: core.vhost.clone(),
            name: name.into(),
            kind: m.kind.as_str()?.into(),
            durable: m.durable,
            auto_delete: m.auto_delete,
            internal: m.internal,
            arguments: m.arguments.as_bytes().to_vec(),
        };
        match host.check_exchange(&command) {
            Check::Equivalent(_) => self.answer(core, m.no_wait, Method::ExchangeDeclareOk),
            Check::Refused(refusal) => Err(refusal.into()),
            Check::New => {
                let request = Request::Propose(Command::DeclareExchange(command));
                self.ask(
                    core,
                    Class::Alone,
                    (40, 10),
                    m.no_wait,
                    Waiting::Declared(Method::ExchangeDeclareOk),
                    request,
                    host,
                )
            }
        }
    }

    pub(crate) fn exchange_delete(
        &mut self,
        core: &mut Core,
        m: &wire::ExchangeDelete<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let command = Command::DeleteExchange {
            vhost: core.vhost.clone(),
            name: m.exchange.as_str()?.into(),
            if_unused: m.if_unused,
        };
        self.ask(
            core,
            Class::Alone,
            (40, 20),
            m.no_wait,
            Waiting::Declared(Method::ExchangeDeleteOk),
            Request::Propose(command),
            host,
        )
    }

    pub(crate) fn exchange_bind(
        &mut self,
        core: &mut Core,
        m: &wire::ExchangeBind<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let binding = self.binding(
            core,
            &m.source,
            Destination::Exchange(m.destination.as_str()?.into()),
            m.routing_key,
            &m.arguments,
        )?;
        let check = host.check_bind(&binding);
        self.propose_binding(
            core,
            check,
            Command::Bind(binding),
            (40, 30),
            m.no_wait,
            Method::ExchangeBindOk,
            host,
        )
    }

    pub(crate) fn exchange_unbind(
        &mut self,
        core: &mut Core,
        m: &wire::ExchangeUnbind<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let binding = self.binding(
            core,
            &m.source,
            Destination::Exchange(m.destination.as_str()?.into()),
            m.routing_key,
            &m.arguments,
        )?;
        let check = host.check_unbind(&binding);
        self.propose_binding(
            core,
            check,
            Command::Unbind(binding),
            (40, 40),
            m.no_wait,
            Method::ExchangeUnbindOk,
            host,
        )
    }

    pub(crate) fn queue_bind(
        &mut self,
        core: &mut Core,
        m: &wire::QueueBind<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let (queue, key) = self.queue_and_key(m.queue, m.routing_key)?;
        let binding = self.binding(
            core,
            &m.exchange,
            Destination::Queue(queue),
            ShortStr::new(&key).unwrap_or_default(),
            &m.arguments,
        )?;
        let check = host.check_bind(&binding);
        self.propose_binding(
            core,
            check,
            Command::Bind(binding),
            (50, 20),
            m.no_wait,
            Method::QueueBindOk,
            host,
        )
    }

    pub(crate) fn queue_unbind(
        &mut self,
        core: &mut Core,
        m: &wire::QueueUnbind<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let (queue, key) = self.queue_and_key(m.queue, m.routing_key)?;
        let binding = self.binding(
            core,
            &m.exchange,
            Destination::Queue(queue),
            ShortStr::new(&key).unwrap_or_default(),
            &m.arguments,
        )?;
        let check = host.check_unbind(&binding);
        self.propose_binding(
            core,
            check,
            Command::Unbind(binding),
            (50, 50),
            false,
            Method::QueueUnbindOk,
            host,
        )
    }

    fn binding(
        &self,
        core: &Core,
        source: &ShortStr<'_>,
        destination: Destination,
        key: ShortStr<'_>,
        arguments: &wire::Table<'_>,
    ) -> Result<Binding, Fault> {
        Ok(Binding {
            vhost: core.vhost.clone(),
            source: source.as_str()?.into(),
            destination,
            key: key.as_str()?.into(),
            arguments: arguments.as_bytes().to_vec(),
            session: core.session,
        })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one request, named at each of its four callers"
    )]
    fn propose_binding(
        &mut self,
        core: &mut Core,
        check: Check,
        command: Command,
        method: (u16, u16),
        no_wait: bool,
        ok: Method<'static>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        let first = self.pending.is_empty();
        match check {
            Check::Equivalent(_) if first => self.answer(core, no_wait, ok),
            Check::Refused(refusal) if first => Err(refusal.into()),
            // What is under way may change the answer.
            Check::Refused(_) => Ok(Flow::Stall),
            Check::Equivalent(_) | Check::New => self.ask(
                core,
                Class::Binding,
                method,
                no_wait,
                Waiting::Declared(ok),
                Request::Propose(command),
                host,
            ),
        }
    }

    /// The queue that a name stands for, and the key that goes with it: an empty name is the channel's last declared queue, and then an empty key
    /// is that queue's name (AMQP 0-9-1, queue.bind).
    fn queue_and_key(
        &self,
        queue: ShortStr<'_>,
        key: ShortStr<'_>,
    ) -> Result<(String, Vec<u8>), Fault> {
        let name = self.queue_name(queue)?;
        let key = if queue.as_bytes().is_empty() && key.as_bytes().is_empty() {
            name.as_bytes()
        } else {
            key.as_bytes()
        };
        let key = key.to_vec();
        Ok((name, key))
    }

    pub(crate) fn queue_name(&self, queue: ShortStr<'_>) -> Result<String, Fault> {
        if !queue.as_bytes().is_empty() {
            return Ok(queue.as_str()?.into());
        }
        self.last_queue
            .clone()
            .ok_or_else(|| Refusal::not_found("no previously declared queue").into())
    }

    pub(crate) fn queue_declare(
        &mut self,
        core: &mut Core,
        m: &wire::QueueDeclare<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if m.passive {
            if !host.may_look_up()? {
                return Ok(Flow::Hold);
            }
            // Here the empty name does not stand for the last queue.
            let name = m.queue.as_str()?.to_owned();
            let queue = host.find_queue(&name)?;
            self.last_queue = Some(name.clone());
            if m.no_wait {
                return Ok(Flow::Done);
            }
            return self.ask(
                core,
                Class::Alone,
                (50, 10),
                false,
                Waiting::Counts(name),
                Request::Count(queue),
                host,
            );
        }
        let server_named = m.queue.as_bytes().is_empty();
        let name = if server_named {
            format!("amq.gen-{}", host.unique())
        } else {
            m.queue.as_str()?.to_owned()
        };
        if self
            .pending
            .iter()
            .any(|p| matches!(&p.waiting, Waiting::Queue(c) if c.name == name))
        {
            return Ok(Flow::Stall);
        }
        let command = DeclareQueue {
            vhost: core.vhost.clone(),
            place: host.choose_place(&name, m.durable, m.exclusive),
            name,
            durable: m.durable,
            exclusive: m.exclusive,
            auto_delete: m.auto_delete,
            server_named,
            arguments: m.arguments.as_bytes().to_vec(),
            session: core.session,
        };
        let first = self.pending.is_empty();
        match host.check_queue(&command) {
            Check::Refused(refusal) if first => Err(refusal.into()),
            Check::Refused(_) => Ok(Flow::Stall),
            Check::Equivalent(warren_model::Outcome::Queue { id, place, .. }) if first => {
                self.last_queue = Some(command.name.clone());
                host.queue_declared();
                if m.no_wait {
                    return Ok(Flow::Done);
                }
                let queue = warren_model::QueueRef { id, place };
                self.ask(
                    core,
                    Class::Alone,
                    (50, 10),
                    false,
                    Waiting::Counts(command.name),
                    Request::Count(queue),
                    host,
                )
            }
            Check::Equivalent(_) | Check::New => {
                let waiting = Waiting::Queue(Box::new(command.clone()));
                self.ask(
                    core,
                    Class::Queue,
                    (50, 10),
                    m.no_wait,
                    waiting,
                    Request::Propose(Command::DeclareQueue(command)),
                    host,
                )
            }
        }
    }

    pub(crate) fn queue_purge(
        &mut self,
        core: &mut Core,
        m: &wire::QueuePurge<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !host.may_look_up()? {
            return Ok(Flow::Hold);
        }
        let name = self.queue_name(m.queue)?;
        host.may_read(&name)?;
        let queue = host.find_queue(&name)?;
        self.ask(
            core,
            Class::Alone,
            (50, 30),
            m.no_wait,
            Waiting::Purged,
            Request::Purge(queue),
            host,
        )
    }

    pub(crate) fn queue_delete(
        &mut self,
        core: &mut Core,
        m: &wire::QueueDelete<'_>,
        host: &mut impl Host,
    ) -> Result<Flow, Fault> {
        if !host.may_look_up()? {
            return Ok(Flow::Hold);
        }
        let name = self.queue_name(m.queue)?;
        host.may_configure(&name)?;
        match host.find_queue(&name) {
            Ok(queue) => {
                let request = Request::Delete {
                    queue,
                    name,
                    if_unused: m.if_unused,
                    if_empty: m.if_empty,
                };
                self.ask(
                    core,
                    Class::Alone,
                    (50, 40),
                    m.no_wait,
                    Waiting::Deleted,
                    request,
                    host,
                )
            }
            // What is not there counts as deleted.
            Err(refusal) if refusal.code == wire::NOT_FOUND => self.answer(
                core,
                m.no_wait,
                Method::QueueDeleteOk(wire::QueueDeleteOk { message_count: 0 }),
            ),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
