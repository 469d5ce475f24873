//! Beside an independent codec: what we write it must read as the same fields, and the reverse, for every method, table and property.
//!
//! The other codec keeps tables as sorted maps of text keys, knows no `L`, and writes 0 or 1 where it drops a field
//! (`prefetch-size`, `ticket`), so the samples stay within that.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "each helper translates one class and refuses the others"
)]

use std::collections::BTreeMap;

use amq_protocol::frame::{
    AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame as their_parse,
};
use amq_protocol::protocol::{
    AMQPClass, access, basic, channel, confirm, connection, exchange, queue, tx,
};
use amq_protocol::types::{AMQPValue, DecimalValue, FieldTable, LongString, ShortString};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use warren_protocol::*;

use crate::samples::{Parts, every_method};

fn text(string: ShortStr<'_>) -> ShortString {
    string.as_str().unwrap().into()
}

fn long(bytes: &[u8]) -> LongString {
    bytes.into()
}

fn fields(table: Table<'_>) -> FieldTable {
    let entries: BTreeMap<ShortString, AMQPValue> = table
        .iter()
        .map(|(key, value)| (text(key), their_value(value)))
        .collect();
    entries.into()
}

fn their_value(value: Value<'_>) -> AMQPValue {
    match value {
        Value::Bool(value) => AMQPValue::Boolean(value),
        Value::I8(value) => AMQPValue::ShortShortInt(value),
        Value::U8(value) => AMQPValue::ShortShortUInt(value),
        Value::I16(value) => AMQPValue::ShortInt(value),
        Value::U16(value) => AMQPValue::ShortUInt(value),
        Value::I32(value) => AMQPValue::LongInt(value),
        Value::U32(value) => AMQPValue::LongUInt(value),
        Value::I64(value) | Value::L64(value) => AMQPValue::LongLongInt(value),
        Value::F32(value) => AMQPValue::Float(value),
        Value::F64(value) => AMQPValue::Double(value),
        Value::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue { scale, value }),
        Value::LongStr(bytes) => AMQPValue::LongString(bytes.into()),
        Value::Array(array) => {
            AMQPValue::FieldArray(array.iter().map(their_value).collect::<Vec<_>>().into())
        }
        Value::Timestamp(value) => AMQPValue::Timestamp(value),
        Value::Table(table) => AMQPValue::FieldTable(fields(table)),
        Value::Void => AMQPValue::Void,
        Value::Bytes(bytes) => AMQPValue::ByteArray(bytes.into()),
    }
}

