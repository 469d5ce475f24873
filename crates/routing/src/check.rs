//! Checks of declares and binds: what sessions ask before they propose a command, and what `apply` asks before it carries one out.
//!
//! Order of the checks where several fail: an exclusive queue of another session (405) comes before everything else.

use crate::arguments;
use crate::bindings::End;
use crate::exchange::{Exchange, Matcher};
use crate::queue::Queue;
use crate::queue_arguments;
use crate::table::Table;
use crate::text;
use crate::view::QueueView;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination};
use warren_model::{Outcome, Refusal, SessionId};

/// What a command would do to this table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// Nothing: things are as asked already. What the command would answer.
    Equivalent(Outcome),
    /// It would succeed and change the table.
    New,
    /// It would be refused.
    Refused(Refusal),
}

impl Check {
    pub(crate) fn from(result: Result<Self, Refusal>) -> Self {
        result.unwrap_or_else(Self::Refused)
    }
}

/// The two ends of a binding, as far as they exist.
pub(crate) struct Ends {
    pub source: Option<u32>,
    pub destination: Option<End>,
}

/// RabbitMQ 4.3 refuses the declare (406); releases before 4 closed the connection (503).
pub(crate) fn unknown_type(kind: &str) -> Refusal {
    Refusal::precondition_failed(format!("unknown exchange type '{kind}'"))
}

impl Table {
    /// What declaring an exchange would do.
    pub fn check_exchange(&self, declare: &DeclareExchange) -> Check {
        Check::from(self.try_exchange(declare))
    }

    fn try_exchange(&self, declare: &DeclareExchange) -> Result<Check, Refusal> {
        let DeclareExchange {
            vhost,
            name,
            kind,
            durable,
            auto_delete,
            internal,
            arguments,
        } = declare;
        let number = self.vhost(vhost)?;
        if !Matcher::is_known(kind) {
            return Err(unknown_type(kind));
        }
        if name.is_empty() {
            return Err(text::default_exchange());
        }
        let Some(slot) = self.find_exchange(number, name.as_bytes()) else {
            if name.starts_with("amq.") {
                return Err(text::reserved("exchange", name));
            }
            return Exchange::new(
                number,
                name,
                kind,
                [*durable, *auto_delete, *internal],
                arguments,
                vhost,
            )
            .map(|_| Check::New);
        };
        let known = &self.exchanges[slot];
        let described = text::exchange(vhost, name);
        same_field("type", &described, kind.as_str(), known.matcher.name())?;
        same_field("durable", &described, *durable, known.durable)?;
        same_field("auto_delete", &described, *auto_delete, known.auto_delete)?;
        same_field("internal", &described, *internal, known.internal)?;
        same_arguments(
            &["alternate-exchange"],
            &described,
            arguments,
            &known.arguments,
        )?;
        Ok(Check::Equivalent(Outcome::Done))
    }

    /// What declaring a queue would do. Whether its place is still good is not looked at.
    pub fn check_queue(&self, declare: &DeclareQueue) -> Check {
        Check::from(self.try_queue(&self.with_default_type(declare)))
    }

    /// The declaration names its type already, if it has to.
    pub(crate) fn try_queue(&self, declare: &DeclareQueue) -> Result<Check, Refusal> {
        let DeclareQueue {
            vhost,
            name,
            durable,
            exclusive,
            auto_delete,
            server_named,
            arguments,
            session,
            place: _,
        } = declare;
        let number = self.vhost(vhost)?;
        let Some(slot) = self.find_queue(number, name.as_bytes()) else {
            if name.starts_with("amq.") && !server_named {
                return Err(text::reserved("queue", name));
            }
            self.check_queue_limit(number, name)?;
            queue_arguments::check(declare)?;
            return Ok(Check::New);
        };
        let known = &self.queues[slot];
        if known.exclusive != exclusive.then_some(*session) {
            return Err(text::locked(vhost, name));
        }
        let described = text::queue(vhost, name);
        same_field("durable", &described, *durable, known.durable)?;
        same_field("auto_delete", &described, *auto_delete, known.auto_delete)?;
        same_arguments(
            queue_arguments::compared(&known.arguments),
            &described,
            arguments,
            &known.arguments,
        )?;
        Ok(Check::Equivalent(Outcome::Queue {
            id: known.id,
            place: known.place,
            created: false,
        }))
    }

    /// What queue.bind or exchange.bind would do.
    pub fn check_bind(&self, binding: &Binding) -> Check {
        Check::from(self.try_bind(binding))
    }

