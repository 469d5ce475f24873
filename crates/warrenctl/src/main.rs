//! `warrenctl`: the admin command line of a Warren cluster.
//!
//! Flow: [`cli`] parses the command line, one module under [`commands`] per noun asks the node's HTTP API
//! through [`client`], [`output`] prints a table or JSON, and [`failure`] turns what went wrong into one
//! message and one exit code of `sysexits.h`. Nothing here keeps state; what cannot be undone asks first.

mod cli;
mod client;
mod commands;
mod failure;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = match cli::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version arrive here as "errors" too, and are no failure.
            let code = if error.use_stderr() {
                failure::EX_USAGE
            } else {
                0
            };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match commands::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("warrenctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
