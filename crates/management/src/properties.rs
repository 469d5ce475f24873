//! Message properties as JSON and back, under the names that RabbitMQ's API has for them.
//!
//! From JSON, unknown names are passed over and null stands for absent, as in RabbitMQ; headers get their types as arguments do (see [`arguments`]).

use crate::arguments;
use crate::error::Error;
use serde_json::{Map, Value as Json};
use warren_protocol::{Properties, ShortStr, Table};

/// The property list of a JSON object.
pub(crate) fn encode(fields: &Map<String, Json>) -> Result<Vec<u8>, Error> {
    let headers = headers(fields)?;
    let headers = match &headers {
        Some(entries) => Some(Table::parse(entries).map_err(|error| {
            Error::bad_request(format!("headers make no field table: {error}"))
        })?),
        None => None,
    };
    let text = |name| text(fields, name);
    let properties = Properties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        headers,
        delivery_mode: number(fields, "delivery_mode")?,
        priority: number(fields, "priority")?,
        correlation_id: text("correlation_id")?,
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?,
        timestamp: number(fields, "timestamp")?,
        kind: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    };
    let mut list = Vec::new();
    properties.encode(&mut list);
    Ok(list)
}

fn given<'a>(fields: &'a Map<String, Json>, name: &str) -> Option<&'a Json> {
    fields.get(name).filter(|value| !value.is_null())
}

fn headers(fields: &Map<String, Json>) -> Result<Option<Vec<u8>>, Error> {
    match given(fields, "headers") {
        None => Ok(None),
        Some(Json::Object(headers)) => arguments::to_table(headers).map(Some),
        // What PHP makes of an empty map.
        Some(Json::Array(items)) if items.is_empty() => Ok(Some(Vec::new())),
        Some(other) => Err(Error::bad_request(format!(
            "headers must be an object, not {other}"
        ))),
    }
}

fn text<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<Option<ShortStr<'a>>, Error> {
    match given(fields, name) {
        None => Ok(None),
        Some(Json::String(text)) => {
            crate::check_name(name, text)?;
            Ok(Some(ShortStr::truncated(text)))
        }
        Some(other) => Err(Error::bad_request(format!(
            "{name} must be a string, not {other}"
        ))),
    }
}

fn number<T: TryFrom<u64>>(fields: &Map<String, Json>, name: &str) -> Result<Option<T>, Error> {
    let Some(value) = given(fields, name) else {
        return Ok(None);
    };
    match value.as_u64().map(T::try_from) {
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) | None => Err(Error::bad_request(format!(
            "{name} must be a whole number that fits AMQP's field, not {value}"
        ))),
    }
}

/// A property list as a JSON object of those that are set.
pub(crate) fn to_json(list: &[u8]) -> Json {
    let mut fields = Map::new();
    // Of a list that a session has let through, all can be read.
    let Ok(properties) = Properties::parse(list) else {
        return Json::Object(fields);
    };
    let mut put = |name: &str, value: Option<Json>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    let text = |text: Option<ShortStr<'_>>| text.map(|text| Json::from(text.to_string_lossy()));
    put("content_type", text(properties.content_type));
    put("content_encoding", text(properties.content_encoding));
    let headers = properties.headers;
    put(
        "headers",
        headers.map(|headers| arguments::to_json(headers.as_bytes())),
    );
    put("delivery_mode", properties.delivery_mode.map(Json::from));
    put("priority", properties.priority.map(Json::from));
    put("correlation_id", text(properties.correlation_id));
    put("reply_to", text(properties.reply_to));
    put("expiration", text(properties.expiration));
    put("message_id", text(properties.message_id));
    put("timestamp", properties.timestamp.map(Json::from));
    put("type", text(properties.kind));
    put("user_id", text(properties.user_id));
    put("app_id", text(properties.app_id));
    put("cluster_id", text(properties.cluster_id));
    Json::Object(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(fields: Json) -> Result<Vec<u8>, Error> {
        encode(fields.as_object().unwrap())
    }

    #[test]
    fn all_come_back() {
        let all = json!({
            "content_type": "text/plain", "content_encoding": "utf-8", "headers": {"n": 1, "s": "1", "l": [null, true]}, "delivery_mode": 2, "priority": 255,
            "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m", "timestamp": u64::MAX, "type": "t", "user_id": "guest",
            "app_id": "a", "cluster_id": ""
        });
        assert_eq!(to_json(&list(all.clone()).unwrap()), all);
        assert_eq!(list(json!({})).unwrap(), [0, 0]);
        assert_eq!(to_json(&[0, 0]), json!({}));
    }

    #[test]
    fn absent_unknown_and_empty() {
        let odd = json!({"type": null, "mine": {}, "headers": []});
        assert_eq!(to_json(&list(odd).unwrap()), json!({"headers": {}}));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for bad in [
            json!({"delivery_mode": "2"}),
            json!({"priority": 256}),
            json!({"timestamp": -1}),
            json!({"expiration": 60000}),
            json!({"app_id": "x".repeat(256)}),
            json!({"headers": "x"}),
            json!({"headers": {"k": u64::MAX}}),
        ] {
            assert!(list(bad.clone()).is_err(), "{bad}");
        }
    }
}
