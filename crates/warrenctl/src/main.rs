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
mod profile;

use std::process::ExitCode;

use clap::ArgMatches;

fn main() -> ExitCode {
    let parsed = cli::command().try_get_matches().and_then(|matches| {
        let verb = verb(&matches).to_owned();
        Ok((cli::Arguments::of(&matches)?, verb))
    });
    let (arguments, verb) = match parsed {
        Ok(parsed) => parsed,
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
    match commands::run(&arguments, &verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("warrenctl: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The last word of a command, which says what is done.
fn verb(matches: &ArgMatches) -> &str {
    let (mut name, mut at) = ("", matches);
    while let Some((below, deeper)) = at.subcommand() {
        (name, at) = (below, deeper);
    }
    name
}
