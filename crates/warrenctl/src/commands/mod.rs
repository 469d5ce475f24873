//! The commands, one module per noun. A noun's module holds its verbs' options, asks the API and lays out the answer.

pub mod binding;
pub mod cluster;
pub mod exchange;
mod listing;
pub mod queue;
pub mod ring;
pub mod routing;

use crate::cli::{Arguments, Format, Noun};
use crate::client::Client;
use crate::failure::Failure;

/// What every command needs: whom to ask and how to print.
pub struct Context {
    /// The node that is asked.
    pub client: Client,
    /// How to print the answer.
    pub format: Format,
}

/// Runs the command that the command line names.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let context = Context {
        client: Client::new(&arguments.connection)?,
        format: arguments.output,
    };
    match &arguments.noun {
        Noun::Cluster(verb) => cluster::run(&context, verb),
        Noun::Ring(verb) => ring::run(&context, verb),
        Noun::Routing(verb) => routing::run(&context, verb),
        Noun::Exchange(verb) => exchange::run(&context, verb),
        Noun::Queue(verb) => queue::run(&context, verb),
        Noun::Binding(verb) => binding::run(&context, verb),
    }
}
