//! `warrenctl user`: users, their passwords and tags.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Context;
use crate::client::{Method, segment};
use crate::failure::Failure;

const COLUMNS: [&str; 2] = ["name", "tags"];

/// What can be done with users.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List users.
    #[command(after_help = "Example: warrenctl user list")]
    List,
    /// Show a user.
    #[command(after_help = "Example: warrenctl user show alice")]
    Show(Name),
    /// Make a user, or give a user that is there another password or other tags.
    #[command(
        visible_alias = "add",
        after_help = "Example: warrenctl user declare alice --tags monitoring,management --password-stdin < secret.txt"
    )]
    Declare(Declare),
    /// Give a user another password.
    #[command(
        after_help = "Example: warrenctl user change-password alice --password-stdin < secret.txt"
    )]
    ChangePassword(ChangePassword),
    /// Set what a user may do in the API: administrator, monitoring, policymaker, management; none take all away.
    #[command(after_help = "Example: warrenctl user set-tags alice monitoring")]
    SetTags(SetTags),
    /// Delete a user and its permissions.
    #[command(after_help = "Example: warrenctl user delete alice --yes")]
    Delete(Name),
}

/// A user.
#[derive(Debug, clap::Args)]
pub struct Name {
    /// Its name.
    name: String,
}

/// A password, in one of its forms.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub struct Password {
    /// The password; others on this machine can see it in the process list.
    #[arg(long, value_name = "PASSWORD")]
    new_password: Option<String>,
    /// Read the password from standard input, up to the end of its first line.
    #[arg(long)]
    password_stdin: bool,
    /// The password's hash, as `warrenctl password hash` prints it.
    #[arg(long, value_name = "HASH")]
    password_hash: Option<String>,
}

/// A user to be made.
#[derive(Debug, clap::Args)]
pub struct Declare {
    /// Its name.
    name: String,
    #[command(flatten)]
    password: Password,
    /// Its tags.
    #[arg(long, value_delimiter = ',')]
    tags: Vec<String>,
}

/// A user and its new password.
#[derive(Debug, clap::Args)]
pub struct ChangePassword {
    /// Its name.
    name: String,
    #[command(flatten)]
    password: Password,
}

/// A user and its tags.
#[derive(Debug, clap::Args)]
pub struct SetTags {
    /// Its name.
    name: String,
    /// The tags.
    tags: Vec<String>,
}

/// Runs one verb.
pub fn run(context: &Context, verb: &Verb) -> Result<(), Failure> {
    match verb {
        Verb::List => list(context, &COLUMNS),
        Verb::Show(Name { name }) => context.object(&context.client.get(&path(name), &[])?),
        Verb::Declare(options) => {
            let mut body = json!({"tags": options.tags});
            put_password(&mut body, &options.password)?;
            let done = format!("user '{}' is there", options.name);
            context.change(Method::Put, &path(&options.name), Some(&body), &done)
        }
        Verb::ChangePassword(options) => {
            let mut body = json!({});
            put_password(&mut body, &options.password)?;
            if body.as_object().is_none_or(serde_json::Map::is_empty) {
                let text =
                    "no password is given; use --password-stdin, --new-password or --password-hash";
                return Err(Failure::Usage(text.to_owned()));
            }
            change(context, &options.name, body)
        }
        Verb::SetTags(SetTags { name, tags }) => set_tags(context, name, tags),
        Verb::Delete(Name { name }) => {
            context.confirm(&format!("Delete user '{name}' and its permissions"))?;
            delete(context, name)
        }
    }
}

fn path(name: &str) -> String {
    format!("/api/users/{}", segment(name))
}

fn put_password(body: &mut Value, password: &Password) -> Result<(), Failure> {
    if let Some(hash) = &password.password_hash {
        body["password_hash"] = json!(hash);
    } else if password.password_stdin {
        body["password"] = json!(first_line()?);
    } else if let Some(password) = &password.new_password {
        body["password"] = json!(password);
    }
    Ok(())
}

/// The first line of standard input.
pub fn first_line() -> Result<String, Failure> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(0) => Err(Failure::Input(
            "there is no password on standard input".to_owned(),
        )),
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(Failure::Input(format!(
            "the password cannot be read from standard input: {error}"
        ))),
    }
}

/// Lists users with these columns.
pub fn list(context: &Context, columns: &[&str]) -> Result<(), Failure> {
    let answer = context.client.get("/api/users", &[])?;
    context.list(&answer, "/api/users", columns)
}

/// Makes a user with a password.
pub fn add(context: &Context, name: &str, password: &str) -> Result<(), Failure> {
    // Whoever is there already keeps tags and password: this is no way to change them.
    if context.client.get(&path(name), &[]).is_ok() {
        return Err(Failure::Data(format!("user '{name}' exists already")));
    }
    let body = json!({"tags": [], "password": password});
    let done = format!("user '{name}' is there");
    context.change(Method::Put, &path(name), Some(&body), &done)
}

/// Gives a user another password.
pub fn change_password(context: &Context, name: &str, password: &str) -> Result<(), Failure> {
    change(context, name, json!({"password": password}))
}

/// Takes a user's password away, without asking.
pub fn clear_password(context: &Context, name: &str) -> Result<(), Failure> {
    change(context, name, json!({"password_hash": ""}))
}

/// Changes a user that is there, and keeps its tags.
fn change(context: &Context, name: &str, mut body: Value) -> Result<(), Failure> {
    let known = context.client.get(&path(name), &[])?;
    body["tags"] = known["tags"].clone();
    let done = format!("the password of user '{name}' is changed");
    context.change(Method::Put, &path(name), Some(&body), &done)
}

/// Sets a user's tags, and keeps its password.
pub fn set_tags(context: &Context, name: &str, tags: &[String]) -> Result<(), Failure> {
    context.client.get(&path(name), &[])?;
    let body = json!({"tags": tags});
    let done = format!("user '{name}' has the tags: {}", tags.join(", "));
    context.change(Method::Put, &path(name), Some(&body), &done)
}

/// Deletes a user without asking.
pub fn delete(context: &Context, name: &str) -> Result<(), Failure> {
    let done = format!("user '{name}' is deleted");
    context.change(Method::Delete, &path(name), None, &done)
}
