//! The floor plan as a check: which crate may depend on which, and what the pure crates may use.
//!
//! The arrows are those of the layout: `A: B` says that A may depend on B, and on whatever B may depend on. There are none among session,
//! routing, queue and placement. What a pure crate's code may call is clippy's matter, through a configuration that all of them share.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::repository::Repository;

/// Direct arrows of the layout, lower crates first.
const ARROWS: &[(&str, &[&str])] = &[
    ("warren-protocol", &[]),
    ("warren-model", &["warren-protocol"]),
    ("warren-session", &["warren-model"]),
    ("warren-routing", &["warren-model"]),
    ("warren-queue", &["warren-model"]),
    ("warren-placement", &["warren-model"]),
    ("warren-storage", &["warren-model"]),
    ("warren-storage-log", &["warren-storage"]),
    ("warren-storage-rocksdb", &["warren-storage-log"]),
    ("warren-transport", &["warren-model"]),
    (
        "warren-consensus",
        &[
            "warren-routing",
            "warren-queue",
            "warren-placement",
            "warren-storage",
            "warren-transport",
        ],
    ),
    ("warren-node", &["warren-session", "warren-consensus"]),
    ("warren-management", &["warren-node"]),
    (
        "warren",
        &["warren-node", "warren-management", "warren-storage-rocksdb"],
    ),
    // Files for operators; it knows nothing of ours.
    ("warren-certificates", &[]),
    (
        "warrenctl",
        &["warren-node", "warren-management", "warren-certificates"],
    ),
    ("warren-bench", &["warren-node", "warren-management"]),
    // It judges the server from outside, and knows only the wire.
    ("warren-crash", &["warren-protocol"]),
    ("xtask", &["warren-protocol", "warren-certificates"]),
    ("warren-simulations", &["warren-node", "warren-management"]),
    // A client like any other: it knows nothing of ours.
    ("warren-client-lapin", &[]),
];

/// The crates that do no I/O, read no clock, draw no randomness and iterate no randomly ordered map.
const PURE: &[&str] = &[
    "warren-protocol",
    "warren-model",
    "warren-session",
    "warren-routing",
    "warren-queue",
    "warren-placement",
];

/// What a pure crate may use from outside: nothing here reads a clock, draws randomness or does I/O by itself.
const PURE_DEPENDENCIES: &[&str] = &[
    "blake3",
    "bytes",
    "hashbrown",
    "memchr",
    "regex",
    "rkyv",
    "serde",
    "sha2",
    "slab",
    "smallvec",
    "thiserror",
];

/// The configuration that forbids the rest.
const PURE_CLIPPY: &str = "crates/xtask/pure-crates.clippy.toml";

/// Checks the workspace's manifests.
pub fn check(repository: &Repository) -> Result<()> {
    let output = repository
        .cargo(&[
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let dependencies = dependencies(&metadata)?;
    let mut complaints = complaints(&dependencies);
    complaints.extend(unlinked_configurations(repository)?);
    if !complaints.is_empty() {
        bail!("the floor plan is broken:\n  {}", complaints.join("\n  "));
    }
    println!(
        "{} dependencies follow the arrows; {} pure crates share {PURE_CLIPPY}",
        dependencies.len(),
        PURE.len()
    );
    Ok(())
}

/// One line in a manifest.
#[derive(Debug, PartialEq, Eq)]
struct Dependency {
    from: String,
    to: String,
    /// Whether it is a crate of the workspace.
    ours: bool,
    /// Whether only tests use it.
    dev: bool,
}

fn dependencies(metadata: &Value) -> Result<Vec<Dependency>> {
    let packages = metadata
        .get("packages")
        .and_then(Value::as_array)
        .context("cargo metadata has no packages")?;
    let text = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut found = Vec::new();
    for package in packages {
        for dependency in package
            .get("dependencies")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            found.push(Dependency {
                from: text(package, "name"),
                to: text(dependency, "name"),
                ours: dependency.get("path").is_some_and(Value::is_string),
                dev: text(dependency, "kind") == "dev",
            });
        }
        let name = text(package, "name");
        if !ARROWS.iter().any(|(from, _)| *from == name) {
            bail!(
                "the crate {name} has no place in the floor plan; give it one in crates/xtask/src/checks/rules.rs"
            );
        }
    }
    Ok(found)
}

fn complaints(dependencies: &[Dependency]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Dependency {
        from,
        to,
        ours,
        dev,
    } in dependencies
    {
        let allowed = match (ours, dev) {
            // Tests may use what is beside or above, but not what is built on the crate itself.
            (true, true) => !below(to).contains(from.as_str()),
            (true, false) => below(from).contains(to.as_str()),
            (false, true) => true,
            (false, false) => {
                !PURE.contains(&from.as_str()) || PURE_DEPENDENCIES.contains(&to.as_str())
            }
        };
        if !allowed && *ours {
            complaints.push(format!("{from} -> {to}: no such arrow in the layout"));
        } else if !allowed {
            complaints.push(format!("{from} -> {to}: {from} is pure; if {to} is too, add it to PURE_DEPENDENCIES in crates/xtask/src/checks/rules.rs"));
        }
    }
    complaints
}

/// All crates that `name` may depend on.
fn below(name: &str) -> BTreeSet<&'static str> {
    let direct = ARROWS
        .iter()
        .find(|(from, _)| *from == name)
        .map(|(_, to)| *to)
        .unwrap_or_default();
    direct
        .iter()
        .flat_map(|to| std::iter::once(*to).chain(below(to)))
        .collect()
}

