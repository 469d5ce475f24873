//! What a user may do with a resource: RabbitMQ's three regular expressions over names, compiled once and checked against the table's current text.
//!
//! Cost: a check is a map look-up, a string comparison and a match; the publish path asks once a remembered route.

use parking_lot::Mutex;
use regex::Regex;
use std::collections::BTreeMap;
use warren_model::command::{Binding, DeclareExchange, DeclareQueue, Destination};
use warren_model::{Command, Refusal};
use warren_protocol::{Table as FieldTable, Value};
use warren_routing::Table;

use crate::node::Node;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Declare, delete.
    Configure,
    /// Publish to, bind to.
    Write,
    /// Consume, purge, bind from.
    Read,
}

/// Compiled patterns of topic permissions that a session remembers.
const TOPICS_MAX: usize = 64;

/// A session's compiled patterns. A pattern is taken anew when its text has changed in the table.
#[derive(Debug, Default)]
pub(crate) struct Permissions {
    patterns: Mutex<[Option<Compiled>; 3]>,
    /// By exchange and whether it is about writing.
    topics: Mutex<BTreeMap<(String, bool), Compiled>>,
}

/// A pattern's text, and what it compiles to, if it does.
#[derive(Debug)]
struct Compiled {
    text: String,
    regex: Option<Regex>,
}

impl Permissions {
    /// Whether the user may do something with what has this name.
    pub(crate) fn allow(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        access: Access,
        name: &str,
    ) -> bool {
        table.permission(user, vhost).is_some_and(|permission| {
            let text = match access {
                Access::Configure => &permission.configure,
                Access::Write => &permission.write,
                Access::Read => &permission.read,
            };
            self.matches(access, text, name)
        })
    }

    /// Refuses (403) what the user may not do.
    pub(crate) fn check(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        access: Access,
        kind: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        if self.allow(table, user, vhost, access, name) {
            return Ok(());
        }
        Err(Refusal::access_refused(format!(
            "access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"
        )))
    }

    /// Refuses (403) the declaration of an exchange: it takes configure on it, and with an alternate exchange read on it and write on that one.
    pub(crate) fn check_exchange(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        declare: &DeclareExchange,
    ) -> Result<(), Refusal> {
        let may = |access, name: &str| self.check(table, user, vhost, access, "exchange", name);
        may(Access::Configure, &declare.name)?;
        let arguments = FieldTable::parse(&declare.arguments).unwrap_or_default();
        if let Some(Value::LongStr(alternate)) = arguments.get("alternate-exchange") {
            may(Access::Read, &declare.name)?;
            may(Access::Write, &String::from_utf8_lossy(alternate))?;
        }
        Ok(())
    }

    /// Refuses (403) the declaration of a queue: it takes configure on it, and with a dead-letter exchange read on it and write on that.
    pub(crate) fn check_queue(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        declare: &DeclareQueue,
    ) -> Result<(), Refusal> {
        let may = |access, kind, name: &str| self.check(table, user, vhost, access, kind, name);
        may(Access::Configure, "queue", &declare.name)?;
        let arguments = FieldTable::parse(&declare.arguments).unwrap_or_default();
        if let Some(Value::LongStr(exchange)) = arguments.get("x-dead-letter-exchange") {
            may(Access::Read, "queue", &declare.name)?;
            may(
                Access::Write,
                "exchange",
                &String::from_utf8_lossy(exchange),
            )?;
        }
        Ok(())
    }

    /// Refuses (403) a publish: it takes write on the exchange, and leave to write with the key.
    pub(crate) fn check_publish(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        exchange: &str,
        key: &[u8],
    ) -> Result<(), Refusal> {
        let name = if exchange.is_empty() {
            "amq.default"
        } else {
            exchange
        };
        self.check(table, user, vhost, Access::Write, "exchange", name)?;
        self.check_topic(table, user, vhost, Access::Write, exchange, key)
    }

    /// Refuses (403) binding and unbinding: it takes write on the destination, read on the source, and leave to read with the key.
    pub(crate) fn check_binding(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        binding: &Binding,
    ) -> Result<(), Refusal> {
        let may = |access, kind, name| self.check(table, user, vhost, access, kind, name);
        match &binding.destination {
            Destination::Queue(name) => may(Access::Write, "queue", name)?,
            Destination::Exchange(name) => may(Access::Write, "exchange", name)?,
        }
        may(Access::Read, "exchange", &binding.source)?;
        let (source, key) = (&binding.source, &binding.key);
        self.check_topic(table, user, vhost, Access::Read, source, key)
    }

    /// Refuses (403) routing keys that the user may not use with a topic exchange. Other exchanges take any.
    pub(crate) fn check_topic(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        access: Access,
        exchange: &str,
        key: &[u8],
    ) -> Result<(), Refusal> {
        let Some(permission) = table.topic_permission(user, vhost, exchange) else {
            return Ok(());
        };
        let is_topic = table
            .exchange(vhost, exchange)
            .is_some_and(|known| known.kind == "topic");
        let writes = access == Access::Write;
        let text = if writes {
            &permission.write
        } else {
            &permission.read
        };
        let key = String::from_utf8_lossy(key);
        if !is_topic || self.topic_matches(exchange, writes, text, [user, vhost], &key) {
            return Ok(());
        }
        Err(Refusal::access_refused(format!(
            "access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' refused for user '{user}'"
        )))
    }

