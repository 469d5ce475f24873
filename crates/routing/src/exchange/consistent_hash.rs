//! x-consistent-hash exchanges: each message goes to one destination, chosen by a hash of its routing key (or of a header or property), in
//! proportion to the destinations' weights. A binding's key is its weight, 1 to 10000.
//!
//! Weighted rendezvous hashing: every destination draws a number from (key, its own name) and the best draw wins. The choice is a pure function
//! of the set of (destination, weight) and the key: there is no ring to build, so nothing can differ after a restart. Removing a destination
//! moves its own keys only, adding one moves only what it gains, and a queue declared anew under its old name gets its old keys back.
//! Several bindings of one destination add up their weights (RabbitMQ counts the first only, and forgets the queue when any of them goes).
//!
//! Cost: a draw (two multiplications) for each destination and a logarithm for each distinct weight; memory for each destination, whatever its
//! weight. The arithmetic is plain IEEE 754 addition, multiplication and division, which every machine does alike.

use super::{BadProperties, ExchangeType, Lookup, NewBinding, Parsed, Scratch, Store};
use crate::arguments::as_text;
use crate::bindings::End;
use crate::hash::{Stable, mix};
use crate::text;
use std::collections::BTreeMap;
use std::sync::Arc;
use warren_model::Refusal;
use warren_protocol::{Table, Value};

/// RabbitMQ's limit.
const WEIGHT_MAX: u32 = 10_000;

#[derive(Clone, Debug)]
pub(crate) struct ConsistentHash {
    input: Input,
    /// Destinations by total weight, lightest first; no group is empty.
    groups: Vec<Group>,
    homes: BTreeMap<End, Home>,
}

/// Where a destination stands: its group's weight and its place among the members.
#[derive(Clone, Copy, Debug)]
struct Home {
    weight: u64,
    place: u32,
}

/// What is hashed.
#[derive(Clone, Debug)]
enum Input {
    RoutingKey,
    Header(Box<[u8]>),
    MessageId,
    CorrelationId,
    Timestamp,
}

#[derive(Clone, Debug)]
struct Group {
    weight: u64,
    members: Vec<Member>,
}

#[derive(Clone, Debug)]
struct Member {
    destination: End,
    /// Stable hash of the destination's kind and name.
    seed: u64,
    /// Settles draws that are equal to the last bit, which takes two names of one hash.
    name: Arc<str>,
}

impl Member {
    fn new(destination: End, name: &Arc<str>) -> Self {
        let mut hash = Stable::new();
        hash.write(if destination.as_queue().is_some() {
            b"q"
        } else {
            b"e"
        });
        hash.write(name.as_bytes());
        Self {
            destination,
            seed: hash.finish(),
            name: Arc::clone(name),
        }
    }

    #[inline]
    fn draw(&self, key: u64) -> u64 {
        mix(self.seed ^ key)
    }
}

impl Group {
    /// Among equal weights the greatest draw wins.
    fn best(&self, key: u64) -> Option<(u64, &Member)> {
        let mut members = self.members.iter().map(|member| (member.draw(key), member));
        let first = members.next()?;
        Some(members.fold(first, |best, other| {
            let better = other.0 > best.0
                || other.0 == best.0
                    && (&other.1.name, other.1.destination.as_queue().is_some())
                        < (&best.1.name, best.1.destination.as_queue().is_some());
            if better { other } else { best }
        }))
    }
}

impl ConsistentHash {
    /// The destination that gets `key`: the least of `-ln(draw) / weight`.
    fn winner(&self, key: u64) -> Option<End> {
        if let [group] = &self.groups[..] {
            return group.best(key).map(|(_, member)| member.destination);
        }
        let scored = self.groups.iter().filter_map(|group| {
            let (draw, member) = group.best(key)?;
            Some((minus_ln(draw) / group.weight as f64, member.destination))
        });
        scored
            .reduce(|best, other| if other.0 < best.0 { other } else { best })
            .map(|(_, destination)| destination)
    }

    fn group(&self, weight: u64) -> Result<usize, usize> {
        self.groups
            .binary_search_by_key(&weight, |group| group.weight)
    }

