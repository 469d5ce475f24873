//! Declaring, binding and the like: each asks its check first and records what is new.

use crate::apply::{Applied, Event};
use crate::arguments;
use crate::bindings::{Chain, End, List};
use crate::check::Check;
use crate::exchange::{Exchange, Matcher, NewBinding, PREDECLARED, Store};
use crate::limits::Limits;
use crate::names::Symbol;
use crate::policy::Policies;
use crate::queue::Queue;
use crate::record::{self, BindingKey, QueueValue};
use crate::table::{Table, Vhost};
use crate::text;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use warren_model::command::{
    Binding, DeclareExchange, DeclareQueue, Permission, Place, User, VhostDetails,
};
use warren_model::{Outcome, QueueId, Refusal};

impl Table {
    pub(crate) fn put_vhost(&mut self, name: &str, applied: &mut Applied) -> Result<(), Refusal> {
        if self.find_vhost(name).is_some() {
            return Ok(());
        }
        let vhost = self.index_vhost(name);
        self.put(applied, record::vhost_key(name), record::vhost_value());
        for (exchange, kind) in PREDECLARED {
            let exchange = Exchange::new(vhost, exchange, kind, [true, false, false], b"", name)?;
            self.record_exchange(exchange, applied);
        }
        Ok(())
    }

    pub(crate) fn index_vhost(&mut self, name: &str) -> u32 {
        let name: Arc<str> = name.into();
        let vhost = self.vhosts.insert(Vhost {
            name: Arc::clone(&name),
            exchanges: BTreeMap::new(),
            queues: BTreeMap::new(),
            policies: Policies::default(),
            limits: Limits::new(),
            details: VhostDetails::default(),
        });
        self.vhost_numbers.insert(name, vhost);
        vhost
    }

    pub(crate) fn put_user(&mut self, user: &User, applied: &mut Applied) -> Result<(), Refusal> {
        let (key, value) = (record::user_key(&user.name), record::user_value(user));
        match self.users.insert(user.name.clone(), user.clone()) {
            Some(before) if before == *user => return Ok(()),
            Some(before) => self.replace(applied, key, &record::user_value(&before), value),
            None => self.put(applied, key, value),
        }
        applied.events.push(Event::UserChanged {
            name: user.name.clone(),
        });
        Ok(())
    }

    pub(crate) fn delete_user(&mut self, name: &str, applied: &mut Applied) -> Result<(), Refusal> {
        let Some(user) = self.users.remove(name) else {
            return Ok(());
        };
        self.erase(applied, record::user_key(name), &record::user_value(&user));
        for permission in self
            .permissions
            .remove(name)
            .unwrap_or_default()
            .into_values()
        {
            self.erase(
                applied,
                record::permission_key(name, &permission.vhost),
                &record::permission_value(&permission),
            );
        }
        self.drop_topic_permissions(Some(name), None, applied);
        self.erase_user_limits(name, applied);
        applied.events.push(Event::UserChanged {
            name: name.to_owned(),
        });
        Ok(())
    }

    pub(crate) fn set_permission(
        &mut self,
        permission: &Permission,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        self.vhost(&permission.vhost)?;
        if !self.users.contains_key(&permission.user) {
            return Err(Refusal::not_found(format!("no user '{}'", permission.user)));
        }
        let (key, value) = (
            record::permission_key(&permission.user, &permission.vhost),
            record::permission_value(permission),
        );
        let by_vhost = self.permissions.entry(permission.user.clone()).or_default();
        match by_vhost.insert(permission.vhost.clone(), permission.clone()) {
            Some(before) if before == *permission => return Ok(()),
            Some(before) => self.replace(applied, key, &record::permission_value(&before), value),
            None => self.put(applied, key, value),
        }
        applied.events.push(Event::UserChanged {
            name: permission.user.clone(),
        });
        Ok(())
    }

    pub(crate) fn clear_permission(
        &mut self,
        user: &str,
        vhost: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let Some(by_vhost) = self.permissions.get_mut(user) else {
            return Ok(());
        };
        let Some(before) = by_vhost.remove(vhost) else {
            return Ok(());
        };
        if by_vhost.is_empty() {
            self.permissions.remove(user);
        }
        self.erase(
            applied,
            record::permission_key(user, vhost),
            &record::permission_value(&before),
        );
        applied.events.push(Event::UserChanged {
            name: user.to_owned(),
        });
        Ok(())
    }

