//! Which binding a message matches, told naively: the oracle's own idea of routing.

/// Whether a message with this routing key goes by a binding with this key of an exchange of this type.
#[must_use]
pub fn matches(kind: &str, binding: &str, key: &str) -> bool {
    match kind {
        "direct" => binding == key,
        "fanout" => true,
        "topic" => {
            let (pattern, words): (Vec<&str>, Vec<&str>) =
                (binding.split('.').collect(), key.split('.').collect());
            words_match(&pattern, &words)
        }
        // Where a hash takes a key is another invariant's matter: here it may go anywhere.
        _ => true,
    }
}

fn words_match(pattern: &[&str], words: &[&str]) -> bool {
    match (pattern.split_first(), words.split_first()) {
        (None, None) => true,
        (None, Some(_)) => false,
        (Some((&"#", rest)), _) => {
            (0..=words.len()).any(|skipped| words_match(rest, &words[skipped..]))
        }
        (Some(_), None) => false,
        (Some((expected, rest)), Some((word, words))) => {
            (*expected == "*" || expected == word) && words_match(rest, words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_the_specification_says() {
        assert!(matches("topic", "a.*.c", "a.b.c") && !matches("topic", "a.*.c", "a.b.b.c"));
        assert!(
            matches("topic", "a.#", "a")
                && matches("topic", "#.c", "a.b.c")
                && !matches("topic", "a.#", "b.a")
        );
        assert!(
            matches("direct", "a", "a")
                && !matches("direct", "a", "b")
                && matches("fanout", "a", "b")
        );
    }
}
