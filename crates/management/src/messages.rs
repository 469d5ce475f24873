//! Messages: publishing one, getting some, purging a queue. For tests and for looking into things, not for traffic.
//!
//! All of it goes through a session of the user who asks (see [`crate::amqp`]), so the tag `management` and AMQP's permissions are what it takes.
//! Messages are got with their settlement outstanding and settled together at the end: what is not answered goes back to the queue.
//! Departs from RabbitMQ: a get ends early, with what it has, at [`GOT_BYTES_MAX`] or when its time is over.

use crate::access::{Access, Login};
use crate::amqp::{Client, Got, Settle};
use crate::bounds::Bounds;
use crate::error::Error;
use crate::extract::{Body, Names};
use crate::{Shared, exchange_name, properties, queues};
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;

/// After so many bytes of bodies, no more messages are got for one answer.
const GOT_BYTES_MAX: usize = 16 << 20;
/// What is kept of a session's time for settling what was got.
const SETTLING: Duration = Duration::from_secs(2);

/// Publishes a message, and says whether it reached a queue.
pub(crate) async fn publish(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(login): Extension<Login>,
    Names((vhost, exchange)): Names<(String, String)>,
    mut body: Body,
) -> Result<Json<Value>, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let key = body.text("routing_key")?.to_owned();
    let properties = match body.0.get("properties") {
        None => return Err(Error::bad_request("key_missing: properties")),
        Some(Value::Object(fields)) => properties::encode(fields)?,
        Some(Value::Array(items)) if items.is_empty() => properties::encode(&Default::default())?,
        Some(other) => {
            return Err(Error::bad_request(format!(
                "properties must be an object, not {other}"
            )));
        }
    };
    let payload = payload(&mut body)?;
    drop(body);
    if node.alarm() {
        // A session would wait until the alarm ends, and publish then, though nobody waits for it any more.
        return Err(Error::unavailable(
            "publishers are blocked: a node is low on memory or disk",
        ));
    }
    let mut client = Client::open(&node, &login, &vhost).await?;
    let exchange = exchange_name(&exchange);
    let routed = client
        .publish(exchange, &key, &properties, &payload)
        .await?;
    client.close().await;
    Ok(Json(json!({"routed": routed})))
}

/// The message's body, taken out of the request's.
fn payload(body: &mut Body) -> Result<Vec<u8>, Error> {
    let encoding = body.text("payload_encoding")?.to_owned();
    body.text("payload")?;
    let Some(Value::String(payload)) = body.0.remove("payload") else {
        return Err(Error::bad_request("key_missing: payload"));
    };
    match encoding.as_str() {
        "string" => Ok(payload.into_bytes()),
        "base64" => STANDARD
            .decode(payload)
            .map_err(|error| Error::bad_request(format!("payload is not base64: {error}"))),
        other => Err(Error::bad_request(format!(
            "unsupported payload_encoding '{other}': use string or base64"
        ))),
    }
}

/// What is asked of a get.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    count: u64,
    settle: Settle,
    base64: bool,
    truncate: Option<usize>,
}

impl Asked {
    fn of(body: &Body) -> Result<Self, Error> {
        let settle = match body.text("ackmode")? {
            "ack_requeue_false" => Settle::Ack,
            "reject_requeue_false" => Settle::Reject,
            "ack_requeue_true" | "reject_requeue_true" => Settle::Requeue,
            other => {
                return Err(Error::bad_request(format!(
                    "unknown ackmode '{other}': use ack_requeue_true, ack_requeue_false, reject_requeue_true or reject_requeue_false"
                )));
            }
        };
        let base64 = match body.text("encoding")? {
            "auto" => false,
            "base64" => true,
            other => {
                return Err(Error::bad_request(format!(
                    "unsupported encoding '{other}': use auto or base64"
                )));
            }
        };
        let count =
            number(body, "count")?.ok_or_else(|| Error::bad_request("key_missing: count"))?;
        let truncate = number(body, "truncate")?;
        Ok(Self {
            count,
            settle,
            base64,
            truncate: truncate.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        })
    }

    fn described(&self, got: Got) -> Value {
        let Got {
            redelivered,
            exchange,
            routing_key,
            message_count,
            properties,
            mut body,
        } = got;
        let payload_bytes = body.len();
        body.truncate(self.truncate.unwrap_or(usize::MAX));
        let text = if self.base64 {
            Err(body)
        } else {
            String::from_utf8(body).map_err(std::string::FromUtf8Error::into_bytes)
        };
        let (payload, payload_encoding) = match text {
            Ok(text) => (text, "string"),
            Err(bytes) => (STANDARD.encode(bytes), "base64"),
        };
        json!({
            "payload_bytes": payload_bytes,
            "redelivered": redelivered,
            "exchange": exchange,
            "routing_key": routing_key,
            "message_count": message_count,
            "properties": properties::to_json(&properties),
            "payload": payload,
            "payload_encoding": payload_encoding,
        })
    }
}

/// A number that may be given as text, too.
fn number(body: &Body, key: &str) -> Result<Option<u64>, Error> {
    let number = match body.0.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_u64(),
        Some(Value::String(text)) => text.parse().ok(),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => None,
    };
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Error::bad_request(format!(
            "{key} must be a whole number, 0 or more"
        ))),
    }
}

