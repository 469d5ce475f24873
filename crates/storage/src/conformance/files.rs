//! What harnesses of engines with files need: a folder as a killed process leaves it, and damaged records.

use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;

use crate::record::{self, Address, HEADER_BYTES};

/// Copies a folder, with what is in it, while it is in use. Files may go or become others meanwhile: then all over again.
/// Files are copied in the order of `rank`: one that says something of others must come before them.
pub fn copy_in_use(from: &Path, to: &Path, rank: fn(&str) -> u32) {
    while let Err(error) = copy(from, to, rank) {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(to).unwrap();
    }
}

fn copy(from: &Path, to: &Path, rank: fn(&str) -> u32) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from)? {
        names.push(entry?.file_name().into_string().unwrap());
    }
    names.sort_by_key(|name| (rank(name), name.clone()));
    for name in &names {
        if from.join(name).is_dir() {
            copy(&from.join(name), &to.join(name), rank)?;
        } else {
            std::fs::copy(from.join(name), to.join(name))?;
        }
    }
    // One that was renamed while it was copied may hold bytes of two.
    for name in &names {
        from.join(name).metadata()?;
    }
    Ok(())
}

/// Flips a bit of a record wherever it is stored in the folder, in its byte at `at`.
pub fn corrupt_record_in(folder: &Path, address: Address<'_>, at: usize) {
    let mut flipped = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let ends = HEADER_BYTES..=bytes.len();
        let places: Vec<usize> = ends
            .map(|end| end - HEADER_BYTES)
            .filter(|begin| is_record(&bytes[*begin..], address))
            .collect();
        for place in &places {
            bytes[place + at] ^= 0x10;
        }
        if !places.is_empty() {
            std::fs::write(&path, bytes).unwrap();
        }
        flipped += places.len();
    }
    assert!(flipped > 0, "{address:?} is nowhere");
}

fn is_record(bytes: &[u8], address: Address<'_>) -> bool {
    let length = u32::from_le_bytes(bytes[1..5].try_into().unwrap()) as usize;
    let Some(stored) = bytes.get(..HEADER_BYTES.saturating_add(length)) else {
        return false;
    };
    bytes[0] == record::VERSION && record::decode(address, Bytes::copy_from_slice(stored)).is_ok()
}
