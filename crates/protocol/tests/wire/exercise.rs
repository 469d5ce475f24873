//! Does with arbitrary bytes all that a server would do, and asserts what must hold of whatever is accepted.

use warren_protocol::*;

/// A receive buffer: frames until there is no more, each looked at according to its kind. Returns how many were accepted.
pub fn stream(mut buf: &[u8], limit: u32) -> usize {
    let mut frames = 0;
    while let Ok(Some(frame)) = parse_frame(buf, limit) {
        assert!(limit == 0 || frame.payload.len() <= limit as usize);
        let mut again = Vec::new();
        write_frame(&mut again, frame.kind, frame.channel, frame.payload);
        assert_eq!(again, buf[..frame.wire_len()]);
        match frame.kind {
            FrameKind::Method => method(frame.payload),
            FrameKind::Header => header(frame.payload),
            FrameKind::Body | FrameKind::Heartbeat => {}
        }
        buf = &buf[frame.wire_len()..];
        frames += 1;
    }
    frames
}

/// A method payload. What is accepted encodes to something that decodes to the same.
pub fn method(payload: &[u8]) {
    let id = method_id(payload);
    match Method::decode(payload) {
        Ok(method) => {
            assert_eq!(id, Some(method.class_method()));
            assert_eq!(id.and_then(|(c, m)| method_name(c, m)), Some(method.name()));
            let mut out = Vec::new();
            method.encode(&mut out);
            assert_eq!(Method::decode(&out), Ok(method));
            let _ = format!("{method:?}");
        }
        Err(error) => {
            assert!(is_connection_error(error.reply_code()));
            let _ = error.to_string();
        }
    }
}

/// A content header payload.
pub fn header(payload: &[u8]) {
    if let Ok(header) = parse_content_header(payload) {
        properties(header.properties);
    }
}

/// A property list. The cheap look agrees with the full one.
pub fn properties(raw: &[u8]) {
    let cheap = delivery_mode(raw);
    match Properties::parse(raw) {
        Ok(properties) => {
            assert_eq!(validate_properties(raw), Ok(()));
            assert_eq!(cheap, properties.delivery_mode);
            let flags = property_flags(raw).map(|flags| flags.0 & !0b11);
            assert_eq!(flags, Ok(properties.flags().0));
            let mut out = Vec::new();
            properties.encode(&mut out);
            assert_eq!(Properties::parse(&out), Ok(properties));
            if let Some(headers) = properties.headers {
                table(headers.as_bytes());
            }
        }
        Err(error) => assert_eq!(validate_properties(raw), Err(error)),
    }
}

/// A table's entries. What is accepted can be walked to the last byte.
pub fn table(entries: &[u8]) {
    let Ok(table) = Table::parse(entries) else {
        return;
    };
    let _ = format!("{table:?}");
    let mut builder = TableBuilder::new();
    for (key, value) in table {
        let _ = (value.as_integer(), value.type_name());
        builder.put_value(key.as_bytes(), &value);
        if let Ok(key) = key.as_str() {
            assert!(table.get(key).is_some());
        }
    }
    assert_same_but_booleans(entries, &builder.into_bytes());
    let owned = table.to_owned_table().to_bytes();
    assert_same_but_booleans(entries, &owned);
    assert!(Table::parse(&owned).is_ok());
}

/// Rebuilding keeps every byte, but that a boolean of 2 to 255 becomes 1.
fn assert_same_but_booleans(original: &[u8], rebuilt: &[u8]) {
    assert_eq!(original.len(), rebuilt.len());
    for (before, after) in original.iter().zip(rebuilt) {
        assert!(before == after || (*before > 1 && *after == 1));
    }
}
