//! Field tables: every type of the dialect, byte-exact, and the bounds on nesting.

use proptest::prelude::*;
use warren_protocol::*;

use crate::exercise;
use crate::samples::{encoded, owned_table};

/// Every type with its extremes: type octet, value bytes, what it reads as.
fn every_type() -> Vec<(&'static [u8], Value<'static>)> {
    vec![
        (b"t\0", Value::Bool(false)),
        (b"t\x01", Value::Bool(true)),
        (b"b\xff", Value::I8(-1)),
        (b"b\x80", Value::I8(i8::MIN)),
        (b"B\x80", Value::U8(128)),
        (b"B\xff", Value::U8(255)),
        (b"s\xff\xff", Value::I16(-1)),
        (b"s\x80\0", Value::I16(i16::MIN)),
        (b"u\x80\0", Value::U16(32768)),
        (b"I\xff\xff\xff\xff", Value::I32(-1)),
        (b"I\x80\0\0\0", Value::I32(i32::MIN)),
        (b"i\x80\0\0\0", Value::U32(1 << 31)),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xfe", Value::I64(-2)),
        (b"l\x7f\xff\xff\xff\xff\xff\xff\xff", Value::I64(i64::MAX)),
        (b"L\xff\xff\xff\xff\xff\xff\xff\xfe", Value::L64(-2)),
        (b"L\x7f\xff\xff\xff\xff\xff\xff\xff", Value::L64(i64::MAX)),
        (b"f\x3f\xc0\0\0", Value::F32(1.5)),
        (b"f\x7f\x80\0\0", Value::F32(f32::INFINITY)),
        (b"d\xbf\xf8\0\0\0\0\0\0", Value::F64(-1.5)),
        (
            b"D\x02\0\0\x01\x3a",
            Value::Decimal {
                scale: 2,
                value: 314,
            },
        ),
        (b"S\0\0\0\0", Value::LongStr(b"")),
        (b"S\0\0\0\x03\x80\xff\0", Value::LongStr(b"\x80\xff\0")),
        (b"A\0\0\0\0", Value::Array(Array::EMPTY)),
        (b"T\0\0\0\0\0\0\0\0", Value::Timestamp(0)),
        (b"T\x80\0\0\0\0\0\0\0", Value::Timestamp(1 << 63)),
        (b"F\0\0\0\0", Value::Table(Table::EMPTY)),
        (b"V", Value::Void),
        (b"x\0\0\0\x02\xff\x80", Value::Bytes(b"\xff\x80")),
    ]
}

/// A table with all of them, with keys that repeat and differ in case only, nested five deep at the end.
fn full_table() -> Vec<u8> {
    let mut table = Vec::new();
    for (index, (bytes, _)) in every_type().iter().enumerate() {
        table.extend_from_slice(if index % 2 == 0 { b"\x01k" } else { b"\x01K" });
        table.extend_from_slice(bytes);
    }
    let mut array = Vec::new();
    for (bytes, _) in every_type() {
        array.extend_from_slice(bytes);
    }
    let mut nested = array;
    for level in 0..5 {
        let mut outer = Vec::new();
        if level % 2 == 0 {
            outer.extend_from_slice(b"A");
        } else {
            outer.extend_from_slice(b"F");
        }
        outer.extend_from_slice(&u32::try_from(nested.len()).unwrap().to_be_bytes());
        outer.extend_from_slice(&nested);
        if level % 2 == 0 {
            // What an array stands in next is a table: give it a key.
            outer.splice(0..0, b"\x02in".iter().copied());
        }
        nested = outer;
    }
    table.extend_from_slice(&nested);
    table
}