    /// Takes a destination out, with its total weight.
    fn leave(&mut self, destination: End) -> Option<(Member, u64)> {
        let Home { weight, place } = self.homes.remove(&destination)?;
        let Ok(at) = self.group(weight) else {
            unreachable!("a destination's weight has a group");
        };
        let members = &mut self.groups[at].members;
        let member = members.swap_remove(place as usize);
        if let Some(moved) = members.get(place as usize) {
            self.homes.insert(moved.destination, Home { weight, place });
        } else if members.is_empty() {
            self.groups.remove(at);
        }
        Some((member, weight))
    }

    /// Takes a destination in that is not there.
    fn join(&mut self, member: Member, weight: u64) {
        let at = self.group(weight).unwrap_or_else(|at| {
            let members = Vec::new();
            self.groups.insert(at, Group { weight, members });
            at
        });
        let members = &mut self.groups[at].members;
        let place = members.len() as u32;
        self.homes
            .insert(member.destination, Home { weight, place });
        members.push(member);
    }

    fn weight_of(&self, destination: End) -> u64 {
        self.homes.get(&destination).map_or(0, |home| home.weight)
    }

    fn key(&self, lookup: &Lookup<'_, '_>) -> Result<u64, BadProperties> {
        let mut hash = Stable::new();
        let parsed = || lookup.message.parsed();
        match &self.input {
            Input::RoutingKey => hash.write(lookup.message.first_key()),
            Input::Header(name) => {
                if let Some(value) = Parsed::header(parsed()?, name) {
                    hash_value(&mut hash, value);
                }
            }
            Input::MessageId => hash.write(
                parsed()?
                    .properties
                    .message_id
                    .unwrap_or_default()
                    .as_bytes(),
            ),
            Input::CorrelationId => hash.write(
                parsed()?
                    .properties
                    .correlation_id
                    .unwrap_or_default()
                    .as_bytes(),
            ),
            Input::Timestamp => {
                if let Some(seconds) = parsed()?.properties.timestamp {
                    hash.write(seconds.to_string().as_bytes());
                }
            }
        }
        Ok(hash.finish())
    }
}

/// Texts and bytes hash as they are, numbers as their decimal text (whatever their width), anything else in its wire form.
fn hash_value(hash: &mut Stable, value: &Value<'_>) {
    if let Some(number) = value.as_integer() {
        return hash.write(number.to_string().as_bytes());
    }
    if let Value::LongStr(bytes) | Value::Bytes(bytes) = value {
        return hash.write(bytes);
    }
    let mut wire = Vec::new();
    value.encode(&mut wire);
    hash.write(&wire);
}

/// `-ln((draw + 1/2) / 2^53)` for the draw's upper 53 bits. Written out, because the platform's `ln` may differ in the last bit between machines.
fn minus_ln(draw: u64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let unit = ((draw >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let bits = unit.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & MANTISSA | 1023 << 52);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.172: nine terms reach the last bit.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0]
        .iter()
        .fold(0.0, |sum, odd| (sum + 1.0 / odd) * square);
    -(exponent as f64 * std::f64::consts::LN_2 + 2.0 * s * (1.0 + series))
}

fn weight(key: &[u8]) -> Result<u32, Refusal> {
    let not_a_number = || {
        Refusal::precondition_failed(format!(
            "The binding key must be an integer: {}",
            text::erlang_binary(key)
        ))
    };
    let (negative, digits) = match key {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(not_a_number());
    }
    let value = digits.iter().fold(0u32, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    });
    if negative || value == 0 {
        return Err(Refusal::precondition_failed(
            "The binding key must be greater than 0",
        ));
    }
    if value > WEIGHT_MAX {
        return Err(Refusal::precondition_failed(format!(
            "The binding key must not exceed {WEIGHT_MAX}"
        )));
    }
    Ok(value)
}

