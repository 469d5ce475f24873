//! Imports: many definitions in one command, all of them or none.
//!
//! Flow: each definition is carried out as the command of its name would be, so what a later one needs may come before it in the same import. What takes it
//! back is noted first. If one is refused, all before it are taken back in reverse order, and neither changes nor events of any of them are told to anybody.
//! Cost: that of the single commands; beside it a note for each definition that is new.

use crate::apply::Applied;
use crate::check::Check;
use crate::table::Table;
use warren_model::command::{Binding, TopicPermission};
use warren_model::{Command, Definition, Outcome, QueueId, Refusal};

/// What a definition would do to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Make something new.
    Creates,
    /// Change what is there.
    Changes,
    /// Nothing: it is there as it should be.
    Nothing,
}

/// What takes a definition back.
enum Undo<'a> {
    Command(Command),
    /// Unlike an unbind, it spares an exchange that loses its last binding: that one was there before.
    Binding(&'a Binding),
}

/// How many ids of queues an import may need.
pub(crate) fn queues(definitions: &[Definition]) -> usize {
    let queues = definitions
        .iter()
        .filter(|definition| matches!(definition, Definition::Queue(_)));
    queues.count()
}

impl Table {
    /// `first`: position of the first id that the import may give in the entry at `index`.
    pub(crate) fn import(
        &mut self,
        index: u64,
        first: u16,
        definitions: &[Definition],
        applied: &mut Applied,
    ) -> Outcome {
        let told = (applied.changes.len(), applied.events.len());
        let (mut undo, mut position) = (Vec::new(), first);
        for definition in definitions {
            let back = self.undo_of(definition);
            let outcome = self
                .define(QueueId::new(index, position), definition, applied)
                .unwrap_or_else(Outcome::Refused);
            let why = match outcome {
                Outcome::Done | Outcome::Queue { .. } => None,
                Outcome::Retry => Some(Outcome::Retry),
                Outcome::Refused(Refusal { code, text }) => Some(Outcome::Refused(Refusal::new(
                    code,
                    format!("{definition} would be refused: {text}"),
                ))),
            };
            if let Some(why) = why {
                self.take_back(undo);
                applied.changes.truncate(told.0);
                applied.events.truncate(told.1);
                return why;
            }
            undo.extend(back);
            if matches!(definition, Definition::Queue(_)) {
                position = position.wrapping_add(1);
            }
        }
        Outcome::Done
    }

    /// `id` is what a queue is called that is new.
    fn define(
        &mut self,
        id: QueueId,
        definition: &Definition,
        applied: &mut Applied,
    ) -> Result<Outcome, Refusal> {
        match definition {
            Definition::Vhost { name } => self.put_vhost(name, applied),
            Definition::VhostDetails { vhost, details } => {
                self.set_vhost_details(vhost, details, applied)
            }
            Definition::User(user) => self.put_user(user, applied),
            Definition::Permission(permission) => self.set_permission(permission, applied),
            Definition::TopicPermission(permission) => {
                self.set_topic_permission(permission, applied)
            }
            Definition::Exchange(declare) => self.declare_exchange(declare, applied),
            Definition::Queue(declare) => return self.declare_queue(id, declare, applied),
            Definition::Binding(binding) => self.bind(binding, applied),
            Definition::Policy(policy) => self.put_policy(policy, applied),
            Definition::GlobalParameter { name, value } => self.put_global(name, value, applied),
            Definition::Parameter { parameter, value } => {
                self.put_parameter(parameter, value, applied)
            }
            Definition::VhostLimit {
                vhost,
                limit,
                value,
            } => self.set_vhost_limit(vhost, *limit, *value, applied),
            Definition::UserLimit { user, limit, value } => {
                self.set_user_limit(user, *limit, *value, applied)
            }
        }
        .map(|()| Outcome::Done)
    }

