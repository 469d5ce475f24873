//! Deleting, with all that goes along in the same command: bindings, auto-delete exchanges that lose their last binding, and so on.
//!
//! Cost: in proportion to what is deleted. Deleting a queue walks its own list of bindings, never the exchanges'.

use crate::apply::{Applied, Event};
use crate::bindings::{End, List};
use crate::exchange::Store;
use crate::record;
use crate::slab::NONE;
use crate::table::Table;
use crate::text;
use warren_model::{Outcome, QueueId, Refusal, SessionId};

impl Table {
    pub(crate) fn delete_queue_command(
        &mut self,
        vhost: &str,
        name: &str,
        only: Option<QueueId>,
        session: SessionId,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        let number = self.vhost(vhost)?;
        let Some(slot) = self.find_queue(number, name.as_bytes()) else {
            return Ok(Outcome::Done);
        };
        let queue = &self.queues[slot];
        if only.is_some_and(|only| only != queue.id) {
            return Ok(Outcome::Done);
        }
        // The owner's node itself may clean up (last consumer gone, expired) the one life of a queue that it means.
        let housekeeping = session.number == 0 && only.is_some();
        if !housekeeping && queue.exclusive.is_some_and(|owner| owner != session) {
            return Err(text::locked(vhost, name));
        }
        let outcome = Outcome::Queue {
            id: queue.id,
            place: queue.place,
            created: false,
        };
        self.delete_queues(&[queue.id], applied);
        Ok(outcome)
    }

    pub(crate) fn delete_exchange_command(
        &mut self,
        vhost: &str,
        name: &str,
        if_unused: bool,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let number = self.vhost(vhost)?;
        if name.is_empty() {
            return Err(text::default_exchange());
        }
        if name.starts_with("amq.") {
            return Err(Refusal::access_refused(format!(
                "deletion of system {} not allowed",
                text::exchange(vhost, name)
            )));
        }
        let Some(slot) = self.find_exchange(number, name.as_bytes()) else {
            return Ok(());
        };
        if if_unused && self.exchanges[slot].sources.len > 0 {
            return Err(Refusal::precondition_failed(format!(
                "{} in use",
                text::exchange(vhost, name)
            )));
        }
        self.delete_exchange(slot, applied);
        Ok(())
    }

    pub(crate) fn delete_vhost(
        &mut self,
        name: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let Some(vhost) = self.find_vhost(name) else {
            return Ok(());
        };
        let queues: Vec<QueueId> = self.vhosts[vhost]
            .queues
            .values()
            .map(|slot| self.queues[*slot].id)
            .collect();
        self.delete_queues(&queues, applied);
        while let Some(slot) = self.vhosts[vhost].exchanges.values().next().copied() {
            self.delete_exchange(slot, applied);
        }
        let users: Vec<String> = self
            .permissions
            .iter()
            .filter(|(_, by_vhost)| by_vhost.contains_key(name))
            .map(|(user, _)| user.clone())
            .collect();
        for user in users {
            self.clear_permission(&user, name, applied)?;
        }
        self.drop_topic_permissions(None, Some(name), applied);
        self.erase_policies(vhost, applied);
        self.erase_vhost_limits(vhost, applied);
        self.erase_parameters(name, applied);
        self.erase_vhost_details(vhost, applied);
        self.vhosts.remove(vhost);
        self.vhost_numbers.remove(name);
        self.erase(applied, record::vhost_key(name), &record::vhost_value());
        applied.events.push(Event::VhostDeleted {
            name: name.to_owned(),
        });
        Ok(())
    }

    /// Deletes queues in the order given; ids that are not known are passed over.
    pub(crate) fn delete_queues(&mut self, ids: &[QueueId], applied: &mut Applied) {
        for id in ids {
            let Some(slot) = self.find_queue_id(*id) else {
                continue;
            };
            let mut unused = Vec::new();
            while let Some(binding) = first(self.queues[slot].bound.head) {
                self.drop_binding(binding, &mut unused, applied);
            }
            let queue = self.unindex_queue(slot);
            let vhost = self.vhost_name(queue.vhost).to_string();
            let name = queue.name.to_string();
            self.erase(
                applied,
                record::queue_key(&vhost, &name),
                &record::queue_value(&queue.as_record()),
            );
            applied.events.push(Event::QueueDeleted {
                id: queue.id,
                vhost,
                name,
                place: queue.place,
            });
            self.delete_unused(unused, applied);
        }
    }

    pub(crate) fn delete_exchange(&mut self, slot: u32, applied: &mut Applied) {
        let mut unused = Vec::new();
        self.delete_one_exchange(slot, &mut unused, applied);
        self.delete_unused(unused, applied);
    }

    /// Deletes the auto-delete exchanges among those that lost their last binding, and what that leaves unused in turn.
    pub(crate) fn delete_unused(&mut self, mut unused: Vec<u32>, applied: &mut Applied) {
        // Nothing is created meanwhile, so a slot that is used still holds the exchange that was meant.
        while let Some(slot) = unused.pop() {
            if self.exchanges.get(slot).is_some() {
                self.delete_one_exchange(slot, &mut unused, applied);
            }
        }
    }

    fn delete_one_exchange(&mut self, slot: u32, unused: &mut Vec<u32>, applied: &mut Applied) {
        while let Some(binding) = first(self.exchanges[slot].sources.head) {
            self.drop_binding(binding, unused, applied);
        }
        while let Some(binding) = first(self.exchanges[slot].bound.head) {
            self.drop_binding(binding, unused, applied);
        }
        let exchange = self.unindex_exchange(slot);
        let vhost = self.vhost_name(exchange.vhost).to_string();
        self.erase(
            applied,
            record::exchange_key(&vhost, &exchange.name),
            &exchange.to_value(),
        );
        applied.events.push(Event::ExchangeDeleted {
            vhost,
            name: exchange.name.to_string(),
        });
    }

    /// Deletes one binding; its source goes to `unused` if it is an auto-delete exchange and this was its last.
    pub(crate) fn drop_binding(
        &mut self,
        number: u32,
        unused: &mut Vec<u32>,
        applied: &mut Applied,
    ) {
        let key = self.binding_record_key(number);
        self.erase(applied, key, &record::binding_value());
        let (source, destination) = {
            let binding = self.bindings.get(number);
            (binding.source, binding.destination)
        };
        let exchange = &mut self.exchanges[source];
        exchange.matcher.remove(
            &mut Store {
                bindings: &mut self.bindings,
                names: &mut self.names,
            },
            number,
        );
        self.bindings
            .unlink(List::Source, &mut exchange.sources.head, number);
        exchange.sources.len -= 1;
        if exchange.auto_delete && exchange.sources.len == 0 {
            unused.push(source);
        }
        let bound = self.bound_mut(destination);
        bound.len -= 1;
        let mut head = bound.head;
        self.bindings.unlink(List::Destination, &mut head, number);
        self.bound_mut(destination).head = head;
        let binding = self.bindings.remove(number);
        self.names.release(binding.key);
        self.names.release(binding.arguments);
    }

    /// The list of bindings that lead to a queue or exchange.
    pub(crate) fn bound_mut(&mut self, end: End) -> &mut crate::bindings::Chain {
        match (end.as_queue(), end.as_exchange()) {
            (Some(queue), _) => &mut self.queues[queue].bound,
            (None, Some(exchange)) => &mut self.exchanges[exchange].bound,
            (None, None) => unreachable!("an end is one or the other"),
        }
    }
}

fn first(head: u32) -> Option<u32> {
    (head != NONE).then_some(head)
}
