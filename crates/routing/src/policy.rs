//! Policies: arguments for all queues and exchanges of a virtual host whose names match, and operator policies, which bound them.
//!
//! Of the policies that match an object the one with the greatest priority applies, whole; among equals the one whose name comes first. The same goes for
//! operator policies. Where both set a key, the lower number applies if the key is a bound ([`BOUNDS`]), else what the operator says.
//! What is derived from policies is kept as they change, so that routing does not ask for them: an exchange's alternate exchange. A new key that acts on
//! routing is kept alike in [`Table::policies_changed`]; one that acts on a queue's contents is asked for with [`Table::policy_of_queue`].
//! Cost: a change of policies takes a look at each exchange of the virtual host; a declare looks at the virtual host's policies.

use crate::apply::Applied;
use crate::exchange::Exchange;
use crate::record;
use crate::table::Table;
use regex::Regex;
use std::collections::BTreeMap;
use warren_model::Refusal;
use warren_model::command::{ApplyTo, Policy};
use warren_protocol::{Table as FieldTable, TableBuilder, Value};

/// Keys of which the lower one applies.
const BOUNDS: [&[u8]; 7] = [
    b"message-ttl",
    b"expires",
    b"max-length",
    b"max-length-bytes",
    b"max-in-memory-bytes",
    b"max-in-memory-length",
    b"delivery-limit",
];
/// The key of which the higher one applies: replicas that an operator asks for at least.
const LEAST: &[u8] = b"target-group-size";
/// A pattern's compiled size.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// What policies say of one queue or exchange.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Effective<'a> {
    /// The policy that applies.
    pub policy: Option<&'a str>,
    /// The operator policy that applies.
    pub operator_policy: Option<&'a str>,
    /// Both merged: raw field table entries.
    pub definition: Vec<u8>,
}

/// A virtual host's policies of one kind, by name.
type ByName = BTreeMap<String, Known>;

/// The policies of one virtual host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    user: ByName,
    operator: ByName,
}

#[derive(Clone, Debug)]
struct Known {
    policy: Policy,
    regex: Regex,
}

/// An object that a policy may apply to.
#[derive(Clone, Copy)]
enum Object<'a> {
    Exchange(&'a str),
    /// Name and type.
    Queue(&'a str, &'a str),
}

impl Known {
    fn new(policy: Policy) -> Result<Self, Refusal> {
        let regex = regex::RegexBuilder::new(&policy.pattern)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|error| {
                Refusal::precondition_failed(format!(
                    "the pattern of policy '{}' is no regular expression: {error}",
                    policy.name
                ))
            })?;
        Ok(Self { policy, regex })
    }

    fn applies(&self, object: Object<'_>) -> bool {
        let (name, fits) = match object {
            Object::Exchange(name) => {
                let all = matches!(self.policy.apply_to, ApplyTo::All | ApplyTo::Exchanges);
                (name, all)
            }
            Object::Queue(name, kind) => {
                let fits = match self.policy.apply_to {
                    ApplyTo::All | ApplyTo::Queues => true,
                    ApplyTo::ClassicQueues => kind == "classic",
                    ApplyTo::QuorumQueues => kind == "quorum",
                    ApplyTo::Streams => kind == "stream",
                    ApplyTo::Exchanges => false,
                };
                (name, fits)
            }
        };
        fits && self.regex.is_match(name)
    }
}

/// The one that applies.
fn chosen<'a>(policies: &'a ByName, object: Object<'_>) -> Option<&'a Policy> {
    let matching = policies.values().filter(|known| known.applies(object));
    // Of several greatest ones `max_by_key` takes the last, which the order by name turned round makes the first.
    matching
        .rev()
        .max_by_key(|known| known.policy.priority)
        .map(|known| &known.policy)
}

