//! Frames and contents, byte by byte.

use proptest::prelude::*;
use warren_protocol::*;

const ACK_FRAME: &[u8] = b"\x01\x00\x07\x00\x00\x00\x0d\x00\x3c\x00\x50\0\0\0\0\0\0\0\x2a\x01\xce";

#[test]
fn a_method_frame() {
    let frame = parse_frame(ACK_FRAME, 4096).unwrap().unwrap();
    assert_eq!(
        (frame.kind, frame.channel, frame.wire_len()),
        (FrameKind::Method, 7, ACK_FRAME.len())
    );
    let ack = BasicAck {
        delivery_tag: 42,
        multiple: true,
    };
    assert_eq!(Method::decode(frame.payload), Ok(ack.into()));
    let mut out = Vec::new();
    Method::from(ack).write(7, &mut out);
    assert_eq!(out, ACK_FRAME);
}

#[test]
fn a_heartbeat_is_eight_bytes_on_channel_0() {
    let mut out = Vec::new();
    write_heartbeat(&mut out);
    assert_eq!(out, b"\x08\0\0\0\0\0\0\xce");
    let frame = parse_frame(&out, 4096).unwrap().unwrap();
    assert_eq!((frame.kind, frame.channel), (FrameKind::Heartbeat, 0));
    assert!(frame.payload.is_empty());
}

#[test]
fn part_of_a_frame_is_no_frame_yet() {
    for len in 0..ACK_FRAME.len() {
        assert_eq!(parse_frame(&ACK_FRAME[..len], 4096), Ok(None), "{len}");
    }
    let mut two = ACK_FRAME.to_vec();
    two.extend_from_slice(ACK_FRAME);
    assert_eq!(
        parse_frame(&two, 4096).unwrap().unwrap().wire_len(),
        ACK_FRAME.len()
    );
}

#[test]
fn an_unknown_type_is_refused_at_its_first_byte() {
    for junk in [&b"G"[..], b"GET / HTTP/1.1", b"AMQP\0\0\x09\x01", b"\x04"] {
        assert_eq!(
            parse_frame(junk, 4096),
            Err(FrameError::UnknownType(junk[0]))
        );
    }
}

#[test]
fn a_wrong_end_octet_is_refused() {
    let mut frame = ACK_FRAME.to_vec();
    *frame.last_mut().unwrap() = 0xcd;
    let error = parse_frame(&frame, 4096).unwrap_err();
    assert_eq!(error, FrameError::BadEnd { found: 0xcd });
    assert_eq!(error.reply_code(), 501);
}

#[test]
fn the_size_is_checked_before_the_payload_arrives_with_eight_bytes_of_slack() {
    let head = |size: u32| {
        let mut head = vec![FRAME_BODY, 0, 1];
        head.extend_from_slice(&size.to_be_bytes());
        head
    };
    assert_eq!(parse_frame(&head(4088), 4096), Ok(None));
    assert_eq!(parse_frame(&head(4096), 4096), Ok(None));
    let too_large = FrameError::TooLarge {
        size: 4105,
        limit: 4096,
    };
    assert_eq!(parse_frame(&head(4097), 4096), Err(too_large));
    let huge = FrameError::TooLarge {
        size: u64::from(u32::MAX) + 8,
        limit: 4096,
    };
    assert_eq!(parse_frame(&head(u32::MAX), 4096), Err(huge));
    assert_eq!(parse_frame(&head(u32::MAX), 0), Ok(None));
}

#[test]
fn a_content_header() {
    let payload = b"\x00\x3c\0\0\0\0\0\0\0\0\x01\x00\x10\x00\x02";
    let header = parse_content_header(payload).unwrap();
    assert_eq!((header.class, header.body_size), (60, 256));
    assert_eq!(delivery_mode(header.properties), Some(2));
    let weighted = b"\x00\x3c\0\x01\0\0\0\0\0\0\x01\x00\x10\x00\x02";
    assert_eq!(
        parse_content_header(weighted).unwrap_err().reply_code(),
        505
    );
    for len in 0..12 {
        assert!(parse_content_header(&payload[..len]).is_err());
    }
}

/// The payloads of the body frames that follow a content's header frame.
fn body_frames(wire: &[u8], limit: u32) -> Vec<Vec<u8>> {
    let header = parse_frame(wire, limit).unwrap().unwrap();
    assert_eq!(header.kind, FrameKind::Header);
    let mut rest = &wire[header.wire_len()..];
    let mut bodies = Vec::new();
    while !rest.is_empty() {
        let frame = parse_frame(rest, limit).unwrap().unwrap();
        assert_eq!((frame.kind, frame.channel), (FrameKind::Body, 5));
        assert!(limit == 0 || frame.wire_len() <= limit as usize);
        bodies.push(frame.payload.to_vec());
        rest = &rest[frame.wire_len()..];
    }
    bodies
}