    /// What takes a definition back that is about to be made; none if it makes nothing new, or will be refused.
    fn undo_of<'a>(&self, definition: &'a Definition) -> Option<Undo<'a>> {
        let command = match definition {
            Definition::Vhost { name } => match self.find_vhost(name) {
                Some(_) => return None,
                None => Command::DeleteVhost { name: name.clone() },
            },
            Definition::VhostDetails { vhost, .. } => Command::SetVhostDetails {
                vhost: vhost.clone(),
                details: self.vhost_details(vhost)?.clone(),
            },
            Definition::User(user) => match self.user(&user.name) {
                Some(before) => Command::PutUser(before.clone()),
                None => Command::DeleteUser {
                    name: user.name.clone(),
                },
            },
            Definition::Permission(new) => match self.permission(&new.user, &new.vhost) {
                Some(before) => Command::SetPermission(before.clone()),
                None => Command::ClearPermission {
                    user: new.user.clone(),
                    vhost: new.vhost.clone(),
                },
            },
            Definition::TopicPermission(new) => {
                let TopicPermission {
                    user,
                    vhost,
                    exchange,
                    ..
                } = new;
                match self.topic_permission(user, vhost, exchange) {
                    Some(before) => Command::SetTopicPermission(before.clone()),
                    None => Command::ClearTopicPermissions {
                        user: user.clone(),
                        vhost: vhost.clone(),
                        exchange: Some(exchange.clone()),
                    },
                }
            }
            Definition::Exchange(new) => match self.exchange(&new.vhost, &new.name) {
                Some(_) => return None,
                None => Command::DeleteExchange {
                    vhost: new.vhost.clone(),
                    name: new.name.clone(),
                    if_unused: false,
                },
            },
            Definition::Queue(new) => match self.queue(&new.vhost, &new.name) {
                Some(_) => return None,
                None => Command::DeleteQueue {
                    vhost: new.vhost.clone(),
                    name: new.name.clone(),
                    only: None,
                    session: new.session,
                },
            },
            Definition::Binding(new) => match self.check_bind(new) {
                Check::New => return Some(Undo::Binding(new)),
                Check::Equivalent(_) | Check::Refused(_) => return None,
            },
            Definition::Policy(new) => match self.policy(&new.vhost, new.operator, &new.name) {
                Some(before) => Command::PutPolicy(before.clone()),
                None => Command::DeletePolicy {
                    vhost: new.vhost.clone(),
                    operator: new.operator,
                    name: new.name.clone(),
                },
            },
            Definition::GlobalParameter { name, .. } => match self.globals.get(name) {
                Some(before) => Command::PutGlobalParameter {
                    name: name.clone(),
                    value: before.clone(),
                },
                None => Command::DeleteGlobalParameter { name: name.clone() },
            },
            Definition::Parameter { parameter, .. } => match self.parameter(parameter) {
                Some(before) => Command::PutParameter {
                    parameter: parameter.clone(),
                    value: before.to_owned(),
                },
                None => Command::DeleteParameter(parameter.clone()),
            },
            Definition::VhostLimit { vhost, limit, .. } => Command::SetVhostLimit {
                vhost: vhost.clone(),
                limit: *limit,
                value: self
                    .vhost_limits(vhost)
                    .and_then(|limits| limits.get(limit).copied()),
            },
            Definition::UserLimit { user, limit, .. } => Command::SetUserLimit {
                user: user.clone(),
                limit: *limit,
                value: self
                    .user_limits(user)
                    .and_then(|limits| limits.get(limit).copied()),
            },
        };
        Some(Undo::Command(command))
    }

    fn take_back(&mut self, undo: Vec<Undo<'_>>) {
        let untold = &mut Applied::default();
        for back in undo.into_iter().rev() {
            match back {
                Undo::Command(command) => {
                    // It makes no queue, so the id is nobody's. It cannot be refused: what it speaks of was there a moment ago.
                    let outcome = self.apply_one(QueueId::default(), &command, untold);
                    debug_assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
                }
                Undo::Binding(binding) => {
                    if let Ok(Some(number)) = self.find_binding(binding) {
                        self.drop_binding(number, &mut Vec::new(), untold);
                    }
                }
            }
            untold.changes.clear();
            untold.events.clear();
        }
    }

    /// What a definition would do, if it is not refused.
    pub fn effect(&self, definition: &Definition) -> Effect {
        let put = |before: Option<bool>| match before {
            None => Effect::Creates,
            Some(false) => Effect::Changes,
            Some(true) => Effect::Nothing,
        };
        let declared = |check: Check| match check {
            Check::Equivalent(_) => Effect::Nothing,
            Check::New | Check::Refused(_) => Effect::Creates,
        };
        match definition {
            Definition::Vhost { name } => put(self.find_vhost(name).map(|_| true)),
            Definition::VhostDetails { vhost, details } => {
                let same = self.vhost_details(vhost).is_some_and(|d| d == details);
                put(Some(same))
            }
            Definition::User(user) => put(self.user(&user.name).map(|before| before == user)),
            Definition::Permission(new) => put(self
                .permission(&new.user, &new.vhost)
                .map(|before| before == new)),
            Definition::TopicPermission(new) => put(self
                .topic_permission(&new.user, &new.vhost, &new.exchange)
                .map(|before| before == new)),
            Definition::Exchange(declare) => declared(self.check_exchange(declare)),
            Definition::Queue(declare) => declared(self.check_queue(declare)),
            Definition::Binding(binding) => declared(self.check_bind(binding)),
            Definition::Policy(new) => put(self
                .policy(&new.vhost, new.operator, &new.name)
                .map(|before| before == new)),
            Definition::GlobalParameter { name, value } => {
                put(self.globals.get(name).map(|before| before == value))
            }
            Definition::Parameter { parameter, value } => {
                put(self.parameter(parameter).map(|before| before == value))
            }
            Definition::VhostLimit {
                vhost,
                limit,
                value,
            } => {
                let before = self
                    .vhost_limits(vhost)
                    .and_then(|limits| limits.get(limit));
                limited(before.copied(), *value)
            }
            Definition::UserLimit { user, limit, value } => {
                let before = self.user_limits(user).and_then(|limits| limits.get(limit));
                limited(before.copied(), *value)
            }
        }
    }
}

fn limited(before: Option<i64>, value: Option<i64>) -> Effect {
    match before {
        _ if before == value => Effect::Nothing,
        None => Effect::Creates,
        Some(_) => Effect::Changes,
    }
}