/// Merges definitions: what both set is settled by [`BOUNDS`].
fn merged(policy: &[u8], operator: &[u8]) -> Vec<u8> {
    let [policy, operator] =
        [policy, operator].map(|raw| FieldTable::parse(raw).unwrap_or_default());
    let mut all: BTreeMap<&[u8], Value<'_>> = BTreeMap::new();
    for (key, value) in policy.iter() {
        all.entry(key.as_bytes()).or_insert(value);
    }
    for (key, value) in operator.iter() {
        let key = key.as_bytes();
        let given = all.get(key).and_then(Value::as_integer);
        let keep = given.zip(value.as_integer()).is_some_and(|(given, value)| {
            (BOUNDS.contains(&key) && given < value) || (key == LEAST && given > value)
        });
        if !keep {
            all.insert(key, value);
        }
    }
    let mut builder = TableBuilder::new();
    for (key, value) in &all {
        builder.put_value(key, value);
    }
    builder.into_bytes()
}

fn sets_alternate(policy: &Policy) -> bool {
    let definition = FieldTable::parse(&policy.definition);
    definition.is_ok_and(|definition| definition.get("alternate-exchange").is_some())
}

impl Policies {
    fn of_kind(&mut self, operator: bool) -> &mut ByName {
        if operator {
            &mut self.operator
        } else {
            &mut self.user
        }
    }

    fn effective(&self, object: Object<'_>) -> Effective<'_> {
        if self.user.is_empty() && self.operator.is_empty() {
            return Effective::default();
        }
        let policy = chosen(&self.user, object);
        let operator = chosen(&self.operator, object);
        let raw = |policy: Option<&Policy>| policy.map_or(Vec::new(), |p| p.definition.clone());
        Effective {
            policy: policy.map(|policy| policy.name.as_str()),
            operator_policy: operator.map(|policy| policy.name.as_str()),
            definition: merged(&raw(policy), &raw(operator)),
        }
    }

    /// The alternate exchange that policies give an exchange. The default exchange takes everything and has none.
    pub(crate) fn alternate(&self, exchange: &str) -> Option<Box<str>> {
        if exchange.is_empty() {
            return None;
        }
        let effective = self.effective(Object::Exchange(exchange));
        let definition = FieldTable::parse(&effective.definition).ok()?;
        let Some(Value::LongStr(name)) = definition.get("alternate-exchange") else {
            return None;
        };
        Some(String::from_utf8_lossy(name).into())
    }

    fn all(&self) -> impl Iterator<Item = &Policy> {
        let all = self.user.values().chain(self.operator.values());
        all.map(|known| &known.policy)
    }
}

impl Exchange {
    /// Where a message goes that this exchange has no binding for: by its own definition, else by policy.
    #[inline]
    pub(crate) fn alternate(&self) -> Option<&str> {
        self.alternate
            .as_deref()
            .or(self.policy_alternate.as_deref())
            // The default exchange has no bindings that could be followed from another one.
            .filter(|name| !name.is_empty())
    }
}

impl Table {
    pub(crate) fn put_policy(
        &mut self,
        policy: &Policy,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let vhost = self.vhost(&policy.vhost)?;
        let known = Known::new(policy.clone())?;
        let key = record::policy_key(&policy.vhost, policy.operator, &policy.name);
        let value = record::policy_value(policy);
        let by_name = self.vhosts[vhost].policies.of_kind(policy.operator);
        match by_name.insert(policy.name.clone(), known) {
            Some(before) if before.policy == *policy => return Ok(()),
            Some(before) => {
                self.replace(applied, key, &record::policy_value(&before.policy), value);
            }
            None => self.put(applied, key, value),
        }
        self.policies_changed(vhost);
        Ok(())
    }

    pub(crate) fn delete_policy(
        &mut self,
        vhost: &str,
        operator: bool,
        name: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let number = self.vhost(vhost)?;
        let by_name = self.vhosts[number].policies.of_kind(operator);
        if let Some(known) = by_name.remove(name) {
            let key = record::policy_key(vhost, operator, name);
            self.erase(applied, key, &record::policy_value(&known.policy));
            self.policies_changed(number);
        }
        Ok(())
    }

