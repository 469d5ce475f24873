//! Raw material: one set of parts makes one of every method.

use proptest::collection::vec;
use proptest::prelude::*;
use warren_protocol::*;

/// What methods are made of. Each part is used in several fields, in a different order per method, so that swapped fields show.
#[derive(Clone, Debug)]
pub struct Parts {
    pub shorts: [Vec<u8>; 3],
    pub longs: [Vec<u8>; 2],
    pub table: OwnedTable,
    pub numbers: [u64; 3],
    pub bits: [bool; 5],
}

impl Parts {
    /// Parts whose every byte is told apart from its neighbours.
    pub fn fixed() -> Self {
        let mut inner = OwnedTable::new();
        inner.put("flag", true).put("n", -1i32);
        let mut table = OwnedTable::new();
        table
            .put("x-queue-type", "quorum")
            .put("nested", inner)
            .put(
                "list",
                vec![OwnedValue::I64(7), OwnedValue::Void, "s".into()],
            );
        Self {
            shorts: [b"alpha".to_vec(), b"be".to_vec(), b"gamma-3".to_vec()],
            longs: [b"PLAIN AMQPLAIN".to_vec(), b"en_US".to_vec()],
            table,
            numbers: [
                0x0102_0304_0506_0708,
                0x1112_1314_1516_1718,
                0xa1a2_a3a4_a5a6_a7a8,
            ],
            bits: [true, false, true, true, false],
        }
    }
}

pub fn owned_value(
    keys: impl Strategy<Value = Vec<u8>> + Clone + 'static,
) -> BoxedStrategy<OwnedValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(OwnedValue::Bool),
        any::<i8>().prop_map(OwnedValue::I8),
        any::<u8>().prop_map(OwnedValue::U8),
        any::<i16>().prop_map(OwnedValue::I16),
        any::<u16>().prop_map(OwnedValue::U16),
        any::<i32>().prop_map(OwnedValue::I32),
        any::<u32>().prop_map(OwnedValue::U32),
        any::<i64>().prop_map(OwnedValue::I64),
        any::<i64>().prop_map(OwnedValue::L64),
        any::<f32>().prop_map(OwnedValue::F32),
        any::<f64>().prop_map(OwnedValue::F64),
        any::<(u8, u32)>().prop_map(|(scale, value)| OwnedValue::Decimal { scale, value }),
        vec(any::<u8>(), 0..40).prop_map(OwnedValue::LongStr),
        any::<u64>().prop_map(OwnedValue::Timestamp),
        Just(OwnedValue::Void),
        vec(any::<u8>(), 0..40).prop_map(OwnedValue::Bytes),
    ];
    leaf.prop_recursive(5, 24, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(OwnedValue::Array),
            vec((keys.clone(), inner), 0..4)
                .prop_map(|entries| OwnedValue::Table(entries.into_iter().collect())),
        ]
    })
    .boxed()
}

/// Any table: keys of any bytes, duplicates included.
pub fn owned_table() -> BoxedStrategy<OwnedTable> {
    let keys = vec(any::<u8>(), 0..12);
    vec((keys.clone(), owned_value(keys)), 0..6)
        .prop_map(|entries| entries.into_iter().collect())
        .boxed()
}