    fn try_bind(&self, binding: &Binding) -> Result<Check, Refusal> {
        let ends = self.ends(binding)?;
        let Some(source) = ends.source else {
            return Err(text::no_exchange(&binding.vhost, &binding.source));
        };
        if ends.destination.is_none() {
            return Err(match &binding.destination {
                Destination::Queue(name) => text::no_queue(&binding.vhost, name),
                Destination::Exchange(name) => text::no_exchange(&binding.vhost, name),
            });
        }
        self.exchanges[source]
            .matcher
            .check_binding(&binding.key, arguments::parse(&binding.arguments)?)?;
        match self.find_binding(binding)? {
            Some(_) => Ok(Check::Equivalent(Outcome::Done)),
            None => Ok(Check::New),
        }
    }

    /// What queue.unbind or exchange.unbind would do. What is not there needs no unbinding: missing ends are no error.
    pub fn check_unbind(&self, binding: &Binding) -> Check {
        Check::from(self.find_binding(binding).map(|known| match known {
            Some(_) => Check::New,
            None => Check::Equivalent(Outcome::Done),
        }))
    }

    /// Both ends of a binding, after the checks that binding and unbinding share.
    pub(crate) fn ends(&self, binding: &Binding) -> Result<Ends, Refusal> {
        let vhost = self.vhost(&binding.vhost)?;
        let destination = match &binding.destination {
            Destination::Queue(name) => self.find_queue(vhost, name.as_bytes()).map(End::queue),
            Destination::Exchange(name) if name.is_empty() => return Err(text::default_exchange()),
            Destination::Exchange(name) => self
                .find_exchange(vhost, name.as_bytes())
                .map(End::exchange),
        };
        if let Some(slot) = destination.and_then(End::as_queue) {
            self.queues[slot].check_lock(&binding.vhost, binding.session)?;
        }
        if binding.source.is_empty() {
            return Err(text::default_exchange());
        }
        Ok(Ends {
            source: self.find_exchange(vhost, binding.source.as_bytes()),
            destination,
        })
    }

    /// The queue of that name, if the session may touch it: for passive declares, and for all methods that name a queue.
    ///
    /// # Errors
    /// 404 if it does not exist, 405 if it is another session's.
    pub fn check_passive_queue(
        &self,
        vhost: &str,
        name: &str,
        session: SessionId,
    ) -> Result<QueueView<'_>, Refusal> {
        let number = self.vhost(vhost)?;
        let slot = self
            .find_queue(number, name.as_bytes())
            .ok_or_else(|| text::no_queue(vhost, name))?;
        self.queues[slot].check_lock(vhost, session)?;
        Ok(self.queue_view(slot))
    }

    /// Whether an exchange of that name exists: for passive declares.
    ///
    /// # Errors
    /// 404 if it does not, 403 for the default exchange.
    pub fn check_passive_exchange(&self, vhost: &str, name: &str) -> Result<(), Refusal> {
        let number = self.vhost(vhost)?;
        if name.is_empty() {
            return Err(text::default_exchange());
        }
        self.find_exchange(number, name.as_bytes())
            .map(drop)
            .ok_or_else(|| text::no_exchange(vhost, name))
    }
}

impl Queue {
    fn check_lock(&self, vhost: &str, session: SessionId) -> Result<(), Refusal> {
        match self.exclusive {
            Some(owner) if owner != session => Err(text::locked(vhost, &self.name)),
            Some(_) | None => Ok(()),
        }
    }
}

fn same_field<T: PartialEq + std::fmt::Display>(
    argument: &str,
    resource: &str,
    received: T,
    current: T,
) -> Result<(), Refusal> {
    if received == current {
        return Ok(());
    }
    Err(text::inequivalent(
        argument,
        resource,
        &format!("'{received}'"),
        &format!("'{current}'"),
    ))
}

fn same_arguments(
    compared: &[&str],
    resource: &str,
    received: &[u8],
    current: &[u8],
) -> Result<(), Refusal> {
    let (received, current) = (arguments::parse(received)?, arguments::parse(current)?);
    for argument in compared {
        let (received, current) = (received.get(argument), current.get(argument));
        let same = match (&received, &current) {
            (None, None) => true,
            (Some(received), Some(current)) => arguments::same(received, current),
            (Some(one), None) | (None, Some(one)) => {
                *argument == queue_arguments::TYPE && queue_arguments::is_default_type(one)
            }
        };
        if !same {
            let (received, current) = (
                arguments::shown_with_type(received.as_ref()),
                arguments::shown_with_type(current.as_ref()),
            );
            return Err(text::inequivalent(argument, resource, &received, &current));
        }
    }
    Ok(())
}
