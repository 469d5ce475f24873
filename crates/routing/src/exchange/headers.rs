//! Headers exchanges: a binding takes the messages whose headers fit its arguments.
//!
//! Arguments are parsed into typed conditions when the binding is added; a message's headers are parsed and sorted once, however many
//! exchanges it passes. Values compare by type and value, all integer types being one class, both floats another.
//! `x-match` is `all` (also when it is missing), `any`, `all-with-x` or `any-with-x`; without `-with-x`, arguments that start with `x-` are
//! not looked at. A void argument asks for presence only. No conditions at all: `all` takes everything, `any` nothing.
//! Cost: the exchange's bindings times their conditions.

use super::{BadProperties, ExchangeType, Lookup, NewBinding, Parsed, Scratch, Store};
use crate::arguments::{as_float, as_text};
use crate::bindings::End;
use crate::text;
use warren_model::Refusal;
use warren_protocol::{Table, Value};

#[derive(Clone, Debug, Default)]
pub(crate) struct Headers {
    /// A binding's mark is its place in here.
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    number: u32,
    destination: End,
    any: bool,
    conditions: Box<[(Box<[u8]>, Expected)]>,
}

/// A value, parsed and owned.
#[derive(Clone, Debug)]
enum Expected {
    Void,
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(Box<[u8]>),
    Bytes(Box<[u8]>),
    Timestamp(u64),
    Decimal { scale: u8, value: u32 },
    Array(Box<[Expected]>),
    Table(Box<[(Box<[u8]>, Expected)]>),
}

impl Expected {
    fn new(value: &Value<'_>) -> Self {
        match *value {
            Value::Bool(value) => Self::Bool(value),
            Value::I8(value) => Self::Integer(value.into()),
            Value::U8(value) => Self::Integer(value.into()),
            Value::I16(value) => Self::Integer(value.into()),
            Value::U16(value) => Self::Integer(value.into()),
            Value::I32(value) => Self::Integer(value.into()),
            Value::U32(value) => Self::Integer(value.into()),
            Value::I64(value) | Value::L64(value) => Self::Integer(value.into()),
            Value::F32(value) => Self::Float(value.into()),
            Value::F64(value) => Self::Float(value),
            Value::Decimal { scale, value } => Self::Decimal { scale, value },
            Value::LongStr(text) => Self::Text(text.into()),
            Value::Array(array) => {
                Self::Array(array.iter().map(|value| Self::new(&value)).collect())
            }
            Value::Timestamp(seconds) => Self::Timestamp(seconds),
            Value::Table(table) => Self::Table(
                table
                    .iter()
                    .map(|(key, value)| (key.as_bytes().into(), Self::new(&value)))
                    .collect(),
            ),
            Value::Void => Self::Void,
            Value::Bytes(bytes) => Self::Bytes(bytes.into()),
        }
    }

    fn equals(&self, value: &Value<'_>) -> bool {
        match self {
            Self::Void => matches!(value, Value::Void),
            Self::Integer(wanted) => value.as_integer() == Some(*wanted),
            Self::Float(wanted) => as_float(value) == Some(*wanted),
            Self::Bool(wanted) => matches!(value, Value::Bool(value) if value == wanted),
            Self::Text(wanted) => matches!(value, Value::LongStr(value) if **value == **wanted),
            Self::Bytes(wanted) => matches!(value, Value::Bytes(value) if **value == **wanted),
            Self::Timestamp(wanted) => matches!(value, Value::Timestamp(value) if value == wanted),
            Self::Decimal {
                scale,
                value: wanted,
            } => {
                matches!(value, Value::Decimal { scale: s, value: v } if s == scale && v == wanted)
            }
            Self::Array(wanted) => {
                let Value::Array(array) = value else {
                    return false;
                };
                let mut wanted = wanted.iter();
                array
                    .iter()
                    .all(|value| wanted.next().is_some_and(|wanted| wanted.equals(&value)))
                    && wanted.next().is_none()
            }
            Self::Table(wanted) => {
                let Value::Table(table) = value else {
                    return false;
                };
                let mut wanted = wanted.iter();
                let fits = |(key, value): (warren_protocol::ShortStr<'_>, Value<'_>)| {
                    wanted.next().is_some_and(|(name, wanted)| {
                        **name == *key.as_bytes() && wanted.equals(&value)
                    })
                };
                table.iter().all(fits) && wanted.next().is_none()
            }
        }
    }
}