fn unlinked_configurations(repository: &Repository) -> Result<Vec<String>> {
    let shared = fs::read_to_string(repository.root.join(PURE_CLIPPY))
        .with_context(|| format!("cannot read {PURE_CLIPPY}"))?;
    let mut complaints = Vec::new();
    for name in PURE {
        let path = format!("crates/{}/clippy.toml", name.trim_start_matches("warren-"));
        if !fs::read_to_string(repository.root.join(&path)).is_ok_and(|own| own == shared) {
            complaints.push(format!(
                "{path} is not a link to {PURE_CLIPPY}, which keeps {name} pure"
            ));
        }
    }
    Ok(complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(from: &str, to: &str, ours: bool, dev: bool) -> Dependency {
        Dependency {
            from: from.to_owned(),
            to: to.to_owned(),
            ours,
            dev,
        }
    }

    #[test]
    fn arrows_reach_down_and_never_sideways_or_up() {
        let good = [
            ("warren-session", "warren-protocol"),
            ("warren-node", "warren-routing"),
            ("warren", "warren-transport"),
        ];
        for (from, to) in good {
            assert_eq!(
                complaints(&[dependency(from, to, true, false)]),
                Vec::<String>::new()
            );
        }
        let bad = [
            ("warren-routing", "warren-queue"),
            ("warren-model", "warren-node"),
            ("warren-node", "warren-storage-rocksdb"),
            ("xtask", "warren-node"),
        ];
        for (from, to) in bad {
            assert_eq!(
                complaints(&[dependency(from, to, true, false)]),
                [format!("{from} -> {to}: no such arrow in the layout")]
            );
        }
    }

    #[test]
    fn tests_may_look_sideways_but_not_up() {
        assert!(
            complaints(&[dependency("warren-session", "warren-routing", true, true)]).is_empty()
        );
        assert_eq!(
            complaints(&[dependency("warren-routing", "warren-node", true, true)]).len(),
            1
        );
    }

    #[test]
    fn pure_crates_use_only_pure_dependencies() {
        assert!(complaints(&[dependency("warren-queue", "bytes", false, false)]).is_empty());
        assert!(complaints(&[dependency("warren-node", "tokio", false, false)]).is_empty());
        assert!(complaints(&[dependency("warren-queue", "proptest", false, true)]).is_empty());
        assert_eq!(
            complaints(&[dependency("warren-queue", "tokio", false, false)]).len(),
            1
        );
    }

    #[test]
    fn dependencies_are_read_from_metadata() -> Result<()> {
        let metadata = serde_json::json!({"packages": [{"name": "warren-model", "dependencies": [
            {"name": "warren-protocol", "path": "/checkout/crates/protocol", "kind": null},
            {"name": "proptest", "kind": "dev"},
        ]}]});
        let expected = [
            dependency("warren-model", "warren-protocol", true, false),
            dependency("warren-model", "proptest", false, true),
        ];
        assert_eq!(dependencies(&metadata)?, expected);
        let stranger = serde_json::json!({"packages": [{"name": "stranger", "dependencies": []}]});
        assert!(dependencies(&stranger).is_err());
        Ok(())
    }
}
