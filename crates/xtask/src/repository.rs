//! Where things are: the checkout, and the release binaries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::run::{self, EX_DATA, Stop};
use crate::toolchain;

/// The checkout that the current folder, or else this program, is in.
#[derive(Debug, Clone)]
pub struct Repository {
    /// The workspace's folder.
    pub root: PathBuf,
    /// The folder of the release binaries.
    pub binaries: PathBuf,
}

impl Repository {
    /// Finds the checkout from the current folder upwards, or from this program's own place upwards (`target/release/xtask`).
    pub fn find() -> Result<Self> {
        let here = std::env::current_dir().context("cannot tell the current folder")?;
        let program = std::env::current_exe().context("cannot tell where xtask itself is")?;
        let root = [here.as_path(), program.as_path()]
            .iter()
            .find_map(|start| start.ancestors().find(|path| is_root(path)));
        let Some(root) = root else {
            let text = format!(
                "neither {} nor {} is inside a checkout of Warren; change into one",
                here.display(),
                program.display()
            );
            return Err(Stop::error(EX_DATA, text));
        };
        // `cargo xtask` runs from the release folder itself, wherever CARGO_TARGET_DIR puts that.
        let beside = program
            .parent()
            .filter(|folder| folder.ends_with("release"));
        let binaries = beside.map_or_else(|| root.join("target/release"), Path::to_path_buf);
        Ok(Self {
            root: root.to_path_buf(),
            binaries,
        })
    }

    /// A command that runs in the checkout's root.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// Cargo in the checkout's root, with the environment that RocksDB's build needs.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(arguments)
            .envs(toolchain::environment(&self.root));
        command
    }

    /// Builds the release binaries, with these arguments besides. Always all of them: cargo chooses the features of what they depend on for all packages
    /// that it is asked to build, and with another choice it would build half of that anew, RocksDB included.
    pub fn build(&self, besides: &[&str]) -> Result<()> {
        let mut arguments = vec!["build", "--release"];
        for package in ["warren", "warrenctl", "xtask", "warren-crash"] {
            arguments.extend(["--package", package]);
        }
        arguments.extend(besides);
        run::visibly(&mut self.cargo(&arguments))
    }

    /// The folder of the cluster's configuration.
    pub fn cluster_config(&self) -> PathBuf {
        self.root.join("cluster-config")
    }

    /// The target folder, for what is derived and not worth keeping.
    pub fn target(&self) -> PathBuf {
        self.binaries
            .parent()
            .map_or_else(|| self.root.join("target"), Path::to_path_buf)
    }
}

fn is_root(path: &Path) -> bool {
    path.join("Cargo.lock").is_file()
        && path.join("cluster-config").is_dir()
        && path.join("crates/xtask").is_dir()
}
