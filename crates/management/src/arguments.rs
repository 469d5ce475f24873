//! Field tables as JSON and back.
//!
//! From JSON: integers become `l` (long), other numbers `d` (double), strings `S`, booleans `t`, null `V`, objects `F`, lists `A`. AMQP clients choose
//! narrower types as they like: arguments are compared by value, so what is declared here is equivalent to what they declare.
//! To JSON: timestamps are seconds, decimals numbers, bytes that are not UTF-8 are shown with replacement characters; a double that JSON cannot hold
//! (infinite, not a number) is a string.

use crate::error::Error;
use serde_json::{Map, Number, Value as Json};
use warren_protocol::{MAX_NESTING, OwnedTable, OwnedValue, Table, Value};

/// Raw field table entries of a JSON object.
pub(crate) fn to_table(fields: &Map<String, Json>) -> Result<Vec<u8>, Error> {
    let bytes = owned_table(fields, 1)?.to_bytes();
    match Table::parse(&bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(Error::bad_request(format!(
            "arguments make no field table: {error}"
        ))),
    }
}

fn owned_table(fields: &Map<String, Json>, depth: usize) -> Result<OwnedTable, Error> {
    let mut table = OwnedTable::new();
    for (key, value) in fields {
        crate::check_name("key of an argument", key)?;
        table.put(key, owned_value(value, depth)?);
    }
    Ok(table)
}

fn owned_value(value: &Json, depth: usize) -> Result<OwnedValue, Error> {
    if depth >= MAX_NESTING && (value.is_object() || value.is_array()) {
        return Err(Error::bad_request(format!(
            "arguments nest deeper than {MAX_NESTING}"
        )));
    }
    Ok(match value {
        Json::Null => OwnedValue::Void,
        Json::Bool(value) => OwnedValue::Bool(*value),
        Json::Number(number) => owned_number(number)?,
        Json::String(text) => OwnedValue::LongStr(text.clone().into_bytes()),
        Json::Array(items) => OwnedValue::Array(
            items
                .iter()
                .map(|item| owned_value(item, depth + 1))
                .collect::<Result<_, _>>()?,
        ),
        Json::Object(fields) => OwnedValue::Table(owned_table(fields, depth + 1)?),
    })
}

fn owned_number(number: &Number) -> Result<OwnedValue, Error> {
    let too_large =
        || Error::bad_request(format!("{number} does not fit in a signed 64-bit integer"));
    if number.is_u64() || number.is_i64() {
        return number.as_i64().map(OwnedValue::I64).ok_or_else(too_large);
    }
    number.as_f64().map(OwnedValue::F64).ok_or_else(too_large)
}

/// Raw field table entries as a JSON object. Of entries under one key, the first counts, as in lookups.
pub(crate) fn to_json(entries: &[u8]) -> Json {
    Table::parse(entries).map_or_else(|error| Json::String(format!("malformed: {error}")), object)
}

fn object(table: Table<'_>) -> Json {
    let mut fields = Map::new();
    for (key, value) in table {
        let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
        fields.entry(key).or_insert_with(|| json_value(&value));
    }
    Json::Object(fields)
}

fn json_value(value: &Value<'_>) -> Json {
    match *value {
        Value::Bool(value) => value.into(),
        Value::I8(value) => value.into(),
        Value::U8(value) => value.into(),
        Value::I16(value) => value.into(),
        Value::U16(value) => value.into(),
        Value::I32(value) => value.into(),
        Value::U32(value) => value.into(),
        Value::I64(value) | Value::L64(value) => value.into(),
        Value::F32(value) => double(value.into()),
        Value::F64(value) => double(value),
        Value::Decimal { scale, value } => double(f64::from(value) / 10f64.powi(scale.into())),
        Value::LongStr(bytes) | Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(array) => Json::Array(array.iter().map(|value| json_value(&value)).collect()),
        Value::Timestamp(seconds) => seconds.into(),
        Value::Table(table) => object(table),
        Value::Void => Json::Null,
    }
}

