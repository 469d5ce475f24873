//! What is said of virtual hosts, and the type that they give to queues.
//!
//! As in RabbitMQ, the default type becomes an argument of a queue whose declaration names no type, if such a queue can be of that type. So a queue keeps
//! its type when the default changes, and a declaration that names none is compared as if it named the present default.

use crate::apply::Applied;
use crate::arguments;
use crate::queue_arguments::{self, DEFAULT_TYPE, TYPE};
use crate::record;
use crate::table::Table;
use crate::view::QueueView;
use std::borrow::Cow;
use warren_model::Refusal;
use warren_model::command::{DeclareQueue, VhostDetails};
use warren_protocol::{Table as FieldTable, TableBuilder, Value};

fn record_of(details: &VhostDetails) -> Option<Vec<u8>> {
    (*details != VhostDetails::default()).then(|| record::vhost_details_value(details))
}

impl Table {
    pub(crate) fn set_vhost_details(
        &mut self,
        vhost: &str,
        details: &VhostDetails,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let number = self.vhost(vhost)?;
        if let Some(kind) = &details.default_queue_type
            && !queue_arguments::queue_types().any(|known| known == kind)
        {
            return Err(Refusal::precondition_failed(format!(
                "unsupported default queue type '{kind}' of vhost '{vhost}'"
            )));
        }
        let before = std::mem::replace(&mut self.vhosts[number].details, details.clone());
        if before != *details {
            let key = record::vhost_details_key(vhost);
            self.exchange_record(applied, key, record_of(&before), record_of(details));
        }
        Ok(())
    }

    /// The virtual host is about to go.
    pub(crate) fn erase_vhost_details(&mut self, number: u32, applied: &mut Applied) {
        let details = std::mem::take(&mut self.vhosts[number].details);
        let key = record::vhost_details_key(self.vhost_name(number));
        self.exchange_record(applied, key, record_of(&details), None);
    }

    pub(crate) fn load_vhost_details(
        &mut self,
        vhost: &str,
        details: VhostDetails,
    ) -> Result<(), &'static str> {
        let number = self
            .find_vhost(vhost)
            .ok_or("its virtual host is missing")?;
        if details == VhostDetails::default() {
            return Err("it says nothing");
        }
        let before = std::mem::replace(&mut self.vhosts[number].details, details);
        if before == VhostDetails::default() {
            Ok(())
        } else {
            Err("it is given twice")
        }
    }

    pub(crate) fn vhost_details_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        self.vhost_numbers.iter().filter_map(|(name, number)| {
            let value = record_of(&self.vhosts[*number].details)?;
            Some((record::vhost_details_key(name), value))
        })
    }

    /// What is said of a virtual host.
    pub fn vhost_details(&self, name: &str) -> Option<&VhostDetails> {
        Some(&self.vhosts[self.find_vhost(name)?].details)
    }

    /// The declaration with the type that its virtual host gives to queues, if it gives one to this.
    pub(crate) fn with_default_type<'a>(&self, declare: &'a DeclareQueue) -> Cow<'a, DeclareQueue> {
        let flags = [declare.durable, declare.exclusive, declare.auto_delete];
        match self.default_type(&declare.vhost, flags, &declare.arguments) {
            None => Cow::Borrowed(declare),
            Some(kind) => Cow::Owned(DeclareQueue {
                arguments: with_type(&declare.arguments, kind),
                ..declare.clone()
            }),
        }
    }

    /// The type that a virtual host gives to a queue that is declared so. `flags`: durable, exclusive, auto-delete.
    fn default_type(&self, vhost: &str, flags: [bool; 3], arguments: &[u8]) -> Option<&str> {
        let details = self.vhost_details(vhost)?;
        let kind = details.default_queue_type.as_deref()?;
        let [durable, exclusive, auto_delete] = flags;
        let suits = queue_arguments::suits(kind, durable, exclusive, auto_delete);
        // What is malformed is refused elsewhere.
        let names_none = arguments::parse(arguments).is_ok_and(|table| table.get(TYPE).is_none());
        (suits && names_none).then_some(kind)
    }

    /// A queue's arguments, with its type where a declaration of the like would get another type by default.
    pub fn redeclarable_arguments<'a>(&self, queue: &QueueView<'a>) -> Cow<'a, [u8]> {
        let flags = [queue.durable, queue.exclusive.is_some(), queue.auto_delete];
        match self.default_type(queue.vhost, flags, queue.arguments) {
            Some(kind) if kind != DEFAULT_TYPE => {
                Cow::Owned(with_type(queue.arguments, DEFAULT_TYPE))
            }
            Some(_) | None => Cow::Borrowed(queue.arguments),
        }
    }
}

fn with_type(raw: &[u8], kind: &str) -> Vec<u8> {
    let mut builder = TableBuilder::new();
    for (key, value) in FieldTable::parse(raw).unwrap_or_default().iter() {
        builder.put_value(key.as_bytes(), &value);
    }
    builder.put_value(TYPE.as_bytes(), &Value::LongStr(kind.as_bytes()));
    builder.into_bytes()
}