/// Gets messages, and says what they are.
pub(crate) async fn get(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(login): Extension<Login>,
    Extension(bounds): Extension<Bounds>,
    Names((vhost, queue)): Names<(String, String)>,
    body: Body,
) -> Result<Json<Value>, Error> {
    {
        let table = node.metadata().table().read();
        access.vhost(&table, &vhost)?;
        table
            .queue(&vhost, &queue)
            .ok_or_else(|| queues::none(&vhost, &queue))?;
    }
    let asked = Asked::of(&body)?;
    let mut client = Client::open(&node, &login, &vhost).await?;
    let mut memory = bounds.memory(0)?;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    while (rows.len() as u64) < asked.count && bytes < GOT_BYTES_MAX && client.left() > SETTLING {
        let Some(got) = client.get(&queue).await? else {
            break;
        };
        let size = got.body.len();
        let taken = bounds.memory(size);
        if let (Err(error), true) = (&taken, rows.is_empty()) {
            // It goes back to the queue with this session's end.
            return Err(error.clone());
        }
        bytes += size;
        rows.push(asked.described(got));
        match taken {
            Ok(taken) => memory.merge(taken),
            // What has been got is answered; there is no room for more.
            Err(_) => break,
        }
    }
    if !rows.is_empty() {
        client.settle_all(&queue, asked.settle).await?;
    }
    client.close().await;
    drop(memory);
    Ok(Json(Value::Array(rows)))
}

/// Takes all messages that are ready out of a queue.
pub(crate) async fn purge(
    State(node): Shared,
    Extension(access): Extension<Access>,
    Extension(login): Extension<Login>,
    Names((vhost, queue)): Names<(String, String)>,
) -> Result<StatusCode, Error> {
    access.vhost(&node.metadata().table().read(), &vhost)?;
    let mut client = Client::open(&node, &login, &vhost).await?;
    client.purge(&queue).await?;
    client.close().await;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn body(value: Value) -> Body {
        Body(value.as_object().unwrap().clone())
    }

    fn asked(change: impl FnOnce(&mut Value)) -> Result<Asked, Error> {
        let mut value = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"});
        change(&mut value);
        Asked::of(&body(value))
    }

    #[test]
    fn a_get_says_what_it_wants() {
        let plain = asked(|_| {}).unwrap();
        let expected = Asked {
            count: 1,
            settle: Settle::Ack,
            base64: false,
            truncate: None,
        };
        assert_eq!(plain, expected);
        assert_eq!(asked(|v| v["count"] = json!("7")).unwrap().count, 7);
        assert_eq!(
            asked(|v| v["truncate"] = json!(5)).unwrap().truncate,
            Some(5)
        );
        for (mode, settle) in [
            ("ack_requeue_true", Settle::Requeue),
            ("reject_requeue_true", Settle::Requeue),
            ("reject_requeue_false", Settle::Reject),
        ] {
            assert_eq!(
                asked(|v| v["ackmode"] = json!(mode)).unwrap().settle,
                settle
            );
        }
        for (key, bad) in [
            ("count", json!(-1)),
            ("count", json!(1.5)),
            ("count", json!(null)),
            ("ackmode", json!("get")),
            ("encoding", json!("utf8")),
            ("truncate", json!("x")),
        ] {
            assert!(asked(|v| v[key] = bad.clone()).is_err(), "{key} {bad}");
        }
    }

    #[test]
    fn payloads_are_text_where_they_can() {
        let shown = |bytes: &[u8], change: fn(&mut Value)| {
            let got = Got {
                redelivered: false,
                exchange: String::new(),
                routing_key: "k".into(),
                message_count: 0,
                properties: Bytes::from_static(&[0, 0]),
                body: bytes.to_vec(),
            };
            let row = asked(change).unwrap().described(got);
            (
                row["payload"].as_str().unwrap().to_owned(),
                row["payload_encoding"].as_str().unwrap().to_owned(),
                row["payload_bytes"].as_u64().unwrap(),
            )
        };
        let row = |payload: &str, encoding: &str, bytes| (payload.into(), encoding.into(), bytes);
        assert_eq!(shown("ü".as_bytes(), |_| {}), row("ü", "string", 2));
        assert_eq!(shown(b"", |_| {}), row("", "string", 0));
        assert_eq!(shown(b"\xff", |_| {}), row("/w==", "base64", 1));
        assert_eq!(
            shown(b"a", |v| v["encoding"] = json!("base64")),
            row("YQ==", "base64", 1)
        );
        assert_eq!(
            shown(b"abcd", |v| v["truncate"] = json!(2)),
            row("ab", "string", 4)
        );
        assert_eq!(
            shown("aü".as_bytes(), |v| v["truncate"] = json!(2)),
            row("YcM=", "base64", 3)
        );
    }

    #[test]
    fn payloads_are_decoded() {
        let read = |value: Value| payload(&mut body(value));
        assert_eq!(
            read(json!({"payload": "", "payload_encoding": "string"})).unwrap(),
            b""
        );
        assert_eq!(
            read(json!({"payload": "/w==", "payload_encoding": "base64"})).unwrap(),
            b"\xff"
        );
        for bad in [
            json!({"payload": "*", "payload_encoding": "base64"}),
            json!({"payload": "x", "payload_encoding": "utf8"}),
            json!({"payload": "x"}),
            json!({"payload": 1, "payload_encoding": "string"}),
            json!({"payload_encoding": "string"}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
