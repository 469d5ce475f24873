//! The simulator's binary: a few seeds hold, those that once failed do, and a seed repeats. In processes of their own, as the seeded randomness asks for.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warren-simulations"))
        .args(arguments)
        .output()
        .unwrap()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn a_few_seeds_hold() {
    // Just so many that the binary is seen to work: many more are run by `cargo xtask test simulate`.
    let count = 2;
    let text = succeeds(&["run", "--seeds", &count.to_string(), "--minutes", "0.1"]);
    assert!(text.contains("all invariants held"), "{text}");
    let held = text.lines().filter(|line| line.contains(": ok, "));
    assert_eq!(held.count(), count, "{text}");
}

#[test]
#[ignore = "`cargo xtask test simulate` runs them, by `cargo xtask simulate pinned`"]
fn seeds_that_once_failed_hold() {
    let text = succeeds(&["pinned"]);
    assert!(text.contains("all invariants held"), "{text}");
}

#[test]
fn a_seed_repeats_to_the_packet() {
    // Three nodes, crashes and partitions.
    let text = succeeds(&["determinism", "--seed", "3", "--minutes", "0.15"]);
    assert!(text.contains("repeats"), "{text}");
}

#[test]
fn what_is_broken_is_reported_with_the_line_that_repeats_it() {
    let output = simulate(&["replay", "--seed", "3", "--minutes", "0.1", "--sabotage"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("has broken") && text.contains("cargo xtask simulate replay --seed 3"),
        "{text}"
    );
}