    /// Derives anew what is kept of policies.
    fn policies_changed(&mut self, vhost: u32) {
        let known = &self.vhosts[vhost];
        // Most policies are about queues: an import of many then asks none of them about each exchange.
        let any = known.policies.all().any(sets_alternate);
        for slot in known.exchanges.values() {
            let exchange = &mut self.exchanges[*slot];
            exchange.policy_alternate = any
                .then(|| known.policies.alternate(&exchange.name))
                .flatten();
        }
    }

    /// The virtual host is about to go.
    pub(crate) fn erase_policies(&mut self, vhost: u32, applied: &mut Applied) {
        let policies = std::mem::take(&mut self.vhosts[vhost].policies);
        for policy in policies.all() {
            let key = record::policy_key(&policy.vhost, policy.operator, &policy.name);
            self.erase(applied, key, &record::policy_value(policy));
        }
    }

    pub(crate) fn load_policy(&mut self, policy: Policy) -> Result<(), &'static str> {
        let vhost = self
            .find_vhost(&policy.vhost)
            .ok_or("its virtual host is missing")?;
        let (name, operator) = (policy.name.clone(), policy.operator);
        let known = Known::new(policy).map_err(|_| "its pattern is no regular expression")?;
        let by_name = self.vhosts[vhost].policies.of_kind(operator);
        if by_name.insert(name, known).is_some() {
            return Err("it is given twice");
        }
        self.policies_changed(vhost);
        Ok(())
    }

    pub(crate) fn policy_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        self.vhost_numbers
            .values()
            .flat_map(|number| self.vhosts[*number].policies.all())
            .map(|policy| {
                let key = record::policy_key(&policy.vhost, policy.operator, &policy.name);
                (key, record::policy_value(policy))
            })
    }

    pub(crate) fn put_global(
        &mut self,
        name: &str,
        value: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let (key, new) = (record::global_key(name), record::global_value(value));
        match self.globals.insert(name.to_owned(), value.to_owned()) {
            Some(before) if before == value => {}
            Some(before) => self.replace(applied, key, &record::global_value(&before), new),
            None => self.put(applied, key, new),
        }
        Ok(())
    }

    pub(crate) fn delete_global(
        &mut self,
        name: &str,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if let Some(value) = self.globals.remove(name) {
            self.erase(
                applied,
                record::global_key(name),
                &record::global_value(&value),
            );
        }
        Ok(())
    }

    pub(crate) fn global_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let all = self.globals.iter();
        all.map(|(name, value)| (record::global_key(name), record::global_value(value)))
    }

    /// A virtual host's policies, or its operator policies, by name. None if there is no such virtual host.
    pub fn policies(&self, vhost: &str, operator: bool) -> impl Iterator<Item = &Policy> {
        let known = self.find_vhost(vhost).map(|number| {
            let policies = &self.vhosts[number].policies;
            if operator {
                policies.operator.values()
            } else {
                policies.user.values()
            }
        });
        known.into_iter().flatten().map(|known| &known.policy)
    }

    /// A policy.
    pub fn policy(&self, vhost: &str, operator: bool, name: &str) -> Option<&Policy> {
        self.policies(vhost, operator).find(|p| p.name == name)
    }

    /// What policies say of an exchange. The default exchange has none.
    pub fn policy_of_exchange(&self, vhost: &str, name: &str) -> Effective<'_> {
        match self.find_vhost(vhost) {
            Some(number) if !name.is_empty() => {
                let policies = &self.vhosts[number].policies;
                policies.effective(Object::Exchange(name))
            }
            Some(_) | None => Effective::default(),
        }
    }

    /// What policies say of a queue of this type.
    pub fn policy_of_queue(&self, vhost: &str, name: &str, kind: &str) -> Effective<'_> {
        let number = self.find_vhost(vhost);
        number.map_or_else(Effective::default, |number| {
            let policies = &self.vhosts[number].policies;
            policies.effective(Object::Queue(name, kind))
        })
    }

    /// Global parameters by name, with their JSON.
    pub fn global_parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.globals.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}
