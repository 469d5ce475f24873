//! Argument tables: their canonical form, and comparing values as RabbitMQ does.

use warren_model::Refusal;
use warren_protocol::{Array, Table, TableBuilder, Value};

/// The table in `raw`. Commands carry tables that were checked when they were received, so a bad one is the proposer's fault.
pub(crate) fn parse(raw: &[u8]) -> Result<Table<'_>, Refusal> {
    Table::parse(raw).map_err(|error| Refusal::new(502, format!("malformed arguments: {error}")))
}

/// The same entries sorted by key (entries of one key keep their order), so that the order in which a client wrote them does not matter
/// to a binding's identity. Types are kept exactly.
pub(crate) fn canonical(table: Table<'_>) -> Vec<u8> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    let mut builder = TableBuilder::new();
    for (key, value) in entries {
        builder.put_value(key.as_bytes(), &value);
    }
    builder.into_bytes()
}

/// Equal by class and value: all integers are one class, so are single and double floats; every other type is a class of its own.
pub(crate) fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    if let (Some(a), Some(b)) = (a.as_integer(), b.as_integer()) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (as_float(a), as_float(b)) {
        return a == b;
    }
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => same_array(a, b),
        (Value::Table(a), Value::Table(b)) => same_table(a, b),
        (a, b) => a == b,
    }
}

fn same_array(a: &Array<'_>, b: &Array<'_>) -> bool {
    let (mut a, mut b) = (a.iter(), b.iter());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if same(&a, &b) => {}
            (_, _) => return false,
        }
    }
}

fn same_table(a: &Table<'_>, b: &Table<'_>) -> bool {
    let (mut a, mut b) = (a.iter(), b.iter());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return true,
            (Some((left, a)), Some((right, b))) if left == right && same(&a, &b) => {}
            (_, _) => return false,
        }
    }
}

pub(crate) fn as_float(value: &Value<'_>) -> Option<f64> {
    match *value {
        Value::F32(value) => Some(f64::from(value)),
        Value::F64(value) => Some(value),
        Value::Bool(_)
        | Value::I8(_)
        | Value::U8(_)
        | Value::I16(_)
        | Value::U16(_)
        | Value::I32(_)
        | Value::U32(_)
        | Value::I64(_)
        | Value::L64(_)
        | Value::Decimal { .. }
        | Value::LongStr(_)
        | Value::Array(_)
        | Value::Timestamp(_)
        | Value::Table(_)
        | Value::Void
        | Value::Bytes(_) => None,
    }
}

pub(crate) fn as_text<'a>(value: &Value<'a>) -> Option<&'a [u8]> {
    if let Value::LongStr(text) = value {
        Some(text)
    } else {
        None
    }
}

/// A value for people, without its type.
pub(crate) fn shown(value: &Value<'_>) -> String {
    match *value {
        Value::Bool(value) => value.to_string(),
        Value::I8(value) => value.to_string(),
        Value::U8(value) => value.to_string(),
        Value::I16(value) => value.to_string(),
        Value::U16(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::I64(value) | Value::L64(value) => value.to_string(),
        Value::F32(value) => format!("{value:?}"),
        Value::F64(value) => format!("{value:?}"),
        Value::Decimal { scale, value } => format!("{{{scale},{value}}}"),
        Value::LongStr(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Timestamp(seconds) => seconds.to_string(),
        Value::Void => "undefined".to_owned(),
        Value::Array(array) => listed(array.iter().map(|item| shown(&item))),
        Value::Table(table) => listed(table.iter().map(|(key, item)| {
            format!(
                "{}={}",
                String::from_utf8_lossy(key.as_bytes()),
                shown(&item)
            )
        })),
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A value as the text on inequivalent arguments has it. Both sides carry their types, so that 60000 and "60000" can be told apart.
pub(crate) fn shown_with_type(value: Option<&Value<'_>>) -> String {
    match value {
        None => "none".to_owned(),
        Some(value) => format!(
            "the value '{}' of type '{}'",
            shown(value),
            value.type_name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_protocol::{OwnedTable, OwnedValue};

    #[test]
    fn order_does_not_matter_and_types_do() {
        let table = |entries: Vec<(&str, OwnedValue)>| {
            entries.into_iter().collect::<OwnedTable>().to_bytes()
        };
        let canonical = |raw: &[u8]| canonical(Table::parse(raw).unwrap());
        let ab = table(vec![("a", OwnedValue::I32(1)), ("b", OwnedValue::Void)]);
        let ba = table(vec![("b", OwnedValue::Void), ("a", OwnedValue::I32(1))]);
        assert_eq!(canonical(&ab), canonical(&ba));
        assert_eq!(canonical(&ab), ab, "sorted already");
        assert_ne!(
            canonical(&ab),
            canonical(&table(vec![
                ("a", OwnedValue::I64(1)),
                ("b", OwnedValue::Void)
            ]))
        );
    }

    #[test]
    fn classes() {
        assert!(same(&Value::U8(1), &Value::I64(1)));
        assert!(same(&Value::F32(1.5), &Value::F64(1.5)));
        assert!(!same(&Value::I32(1), &Value::F64(1.0)));
        assert!(!same(&Value::I32(1), &Value::Bool(true)));
        assert!(!same(&Value::I32(1), &Value::LongStr(b"1")));
        assert!(!same(&Value::I32(1), &Value::Timestamp(1)));
        assert!(!same(&Value::Bytes(b"1"), &Value::LongStr(b"1")));
    }
}
