//! Running other programs with their output visible, and the exit codes of this one.

use std::fmt;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The command line cannot be understood.
pub const EX_USAGE: u8 = 64;
/// A file or folder is not what it must be.
pub const EX_DATA: u8 = 65;
/// Something that is needed is not there: a package, a port, a node.
pub const EX_UNAVAILABLE: u8 = 69;
/// Everything else.
const EX_SOFTWARE: u8 = 70;

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Stop {
    code: u8,
    text: String,
}

impl Stop {
    /// As an error to return.
    pub fn error(code: u8, text: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self {
            code,
            text: text.into(),
        })
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Stop {}

/// The process exit code for `error`.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    error
        .downcast_ref::<Stop>()
        .map_or(EX_SOFTWARE, |stop| stop.code)
}

/// Prints the command, runs it with its output visible, and fails if it fails.
pub fn visibly(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// What a command that is expected to be quick prints, or `None` if it cannot be run or fails.
pub fn quietly(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_keeps_its_code_under_context() {
        let error = Stop::error(EX_UNAVAILABLE, "no package").context("while building");
        assert_eq!(exit_code(&error), 69);
        assert_eq!(exit_code(&anyhow::anyhow!("other")), 70);
    }

    #[test]
    fn a_failing_command_is_named() {
        let error =
            visibly(Command::new("false").arg("--for-the-test")).map_err(|error| error.to_string());
        assert!(error.is_err_and(|text| text.starts_with("false --for-the-test ended with ")));
    }
}
