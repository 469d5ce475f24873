//! Mutated traffic: no input may panic, and what is accepted must hold together.
//!
//! Deterministic: one seed, a fixed number of rounds. The fuzz targets beside the crate run the same checks without end.

use warren_protocol::*;

use crate::exercise;
use crate::samples::{Parts, every_method};

const SEED: u64 = 0x5eed_0fa0_b4bb_1701;
const ROUNDS: usize = 60_000;

struct Random(u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[expect(clippy::cast_possible_truncation, reason = "reduced before")]
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "one byte is wanted")]
    fn byte(&mut self) -> u8 {
        // Lengths, type octets and edges are worth more than other bytes.
        const HOT: &[u8] = b"\0\x01\x7f\x80\xfe\xfftbBsuIilLfdDSATFVx\xce";
        match self.below(3) {
            0 => self.next() as u8,
            _ => HOT[self.below(HOT.len())],
        }
    }
}

/// One frame of every method, and a content with properties.
fn corpus() -> Vec<Vec<u8>> {
    let parts = Parts::fixed();
    let table = parts.table.to_bytes();
    let mut corpus: Vec<Vec<u8>> = every_method(&parts, &table)
        .iter()
        .map(|method| {
            let mut frame = Vec::new();
            method.write(3, &mut frame);
            frame
        })
        .collect();
    let mut properties = Vec::new();
    Properties {
        content_type: Some("text/plain".into()),
        headers: Some(Table::parse(&table).unwrap()),
        delivery_mode: Some(2),
        timestamp: Some(1),
        user_id: Some("guest".into()),
        ..Default::default()
    }
    .encode(&mut properties);
    for _ in 0..20 {
        let mut delivery = Vec::new();
        write_deliver(
            &mut delivery,
            3,
            64,
            b"tag",
            7,
            false,
            b"x",
            b"key",
            &properties,
            &[b'b'; 100],
        );
        corpus.push(delivery);
    }
    corpus
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.byte()),
        2 => drop(bytes.remove(at)),
        3 => {
            let end = at + random.below(bytes.len() - at) + 1;
            let copy = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        4 => bytes[at] ^= 1 << random.below(8),
        _ => bytes[at] = random.byte(),
    }
    if bytes.is_empty() {
        bytes.push(random.byte());
    }
}

/// Makes the first frame's size and end fit again, so that mutations reach the decoders behind it.
fn mend(bytes: &mut [u8]) {
    if let Some(size) = bytes.len().checked_sub(FRAME_OVERHEAD) {
        bytes[3..7].copy_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
        let last = bytes.len() - 1;
        bytes[last] = FRAME_END;
    }
}

#[test]
fn mutated_frames_never_panic() {
    let corpus = corpus();
    let mut random = Random(SEED);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut bytes, &mut random);
        }
        accepted += exercise::stream(&bytes, 4096);
        mend(&mut bytes);
        accepted += exercise::stream(&bytes, 4096);
        let at = random.below(bytes.len());
        exercise::method(&bytes[at..]);
        exercise::header(&bytes[at..]);
        exercise::properties(&bytes[at..]);
        exercise::table(&bytes[at..]);
    }
    // If nearly all were refused at the first byte, nothing was tested.
    assert!(
        accepted > ROUNDS / 2,
        "only {accepted} frames were accepted"
    );
}

#[test]
fn truncated_frames_never_panic() {
    for frame in corpus() {
        for len in 0..frame.len() {
            exercise::stream(&frame[..len], 4096);
            exercise::method(&frame[7.min(len)..len]);
            exercise::header(&frame[7.min(len)..len]);
            exercise::properties(&frame[7.min(len)..len]);
        }
    }
}
