//! What a user may do with a resource: RabbitMQ's three regular expressions over names, compiled once and checked against the table's current text.
//!
//! Cost: a check is a map look-up, a string comparison and a match; the publish path asks once a remembered route.

use parking_lot::Mutex;
use regex::Regex;
use warren_model::Refusal;
use warren_routing::Table;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Declare, delete.
    Configure,
    /// Publish to, bind to.
    Write,
    /// Consume, purge, bind from.
    Read,
}

/// A session's compiled patterns. A pattern is taken anew when its text has changed in the table.
#[derive(Debug, Default)]
pub(crate) struct Permissions {
    patterns: Mutex<[Option<Compiled>; 3]>,
}

/// A pattern's text, and what it compiles to, if it does.
#[derive(Debug)]
struct Compiled {
    text: String,
    regex: Option<Regex>,
}

impl Permissions {
    /// Refuses (403) what the user may not do.
    pub(crate) fn check(
        &self,
        table: &Table,
        user: &str,
        vhost: &str,
        access: Access,
        kind: &str,
        name: &str,
    ) -> Result<(), Refusal> {
        let allowed = table.permission(user, vhost).is_some_and(|permission| {
            let text = match access {
                Access::Configure => &permission.configure,
                Access::Write => &permission.write,
                Access::Read => &permission.read,
            };
            self.matches(access, text, name)
        });
        if allowed {
            return Ok(());
        }
        Err(Refusal::access_refused(format!(
            "access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"
        )))
    }

    fn matches(&self, access: Access, text: &str, name: &str) -> bool {
        // The empty pattern means "nothing", as in RabbitMQ.
        match text {
            ".*" => return true,
            "" => return name.is_empty(),
            _ => {}
        }
        let mut patterns = self.patterns.lock();
        let slot = &mut patterns[access as usize];
        if slot.as_ref().is_none_or(|known| known.text != text) {
            let regex = Regex::new(text).inspect_err(|error| tracing::warn!(pattern = text, %error, "a permission pattern cannot be used: it allows nothing")).ok();
            *slot = Some(Compiled {
                text: text.to_owned(),
                regex,
            });
        }
        slot.as_ref()
            .and_then(|compiled| compiled.regex.as_ref())
            .is_some_and(|regex| regex.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_rabbitmq_and_follow_their_text() {
        let p = Permissions::default();
        assert!(p.matches(Access::Read, ".*", "anything"));
        assert!(!p.matches(Access::Read, "", "q"));
        assert!(!p.matches(Access::Read, "^$", "q"));
        assert!(p.matches(Access::Read, "^q-", "q-1"));
        assert!(!p.matches(Access::Read, "^q-", "x-q-1"));
        assert!(
            p.matches(Access::Write, "q", "x-q-1"),
            "not anchored unless it says so"
        );
        assert!(
            !p.matches(Access::Read, "(", "("),
            "an unusable pattern allows nothing"
        );
    }
}