fn double(value: f64) -> Json {
    Number::from_f64(value).map_or_else(|| value.to_string().into(), Json::Number)
}

/// Whether two sets of raw entries are the same but for their order, in which the table does not keep them.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    let sorted = |entries| {
        let mut pairs = Table::parse(entries)
            .map(|table| table.to_owned_table().entries)
            .unwrap_or_default();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs
    };
    a == b || sorted(a) == sorted(b)
}

/// A value given as text where JSON is no option (headers in a query): integers and truth values if they look it, else a string.
pub(crate) fn from_text(text: &str) -> OwnedValue {
    match (text, text.parse()) {
        ("true", _) => OwnedValue::Bool(true),
        ("false", _) => OwnedValue::Bool(false),
        (_, Ok(number)) => OwnedValue::I64(number),
        (_, Err(_)) => OwnedValue::LongStr(text.as_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(json: Json) -> Result<Vec<u8>, Error> {
        to_table(json.as_object().unwrap())
    }

    #[test]
    fn types_are_rabbitmqs() {
        let bytes = table(json!({"n": 1, "big": -5_000_000_000_i64, "b": true, "s": "1", "f": 1.5, "v": null, "t": {"x": [1, "y", {}]}})).unwrap();
        let table = Table::parse(&bytes).unwrap();
        assert_eq!(table.get("n"), Some(Value::I64(1)));
        assert_eq!(table.get("big"), Some(Value::I64(-5_000_000_000)));
        assert_eq!(table.get("b"), Some(Value::Bool(true)));
        assert_eq!(table.get("s"), Some(Value::LongStr(b"1")));
        assert_eq!(table.get("f"), Some(Value::F64(1.5)));
        assert_eq!(table.get("v"), Some(Value::Void));
        let Some(Value::Table(nested)) = table.get("t") else {
            panic!("{table:?}")
        };
        let Some(Value::Array(list)) = nested.get("x") else {
            panic!("{nested:?}")
        };
        assert_eq!(
            list.iter().collect::<Vec<_>>(),
            [
                Value::I64(1),
                Value::LongStr(b"y"),
                Value::Table(Table::EMPTY)
            ]
        );
    }

    #[test]
    fn what_goes_in_comes_out() {
        let given = json!({"n": 1, "b": false, "s": "ü", "f": 0.25, "v": null, "t": {"x": [1, "y", {"z": []}]}});
        assert_eq!(to_json(&table(given.clone()).unwrap()), given);
        assert_eq!(to_json(b""), json!({}));
    }

    #[test]
    fn other_types_have_json() {
        let mut table = OwnedTable::new();
        table
            .put("i", OwnedValue::I32(-7))
            .put(
                "d",
                OwnedValue::Decimal {
                    scale: 2,
                    value: 725,
                },
            )
            .put("t", OwnedValue::Timestamp(9));
        table
            .put("x", OwnedValue::Bytes(vec![0xff]))
            .put("inf", OwnedValue::F64(f64::INFINITY))
            .put("i", OwnedValue::I32(8));
        assert_eq!(
            to_json(&table.to_bytes()),
            json!({"i": -7, "d": 7.25, "t": 9, "x": "\u{fffd}", "inf": "inf"})
        );
    }

    #[test]
    fn what_fits_nowhere_is_refused() {
        assert!(table(json!({"n": u64::MAX})).is_err());
        assert!(table(json!({"k".repeat(256): 1})).is_err());
        assert!(table(json!({"k".repeat(255): 1})).is_ok());
        let nested = |depth: usize| (1..depth).fold(json!({}), |inner, _| json!({"x": inner}));
        assert!(table(nested(MAX_NESTING)).is_ok());
        assert!(table(nested(MAX_NESTING + 1)).is_err());
    }

    #[test]
    fn texts_become_what_they_look_like() {
        assert_eq!(from_text("12"), OwnedValue::I64(12));
        assert_eq!(from_text("true"), OwnedValue::Bool(true));
        assert_eq!(from_text("1.5"), OwnedValue::LongStr(b"1.5".to_vec()));
    }
}