    pub(crate) fn declare_exchange(
        &mut self,
        declare: &DeclareExchange,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        match self.check_exchange(declare) {
            Check::Equivalent(_) => Ok(()),
            Check::Refused(refusal) => Err(refusal),
            Check::New => {
                let vhost = self.vhost(&declare.vhost)?;
                let flags = [declare.durable, declare.auto_delete, declare.internal];
                let exchange = Exchange::new(
                    vhost,
                    &declare.name,
                    &declare.kind,
                    flags,
                    &declare.arguments,
                    &declare.vhost,
                )?;
                self.record_exchange(exchange, applied);
                Ok(())
            }
        }
    }

    fn record_exchange(&mut self, exchange: Exchange, applied: &mut Applied) {
        let key = record::exchange_key(self.vhost_name(exchange.vhost), &exchange.name);
        self.put(applied, key, exchange.to_value());
        self.index_exchange(exchange);
    }

    pub(crate) fn declare_queue(
        &mut self,
        id: QueueId,
        declare: &DeclareQueue,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let declare = &*self.with_default_type(declare);
        match Check::from(self.try_queue(declare)) {
            Check::Equivalent(outcome) => return Ok(outcome),
            Check::Refused(refusal) => return Err(refusal),
            Check::New => {}
        }
        if !self.can_place(declare) {
            return Ok(Outcome::Retry);
        }
        let queue = Queue {
            id,
            place: declare.place,
            vhost: self.vhost(&declare.vhost)?,
            name: declare.name.as_str().into(),
            durable: declare.durable,
            auto_delete: declare.auto_delete,
            exclusive: declare.exclusive.then_some(declare.session),
            arguments: declare.arguments.as_slice().into(),
            bound: Chain::default(),
        };
        self.put(
            applied,
            record::queue_key(&declare.vhost, &declare.name),
            record::queue_value(&queue.as_record()),
        );
        self.index_queue(queue);
        applied.events.push(Event::QueueCreated {
            id,
            place: declare.place,
        });
        Ok(Outcome::Queue {
            id,
            place: declare.place,
            created: true,
        })
    }

    /// Whether the place exists, and somebody will see to it that the queue goes when it has to: an incarnation that has ended takes
    /// nothing along any more.
    fn can_place(&self, declare: &DeclareQueue) -> bool {
        let placed = match declare.place {
            Place::Node(node, incarnation) => self.is_up(node, incarnation),
            Place::Shard(shard) => self.cluster.is_some_and(|(_, shards)| shard.0 < shards),
        };
        placed
            && (!declare.exclusive || self.is_up(declare.session.node, declare.session.incarnation))
    }

    pub(crate) fn bind(&mut self, binding: &Binding, applied: &mut Applied) -> Result<(), Refusal> {
        match self.check_bind(binding) {
            Check::Equivalent(_) => return Ok(()),
            Check::Refused(refusal) => return Err(refusal),
            Check::New => {}
        }
        let ends = self.ends(binding)?;
        let (Some(source), Some(destination)) = (ends.source, ends.destination) else {
            return Err(text::no_exchange(&binding.vhost, &binding.source));
        };
        let arguments = arguments::canonical(arguments::parse(&binding.arguments)?);
        let number = self.index_binding(source, destination, &binding.key, &arguments);
        let key = self.binding_record_key(number);
        self.put(applied, key, record::binding_value());
        Ok(())
    }

    pub(crate) fn unbind(
        &mut self,
        binding: &Binding,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        match self.check_unbind(binding) {
            Check::Equivalent(_) => return Ok(()),
            Check::Refused(refusal) => return Err(refusal),
            Check::New => {}
        }
        if let Some(number) = self.find_binding(binding)? {
            let mut unused = Vec::new();
            self.drop_binding(number, &mut unused, applied);
            self.delete_unused(unused, applied);
        }
        Ok(())
    }