    fn topic_matches(
        &self,
        exchange: &str,
        writes: bool,
        text: &str,
        [user, vhost]: [&str; 2],
        key: &str,
    ) -> bool {
        if text.is_empty() {
            return key.is_empty();
        }
        let mut topics = self.topics.lock();
        if topics.len() >= TOPICS_MAX {
            topics.clear();
        }
        let compiled = topics
            .entry((exchange.to_owned(), writes))
            .or_insert_with(|| Compiled {
                text: String::new(),
                regex: None,
            });
        if compiled.text != text {
            // What a name stands for is text, whatever it looks like.
            let expanded = text
                .replace("{username}", &regex::escape(user))
                .replace("{vhost}", &regex::escape(vhost));
            let regex = Regex::new(&expanded).inspect_err(|error| tracing::warn!(pattern = text, %error, "a topic permission's pattern cannot be used: it allows nothing")).ok();
            *compiled = Compiled {
                text: text.to_owned(),
                regex,
            };
        }
        let regex = compiled.regex.as_ref();
        regex.is_some_and(|regex| regex.is_match(key))
    }

    fn matches(&self, access: Access, text: &str, name: &str) -> bool {
        // The empty pattern means "nothing", as in RabbitMQ.
        match text {
            ".*" => return true,
            "" => return name.is_empty(),
            _ => {}
        }
        let mut patterns = self.patterns.lock();
        let slot = &mut patterns[access as usize];
        if slot.as_ref().is_none_or(|known| known.text != text) {
            let regex = Regex::new(text).inspect_err(|error| tracing::warn!(pattern = text, %error, "a permission pattern cannot be used: it allows nothing")).ok();
            *slot = Some(Compiled {
                text: text.to_owned(),
                regex,
            });
        }
        slot.as_ref()
            .and_then(|compiled| compiled.regex.as_ref())
            .is_some_and(|regex| regex.is_match(name))
    }
}

impl Node {
    /// Refuses (403) what a user may not publish.
    pub fn check_publish(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        exchange: &str,
        key: &[u8],
    ) -> Result<(), Refusal> {
        Permissions::default().check_publish(table, user, vhost, exchange, key)
    }

    /// Whether a user's messages do not go to a queue that they are routed to, because it may not write to that: never without write checks on queues.
    pub fn leaves_out(&self, table: &Table, user: &str, vhost: &str, queue: &str) -> bool {
        self.settings().queue_write_checks
            && !Permissions::default().allow(table, user, vhost, Access::Write, queue)
    }

    /// Refuses (403) a change of exchanges, queues or bindings that a user may not make over AMQP. Whether the user may see the virtual host is not asked here.
    pub fn check_change(&self, user: &str, command: &Command) -> Result<(), Refusal> {
        let table = self.metadata().table().read();
        let permissions = Permissions::default();
        let configures = |kind, vhost: &str, name: &str| {
            permissions.check(&table, user, vhost, Access::Configure, kind, name)
        };
        if let Command::DeclareExchange(declare) = command {
            permissions.check_exchange(&table, user, &declare.vhost, declare)
        } else if let Command::DeleteExchange { vhost, name, .. } = command {
            configures("exchange", vhost, name)
        } else if let Command::DeclareQueue(declare) = command {
            permissions.check_queue(&table, user, &declare.vhost, declare)
        } else if let Command::DeleteQueue { vhost, name, .. } = command {
            configures("queue", vhost, name)
        } else if let Command::Bind(binding) | Command::Unbind(binding) = command {
            permissions.check_binding(&table, user, &binding.vhost, binding)
        } else {
            Err(Refusal::access_refused(
                "this is nothing that permissions could allow",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_rabbitmq_and_follow_their_text() {
        let p = Permissions::default();
        assert!(p.matches(Access::Read, ".*", "anything"));
        assert!(!p.matches(Access::Read, "", "q"));
        assert!(!p.matches(Access::Read, "^$", "q"));
        assert!(p.matches(Access::Read, "^q-", "q-1"));
        assert!(!p.matches(Access::Read, "^q-", "x-q-1"));
        assert!(
            p.matches(Access::Write, "q", "x-q-1"),
            "not anchored unless it says so"
        );
        assert!(
            !p.matches(Access::Read, "(", "("),
            "an unusable pattern allows nothing"
        );
    }

    #[test]
    fn names_in_topic_patterns_are_text() {
        let p = Permissions::default();
        let matches = |text: &str, user: &str, key: &str| {
            Permissions::default().topic_matches("x", true, text, [user, "/"], key)
        };
        assert!(matches(r"^{username}\.", "a.b", "a.b.c"));
        assert!(!matches(r"^{username}\.", "a.b", "axb.c"));
        assert!(matches("{vhost}$", "u", "k/"));
        assert!(matches("", "u", "") && !matches("", "u", "k"));
        assert!(
            !matches("(", "u", "("),
            "an unusable pattern allows nothing"
        );
        for (text, expected) in [("^a", true), ("^b", false), ("^a", true)] {
            assert_eq!(p.topic_matches("x", true, text, ["u", "/"], "a"), expected);
        }
    }
}