pub fn parts() -> impl Strategy<Value = Parts> {
    let short = || prop_oneof![vec(any::<u8>(), 0..20), vec(any::<u8>(), 255)];
    let long = || vec(any::<u8>(), 0..300);
    (
        [short(), short(), short()],
        [long(), long()],
        owned_table(),
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

/// One of every method there is.
#[expect(
    clippy::cast_possible_truncation,
    reason = "any number will do in a narrower field"
)]
pub fn every_method<'a>(parts: &'a Parts, table_bytes: &'a [u8]) -> Vec<Method<'a>> {
    let [a, b, c] = [0, 1, 2].map(|i| ShortStr::new(&parts.shorts[i]).unwrap());
    let [long_a, long_b] = [0, 1].map(|i| parts.longs[i].as_slice());
    let table = Table::parse(table_bytes).unwrap();
    let [n, m, o] = parts.numbers;
    let [p, q, r, s, t] = parts.bits;
    vec![
        ConnectionStart {
            version_major: n as u8,
            version_minor: m as u8,
            server_properties: table,
            mechanisms: long_a,
            locales: long_b,
        }
        .into(),
        ConnectionStartOk {
            client_properties: table,
            mechanism: a,
            response: long_a,
            locale: b,
        }
        .into(),
        ConnectionSecure { challenge: long_a }.into(),
        ConnectionSecureOk { response: long_b }.into(),
        ConnectionTune {
            channel_max: n as u16,
            frame_max: m as u32,
            heartbeat: o as u16,
        }
        .into(),
        ConnectionTuneOk {
            channel_max: o as u16,
            frame_max: n as u32,
            heartbeat: m as u16,
        }
        .into(),
        ConnectionOpen { virtual_host: a }.into(),
        Method::ConnectionOpenOk,
        ConnectionClose {
            reply_code: n as u16,
            reply_text: b,
            class_id: m as u16,
            method_id: o as u16,
        }
        .into(),
        Method::ConnectionCloseOk,
        ConnectionBlocked { reason: c }.into(),
        Method::ConnectionUnblocked,
        ConnectionUpdateSecret {
            new_secret: long_b,
            reason: a,
        }
        .into(),
        Method::ConnectionUpdateSecretOk,
        Method::ChannelOpen,
        Method::ChannelOpenOk,
        ChannelFlow { active: p }.into(),
        ChannelFlowOk { active: q }.into(),
        ChannelClose {
            reply_code: m as u16,
            reply_text: a,
            class_id: o as u16,
            method_id: n as u16,
        }
        .into(),
        Method::ChannelCloseOk,
        AccessRequest {
            realm: a,
            exclusive: p,
            passive: q,
            active: r,
            write: s,
            read: t,
        }
        .into(),
        AccessRequestOk { ticket: 1 }.into(),
        ExchangeDeclare {
            exchange: a,
            kind: b,
            passive: p,
            durable: q,
            auto_delete: r,
            internal: s,
            no_wait: t,
            arguments: table,
        }
        .into(),
        Method::ExchangeDeclareOk,
        ExchangeDelete {
            exchange: c,
            if_unused: p,
            no_wait: q,
        }
        .into(),
        Method::ExchangeDeleteOk,
        ExchangeBind {
            destination: a,
            source: b,
            routing_key: c,
            no_wait: p,
            arguments: table,
        }
        .into(),
        Method::ExchangeBindOk,
        ExchangeUnbind {
            destination: c,
            source: a,
            routing_key: b,
            no_wait: q,
            arguments: table,
        }
        .into(),
        Method::ExchangeUnbindOk,
        QueueDeclare {
            queue: a,
            passive: t,
            durable: s,
            exclusive: r,
            auto_delete: q,
            no_wait: p,
            arguments: table,
        }
        .into(),
        QueueDeclareOk {
            queue: b,
            message_count: n as u32,
            consumer_count: m as u32,
        }
        .into(),
        QueueBind {
            queue: a,
            exchange: b,
            routing_key: c,
            no_wait: r,
            arguments: table,
        }
        .into(),
        Method::QueueBindOk,
        QueueUnbind {
            queue: b,
            exchange: c,
            routing_key: a,
            arguments: table,
        }
        .into(),
        Method::QueueUnbindOk,
        QueuePurge {
            queue: a,
            no_wait: p,
        }
        .into(),
        QueuePurgeOk {
            message_count: o as u32,
        }
        .into(),
        QueueDelete {
            queue: c,
            if_unused: p,
            if_empty: q,
            no_wait: s,
        }
        .into(),
        QueueDeleteOk {
            message_count: m as u32,
        }
        .into(),
        BasicQos {
            prefetch_size: 0,
            prefetch_count: n as u16,
            global: p,
        }
        .into(),
        Method::BasicQosOk,
        BasicConsume {
            queue: a,
            consumer_tag: b,
            no_local: p,
            no_ack: q,
            exclusive: r,
            no_wait: s,
            arguments: table,
        }
        .into(),
        BasicConsumeOk { consumer_tag: a }.into(),
        BasicCancel {
            consumer_tag: b,
            no_wait: p,
        }
        .into(),
        BasicCancelOk { consumer_tag: c }.into(),
        BasicPublish {
            exchange: a,
            routing_key: b,
            mandatory: p,
            immediate: q,
        }
        .into(),
        BasicReturn {
            reply_code: n as u16,
            reply_text: a,
            exchange: b,
            routing_key: c,
        }
        .into(),
        BasicDeliver {
            consumer_tag: c,
            delivery_tag: n,
            redelivered: p,
            exchange: a,
            routing_key: b,
        }
        .into(),
        BasicGet {
            queue: a,
            no_ack: q,
        }
        .into(),
        BasicGetOk {
            delivery_tag: m,
            redelivered: q,
            exchange: b,
            routing_key: a,
            message_count: o as u32,
        }
        .into(),
        Method::BasicGetEmpty,
        BasicAck {
            delivery_tag: n,
            multiple: p,
        }
        .into(),
        BasicReject {
            delivery_tag: m,
            requeue: q,
        }
        .into(),
        BasicRecoverAsync { requeue: p }.into(),
        BasicRecover { requeue: q }.into(),
        Method::BasicRecoverOk,
        BasicNack {
            delivery_tag: o,
            multiple: p,
            requeue: q,
        }
        .into(),
        ConfirmSelect { no_wait: p }.into(),
        Method::ConfirmSelectOk,
        Method::TxSelect,
        Method::TxSelectOk,
        Method::TxCommit,
        Method::TxCommitOk,
        Method::TxRollback,
        Method::TxRollbackOk,
    ]
}

pub fn encoded(method: &Method<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    method.encode(&mut out);
    out
}
