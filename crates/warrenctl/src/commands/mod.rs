//! The commands, one module per noun. A noun's module holds its verbs' options, asks the API and lays out the answer.

pub mod alias;
pub mod arguments;
pub mod binding;
pub mod cert;
pub mod channel;
pub mod check;
pub mod cluster;
pub mod completions;
pub mod connection;
pub mod consumer;
pub mod definitions;
pub mod exchange;
mod health;
pub mod join;
pub mod limit;
mod listing;
pub mod log;
pub mod message;
pub mod node;
pub mod parameter;
pub mod password;
pub mod permission;
pub mod policy;
pub mod queue;
pub mod ring;
pub mod routing;
pub mod topic_permission;
pub mod user;
pub mod vhost;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::{Arguments, Format, Noun};
use crate::client::{Client, Method};
use crate::failure::Failure;
use crate::{output, profile};

/// What every command needs: whom to ask and how to print.
pub struct Context {
    /// The node that is asked.
    pub client: Client,
    /// How to print the answer.
    pub format: Format,
    columns: Vec<String>,
    sort: Option<String>,
    quiet: bool,
    /// Whether lists have them.
    headings: bool,
    yes: bool,
}

impl Context {
    /// Prints a list, with these columns unless the command line names others.
    pub fn list(&self, answer: &Value, path: &str, columns: &[&str]) -> Result<(), Failure> {
        let mut rows = listing::rows(answer, path)?.to_vec();
        let mut own = alias::fields(path);
        own.extend(columns);
        let sort = self.sort.iter().map(|by| output::sorted_by(by));
        for column in self.columns.iter().map(String::as_str).chain(sort) {
            listing::known_column(column, &rows, &own)?;
        }
        if let Some(sort) = &self.sort {
            output::sort(&mut rows, sort);
        }
        let chosen: Vec<&str> = if self.columns.is_empty() {
            columns.to_vec()
        } else {
            self.columns.iter().map(String::as_str).collect()
        };
        output::list(
            self.format,
            &rows,
            &chosen,
            !self.columns.is_empty(),
            self.headings,
        )
    }

    /// Prints one object as an outline.
    pub fn object(&self, answer: &Value) -> Result<(), Failure> {
        output::print(self.format, answer, || output::outline(answer))
    }

    /// Carries out a change and says that it is done.
    pub fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        done: &str,
    ) -> Result<(), Failure> {
        self.client.send(method, path, body)?;
        self.done(done);
        Ok(())
    }

    /// Takes something away, without asking.
    pub fn take_away(&self, path: &str, what: &str) -> Result<(), Failure> {
        self.change(Method::Delete, path, None, &format!("{what} is gone"))
    }

    /// Says what was done, apart from the answer itself.
    pub fn done(&self, what: &str) {
        if !self.quiet {
            // Nobody may be reading any more, which is no reason to fail.
            let _ = writeln!(std::io::stderr().lock(), "{what}");
        }
    }

    /// Does what may take long, and says so while it does.
    pub fn slowly<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        if self.quiet {
            return work();
        }
        let (working, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let begun = Instant::now();
                while ended.recv_timeout(STILL) == Err(mpsc::RecvTimeoutError::Timeout) {
                    let line = format!("{what}: {} s so far", begun.elapsed().as_secs());
                    let _ = writeln!(std::io::stderr().lock(), "{line}");
                }
            });
            let result = work();
            drop(working);
            result
        })
    }

    /// Asks whether something that cannot be undone is meant.
    pub fn confirm(&self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let mut err = std::io::stderr().lock();
        let asked = write!(err, "{what}? [y/N] ").and_then(|()| err.flush());
        let mut line = String::new();
        // Where nobody can be asked or nobody answers, nothing is done.
        let answered = asked.and_then(|()| std::io::stdin().lock().read_line(&mut line));
        if answered.is_ok() && matches!(line.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        Err(Failure::Usage(
            "not confirmed, nothing was done; --yes does it without asking".to_owned(),
        ))
    }
}

/// How often it is said that something still goes on.
const STILL: Duration = Duration::from_secs(2);

