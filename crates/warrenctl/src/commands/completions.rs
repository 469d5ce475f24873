//! `warrenctl completions`: completions for shells.

use clap_complete::Shell;

use crate::cli;
use crate::failure::Failure;
use crate::output;

/// For which shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: warrenctl completions bash > /etc/bash_completion.d/warrenctl")]
pub struct Options {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints them.
pub fn run(options: &Options) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    clap_complete::generate(options.shell, &mut cli::command(), "warrenctl", &mut bytes);
    output::write(&String::from_utf8_lossy(&bytes))
}
