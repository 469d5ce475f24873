//! A receive buffer of any bytes, as a connection's reader would take it apart.
#![no_main]

#[path = "../../tests/wire/exercise.rs"]
#[allow(dead_code, reason = "each target uses its part of it")]
mod exercise;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    exercise::stream(data, 4096);
    exercise::stream(data, 0);
});
