//! Basic properties: all, none, each alone, and flag words that say more than this dialect knows.

use proptest::prelude::*;
use warren_protocol::*;

use crate::exercise;
use crate::samples::{owned_table, parts};

/// All fourteen, each value different, written by hand.
const ALL: &[u8] = b"\xff\xfc\
    \x02ct\x02ce\0\0\0\x03\x01kV\x02\x09\x02ci\x02rt\x0560000\x02mi\0\0\0\0\0\0\0\x07\x02ty\x02us\x02ap\x02cl";

#[test]
fn all_fourteen() {
    let expected = Properties {
        content_type: Some("ct".into()),
        content_encoding: Some("ce".into()),
        headers: Some(Table::parse(b"\x01kV").unwrap()),
        delivery_mode: Some(2),
        priority: Some(9),
        correlation_id: Some("ci".into()),
        reply_to: Some("rt".into()),
        expiration: Some("60000".into()),
        message_id: Some("mi".into()),
        timestamp: Some(7),
        kind: Some("ty".into()),
        user_id: Some("us".into()),
        app_id: Some("ap".into()),
        cluster_id: Some("cl".into()),
    };
    assert_eq!(Properties::parse(ALL), Ok(expected));
    let mut out = Vec::new();
    expected.encode(&mut out);
    assert_eq!(out, ALL);
    assert_eq!(delivery_mode(ALL), Some(2));
    for len in 0..ALL.len() {
        assert!(validate_properties(&ALL[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn none_at_all() {
    assert_eq!(Properties::parse(b"\0\0"), Ok(Properties::default()));
    assert_eq!(delivery_mode(b"\0\0"), None);
    assert!(Properties::parse(b"").is_err());
    assert!(Properties::parse(b"\0").is_err());
    assert!(property_flags(b"\0").is_err());
    assert_eq!(delivery_mode(b""), None);
}

#[test]
fn each_alone_has_its_flag() {
    type Has = fn(PropertyFlags) -> bool;
    let text = b"\x01a".as_slice();
    let cases: [(u16, &[u8], Has); 14] = [
        (0x8000, text, PropertyFlags::has_content_type),
        (0x4000, text, PropertyFlags::has_content_encoding),
        (0x2000, b"\0\0\0\0", PropertyFlags::has_headers),
        (0x1000, b"\x02", PropertyFlags::has_delivery_mode),
        (0x0800, b"\xff", PropertyFlags::has_priority),
        (0x0400, text, PropertyFlags::has_correlation_id),
        (0x0200, text, PropertyFlags::has_reply_to),
        (0x0100, text, PropertyFlags::has_expiration),
        (0x0080, text, PropertyFlags::has_message_id),
        (0x0040, b"\0\0\0\0\0\0\0\x01", PropertyFlags::has_timestamp),
        (0x0020, text, PropertyFlags::has_kind),
        (0x0010, text, PropertyFlags::has_user_id),
        (0x0008, text, PropertyFlags::has_app_id),
        (0x0004, text, PropertyFlags::has_cluster_id),
    ];
    for (bit, value, _) in cases {
        let mut raw = bit.to_be_bytes().to_vec();
        raw.extend_from_slice(value);
        exercise::properties(&raw);
        let properties = Properties::parse(&raw).unwrap();
        let mut out = Vec::new();
        properties.encode(&mut out);
        assert_eq!(out, raw);
        let flags = property_flags(&raw).unwrap();
        for (other, _, has) in cases {
            assert_eq!(has(flags), other == bit, "{bit:#06x} {other:#06x}");
        }
        assert_eq!(delivery_mode(&raw).is_some(), bit == 0x1000);
        raw.push(0);
        assert!(validate_properties(&raw).is_err(), "a byte too many");
    }
}

#[test]
fn further_flag_words_are_skipped_and_what_they_announce_is_ignored() {
    let empty_words = b"\x10\x01\x00\x01\x00\x00\x02";
    let properties = Properties::parse(empty_words).unwrap();
    assert_eq!(properties.delivery_mode, Some(2));
    assert_eq!(delivery_mode(empty_words), Some(2));

    let announcing = b"\x10\x01\x80\x00\x02\x05later";
    assert_eq!(
        Properties::parse(announcing).unwrap().delivery_mode,
        Some(2)
    );
    assert_eq!(delivery_mode(announcing), Some(2));

    let nothing_announced = b"\x10\x01\x00\x00\x02\x05later";
    assert!(Properties::parse(nothing_announced).is_err());
    assert!(
        Properties::parse(b"\x10\x01").is_err(),
        "the next word is missing"
    );
    assert!(
        Properties::parse(&[0xff; 100]).is_err(),
        "flag words without end"
    );
    let spare_bit = b"\x10\x02\x02\x07";
    assert_eq!(Properties::parse(spare_bit).unwrap().delivery_mode, Some(2));
}

proptest! {
    #[test]
    fn property_lists_survive_the_trip(parts in parts(), headers in owned_table(), present: u16, octets: [u8; 2]) {
        let headers = headers.to_bytes();
        let on = |bit: u16| present & bit != 0;
        let [a, b, c] = [0, 1, 2].map(|i| ShortStr::new(&parts.shorts[i]).unwrap());
        let properties = Properties {
            content_type: on(1 << 15).then_some(a),
            content_encoding: on(1 << 14).then_some(b),
            headers: on(1 << 13).then(|| Table::parse(&headers).unwrap()),
            delivery_mode: on(1 << 12).then_some(octets[0]),
            priority: on(1 << 11).then_some(octets[1]),
            correlation_id: on(1 << 10).then_some(c),
            reply_to: on(1 << 9).then_some(a),
            expiration: on(1 << 8).then_some(b),
            message_id: on(1 << 7).then_some(c),
            timestamp: on(1 << 6).then_some(parts.numbers[0]),
            kind: on(1 << 5).then_some(b),
            user_id: on(1 << 4).then_some(a),
            app_id: on(1 << 3).then_some(c),
            cluster_id: on(1 << 2).then_some(a),
        };
        let mut raw = Vec::new();
        properties.encode(&mut raw);
        prop_assert_eq!(property_flags(&raw).unwrap().0, present & !0b11);
        prop_assert_eq!(Properties::parse(&raw), Ok(properties));
        exercise::properties(&raw);
        for len in 0..raw.len() {
            prop_assert!(validate_properties(&raw[..len]).is_err());
            exercise::properties(&raw[..len]);
        }
    }
}