impl Rule {
    /// The first condition that decides, and whether the rule takes the message.
    fn decide(&self, message: &Parsed<'_>) -> (bool, Option<&[u8]>) {
        let holds = |(key, expected): &&(Box<[u8]>, Expected)| match (message.header(key), expected)
        {
            (None, _) => false,
            (Some(_), Expected::Void) => true,
            (Some(value), expected) => expected.equals(value),
        };
        let deciding = if self.any {
            self.conditions.iter().find(holds)
        } else {
            self.conditions.iter().find(|condition| !holds(condition))
        };
        (
            deciding.is_some() == self.any,
            deciding.map(|(key, _)| &**key),
        )
    }
}

/// (any, with-x)
fn match_mode(arguments: Table<'_>) -> Result<(bool, bool), Refusal> {
    let Some(value) = arguments.get("x-match") else {
        return Ok((false, false));
    };
    match as_text(&value) {
        Some(b"all") => Ok((false, false)),
        Some(b"any") => Ok((true, false)),
        Some(b"all-with-x") => Ok((false, true)),
        Some(b"any-with-x") => Ok((true, true)),
        Some(other) => Err(Refusal::precondition_failed(format!(
            "Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x",
            text::erlang_binary(other)
        ))),
        None => Err(Refusal::precondition_failed(format!(
            "Invalid x-match field type {} (value {}); expected longstr",
            value.type_name(),
            crate::arguments::shown(&value)
        ))),
    }
}

impl ExchangeType for Headers {
    fn new(_: Table<'_>, _: &str) -> Result<Self, Refusal> {
        Ok(Self::default())
    }

    fn check_binding(&self, _: &[u8], arguments: Table<'_>) -> Result<(), Refusal> {
        match_mode(arguments).map(drop)
    }

    fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>) {
        // Bindings are checked before they are recorded.
        let (any, with_x) = match_mode(binding.arguments).unwrap_or((false, false));
        let counts = |key: &[u8]| key != b"x-match" && (with_x || !key.starts_with(b"x-"));
        let conditions = binding
            .arguments
            .iter()
            .filter(|(key, _)| counts(key.as_bytes()));
        let conditions = conditions
            .map(|(key, value)| (key.as_bytes().into(), Expected::new(&value)))
            .collect();
        store
            .bindings
            .set_mark(binding.number, self.rules.len() as u32);
        self.rules.push(Rule {
            number: binding.number,
            destination: binding.destination,
            any,
            conditions,
        });
    }

    fn remove(&mut self, store: &mut Store<'_>, number: u32) {
        let place = store.bindings.mark(number);
        self.rules.swap_remove(place as usize);
        if let Some(moved) = self.rules.get(place as usize) {
            store.bindings.set_mark(moved.number, place);
        }
    }

    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        _: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties> {
        if self.rules.is_empty() {
            return Ok(());
        }
        let message = lookup.message.parsed()?;
        hits.extend(
            self.rules
                .iter()
                .filter(|rule| rule.decide(message).0)
                .map(|rule| rule.destination),
        );
        Ok(())
    }

    fn explain(
        &self,
        lookup: &Lookup<'_, '_>,
        number: u32,
    ) -> Result<(bool, String), BadProperties> {
        let message = lookup.message.parsed()?;
        let rule = &self.rules[lookup.bindings.mark(number) as usize];
        let (matched, deciding) = rule.decide(message);
        let why = match (matched, deciding) {
            (true, Some(key)) => format!("header '{}' fits", String::from_utf8_lossy(key)),
            (true, None) => "every condition holds".to_owned(),
            (false, Some(key)) if message.header(key).is_none() => {
                format!("header '{}' is missing", String::from_utf8_lossy(key))
            }
            (false, Some(key)) => format!(
                "header '{}' has another value or type",
                String::from_utf8_lossy(key)
            ),
            (false, None) => "none of the conditions holds".to_owned(),
        };
        Ok((matched, why))
    }

    fn reads_message(&self) -> bool {
        true
    }
}
