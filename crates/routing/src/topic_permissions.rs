//! Topic permissions: which routing keys a user may use with one topic exchange.
//!
//! They go with their user and with their virtual host; an exchange that is deleted and declared again finds them as they were, as in RabbitMQ.

use crate::apply::{Applied, Event};
use crate::record;
use crate::table::Table;
use std::collections::BTreeMap;
use warren_model::Refusal;
use warren_model::command::TopicPermission;

/// A user's topic permissions by virtual host and exchange.
pub(crate) type ByExchange = BTreeMap<(String, String), TopicPermission>;

impl Table {
    pub(crate) fn set_topic_permission(
        &mut self,
        permission: &TopicPermission,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let TopicPermission {
            user,
            vhost,
            exchange,
            ..
        } = permission;
        self.vhost(vhost)?;
        if !self.users.contains_key(user) {
            return Err(Refusal::not_found(format!("no user '{user}'")));
        }
        let key = record::topic_permission_key(user, vhost, exchange);
        let value = record::topic_permission_value(permission);
        let of_user = self.topic_permissions.entry(user.clone()).or_default();
        let name = (vhost.clone(), exchange.clone());
        match of_user.insert(name, permission.clone()) {
            Some(before) if before == *permission => return Ok(()),
            Some(before) => {
                self.replace(
                    applied,
                    key,
                    &record::topic_permission_value(&before),
                    value,
                );
            }
            None => self.put(applied, key, value),
        }
        applied
            .events
            .push(Event::UserChanged { name: user.clone() });
        Ok(())
    }

    pub(crate) fn clear_topic_permissions(
        &mut self,
        user: &str,
        vhost: &str,
        exchange: Option<&str>,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let goes = |permission: &TopicPermission| {
            permission.user == user
                && permission.vhost == vhost
                && exchange.is_none_or(|exchange| permission.exchange == exchange)
        };
        if self.take_topic_permissions(goes, applied) {
            let name = user.to_owned();
            applied.events.push(Event::UserChanged { name });
        }
        Ok(())
    }

    /// A user or a virtual host goes.
    pub(crate) fn drop_topic_permissions(
        &mut self,
        user: Option<&str>,
        vhost: Option<&str>,
        applied: &mut Applied,
    ) {
        let goes = |permission: &TopicPermission| {
            user.is_none_or(|user| permission.user == user)
                && vhost.is_none_or(|vhost| permission.vhost == vhost)
        };
        self.take_topic_permissions(goes, applied);
    }

    /// Says whether there were any.
    fn take_topic_permissions(
        &mut self,
        goes: impl Fn(&TopicPermission) -> bool,
        applied: &mut Applied,
    ) -> bool {
        let all = self.topic_permissions.values().flat_map(BTreeMap::values);
        let going: Vec<TopicPermission> = all.filter(|p| goes(p)).cloned().collect();
        for permission in &going {
            let TopicPermission {
                user,
                vhost,
                exchange,
                ..
            } = permission;
            if let Some(of_user) = self.topic_permissions.get_mut(user) {
                of_user.remove(&(vhost.clone(), exchange.clone()));
                if of_user.is_empty() {
                    self.topic_permissions.remove(user);
                }
            }
            let key = record::topic_permission_key(user, vhost, exchange);
            self.erase(applied, key, &record::topic_permission_value(permission));
        }
        !going.is_empty()
    }

    /// Says whether it was there already.
    pub(crate) fn load_topic_permission(&mut self, permission: TopicPermission) -> bool {
        let name = (permission.vhost.clone(), permission.exchange.clone());
        let of_user = self.topic_permissions.entry(permission.user.clone());
        of_user.or_default().insert(name, permission).is_some()
    }

    pub(crate) fn topic_permission_records(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        self.topic_permissions().map(|permission| {
            let TopicPermission {
                user,
                vhost,
                exchange,
                ..
            } = permission;
            let key = record::topic_permission_key(user, vhost, exchange);
            (key, record::topic_permission_value(permission))
        })
    }

    /// All topic permissions, by user, virtual host and exchange.
    pub fn topic_permissions(&self) -> impl Iterator<Item = &TopicPermission> {
        self.topic_permissions.values().flat_map(BTreeMap::values)
    }

    /// What routing keys a user may use with an exchange, if there is anything that says so.
    pub fn topic_permission(
        &self,
        user: &str,
        vhost: &str,
        exchange: &str,
    ) -> Option<&TopicPermission> {
        // Few users have any, and those few; asked once a remembered route.
        let of_user = self.topic_permissions.get(user)?.values();
        of_user
            .into_iter()
            .find(|permission| permission.vhost == vhost && permission.exchange == exchange)
    }
}
