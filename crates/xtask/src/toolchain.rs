//! What RocksDB's build needs: a C++ compiler, libclang for its bindings, and the compiler's own headers.
//!
//! RocksDB takes some twelve minutes to compile on two cores. With ccache it is compiled once a machine and not once a target folder;
//! `.cargo/config.toml` makes every build use it where it is there, this module sees to it that it is.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::packages::{self, Need};
use crate::run;

/// Installs what builds lack.
pub fn ensure() -> Result<()> {
    packages::ensure(&[
        Need::program("c++", "g++", "a C++ compiler, for RocksDB"),
        Need {
            what: "libclang, for RocksDB's bindings",
            package: libclang_package(),
            present: libclang().is_some(),
        },
        Need::program("ccache", "ccache", "ccache, to compile RocksDB only once"),
    ])
}

/// Environment variables for cargo beyond what `.cargo/config.toml` says.
///
/// Cargo rebuilds RocksDB when a variable changes that its build has read. So a variable is set only where the configuration's
/// own value would not do: `cargo build` and `cargo xtask` then agree.
pub fn environment(root: &Path) -> Vec<(&'static str, String)> {
    const HEADERS: &str = "BINDGEN_EXTRA_CLANG_ARGS";
    let configured = configured(root, HEADERS);
    // Cargo has set the configured value for this very process; any other is the user's own.
    let chosen = std::env::var(HEADERS)
        .ok()
        .filter(|value| configured.as_ref() != Some(value));
    let Some(include) = run::quietly("cc", &["-print-file-name=include"]) else {
        return Vec::new();
    };
    let wanted = format!("-I{include}");
    if chosen.is_some() || configured.is_some_and(|value| value == wanted) {
        return Vec::new();
    }
    vec![(HEADERS, wanted)]
}

/// A variable's value in the `[env]` table of `.cargo/config.toml`.
fn configured(root: &Path, variable: &str) -> Option<String> {
    let text = std::fs::read_to_string(root.join(".cargo/config.toml")).ok()?;
    let table: toml::Table = text.parse().ok()?;
    let entry = table.get("env")?.get(variable)?;
    entry
        .as_str()
        .or_else(|| entry.get("value")?.as_str())
        .map(str::to_owned)
}

/// The shared library that bindgen loads, where it looks for it.
fn libclang() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os("LIBCLANG_PATH")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    folders.extend(
        [
            "/usr/lib",
            "/usr/lib64",
            "/usr/local/lib",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
        ]
        .map(PathBuf::from),
    );
    let installed = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    folders.extend(
        installed
            .filter(|path| path.to_string_lossy().contains("/llvm"))
            .map(|path| path.join("lib")),
    );
    folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            (name.starts_with("libclang.so") || name.starts_with("libclang-"))
                && name.contains(".so")
                && path.exists()
        })
}

/// Debian's smallest package with libclang; its name carries the release of LLVM.
fn libclang_package() -> String {
    const BOOKWORM: &str = "libclang1-14";
    let listed = run::quietly(
        "apt-cache",
        &["search", "--names-only", "^libclang1-[0-9]+$"],
    )
    .unwrap_or_default();
    newest_libclang(&listed).unwrap_or_else(|| BOOKWORM.to_owned())
}

/// The newest package in `apt-cache search`'s lines.
fn newest_libclang(listed: &str) -> Option<String> {
    let names = listed.lines().filter_map(|line| line.split(' ').next());
    let numbered = names
        .filter_map(|name| Some((name.strip_prefix("libclang1-")?.parse::<u32>().ok()?, name)));
    numbered.max().map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_libclang_is_taken_by_number() {
        let listed =
            "libclang1-9 - C interface\nlibclang1-16 - C interface\nlibclang1-14 - C interface";
        assert_eq!(newest_libclang(listed), Some("libclang1-16".to_owned()));
        assert_eq!(newest_libclang(""), None);
    }

    #[test]
    fn the_configured_value_is_read_in_both_forms() -> Result<()> {
        let root = tempfile::tempdir()?;
        std::fs::create_dir(root.path().join(".cargo"))?;
        std::fs::write(
            root.path().join(".cargo/config.toml"),
            "[env]\nA = \"1\"\nB = { value = \"2\", force = false }\n",
        )?;
        assert_eq!(configured(root.path(), "A"), Some("1".to_owned()));
        assert_eq!(configured(root.path(), "B"), Some("2".to_owned()));
        assert_eq!(configured(root.path(), "C"), None);
        Ok(())
    }
}
