//! Debian packages: what is missing is installed as root or through sudo, or named with the one line that installs it.
//!
//! A need is judged by what it brings (a program, a library), not by a package's name, so that a machine that has it from elsewhere is
//! left alone.

use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{self, EX_UNAVAILABLE, Stop};

/// Something that a task needs from the machine.
#[derive(Debug)]
pub struct Need {
    /// What it is for, for the message.
    pub what: &'static str,
    /// The Debian package that brings it.
    pub package: String,
    /// Whether it is there.
    pub present: bool,
}

impl Need {
    /// A program on the path.
    pub fn program(program: &str, package: &str, what: &'static str) -> Self {
        Self {
            what,
            package: package.to_owned(),
            present: on_path(program),
        }
    }

    /// A package that brings no program to look for.
    pub fn package(package: &str, what: &'static str) -> Self {
        let status = run::quietly("dpkg-query", &["-W", "-f", "${Status}", package]);
        let present = status.is_some_and(|status| status.ends_with("ok installed"));
        Self {
            what,
            package: package.to_owned(),
            present,
        }
    }
}

/// Installs what is missing, or fails and says how to install it.
pub fn ensure(needs: &[Need]) -> Result<()> {
    let missing: Vec<&Need> = needs.iter().filter(|need| !need.present).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        println!("missing: {} ({})", need.what, need.package);
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package.as_str()).collect();
    packages.dedup();
    let line = format!(
        "apt-get update && apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    let Some(prefix) = privilege() else {
        return Err(Stop::error(
            EX_UNAVAILABLE,
            format!("needs Debian packages; as root: {line}"),
        ));
    };
    let apt = |arguments: &[&str]| {
        let words: Vec<&str> = prefix
            .iter()
            .copied()
            .chain(["apt-get"])
            .chain(arguments.iter().copied())
            .collect();
        let mut command = Command::new(words.first().copied().unwrap_or("apt-get"));
        command
            .args(words.iter().skip(1))
            .env("DEBIAN_FRONTEND", "noninteractive");
        run::visibly(&mut command)
    };
    let install = [
        &["install", "-y", "-q", "--no-install-recommends"],
        packages.as_slice(),
    ]
    .concat();
    let done = apt(&["update", "-q"]).and_then(|()| apt(&install));
    done.map_err(|error| Stop::error(EX_UNAVAILABLE, format!("{error}; as root: {line}")))
}

/// Unpacks what these packages hold, each into a folder of its name within `into`, and installs nothing: no service starts, and what they depend on is
/// not asked for. What is unpacked already stays.
pub fn unpack(packages: &[&str], into: &Path) -> Result<()> {
    for package in packages {
        let folder = into.join(package);
        if folder.is_dir() {
            continue;
        }
        let downloads = into.join(format!("{package}.download"));
        let fresh = |folder: &Path| {
            if folder.is_dir() {
                fs::remove_dir_all(folder)?;
            }
            fs::create_dir_all(folder)
        };
        fresh(&downloads).with_context(|| format!("cannot make {}", downloads.display()))?;
        if download(package, &downloads).is_err() {
            // The lists of packages may be old, or not be there.
            ensure_lists()?;
            download(package, &downloads)?;
        }
        let archive = archive_in(&downloads)?;
        let unpacked = downloads.join("unpacked");
        run::visibly(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(&archive)
                .arg(&unpacked),
        )?;
        // Only what is whole gets its name.
        fs::rename(&unpacked, &folder)?;
        fs::remove_dir_all(&downloads)?;
    }
    Ok(())
}

fn download(package: &str, into: &Path) -> Result<()> {
    let mut apt = Command::new("apt-get");
    apt.args(["download", "-q", package]).current_dir(into);
    run::visibly(&mut apt)
}

fn ensure_lists() -> Result<()> {
    let Some(prefix) = privilege() else {
        let line = "apt-get update".to_owned();
        return Err(Stop::error(
            EX_UNAVAILABLE,
            format!("needs lists of Debian packages; as root: {line}"),
        ));
    };
    let words = [prefix.as_slice(), &["apt-get", "update", "-q"]].concat();
    let mut command = Command::new(words.first().copied().unwrap_or("apt-get"));
    command.args(words.iter().skip(1));
    run::visibly(&mut command)
}

/// The archive that was downloaded.
fn archive_in(folder: &Path) -> Result<PathBuf> {
    let archive = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|kind| kind == "deb"));
    archive.with_context(|| format!("apt-get has left no package in {}", folder.display()))
}

/// The words before `apt-get` that make it run as root, if there is a way.
fn privilege() -> Option<Vec<&'static str>> {
    if !on_path("apt-get") {
        return None;
    }
    if nix::unistd::geteuid().is_root() {
        return Some(Vec::new());
    }
    if run::quietly("sudo", &["-n", "true"]).is_some() {
        return Some(vec!["sudo", "-n"]);
    }
    // Someone is there to type the password.
    (on_path("sudo") && std::io::stdin().is_terminal()).then(|| vec!["sudo"])
}

/// Whether a program of this name is on the path.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-as-this"));
    }

    #[test]
    fn what_is_unpacked_is_not_fetched_again() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("no-such-package"))?;
        unpack(&["no-such-package"], folder.path())
    }

    #[test]
    fn nothing_is_installed_when_nothing_is_missing() {
        let needs = [Need::program("sh", "dash", "a shell")];
        assert!(needs[0].present);
        assert!(ensure(&needs).is_ok());
    }
}