    /// Takes a binding that is not there yet into the indexes. `arguments` are in canonical form.
    pub(crate) fn index_binding(
        &mut self,
        source: u32,
        destination: End,
        key: &[u8],
        arguments: &[u8],
    ) -> u32 {
        let key_symbol = self.names.acquire(key);
        let arguments_symbol = self.names.acquire(arguments);
        let number = self
            .bindings
            .insert(source, destination, key_symbol, arguments_symbol);
        let destination_name = Arc::clone(self.end_name(destination));
        let bound = self.bound_mut(destination);
        bound.len += 1;
        let mut head = bound.head;
        self.bindings.link(List::Destination, &mut head, number);
        self.bound_mut(destination).head = head;
        let exchange = &mut self.exchanges[source];
        exchange.sources.len += 1;
        self.bindings
            .link(List::Source, &mut exchange.sources.head, number);
        let added = NewBinding {
            number,
            destination,
            destination_name: &destination_name,
            key,
            // Whoever calls has parsed them.
            arguments: warren_protocol::Table::parse(arguments).unwrap_or_default(),
        };
        exchange.matcher.add(
            &mut Store {
                bindings: &mut self.bindings,
                names: &mut self.names,
            },
            &added,
        );
        number
    }

    pub(crate) fn find_binding(&self, binding: &Binding) -> Result<Option<u32>, Refusal> {
        let ends = self.ends(binding)?;
        let (Some(source), Some(destination)) = (ends.source, ends.destination) else {
            return Ok(None);
        };
        let arguments = arguments::canonical(arguments::parse(&binding.arguments)?);
        let (Some(key), Some(arguments)) =
            (self.names.find(&binding.key), self.names.find(&arguments))
        else {
            return Ok(None);
        };
        Ok(self.bindings.find(source, destination, key, arguments))
    }

    pub(crate) fn binding_record_key(&self, number: u32) -> Vec<u8> {
        let binding = self.bindings.get(number);
        let source = &self.exchanges[binding.source];
        record::binding_key(&BindingKey {
            vhost: Cow::Borrowed(self.vhost_name(source.vhost)),
            source: Cow::Borrowed(&source.name),
            to_exchange: binding.destination.as_exchange().is_some(),
            destination: Cow::Borrowed(self.end_name(binding.destination)),
            key: Cow::Borrowed(self.names.get(binding.key)),
            arguments: Cow::Borrowed(self.symbol_bytes(binding.arguments)),
        })
    }

    pub(crate) fn symbol_bytes(&self, symbol: Symbol) -> &[u8] {
        self.names.get(symbol)
    }
}

impl Exchange {
    /// `flags`: durable, auto-delete, internal.
    pub fn new(
        vhost: u32,
        name: &str,
        kind: &str,
        flags: [bool; 3],
        raw: &[u8],
        vhost_name: &str,
    ) -> Result<Self, Refusal> {
        let arguments = arguments::parse(raw)?;
        let described = text::exchange(vhost_name, name);
        let alternate = match arguments.get("alternate-exchange") {
            None => None,
            Some(value) => match arguments::as_text(&value) {
                Some(alternate) => Some(String::from_utf8_lossy(alternate).into()),
                None => {
                    let kind = value.type_name();
                    return Err(Refusal::precondition_failed(format!(
                        "invalid type '{kind}' for arg 'alternate-exchange' in {described}"
                    )));
                }
            },
        };
        let matcher = Matcher::new(kind, arguments, &described)
            .ok_or_else(|| crate::check::unknown_type(kind))??;
        let [durable, auto_delete, internal] = flags;
        Ok(Self {
            vhost,
            name: name.into(),
            durable,
            auto_delete,
            internal,
            arguments: raw.into(),
            alternate,
            policy_alternate: None,
            sources: Chain::default(),
            bound: Chain::default(),
            matcher,
        })
    }

    pub fn to_value(&self) -> Vec<u8> {
        record::exchange_value(
            self.matcher.name(),
            self.durable,
            self.auto_delete,
            self.internal,
            &self.arguments,
        )
    }
}

impl Queue {
    pub fn as_record(&self) -> QueueValue<'_> {
        QueueValue {
            id: self.id,
            place: self.place,
            durable: self.durable,
            auto_delete: self.auto_delete,
            exclusive: self.exclusive,
            arguments: &self.arguments,
        }
    }
}
