//! Limits of virtual hosts and users: how many connections, queues and channels they may have.
//!
//! Queues are counted here, where they are made, so that every node comes to the same verdict. Connections and channels are counted by the nodes that serve
//! them, who ask here for the limit. A limit holds for what comes after it was set: nothing that is there goes because of it.

use crate::apply::{Applied, Event};
use crate::record;
use crate::table::Table;
use crate::text;
use std::collections::BTreeMap;
use warren_model::Refusal;
use warren_model::command::{UserLimit, VhostLimit};

/// What is limited, and to how many. A negative number is kept and sets no bound.
pub type Limits<L> = BTreeMap<L, i64>;

/// Sets or takes away one limit. Returns what was there before, if that changes anything.
fn changed<L: Ord + Copy>(
    limits: &mut Limits<L>,
    limit: L,
    value: Option<i64>,
) -> Option<Limits<L>> {
    let before = limits.clone();
    match value {
        Some(value) => limits.insert(limit, value),
        None => limits.remove(&limit),
    };
    (before != *limits).then_some(before)
}

/// The bound that a limit sets.
fn bound<L: Ord>(limits: &Limits<L>, limit: L) -> Option<u64> {
    limits
        .get(&limit)
        .and_then(|value| u64::try_from(*value).ok())
}

impl Table {
    pub(crate) fn set_vhost_limit(
        &mut self,
        vhost: &str,
        limit: VhostLimit,
        value: Option<i64>,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let number = self.vhost(vhost)?;
        let limits = &mut self.vhosts[number].limits;
        let Some(before) = changed(limits, limit, value) else {
            return Ok(());
        };
        let [before, after] = [&before, &*limits]
            .map(|limits| (!limits.is_empty()).then(|| record::vhost_limits_value(limits)));
        self.exchange_record(applied, record::vhost_limits_key(vhost), before, after);
        applied.events.push(Event::LimitsChanged);
        Ok(())
    }

    pub(crate) fn set_user_limit(
        &mut self,
        user: &str,
        limit: UserLimit,
        value: Option<i64>,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if !self.users.contains_key(user) {
            return Err(Refusal::not_found(format!("no user '{user}'")));
        }
        let mut limits = self.user_limits.remove(user).unwrap_or_default();
        let before = changed(&mut limits, limit, value);
        if let Some(before) = before {
            let [before, after] = [&before, &limits]
                .map(|limits| (!limits.is_empty()).then(|| record::user_limits_value(limits)));
            self.exchange_record(applied, record::user_limits_key(user), before, after);
            applied.events.push(Event::LimitsChanged);
        }
        if !limits.is_empty() {
            self.user_limits.insert(user.to_owned(), limits);
        }
        Ok(())
    }

    /// Records one value for another; a missing one stands for no record.
    pub(crate) fn exchange_record(
        &mut self,
        applied: &mut Applied,
        key: Vec<u8>,
        before: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
    ) {
        match (before, after) {
            (None, None) => {}
            (None, Some(after)) => self.put(applied, key, after),
            (Some(before), Some(after)) => self.replace(applied, key, &before, after),
            (Some(before), None) => self.erase(applied, key, &before),
        }
    }

    /// The virtual host is about to go.
    pub(crate) fn erase_vhost_limits(&mut self, number: u32, applied: &mut Applied) {
        let limits = std::mem::take(&mut self.vhosts[number].limits);
        if !limits.is_empty() {
            let key = record::vhost_limits_key(self.vhost_name(number));
            self.erase(applied, key, &record::vhost_limits_value(&limits));
        }
    }

    /// The user is gone.
    pub(crate) fn erase_user_limits(&mut self, user: &str, applied: &mut Applied) {
        if let Some(limits) = self.user_limits.remove(user) {
            let key = record::user_limits_key(user);
            self.erase(applied, key, &record::user_limits_value(&limits));
        }
    }

    pub(crate) fn load_vhost_limits(
        &mut self,
        vhost: &str,
        limits: Limits<VhostLimit>,
    ) -> Result<(), &'static str> {
        let number = self
            .find_vhost(vhost)
            .ok_or("its virtual host is missing")?;
        let before = std::mem::replace(&mut self.vhosts[number].limits, limits);
        if before.is_empty() {
            Ok(())
        } else {
            Err("it is given twice")
        }
    }

    pub(crate) fn load_user_limits(
        &mut self,
        user: String,
        limits: Limits<UserLimit>,
    ) -> Result<(), &'static str> {
        if !self.users.contains_key(&user) {
            return Err("its user is missing");
        }
        match self.user_limits.insert(user, limits) {
            None => Ok(()),
            Some(_) => Err("it is given twice"),
        }
    }

    pub(crate) fn limit_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        let vhosts = self.all_vhost_limits().map(|(vhost, limits)| {
            let key = record::vhost_limits_key(vhost);
            (key, record::vhost_limits_value(limits))
        });
        let users = self.all_user_limits().map(|(user, limits)| {
            let key = record::user_limits_key(user);
            (key, record::user_limits_value(limits))
        });
        vhosts.chain(users)
    }

    /// Refuses a queue that would be one too many.
    pub(crate) fn check_queue_limit(&self, vhost: u32, queue: &str) -> Result<(), Refusal> {
        let vhost = &self.vhosts[vhost];
        match bound(&vhost.limits, VhostLimit::MaxQueues) {
            Some(limit) if vhost.queues.len() as u64 >= limit => {
                Err(text::queue_limit(&vhost.name, queue, limit))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The limits of the virtual hosts that have any, by name.
    pub fn all_vhost_limits(&self) -> impl Iterator<Item = (&str, &Limits<VhostLimit>)> {
        self.vhost_numbers
            .iter()
            .map(|(name, number)| (&**name, &self.vhosts[*number].limits))
            .filter(|(_, limits)| !limits.is_empty())
    }

    /// The limits of a virtual host, if it has any.
    pub fn vhost_limits(&self, vhost: &str) -> Option<&Limits<VhostLimit>> {
        let limits = &self.vhosts[self.find_vhost(vhost)?].limits;
        (!limits.is_empty()).then_some(limits)
    }

    /// The limits of the users that have any, by name.
    pub fn all_user_limits(&self) -> impl Iterator<Item = (&str, &Limits<UserLimit>)> {
        let all = self.user_limits.iter();
        all.map(|(user, limits)| (user.as_str(), limits))
    }

    /// The limits of a user, if it has any.
    pub fn user_limits(&self, user: &str) -> Option<&Limits<UserLimit>> {
        self.user_limits.get(user)
    }

    /// How many of these a virtual host may have, if that is bounded.
    pub fn vhost_bound(&self, vhost: &str, limit: VhostLimit) -> Option<u64> {
        bound(self.vhost_limits(vhost)?, limit)
    }

    /// How many of these a user may have, if that is bounded.
    pub fn user_bound(&self, user: &str, limit: UserLimit) -> Option<u64> {
        bound(self.user_limits(user)?, limit)
    }

    /// Whether anything at all is limited.
    pub fn has_limits(&self) -> bool {
        !self.user_limits.is_empty() || self.all_vhost_limits().next().is_some()
    }

    /// How many queues a virtual host has.
    pub fn queue_count_of(&self, vhost: &str) -> usize {
        self.find_vhost(vhost)
            .map_or(0, |number| self.vhosts[number].queues.len())
    }
}