/// The same method in the other codec's types, field by field.
fn theirs(method: &Method<'_>) -> AMQPClass {
    match *method {
        Method::ConnectionStart(_)
        | Method::ConnectionStartOk(_)
        | Method::ConnectionSecure(_)
        | Method::ConnectionSecureOk(_)
        | Method::ConnectionTune(_)
        | Method::ConnectionTuneOk(_)
        | Method::ConnectionOpen(_)
        | Method::ConnectionOpenOk
        | Method::ConnectionClose(_)
        | Method::ConnectionCloseOk
        | Method::ConnectionBlocked(_)
        | Method::ConnectionUnblocked
        | Method::ConnectionUpdateSecret(_)
        | Method::ConnectionUpdateSecretOk => AMQPClass::Connection(their_connection(method)),
        Method::ChannelOpen => AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})),
        Method::ChannelOpenOk => {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {}))
        }
        Method::ChannelFlow(m) => AMQPClass::Channel(channel::AMQPMethod::Flow(channel::Flow {
            active: m.active,
        })),
        Method::ChannelFlowOk(m) => {
            AMQPClass::Channel(channel::AMQPMethod::FlowOk(channel::FlowOk {
                active: m.active,
            }))
        }
        Method::ChannelClose(m) => AMQPClass::Channel(channel::AMQPMethod::Close(channel::Close {
            reply_code: m.reply_code,
            reply_text: text(m.reply_text),
            class_id: m.class_id,
            method_id: m.method_id,
        })),
        Method::ChannelCloseOk => {
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}))
        }
        Method::AccessRequest(m) => {
            AMQPClass::Access(access::AMQPMethod::Request(access::Request {
                realm: text(m.realm),
                exclusive: m.exclusive,
                passive: m.passive,
                active: m.active,
                write: m.write,
                read: m.read,
            }))
        }
        Method::AccessRequestOk(_) => {
            AMQPClass::Access(access::AMQPMethod::RequestOk(access::RequestOk {}))
        }
        Method::ExchangeDeclare(_)
        | Method::ExchangeDeclareOk
        | Method::ExchangeDelete(_)
        | Method::ExchangeDeleteOk
        | Method::ExchangeBind(_)
        | Method::ExchangeBindOk
        | Method::ExchangeUnbind(_)
        | Method::ExchangeUnbindOk => AMQPClass::Exchange(their_exchange(method)),
        Method::QueueDeclare(_)
        | Method::QueueDeclareOk(_)
        | Method::QueueBind(_)
        | Method::QueueBindOk
        | Method::QueueUnbind(_)
        | Method::QueueUnbindOk
        | Method::QueuePurge(_)
        | Method::QueuePurgeOk(_)
        | Method::QueueDelete(_)
        | Method::QueueDeleteOk(_) => AMQPClass::Queue(their_queue(method)),
        Method::ConfirmSelect(m) => {
            AMQPClass::Confirm(confirm::AMQPMethod::Select(confirm::Select {
                nowait: m.no_wait,
            }))
        }
        Method::ConfirmSelectOk => {
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}))
        }
        Method::TxSelect => AMQPClass::Tx(tx::AMQPMethod::Select(tx::Select {})),
        Method::TxSelectOk => AMQPClass::Tx(tx::AMQPMethod::SelectOk(tx::SelectOk {})),
        Method::TxCommit => AMQPClass::Tx(tx::AMQPMethod::Commit(tx::Commit {})),
        Method::TxCommitOk => AMQPClass::Tx(tx::AMQPMethod::CommitOk(tx::CommitOk {})),
        Method::TxRollback => AMQPClass::Tx(tx::AMQPMethod::Rollback(tx::Rollback {})),
        Method::TxRollbackOk => AMQPClass::Tx(tx::AMQPMethod::RollbackOk(tx::RollbackOk {})),
        _ => AMQPClass::Basic(their_basic(method)),
    }
}

fn their_connection(method: &Method<'_>) -> connection::AMQPMethod {
    use connection::AMQPMethod as M;
    match *method {
        Method::ConnectionStart(m) => M::Start(connection::Start {
            version_major: m.version_major,
            version_minor: m.version_minor,
            server_properties: fields(m.server_properties),
            mechanisms: long(m.mechanisms),
            locales: long(m.locales),
        }),
        Method::ConnectionStartOk(m) => M::StartOk(connection::StartOk {
            client_properties: fields(m.client_properties),
            mechanism: text(m.mechanism),
            response: long(m.response),
            locale: text(m.locale),
        }),
        Method::ConnectionSecure(m) => M::Secure(connection::Secure {
            challenge: long(m.challenge),
        }),
        Method::ConnectionSecureOk(m) => M::SecureOk(connection::SecureOk {
            response: long(m.response),
        }),
        Method::ConnectionTune(m) => M::Tune(connection::Tune {
            channel_max: m.channel_max,
            frame_max: m.frame_max,
            heartbeat: m.heartbeat,
        }),
        Method::ConnectionTuneOk(m) => M::TuneOk(connection::TuneOk {
            channel_max: m.channel_max,
            frame_max: m.frame_max,
            heartbeat: m.heartbeat,
        }),
        Method::ConnectionOpen(m) => M::Open(connection::Open {
            virtual_host: text(m.virtual_host),
        }),
        Method::ConnectionOpenOk => M::OpenOk(connection::OpenOk {}),
        Method::ConnectionClose(m) => M::Close(connection::Close {
            reply_code: m.reply_code,
            reply_text: text(m.reply_text),
            class_id: m.class_id,
            method_id: m.method_id,
        }),
        Method::ConnectionCloseOk => M::CloseOk(connection::CloseOk {}),
        Method::ConnectionBlocked(m) => M::Blocked(connection::Blocked {
            reason: text(m.reason),
        }),
        Method::ConnectionUnblocked => M::Unblocked(connection::Unblocked {}),
        Method::ConnectionUpdateSecret(m) => M::UpdateSecret(connection::UpdateSecret {
            new_secret: long(m.new_secret),
            reason: text(m.reason),
        }),
        Method::ConnectionUpdateSecretOk => M::UpdateSecretOk(connection::UpdateSecretOk {}),
        _ => panic!("no counterpart for {}", method.name()),
    }
}

