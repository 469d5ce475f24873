//! Methods: hand-written bytes, round trips of every one, truncation of every one.

use proptest::prelude::*;
use warren_protocol::*;

use crate::samples::{Parts, encoded, every_method, parts};

/// Decodes, compares, and encodes back to the same bytes.
fn same(bytes: &[u8], method: Method<'_>) {
    assert_eq!(Method::decode(bytes), Ok(method));
    assert_eq!(encoded(&method), bytes);
}

#[test]
fn bits_share_an_octet_lowest_first() {
    same(
        b"\x00\x32\x00\x0a\0\0\x01q\x0a\0\0\0\0",
        QueueDeclare {
            queue: "q".into(),
            durable: true,
            auto_delete: true,
            ..Default::default()
        }
        .into(),
    );
    same(
        b"\x00\x28\x00\x0a\0\0\x01e\x05topic\x1a\0\0\0\x04\x01kt\x01",
        ExchangeDeclare {
            exchange: "e".into(),
            kind: "topic".into(),
            durable: true,
            internal: true,
            no_wait: true,
            arguments: Table::parse(b"\x01kt\x01").unwrap(),
            ..Default::default()
        }
        .into(),
    );
    same(
        b"\x00\x3c\x00\x78\0\0\0\0\0\0\x01\x00\x02",
        BasicNack {
            delivery_tag: 256,
            multiple: false,
            requeue: true,
        }
        .into(),
    );
}

#[test]
fn reserved_fields_are_skipped_and_written_as_zero() {
    let open = Method::from(ConnectionOpen {
        virtual_host: "/".into(),
    });
    same(b"\x00\x0a\x00\x28\x01/\x00\x00", open);
    let odd = b"\x00\x0a\x00\x28\x01/\x03abc\x01";
    assert_eq!(Method::decode(odd), Ok(open));
    same(b"\x00\x14\x00\x0b\0\0\0\0", Method::ChannelOpenOk);
    assert_eq!(
        Method::decode(b"\x00\x14\x00\x0b\0\0\0\x01x"),
        Ok(Method::ChannelOpenOk)
    );
    let ticket = b"\x00\x3c\x00\x28\x00\x65\x01x\x02rk\x01";
    let publish = BasicPublish {
        exchange: "x".into(),
        routing_key: "rk".into(),
        mandatory: true,
        immediate: false,
    };
    assert_eq!(Method::decode(ticket), Ok(publish.into()));
}

#[test]
fn unbind_ok_of_exchanges_is_51() {
    same(b"\x00\x28\x00\x33", Method::ExchangeUnbindOk);
    assert!(Method::decode(b"\x00\x28\x00\x29").is_err());
}

#[test]
fn errors_say_what_and_carry_a_code() {
    let unknown = Method::decode(b"\x00\x3c\x00\xff").unwrap_err();
    assert_eq!(
        unknown,
        DecodeError::UnknownMethod {
            class: 60,
            method: 255
        }
    );
    assert_eq!(unknown.reply_code(), COMMAND_INVALID);
    let trailing = Method::decode(b"\x00\x5a\x00\x0a\x00").unwrap_err();
    assert_eq!(
        trailing,
        DecodeError::TrailingBytes {
            what: "tx.select",
            count: 1
        }
    );
    assert_eq!(trailing.reply_code(), FRAME_ERROR);
    let short = Method::decode(b"\x00\x3c\x00\x28\0\0\x05abc").unwrap_err();
    assert_eq!(
        short.to_string(),
        "cannot decode BasicPublish: exchange: the payload ends inside it"
    );
    let tag = Method::decode(b"\x00\x32\x00\x0a\0\0\x01q\x00\0\0\0\x04\x01k?\x01").unwrap_err();
    assert_eq!(tag, DecodeError::UnknownFieldType { tag: b'?' });
    assert_eq!(tag.reply_code(), SYNTAX_ERROR);
}

#[test]
fn names_and_ids_are_one_to_one() {
    let parts = Parts::fixed();
    let table = parts.table.to_bytes();
    let methods = every_method(&parts, &table);
    let mut ids = std::collections::BTreeSet::new();
    let mut names = std::collections::BTreeSet::new();
    for method in &methods {
        let (class, id) = method.class_method();
        assert!(ids.insert((class, id)), "{}", method.name());
        assert!(names.insert(method.name()));
        assert_eq!(method_name(class, id), Some(method.name()));
        assert_eq!(method_id(&encoded(method)), Some((class, id)));
    }
    // Every id that decodes at all is among the samples.
    for class in 0..=100 {
        for id in 0..=200 {
            let known = method_name(class, id).is_some();
            assert_eq!(known, ids.contains(&(class, id)), "{class}.{id}");
        }
    }
    let with_content: Vec<&str> = methods
        .iter()
        .filter(|method| method.has_content())
        .map(Method::name)
        .collect();
    assert_eq!(
        with_content,
        [
            "basic.publish",
            "basic.return",
            "basic.deliver",
            "basic.get-ok"
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_method_survives_the_trip_and_no_prefix_of_it_decodes(parts in parts()) {
        let table = parts.table.to_bytes();
        for method in every_method(&parts, &table) {
            let bytes = encoded(&method);
            let back = Method::decode(&bytes);
            prop_assert_eq!(back, Ok(method));
            prop_assert_eq!(encoded(&back.unwrap()), bytes.clone());
            for len in 0..bytes.len() {
                prop_assert!(Method::decode(&bytes[..len]).is_err(), "{} cut to {}", method.name(), len);
            }
            let mut longer = bytes.clone();
            longer.push(0);
            prop_assert!(Method::decode(&longer).is_err());

            let mut frame = Vec::new();
            method.write(9, &mut frame);
            let raw = parse_frame(&frame, 0).unwrap().unwrap();
            prop_assert_eq!((raw.kind, raw.channel, raw.payload), (FrameKind::Method, 9, bytes.as_slice()));
            prop_assert_eq!(raw.wire_len(), frame.len());
        }
    }
}
