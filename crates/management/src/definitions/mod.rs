//! Definitions as RabbitMQ exports and imports them: one JSON object of lists.
//!
//! JSON has fewer types than field tables. Where `arguments` would not come back as they were declared, an export carries them a second time, as AMQP's own
//! bytes in base64 under [`EXACT`]: RabbitMQ passes over it, and here it is what an import takes, so that bindings keep their identity and AMQP clients
//! can redeclare and unbind with the types that they have always used.

mod check;
pub(crate) mod export;
pub(crate) mod import;
mod read;
mod report;

use crate::arguments;
use crate::error::Error;
use crate::extract::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use warren_model::Refusal;

/// The field with the arguments' exact form.
const EXACT: &str = "arguments_table";

/// An import that is refused as a whole.
fn refused(refusal: &Refusal) -> Error {
    Error::bad_request(format!("nothing is imported, since {}", refusal.text))
}

/// What JSON text makes of raw field table entries.
fn through_text(entries: &[u8]) -> Value {
    let json = arguments::to_json(entries);
    // Numbers with a point may come back a little off.
    serde_json::from_str(&json.to_string()).unwrap_or(json)
}

/// Adds arguments to a row, exactly.
fn put_arguments(row: &mut Value, entries: &[u8]) {
    let json = through_text(entries);
    let back = json
        .as_object()
        .and_then(|fields| arguments::to_table(fields).ok());
    if !back.is_some_and(|back| arguments::same(&back, entries)) {
        row[EXACT] = STANDARD.encode(entries).into();
    }
    row["arguments"] = json;
}

/// Reads arguments, in their exact form if it is given.
fn arguments(body: &Body) -> Result<Vec<u8>, Error> {
    let Some(exact) = body.optional_text(EXACT)? else {
        return body.arguments();
    };
    let entries = STANDARD
        .decode(exact)
        .map_err(|error| Error::bad_request(format!("{EXACT} is not base64: {error}")))?;
    if let Err(error) = warren_protocol::Table::parse(&entries) {
        return Err(Error::bad_request(format!(
            "{EXACT} is no field table: {error}"
        )));
    }
    match body.0.get("arguments") {
        Some(given) if *given != through_text(&entries) => Err(Error::bad_request(format!(
            "arguments and {EXACT} differ: whoever changes arguments takes {EXACT} away"
        ))),
        Some(_) | None => Ok(entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use warren_protocol::{OwnedTable, OwnedValue};

    fn exported(value: OwnedValue) -> (Vec<u8>, Value) {
        let mut table = OwnedTable::new();
        table.put("k", value);
        let mut row = json!({});
        put_arguments(&mut row, &table.to_bytes());
        (table.to_bytes(), row)
    }

    #[test]
    fn all_types_come_back() {
        for value in [
            OwnedValue::I64(1),
            OwnedValue::I32(1),
            OwnedValue::U8(1),
            OwnedValue::F64(0.1 + 0.2),
            OwnedValue::F64(f64::INFINITY),
            OwnedValue::F32(0.1),
            OwnedValue::Timestamp(u64::MAX),
            OwnedValue::Bytes(b"a".to_vec()),
            OwnedValue::LongStr(b"\xff".to_vec()),
            OwnedValue::Void,
            OwnedValue::Array(vec![OwnedValue::I16(-1)]),
        ] {
            let (entries, row) = exported(value.clone());
            let text = row.to_string();
            let back = Body(serde_json::from_str(&text).unwrap());
            assert_eq!(arguments(&back).unwrap(), entries, "{value:?} {text}");
        }
    }

    #[test]
    fn what_json_can_say_is_not_said_twice() {
        for plain in [
            OwnedValue::I64(1),
            OwnedValue::Bool(true),
            OwnedValue::LongStr(b"x".to_vec()),
        ] {
            assert!(exported(plain).1.get(EXACT).is_none());
        }
        assert!(exported(OwnedValue::I32(1)).1.get(EXACT).is_some());
    }

    #[test]
    fn contradictions_are_refused() {
        let (_, mut row) = exported(OwnedValue::I32(1));
        row["arguments"] = json!({"k": 2});
        let read = |row: &Value| arguments(&Body(row.as_object().unwrap().clone()));
        assert!(read(&row).is_err());
        for bad in ["*", "AA"] {
            row[EXACT] = bad.into();
            assert!(read(&row).is_err(), "{bad}");
        }
        row.as_object_mut().unwrap().remove(EXACT);
        assert!(read(&row).is_ok());
    }
}
