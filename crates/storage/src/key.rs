//! The keys of engines that store the state as sorted keys.
//!
//! ```text
//! layout   0                                   -> layout      version of the whole layout, 1 byte
//! state    space (1) key                       -> value       as the caller gave it
//! ```

use crate::Space;

/// The key of the layout's version.
pub const LAYOUT: &[u8] = &[0];

/// The key of a piece of state.
#[must_use]
pub fn state(space: Space, key: &[u8]) -> Vec<u8> {
    [&[space.byte()][..], key].concat()
}

/// The first key behind all keys of a space.
#[must_use]
pub fn state_end(space: Space) -> [u8; 1] {
    [space.byte() + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys_never_change() {
        assert_eq!(state(Space::Node, b"id"), b"\x02id");
    }

    #[test]
    fn a_space_ends_before_the_next() {
        for space in Space::ALL {
            let end = state_end(space);
            assert!(state(space, &[0xff; 40]).as_slice() < &end[..]);
            assert!(
                Space::ALL
                    .iter()
                    .filter(|other| **other > space)
                    .all(|other| state(*other, &[]) >= end.to_vec())
            );
        }
    }
}