#[test]
fn every_type_reads_as_it_should() {
    for (bytes, expected) in every_type() {
        let mut entries = b"\x03key".to_vec();
        entries.extend_from_slice(bytes);
        let table = Table::parse(&entries).unwrap();
        let read: Vec<_> = table.iter().collect();
        assert_eq!(read, [(ShortStr::from("key"), expected)]);
        assert_eq!(table.get("key"), Some(expected));
        assert_eq!(table.get("Key"), None);
        let array = Array::parse(bytes).unwrap();
        assert_eq!(array.iter().collect::<Vec<_>>(), [expected]);
        let mut out = Vec::new();
        expected.encode(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(table.to_owned_table().to_bytes(), entries);
        for len in 1..entries.len() {
            assert!(
                Table::parse(&entries[..len]).is_err(),
                "{bytes:?} cut to {len}"
            );
        }
    }
}

#[test]
fn all_types_pass_through_methods_and_properties_unchanged() {
    let bytes = full_table();
    exercise::table(&bytes);
    let table = Table::parse(&bytes).unwrap();
    assert_eq!(table.iter().count(), every_type().len() + 1);
    let first = table.get("k");
    assert_eq!(first, Some(Value::Bool(false)), "the first of duplicates");

    let declare = encoded(
        &QueueDeclare {
            queue: "q".into(),
            arguments: table,
            ..Default::default()
        }
        .into(),
    );
    let Ok(Method::QueueDeclare(declare)) = Method::decode(&declare) else {
        panic!("not a queue.declare");
    };
    assert_eq!(declare.arguments.as_bytes(), bytes);

    let mut raw = Vec::new();
    let properties = Properties {
        headers: Some(table),
        ..Default::default()
    };
    properties.encode(&mut raw);
    let headers = Properties::parse(&raw).unwrap().headers.unwrap();
    assert_eq!(headers.as_bytes(), bytes);
}

#[test]
fn odd_booleans_and_nans_keep_their_bytes() {
    let entries = b"\x01at\x07\x01bf\x7f\xa0\0\x01";
    let table = Table::parse(entries).unwrap();
    assert_eq!(table.get("a"), Some(Value::Bool(true)));
    assert!(matches!(table.get("b"), Some(Value::F32(nan)) if nan.is_nan()));
    assert_eq!(table.as_bytes(), entries);
}

#[test]
fn integers_are_one_class_and_types_have_rabbitmqs_names() {
    let names: Vec<_> = every_type()
        .iter()
        .map(|(_, value)| value.type_name())
        .collect();
    for name in [
        "bool",
        "byte",
        "unsignedbyte",
        "short",
        "unsignedshort",
        "signedint",
        "unsignedint",
        "long",
        "float",
        "double",
        "decimal",
        "longstr",
        "array",
        "timestamp",
        "table",
        "void",
        "binary",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    assert_eq!(Value::L64(-2).type_name(), "long");
    for (bytes, value) in every_type() {
        let integer = b"bBsuIilL".contains(&bytes[0]);
        assert_eq!(value.as_integer().is_some(), integer, "{value:?}");
    }
    assert_eq!(Value::U32(1 << 31).as_integer(), Some(1 << 31));
    assert_eq!(Value::I64(-2).as_integer(), Some(-2));
}

#[test]
fn types_outside_the_dialect_are_refused() {
    for tag in 0..=u8::MAX {
        let entries = [1, b'k', tag, 0, 0, 0, 0, 0, 0, 0, 0];
        let known = b"tbBsuIilLfdDSATFVx".contains(&tag);
        let refused = Table::parse(&entries) == Err(DecodeError::UnknownFieldType { tag });
        assert_eq!(refused, !known, "{tag}");
    }
}

/// A table in which tables (or arrays) nest to `depth`, the outermost counted.
fn nested(depth: usize, arrays: bool) -> Vec<u8> {
    let mut inner = Vec::new();
    for _ in 1..depth {
        let mut outer = if arrays {
            b"A".to_vec()
        } else {
            b"\0F".to_vec()
        };
        outer.extend_from_slice(&u32::try_from(inner.len()).unwrap().to_be_bytes());
        outer.extend_from_slice(&inner);
        inner = outer;
    }
    if arrays {
        inner.insert(0, 0);
    }
    inner
}

#[test]
fn nesting_is_bounded() {
    for arrays in [false, true] {
        let deepest = nested(MAX_NESTING, arrays);
        exercise::table(&deepest);
        assert!(Table::parse(&deepest).is_ok());
        let too_deep = nested(MAX_NESTING + 1, arrays);
        assert_eq!(Table::parse(&too_deep), Err(DecodeError::NestingTooDeep));
        let absurd = nested(10_000, arrays);
        assert_eq!(Table::parse(&absurd), Err(DecodeError::NestingTooDeep));
    }
}

#[test]
fn a_nested_length_may_not_leave_its_container() {
    // The inner table claims one byte more than the outer one has.
    assert!(Table::parse(b"\x01kF\0\0\0\x03\x01at\x01").is_err());
    // The inner one ends inside its value, though the outer one has the bytes.
    assert!(Table::parse(b"\x01kF\0\0\0\x03\x01at\x01\x01bV").is_err());
    assert!(Table::parse(b"\x01kS\xff\xff\xff\xffabc").is_err());
    assert!(Table::parse(b"\x01kA\xff\xff\xff\xff").is_err());
}

#[test]
fn builders_agree() {
    let mut owned = OwnedTable::new();
    owned.put("a", 1i32).put("b", "text").put("c", true);
    let mut builder = TableBuilder::new();
    for (key, value) in &owned.entries {
        builder.put(std::str::from_utf8(key).unwrap(), value);
    }
    assert_eq!(builder.as_table().as_bytes(), owned.to_bytes());
    assert_eq!(owned.get("b"), Some(&OwnedValue::LongStr(b"text".to_vec())));
    let bytes = builder.into_bytes();
    let mut more = TableBuilder::extending(Table::parse(&bytes).unwrap());
    more.put("d", &OwnedValue::Void);
    assert_eq!(more.as_table().iter().count(), 4);
    assert_eq!(format!("{:?}", more.as_table()).matches(':').count(), 4);
}

proptest! {
    #[test]
    fn tables_survive_the_trip(owned in owned_table()) {
        let bytes = owned.to_bytes();
        let table = Table::parse(&bytes).unwrap();
        prop_assert_eq!(table.to_owned_table(), owned);
        prop_assert_eq!(table.to_owned_table().to_bytes(), bytes.clone());
        exercise::table(&bytes);
        for len in 0..bytes.len() {
            exercise::table(&bytes[..len]);
        }
    }
}