fn their_exchange(method: &Method<'_>) -> exchange::AMQPMethod {
    use exchange::AMQPMethod as M;
    match *method {
        Method::ExchangeDeclare(m) => M::Declare(exchange::Declare {
            exchange: text(m.exchange),
            kind: text(m.kind),
            passive: m.passive,
            durable: m.durable,
            auto_delete: m.auto_delete,
            internal: m.internal,
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::ExchangeDeclareOk => M::DeclareOk(exchange::DeclareOk {}),
        Method::ExchangeDelete(m) => M::Delete(exchange::Delete {
            exchange: text(m.exchange),
            if_unused: m.if_unused,
            nowait: m.no_wait,
        }),
        Method::ExchangeDeleteOk => M::DeleteOk(exchange::DeleteOk {}),
        Method::ExchangeBind(m) => M::Bind(exchange::Bind {
            destination: text(m.destination),
            source: text(m.source),
            routing_key: text(m.routing_key),
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::ExchangeBindOk => M::BindOk(exchange::BindOk {}),
        Method::ExchangeUnbind(m) => M::Unbind(exchange::Unbind {
            destination: text(m.destination),
            source: text(m.source),
            routing_key: text(m.routing_key),
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::ExchangeUnbindOk => M::UnbindOk(exchange::UnbindOk {}),
        _ => panic!("no counterpart for {}", method.name()),
    }
}

fn their_queue(method: &Method<'_>) -> queue::AMQPMethod {
    use queue::AMQPMethod as M;
    match *method {
        Method::QueueDeclare(m) => M::Declare(queue::Declare {
            queue: text(m.queue),
            passive: m.passive,
            durable: m.durable,
            exclusive: m.exclusive,
            auto_delete: m.auto_delete,
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::QueueDeclareOk(m) => M::DeclareOk(queue::DeclareOk {
            queue: text(m.queue),
            message_count: m.message_count,
            consumer_count: m.consumer_count,
        }),
        Method::QueueBind(m) => M::Bind(queue::Bind {
            queue: text(m.queue),
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::QueueBindOk => M::BindOk(queue::BindOk {}),
        Method::QueueUnbind(m) => M::Unbind(queue::Unbind {
            queue: text(m.queue),
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
            arguments: fields(m.arguments),
        }),
        Method::QueueUnbindOk => M::UnbindOk(queue::UnbindOk {}),
        Method::QueuePurge(m) => M::Purge(queue::Purge {
            queue: text(m.queue),
            nowait: m.no_wait,
        }),
        Method::QueuePurgeOk(m) => M::PurgeOk(queue::PurgeOk {
            message_count: m.message_count,
        }),
        Method::QueueDelete(m) => M::Delete(queue::Delete {
            queue: text(m.queue),
            if_unused: m.if_unused,
            if_empty: m.if_empty,
            nowait: m.no_wait,
        }),
        Method::QueueDeleteOk(m) => M::DeleteOk(queue::DeleteOk {
            message_count: m.message_count,
        }),
        _ => panic!("no counterpart for {}", method.name()),
    }
}

fn their_basic(method: &Method<'_>) -> basic::AMQPMethod {
    use basic::AMQPMethod as M;
    match *method {
        Method::BasicQos(m) => M::Qos(basic::Qos {
            prefetch_count: m.prefetch_count,
            global: m.global,
        }),
        Method::BasicQosOk => M::QosOk(basic::QosOk {}),
        Method::BasicConsume(m) => M::Consume(basic::Consume {
            queue: text(m.queue),
            consumer_tag: text(m.consumer_tag),
            no_local: m.no_local,
            no_ack: m.no_ack,
            exclusive: m.exclusive,
            nowait: m.no_wait,
            arguments: fields(m.arguments),
        }),
        Method::BasicConsumeOk(m) => M::ConsumeOk(basic::ConsumeOk {
            consumer_tag: text(m.consumer_tag),
        }),
        Method::BasicCancel(m) => M::Cancel(basic::Cancel {
            consumer_tag: text(m.consumer_tag),
            nowait: m.no_wait,
        }),
        Method::BasicCancelOk(m) => M::CancelOk(basic::CancelOk {
            consumer_tag: text(m.consumer_tag),
        }),
        Method::BasicPublish(m) => M::Publish(basic::Publish {
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
            mandatory: m.mandatory,
            immediate: m.immediate,
        }),
        Method::BasicReturn(m) => M::Return(basic::Return {
            reply_code: m.reply_code,
            reply_text: text(m.reply_text),
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
        }),
        Method::BasicDeliver(m) => M::Deliver(basic::Deliver {
            consumer_tag: text(m.consumer_tag),
            delivery_tag: m.delivery_tag,
            redelivered: m.redelivered,
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
        }),
        Method::BasicGet(m) => M::Get(basic::Get {
            queue: text(m.queue),
            no_ack: m.no_ack,
        }),
        Method::BasicGetOk(m) => M::GetOk(basic::GetOk {
            delivery_tag: m.delivery_tag,
            redelivered: m.redelivered,
            exchange: text(m.exchange),
            routing_key: text(m.routing_key),
            message_count: m.message_count,
        }),
        Method::BasicGetEmpty => M::GetEmpty(basic::GetEmpty {}),
        Method::BasicAck(m) => M::Ack(basic::Ack {
            delivery_tag: m.delivery_tag,
            multiple: m.multiple,
        }),
        Method::BasicReject(m) => M::Reject(basic::Reject {
            delivery_tag: m.delivery_tag,
            requeue: m.requeue,
        }),
        Method::BasicRecoverAsync(m) => M::RecoverAsync(basic::RecoverAsync { requeue: m.requeue }),
        Method::BasicRecover(m) => M::Recover(basic::Recover { requeue: m.requeue }),
        Method::BasicRecoverOk => M::RecoverOk(basic::RecoverOk {}),
        Method::BasicNack(m) => M::Nack(basic::Nack {
            delivery_tag: m.delivery_tag,
            multiple: m.multiple,
            requeue: m.requeue,
        }),
        _ => panic!("no counterpart for {}", method.name()),
    }
}

fn generate(frame: &AMQPFrame) -> Vec<u8> {
    let mut buffer = vec![0; 64 * 1024];
    let cursor = std::io::Cursor::new(buffer.as_mut_slice());
    let written = gen_frame(frame)(WriteContext::from(cursor))
        .unwrap()
        .position;
    buffer.truncate(usize::try_from(written).unwrap());
    buffer
}

fn parse(bytes: &[u8]) -> AMQPFrame {
    let (rest, frame) = their_parse(bytes).unwrap();
    assert!(rest.is_empty());
    frame
}

/// Values that both codecs can hold.
fn common_value() -> BoxedStrategy<OwnedValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(OwnedValue::Bool),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i32>().prop_map(OwnedValue::I32),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i64>().prop_map(OwnedValue::I64),
        any::<f32>().prop_map(OwnedValue::F32),
        any::<f64>().prop_map(OwnedValue::F64),
        any::<(u8, u32)>().prop_map(|(scale, value)| OwnedValue::Decimal { scale, value }),
        vec(any::<u8>(), 0..40).prop_map(OwnedValue::LongStr),
        any::<u64>().prop_map(OwnedValue::Timestamp),
        Just(OwnedValue::Void),
        vec(any::<u8>(), 0..40).prop_map(OwnedValue::Bytes),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(OwnedValue::Array),
            btree_map("[a-zA-Z-]{0,8}", inner, 0..4)
                .prop_map(|entries| OwnedValue::Table(entries.into_iter().collect())),
        ]
    })
    .boxed()
}

fn common_table() -> impl Strategy<Value = OwnedTable> {
    btree_map("\\PC{0,8}", common_value(), 0..6).prop_map(|entries| entries.into_iter().collect())
}

fn common_parts() -> impl Strategy<Value = Parts> {
    let short = || "\\PC{0,20}".prop_map(String::into_bytes);
    let long = || vec(any::<u8>(), 0..100);
    (
        [short(), short(), short()],
        [long(), long()],
        common_table(),
        any::<[u64; 3]>(),
        any::<[bool; 5]>(),
    )
        .prop_map(|(shorts, longs, table, numbers, bits)| Parts {
            shorts,
            longs,
            table,
            numbers,
            bits,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_method_means_the_same_to_both(parts in common_parts(), channel: u16) {
        let table = parts.table.to_bytes();
        for method in every_method(&parts, &table) {
            let mut ours = Vec::new();
            method.write(channel, &mut ours);
            let expected = AMQPFrame::Method(channel, theirs(&method));
            prop_assert_eq!(&parse(&ours), &expected, "{}", method.name());
            let generated = generate(&expected);
            let frame = parse_frame(&generated, 0).unwrap().unwrap();
            prop_assert_eq!(frame.channel, channel);
            prop_assert_eq!(Method::decode(frame.payload), Ok(method));
            prop_assert_eq!(generated, ours);
        }
    }

    #[test]
    fn contents_mean_the_same_to_both(parts in common_parts(), present: u16, body in vec(any::<u8>(), 1..100)) {
        let headers = parts.table.to_bytes();
        let on = |bit: u16| present & bit != 0;
        let [a, b, c] = [0, 1, 2].map(|i| ShortStr::new(&parts.shorts[i]).unwrap());
        let mut ours = Properties::default();
        let mut theirs = basic::AMQPProperties::default();
        macro_rules! set {
            ($($bit:literal $field:ident $with:ident $value:expr, $their_value:expr;)+) => {
                $(if on(1 << $bit) {
                    ours.$field = Some($value);
                    theirs = theirs.$with($their_value);
                })+
            };
        }
        set! {
            0 content_type with_content_type a, text(a);
            1 content_encoding with_content_encoding b, text(b);
            2 headers with_headers Table::parse(&headers).unwrap(), fields(Table::parse(&headers).unwrap());
            3 delivery_mode with_delivery_mode 2, 2;
            4 priority with_priority 200, 200;
            5 correlation_id with_correlation_id c, text(c);
            6 reply_to with_reply_to a, text(a);
            7 expiration with_expiration b, text(b);
            8 message_id with_message_id c, text(c);
            9 timestamp with_timestamp parts.numbers[0], parts.numbers[0];
            10 kind with_type b, text(b);
            11 user_id with_user_id a, text(a);
            12 app_id with_app_id c, text(c);
            13 cluster_id with_cluster_id b, text(b);
        }
        let mut raw = Vec::new();
        ours.encode(&mut raw);
        let mut wire = Vec::new();
        write_content(&mut wire, 8, 0, CLASS_BASIC, &raw, &body);
        let header = AMQPFrame::Header(8, AMQPContentHeader {
            class_id: 60,
            body_size: body.len() as u64,
            properties: theirs,
        });
        let mut generated = generate(&header);
        let header_len = generated.len();
        generated.extend(generate(&AMQPFrame::Body(8, body)));
        prop_assert_eq!(&parse(&wire[..header_len]), &header);
        prop_assert_eq!(generated, wire);
    }
}