/// Verbs that only look, and can be watched.
const LOOKS: [&str; 10] = [
    "list",
    "show",
    "status",
    "health",
    "plan",
    "digest",
    "diff",
    "explain",
    "quorum-status",
    "check",
];

/// Runs the command that the command line names, again and again if it is to be watched. `verb`: its last word.
pub fn run(arguments: &Arguments, verb: &str) -> Result<(), Failure> {
    let Some(pause) = arguments.watch else {
        return once(arguments);
    };
    let looks = LOOKS.contains(&verb)
        || verb.starts_with("list_")
        || verb.ends_with("_status")
        || matches!(verb, "status" | "ping");
    if !looks {
        return Err(Failure::Usage(format!(
            "--watch goes with commands that only look, and `{verb}` does more than that"
        )));
    }
    let on_terminal = std::io::stdout().is_terminal();
    let mut seen = false;
    loop {
        if on_terminal {
            output::write("\x1b[H\x1b[2J")?;
        }
        match once(arguments) {
            Ok(()) => seen = true,
            // What is watched may come and go, and a node that starts knows no users yet.
            Err(failure) if seen && !matches!(failure, Failure::Output(_)) => {
                eprintln!("warrenctl: {failure}");
            }
            Err(failure @ (Failure::Unavailable(_) | Failure::Unhealthy(_))) => {
                eprintln!("warrenctl: {failure}");
            }
            Err(failure) => return Err(failure),
        }
        if output::nobody_reads() {
            return Ok(());
        }
        std::thread::sleep(pause);
    }
}

fn once(arguments: &Arguments) -> Result<(), Failure> {
    // These ask nobody.
    if let Noun::Password(verb) = &arguments.noun {
        return password::run(verb);
    }
    if let Noun::Completions(options) = &arguments.noun {
        return completions::run(options);
    }
    if let Noun::Cert(verb) = &arguments.noun {
        return cert::run(verb, arguments.quiet);
    }
    let context = Context {
        client: Client::new(
            &profile::resolve(&arguments.connection)?,
            arguments.deadline,
        )?,
        format: arguments.output,
        columns: arguments.columns.clone(),
        sort: arguments.sort.clone(),
        quiet: arguments.quiet,
        headings: !arguments.quiet,
        yes: arguments.yes,
    };
    match &arguments.noun {
        Noun::Cluster(verb) => cluster::run(&context, verb),
        Noun::Ring(verb) => ring::run(&context, verb),
        Noun::Routing(verb) => routing::run(&context, verb),
        Noun::Exchange(verb) => exchange::run(&context, verb),
        Noun::Queue(verb) => queue::run(&context, verb),
        Noun::Binding(verb) => binding::run(&context, verb),
        Noun::Vhost(verb) => vhost::run(&context, verb),
        Noun::User(verb) => user::run(&context, verb),
        Noun::Permission(verb) => permission::run(&context, verb),
        Noun::TopicPermission(verb) => topic_permission::run(&context, verb),
        Noun::Policy(verb) => policy::run(&context, policy::Kind::Policy, verb),
        Noun::OperatorPolicy(verb) => policy::run(&context, policy::Kind::Operator, verb),
        Noun::Limit(verb) => limit::run(&context, verb),
        Noun::Parameter(verb) => parameter::run(&context, verb),
        Noun::Connection(verb) => connection::run(&context, verb),
        Noun::Channel(verb) => channel::run(&context, verb),
        Noun::Consumer(verb) => consumer::run(&context, verb),
        Noun::Node(verb) => node::run(&context, verb),
        Noun::Message(verb) => message::run(&context, verb),
        Noun::Definitions(verb) => definitions::run(&context, verb),
        Noun::Check(options) => check::run(&context, options),
        Noun::Alias(command) => alias::run(&context, command, &arguments.alike),
        Noun::Log(verb) => log::run(&context, verb),
        Noun::Password(verb) => password::run(verb),
        Noun::Cert(verb) => cert::run(verb, arguments.quiet),
        Noun::Completions(options) => completions::run(options),
    }
}
