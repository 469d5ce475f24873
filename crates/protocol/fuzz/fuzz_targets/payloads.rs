//! Each decoder behind the frame, with any bytes. The first byte chooses.
#![no_main]

#[path = "../../tests/wire/exercise.rs"]
#[allow(dead_code, reason = "each target uses its part of it")]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((choice, payload)) = data.split_first() else {
        return;
    };
    match choice % 5 {
        0 => exercise::method(payload),
        1 => exercise::header(payload),
        2 => exercise::properties(payload),
        3 => exercise::table(payload),
        _ => {
            let _ = warren_protocol::parse_plain(payload);
            let _ = warren_protocol::parse_amqplain(payload);
        }
    }
});