impl ExchangeType for ConsistentHash {
    fn new(arguments: Table<'_>, exchange: &str) -> Result<Self, Refusal> {
        let text = |name: &str| match arguments.get(name) {
            None => Ok(None),
            Some(value) => as_text(&value).map(Some).ok_or_else(|| {
                Refusal::precondition_failed(format!(
                    "invalid type '{}' for arg '{name}' in {exchange}",
                    value.type_name()
                ))
            }),
        };
        let input = match (text("hash-header")?, text("hash-property")?) {
            (None, None) => Input::RoutingKey,
            (Some(name), None) => Input::Header(name.into()),
            (None, Some(b"message_id")) => Input::MessageId,
            (None, Some(b"correlation_id")) => Input::CorrelationId,
            (None, Some(b"timestamp")) => Input::Timestamp,
            (None, Some(other)) => {
                return Err(Refusal::precondition_failed(format!(
                    "Unsupported property: {}",
                    String::from_utf8_lossy(other)
                )));
            }
            (Some(_), Some(_)) => {
                return Err(Refusal::precondition_failed(
                    "hash-header and hash-property are mutually exclusive",
                ));
            }
        };
        Ok(Self {
            input,
            groups: Vec::new(),
            homes: BTreeMap::new(),
        })
    }

    fn check_binding(&self, key: &[u8], _: Table<'_>) -> Result<(), Refusal> {
        weight(key).map(drop)
    }

    fn add(&mut self, store: &mut Store<'_>, binding: &NewBinding<'_>) {
        // Bindings are checked before they are recorded.
        let added = weight(binding.key).unwrap_or(1);
        store.bindings.set_mark(binding.number, added);
        let (member, before) = self.leave(binding.destination).unwrap_or_else(|| {
            (
                Member::new(binding.destination, binding.destination_name),
                0,
            )
        });
        self.join(member, before + u64::from(added));
    }

    fn remove(&mut self, store: &mut Store<'_>, number: u32) {
        let removed = u64::from(store.bindings.mark(number));
        let Some((member, before)) = self.leave(store.bindings.get(number).destination) else {
            unreachable!("every binding's destination has its home");
        };
        if before > removed {
            self.join(member, before - removed);
        }
    }

    fn route(
        &self,
        lookup: &Lookup<'_, '_>,
        _: &mut Scratch,
        hits: &mut Vec<End>,
    ) -> Result<(), BadProperties> {
        if !self.groups.is_empty() {
            hits.extend(self.winner(self.key(lookup)?));
        }
        Ok(())
    }

    fn explain(
        &self,
        lookup: &Lookup<'_, '_>,
        number: u32,
    ) -> Result<(bool, String), BadProperties> {
        let key = self.key(lookup)?;
        let destination = lookup.bindings.get(number).destination;
        let matched = self.winner(key) == Some(destination);
        let weight = self.weight_of(destination);
        let total: u64 = self.homes.values().map(|home| home.weight).sum();
        let won = if matched {
            "has the best draw"
        } else {
            "another destination has a better draw"
        };
        Ok((
            matched,
            format!("{won} for hash {key:016x}; weight {weight} of {total}"),
        ))
    }

    fn reads_message(&self) -> bool {
        match self.input {
            Input::RoutingKey => false,
            Input::Header(_) | Input::MessageId | Input::CorrelationId | Input::Timestamp => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_integers_from_one_to_the_limit() {
        assert_eq!(weight(b"1"), Ok(1));
        assert_eq!(weight(b"10000"), Ok(10_000));
        let text = |key: &[u8]| weight(key).unwrap_err().text;
        for key in [&b"abc"[..], b"", b"1.5", b" 1", b"1 ", b"-", b"\xff"] {
            assert!(
                text(key).starts_with("The binding key must be an integer: <<"),
                "{key:?}"
            );
        }
        assert_eq!(
            text(b"abc"),
            "The binding key must be an integer: <<\"abc\">>"
        );
        for key in [&b"0"[..], b"-1", b"-99999999999999999999"] {
            assert_eq!(text(key), "The binding key must be greater than 0");
        }
        for key in [&b"10001"[..], b"100000000", b"99999999999999999999"] {
            assert_eq!(text(key), "The binding key must not exceed 10000");
        }
    }

    #[test]
    fn the_logarithm_is_right_to_the_last_bits() {
        for draw in [
            0,
            1 << 11,
            12345 << 40,
            u64::MAX / 2,
            u64::MAX / 3,
            u64::MAX - (1 << 12),
            u64::MAX,
        ] {
            let unit = ((draw >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            let (ours, std) = (minus_ln(draw), -unit.ln());
            assert!((ours - std).abs() <= std * 4e-15, "{draw:x}: {ours} {std}");
        }
    }
}
