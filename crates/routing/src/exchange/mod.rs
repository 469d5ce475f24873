//! Exchange types behind one small trait. A new type is one file here and one line in [`exchange_types!`].
//!
//! Flow: a declare makes the type's [`Matcher`] from the exchange's arguments; binds and unbinds (and `restore`) feed it; a publish asks
//! it where the message goes.
//! Invariant: what a matcher answers depends on the set of its bindings alone, never on the order in which they came.

mod consistent_hash;
mod direct;
mod fanout;
mod headers;
mod topic;

use crate::bindings::{Bindings, Chain, End};
use crate::hash::NumberSet;
use crate::names::Names;
use smallvec::SmallVec;
use std::cell::OnceCell;
use std::sync::Arc;
use warren_model::Refusal;
use warren_protocol::{Properties, Table, Value};

/// An exchange's definition as the table holds it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    /// The virtual host's slot.
    pub vhost: u32,
    pub name: Arc<str>,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    /// As the client sent them.
    pub arguments: Box<[u8]>,
    /// Where a message goes that this exchange has no binding for.
    pub alternate: Option<Box<str>>,
    /// The same by policy, where the definition does not say; kept as policies change.
    pub policy_alternate: Option<Box<str>>,
    /// Bindings from here.
    pub sources: Chain,
    /// Bindings that lead here.
    pub bound: Chain,
    pub matcher: Matcher,
}

/// What a matcher may see and thread while a binding is added or removed.
pub(crate) struct Store<'a> {
    pub bindings: &'a mut Bindings,
    pub names: &'a mut Names,
}

/// A binding that is being added. It is in the slab already.
pub(crate) struct NewBinding<'a> {
    pub number: u32,
    pub destination: End,
    pub destination_name: &'a Arc<str>,
    pub key: &'a [u8],
    pub arguments: Table<'a>,
}

/// What a matcher may see while it routes.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a, 'm> {
    pub bindings: &'a Bindings,
    pub names: &'a Names,
    /// The exchange's bindings.
    pub sources: Chain,
    pub message: &'a Message<'m>,
}

/// The message's properties cannot be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadProperties;

/// One type of exchange.
pub(crate) trait ExchangeType: Sized {
    /// Checks the exchange's arguments. `exchange` is its description for texts.
    fn new(arguments: Table<'_>, exchange: &str) -> Result<Self, Refusal>;

    /// Checks a binding before it is recorded.
    fn check_binding(&self, key: &[u8], arguments: Table<'_>) -> Result<(), Refusal>;

    fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>);

    /// The binding is still in the slab.
    fn remove(&mut self, store: &mut Store<'_>, number: u32);

    /// Appends every destination that the message goes to, in any order, duplicates allowed.
    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        scratch: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties>;

    /// Whether one binding takes the message, and why or why not, for a person. May be slow.
    fn explain(
        &self,
        lookup: &Lookup<'_, '_>,
        number: u32,
    ) -> Result<(bool, String), BadProperties>;

    /// Whether routing depends on more than the routing keys.
    fn reads_message(&self) -> bool {
        false
    }
}

/// Memory that routing reuses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub current: NumberSet,
    pub next: NumberSet,
}

macro_rules! exchange_types {
    ($($variant:ident($type:ty) = $name:literal;)+) => {
        /// The index of one exchange over its bindings, by type.
        #[derive(Clone, Debug)]
        pub(crate) enum Matcher {
            $($variant($type),)+
        }

        impl Matcher {
            /// `None`: no such type.
            pub fn new(kind: &str, arguments: Table<'_>, exchange: &str) -> Option<Result<Self, Refusal>> {
                match kind {
                    $($name => Some(<$type>::new(arguments, exchange).map(Self::$variant)),)+
                    _ => None,
                }
            }

            /// Whether there is such a type.
            pub fn is_known(kind: &str) -> bool {
                matches!(kind, $($name)|+)
            }

            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name,)+ }
            }

            pub fn check_binding(&self, key: &[u8], arguments: Table<'_>) -> Result<(), Refusal> {
                match self { $(Self::$variant(matcher) => matcher.check_binding(key, arguments),)+ }
            }

            pub fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>) {
                match self { $(Self::$variant(matcher) => matcher.add(store, binding),)+ }
            }

            pub fn remove(&mut self, store: &mut Store<'_>, number: u32) {
                match self { $(Self::$variant(matcher) => matcher.remove(store, number),)+ }
            }

            #[inline]
            pub fn route(&self, lookup: &Lookup<'_, '_>, scratch: &mut Scratch, hits: &mut Vec<End>) -> Result<(), BadProperties> {
                match self { $(Self::$variant(matcher) => matcher.route(lookup, scratch, hits),)+ }
            }

            pub fn explain(&self, lookup: &Lookup<'_, '_>, number: u32) -> Result<(bool, String), BadProperties> {
                match self { $(Self::$variant(matcher) => matcher.explain(lookup, number),)+ }
            }

            #[inline]
            pub fn reads_message(&self) -> bool {
                match self { $(Self::$variant(matcher) => matcher.reads_message(),)+ }
            }
        }
    };
}

exchange_types! {
    Direct(direct::Direct) = "direct";
    Fanout(fanout::Fanout) = "fanout";
    Topic(topic::Topic) = "topic";
    Headers(headers::Headers) = "headers";
    ConsistentHash(consistent_hash::ConsistentHash) = "x-consistent-hash";
}

/// Exchanges that every virtual host has from the start: name and type.
pub(crate) const PREDECLARED: [(&str, &str); 6] = [
    ("", "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.topic", "topic"),
];

/// A message on its way through the exchanges; its properties are parsed when the first exchange asks for them.
pub(crate) struct Message<'a> {
    pub keys: &'a [&'a [u8]],
    raw: &'a [u8],
    parsed: OnceCell<Result<Parsed<'a>, BadProperties>>,
}

/// The properties that exchanges look at.
pub(crate) struct Parsed<'a> {
    /// Sorted by key; of entries of one key the first comes first.
    headers: SmallVec<[(&'a [u8], Value<'a>); 8]>,
    pub properties: Properties<'a>,
}

impl<'a> Message<'a> {
    pub fn new(keys: &'a [&'a [u8]], raw: &'a [u8]) -> Self {
        Self {
            keys,
            raw,
            parsed: OnceCell::new(),
        }
    }

    pub fn first_key(&self) -> &'a [u8] {
        self.keys.first().copied().unwrap_or_default()
    }

    pub fn parsed(&self) -> Result<&Parsed<'a>, BadProperties> {
        self.parsed
            .get_or_init(|| Parsed::new(self.raw))
            .as_ref()
            .map_err(|bad| *bad)
    }
}

impl<'a> Parsed<'a> {
    fn new(raw: &'a [u8]) -> Result<Self, BadProperties> {
        if raw.is_empty() {
            return Ok(Self {
                headers: SmallVec::new(),
                properties: Properties::default(),
            });
        }
        let properties = Properties::parse(raw).map_err(|_| BadProperties)?;
        let mut headers: SmallVec<[(&[u8], Value<'_>); 8]> = properties
            .headers
            .iter()
            .flat_map(|table| table.iter())
            .map(|(key, value)| (key.as_bytes(), value))
            .collect();
        headers.sort_by_key(|(key, _)| *key);
        Ok(Self {
            headers,
            properties,
        })
    }

    pub fn header(&self, key: &[u8]) -> Option<&Value<'a>> {
        let at = self.headers.partition_point(|(known, _)| *known < key);
        self.headers
            .get(at)
            .filter(|(known, _)| *known == key)
            .map(|(_, value)| value)
    }
}
