//! Connection profiles: who is asked, and as whom, under a name in a file.
//!
//! The file is TOML with a table a profile, each of `url`, `user`, `password` or `password_file`, and `ca`. What the command line or the environment says goes
//! before the profile, and the profile before the defaults. Without `--profile` the one that is called `default` is taken, if there is one.
//! A file that holds a password and that others can read is refused: `chmod 600` it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cli::Connection;
use crate::failure::Failure;

const DEFAULT: &str = "default";
const URL: &str = "http://127.0.0.1:15672";
const GUEST: &str = "guest";

/// What a profile may say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    url: Option<String>,
    user: Option<String>,
    password: Option<String>,
    /// A file whose first line is the password; relative to the file of the profiles.
    password_file: Option<PathBuf>,
    /// Relative to the file of the profiles.
    ca: Option<PathBuf>,
}

/// Whom to ask, with nothing left open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// HTTP address of a node.
    pub url: String,
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
    /// CA of the nodes' certificates.
    pub ca: Option<PathBuf>,
}

/// Puts together what the command line, the environment and a profile say.
pub fn resolve(connection: &Connection) -> Result<Target, Failure> {
    let profile = named(connection)?;
    let Connection {
        url,
        user,
        password,
        ca,
        ..
    } = connection.clone();
    let or = |said: Option<String>, by_profile: Option<String>, default: &str| {
        said.or(by_profile).unwrap_or_else(|| default.to_owned())
    };
    Ok(Target {
        url: or(url, profile.url, URL),
        user: or(user, profile.user, GUEST),
        password: or(password, profile.password, GUEST),
        ca: ca.or(profile.ca),
    })
}

/// The profile that is asked for, or the default one, with its password read.
fn named(connection: &Connection) -> Result<Profile, Failure> {
    let wanted = connection.profile.as_deref();
    let Some(path) = connection.profiles.clone().or_else(usual_file) else {
        return nothing(
            wanted,
            "neither XDG_CONFIG_HOME nor HOME says where profiles are",
        );
    };
    if !path.exists() {
        return nothing(wanted, &format!("there is no file {}", path.display()));
    }
    let shown = path.display();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Failure::Config(format!("cannot read the profiles in {shown}: {error}"))
    })?;
    let mut all: BTreeMap<String, Profile> = toml::from_str(&text)
        .map_err(|error| Failure::Config(format!("the profiles in {shown}: {error}")))?;
    let Some(mut profile) = all.remove(wanted.unwrap_or(DEFAULT)) else {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let why = match known.as_slice() {
            [] => format!("{shown} has none"),
            known => format!("{shown} has {}", known.join(", ")),
        };
        return nothing(wanted, &why);
    };
    if profile.password.is_some() || all.values().any(|other| other.password.is_some()) {
        only_ours(&path)?;
    }
    let beside = |file: PathBuf| {
        path.parent()
            .map_or(file.clone(), |folder| folder.join(&file))
    };
    profile.ca = profile.ca.map(beside);
    if let Some(file) = profile.password_file.take().map(beside) {
        profile.password = Some(password_in(&file)?);
    }
    Ok(profile)
}

/// No profile: fine, unless one is asked for.
fn nothing(wanted: Option<&str>, why: &str) -> Result<Profile, Failure> {
    match wanted {
        None => Ok(Profile::default()),
        Some(name) => Err(Failure::Config(format!("no profile '{name}': {why}"))),
    }
}

fn usual_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(folder.join("warren").join("profiles.toml"))
}

fn password_in(file: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::Config(format!(
            "cannot read the password in {}: {error}",
            file.display()
        ))
    })?;
    only_ours(file)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Refuses a file with secrets that others can read.
fn only_ours(file: &Path) -> Result<(), Failure> {
    let mode = std::fs::metadata(file).map(|of| of.permissions().mode());
    match mode {
        Ok(mode) if mode & 0o077 != 0 => Err(Failure::Config(format!(
            "{} holds a password and others can read it: chmod 600 it",
            file.display()
        ))),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn connection(folder: &Path, text: &str, profile: Option<&str>) -> Connection {
        let path = folder.join("profiles.toml");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Connection {
            url: None,
            user: Some("said".into()),
            password: None,
            ca: None,
            profile: profile.map(str::to_owned),
            profiles: Some(path),
        }
    }

    #[test]
    fn the_command_line_goes_before_the_profile_and_that_before_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[default]\nurl = \"http://d:1\"\n[prod]\nurl = \"http://p:1\"\nuser = \"u\"\npassword = \"p\"\nca = \"ca.pem\"\n";
        let prod = resolve(&connection(folder.path(), text, Some("prod"))).unwrap();
        let expected = Target {
            url: "http://p:1".into(),
            user: "said".into(),
            password: "p".into(),
            ca: Some(folder.path().join("ca.pem")),
        };
        assert_eq!(prod, expected);
        let default = resolve(&connection(folder.path(), text, None)).unwrap();
        assert_eq!((&*default.url, &*default.password), ("http://d:1", "guest"));
    }

    #[test]
    fn what_is_wrong_with_a_profile_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let fails = |text: &str, profile: Option<&str>, why: &str| {
            let failure = resolve(&connection(folder.path(), text, profile)).unwrap_err();
            assert!(
                failure.exit_code() == 78 && failure.to_string().contains(why),
                "{failure}"
            );
        };
        fails("[a]\n", Some("b"), "no profile 'b'");
        fails("[default]\nurls = \"x\"\n", None, "urls");
        fails("[default]\npassword_file = \"none\"\n", None, "none");
        let open = connection(folder.path(), "[default]\npassword = \"x\"\n", None);
        let path = open.profiles.clone().unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let failure = resolve(&open).unwrap_err();
        assert!(failure.to_string().contains("chmod 600"), "{failure}");
    }

    #[test]
    fn a_password_may_have_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "s3cret\n").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let given = connection(
            folder.path(),
            "[default]\npassword_file = \"secret\"\n",
            None,
        );
        assert_eq!(resolve(&given).unwrap().password, "s3cret");
        let without = Connection {
            profiles: Some(folder.path().join("none.toml")),
            ..given
        };
        assert_eq!(resolve(&without).unwrap().url, URL);
    }
}