#[test]
fn bodies_are_cut_at_frame_max_and_empty_ones_have_no_frame() {
    for (size, frames) in [
        (0, 0),
        (1, 1),
        (4087, 1),
        (4088, 1),
        (4089, 2),
        (8176, 2),
        (8177, 3),
    ] {
        let body: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
        let mut wire = Vec::new();
        write_content(&mut wire, 5, 4096, 60, b"\0\0", &body);
        let bodies = body_frames(&wire, 4096);
        assert_eq!(bodies.len(), frames, "{size}");
        assert_eq!(bodies.concat(), body);
        let mut uncut = Vec::new();
        write_content(&mut uncut, 5, 0, 60, b"\0\0", &body);
        assert_eq!(body_frames(&uncut, 0).len(), usize::from(size > 0));
    }
}

#[test]
fn a_nonsensical_frame_max_still_ends() {
    for frame_max in [1, 7, 8, 9] {
        let mut wire = Vec::new();
        write_content(&mut wire, 5, frame_max, 60, b"\0\0", b"abc");
        assert_eq!(body_frames(&wire, 0), [b"a", b"b", b"c"]);
    }
}

#[test]
fn an_empty_message_byte_by_byte() {
    let mut wire = Vec::new();
    write_content(&mut wire, 5, 4096, 60, b"\x10\x00\x02", b"");
    assert_eq!(
        wire,
        b"\x02\x00\x05\x00\x00\x00\x0f\x00\x3c\0\0\0\0\0\0\0\0\0\0\x10\x00\x02\xce"
    );
}

#[test]
fn a_delivery_byte_by_byte() {
    let mut wire = Vec::new();
    write_deliver(
        &mut wire, 5, 4096, b"ct", 9, true, b"", b"key", b"\0\0", b"hi",
    );
    let expected = [
        &b"\x01\x00\x05\x00\x00\x00\x15\x00\x3c\x00\x3c\x02ct\0\0\0\0\0\0\0\x09\x01\x00\x03key\xce"
            [..],
        b"\x02\x00\x05\x00\x00\x00\x0e\x00\x3c\0\0\0\0\0\0\0\0\0\x02\0\0\xce",
        b"\x03\x00\x05\x00\x00\x00\x02hi\xce",
    ];
    assert_eq!(wire, expected.concat());
}

#[test]
fn a_delivery_grows_the_buffer_once() {
    let body = vec![1; 10_000];
    let mut wire = Vec::new();
    write_deliver(
        &mut wire, 5, 4096, b"ct", 9, true, b"x", b"key", b"\0\0", &body,
    );
    let mut exact: Vec<u8> = Vec::with_capacity(wire.len());
    let capacity = exact.capacity();
    write_deliver(
        &mut exact, 5, 4096, b"ct", 9, true, b"x", b"key", b"\0\0", &body,
    );
    assert_eq!(exact.capacity(), capacity);
}

proptest! {
    #[test]
    fn the_fast_delivery_equals_the_plain_one(
        channel: u16, delivery_tag: u64, redelivered: bool,
        frame_max in prop_oneof![Just(0u32), 20u32..200, Just(4096)],
        tag in proptest::collection::vec(any::<u8>(), 0..=255),
        exchange in proptest::collection::vec(any::<u8>(), 0..=255),
        key in proptest::collection::vec(any::<u8>(), 0..=255),
        properties in proptest::collection::vec(any::<u8>(), 0..100),
        body in proptest::collection::vec(any::<u8>(), 0..1000),
    ) {
        let mut fast = b"before".to_vec();
        write_deliver(&mut fast, channel, frame_max, &tag, delivery_tag, redelivered, &exchange, &key, &properties, &body);
        let mut plain = b"before".to_vec();
        Method::from(BasicDeliver {
            consumer_tag: ShortStr::new(&tag).unwrap(),
            delivery_tag,
            redelivered,
            exchange: ShortStr::new(&exchange).unwrap(),
            routing_key: ShortStr::new(&key).unwrap(),
        }).write(channel, &mut plain);
        write_content(&mut plain, channel, frame_max, CLASS_BASIC, &properties, &body);
        prop_assert_eq!(fast, plain);
    }
}
