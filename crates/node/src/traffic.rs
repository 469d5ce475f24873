//! How many messages go into exchanges and from there to queues: RabbitMQ's `publish_in` and `publish_out`.
//!
//! A session counts in memory of its own ([`Passing`]), and adds that to what its node knows ([`Traffic`]) once a turn. A message counts with the exchange that it was published
//! to, not with those that it passes after that. An exchange's counts end with it: a new one of the same name begins anew.
//! Cost: two additions a message; a lock for each exchange and turn; a few hundred bytes for each exchange that was ever published to.

use crate::meter::{MessageStats, Meter, rated};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::{AddAssign, Bound, Sub};
use std::sync::Arc;
use tokio::time::Instant;

/// A session remembers so many exchanges at most; then it begins anew.
const REMEMBERED_MAX: usize = 4096;

/// Messages into an exchange, and out of it: one for each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Through {
    published_in: u64,
    published_out: u64,
}

impl Sub for Through {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            published_in: self.published_in - before.published_in,
            published_out: self.published_out - before.published_out,
        }
    }
}

impl AddAssign for Through {
    fn add_assign(&mut self, more: Self) {
        self.published_in += more.published_in;
        self.published_out += more.published_out;
    }
}

/// An exchange's counts at a node; none when it is deleted.
type Account = Mutex<Option<Meter<Through>>>;

/// The exchanges of a node's clients, by virtual host and name.
#[derive(Debug, Default)]
pub(crate) struct Traffic(RwLock<BTreeMap<(String, String), Arc<Account>>>);

impl Traffic {
    /// The account of an exchange that is in the table as long as the caller holds that.
    fn account(&self, vhost: &str, exchange: &str) -> Arc<Account> {
        let key = (vhost.to_owned(), exchange.to_owned());
        if let Some(account) = self.0.read().get(&key) {
            return account.clone();
        }
        let new = || Arc::new(Mutex::new(Some(Meter::new(Instant::now()))));
        self.0.write().entry(key).or_insert_with(new).clone()
    }

    /// An exchange was deleted.
    pub(crate) fn deleted(&self, vhost: &str, exchange: &str) {
        let key = (vhost.to_owned(), exchange.to_owned());
        if let Some(account) = self.0.write().remove(&key) {
            *account.lock() = None;
        }
    }

    /// Only exchanges for which `is_there` holds are left.
    pub(crate) fn retain(&self, is_there: impl Fn(&str, &str) -> bool) {
        self.0.write().retain(|(vhost, exchange), account| {
            let stays = is_there(vhost, exchange);
            if !stays {
                *account.lock() = None;
            }
            stays
        });
    }

    /// At most so many exchanges behind this one, in order, with their counts by RabbitMQ's names.
    pub(crate) fn stats_after(
        &self,
        after: Option<(String, String)>,
        most: usize,
    ) -> Vec<(String, String, MessageStats)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.0.read();
        let range = all.range((from, Bound::Unbounded)).take(most);
        range
            .map(|((vhost, name), account)| (vhost.clone(), name.clone(), stats(account)))
            .collect()
    }

    /// One exchange's counts, if it was ever published to.
    pub(crate) fn stats_of(&self, vhost: &str, exchange: &str) -> MessageStats {
        let key = (vhost.to_owned(), exchange.to_owned());
        let account = self.0.read().get(&key).cloned();
        account.map_or_else(MessageStats::new, |account| stats(&account))
    }
}

fn stats(account: &Account) -> MessageStats {
    let mut account = account.lock();
    let Some(meter) = &mut *account else {
        return MessageStats::new();
    };
    let (recent, over) = meter.recent(Instant::now());
    let now = meter.now;
    [
        ("publish_in", now.published_in, recent.published_in),
        ("publish_out", now.published_out, recent.published_out),
    ]
    .into_iter()
    .map(|(name, total, recent)| (name.to_owned(), rated(total, recent, over)))
    .collect()
}

/// What a session has published to an exchange.
#[derive(Debug)]
struct Passed {
    account: Arc<Account>,
    /// Not in the account yet.
    since: Through,
}

/// What a session has published to exchanges.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    exchanges: Vec<Passed>,
    numbers: HashMap<Box<[u8]>, u32>,
    /// Those with counts that are not in their accounts yet.
    counted: Vec<u32>,
}

impl Passing {
    /// The number that an exchange is counted by. It must be in the table, which the caller holds.
    pub(crate) fn number(&mut self, traffic: &Traffic, vhost: &str, exchange: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(exchange) {
            let passed = &mut self.exchanges[number as usize];
            if passed.account.lock().is_none() {
                passed.account = traffic.account(vhost, &String::from_utf8_lossy(exchange));
            }
            return number;
        }
        let number = self.exchanges.len() as u32;
        self.exchanges.push(Passed {
            account: traffic.account(vhost, &String::from_utf8_lossy(exchange)),
            since: Through::default(),
        });
        self.numbers.insert(exchange.into(), number);
        number
    }

    /// A message went to an exchange, and from there to so many queues.
    #[inline]
    pub(crate) fn count(&mut self, exchange: u32, queues: usize) {
        let Some(passed) = self.exchanges.get_mut(exchange as usize) else {
            return;
        };
        if passed.since.published_in == 0 {
            self.counted.push(exchange);
        }
        passed.since += Through {
            published_in: 1,
            published_out: queues as u64,
        };
    }

    /// Adds what was counted to the node's accounts. False if the session has to look for its routes anew: an exchange is gone, or too many are remembered.
    #[must_use]
    pub(crate) fn flush(&mut self, at: Instant) -> bool {
        let mut is_known = true;
        for number in self.counted.drain(..) {
            let passed = &mut self.exchanges[number as usize];
            let since = std::mem::take(&mut passed.since);
            match &mut *passed.account.lock() {
                Some(meter) => {
                    meter.tick(at);
                    meter.now += since;
                }
                None => is_known = false,
            }
        }
        if self.exchanges.len() > REMEMBERED_MAX {
            self.exchanges.clear();
            self.numbers.clear();
            is_known = false;
        }
        is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(traffic: &Traffic, exchange: &str) -> Option<(u64, u64)> {
        let stats = traffic.stats_of("/", exchange);
        Some((stats.get("publish_in")?.total, stats["publish_out"].total))
    }

    #[test]
    fn sessions_counts_add_up_until_the_exchange_is_deleted() {
        let traffic = Traffic::default();
        let (mut one, mut other) = (Passing::default(), Passing::default());
        let now = Instant::now();
        for passing in [&mut one, &mut other] {
            let x = passing.number(&traffic, "/", b"x");
            let y = passing.number(&traffic, "/", b"y");
            passing.count(x, 2);
            passing.count(y, 0);
            passing.count(x, 1);
            assert!(passing.flush(now));
        }
        assert_eq!(totals(&traffic, "x"), Some((4, 6)));
        assert_eq!(totals(&traffic, "y"), Some((2, 0)));
        assert_eq!(totals(&traffic, "z"), None);

        let x = one.number(&traffic, "/", b"x");
        one.count(x, 5);
        traffic.deleted("/", "x");
        assert!(!one.flush(now), "its routes may be the old exchange's");
        assert_eq!(totals(&traffic, "x"), None);
        let x = one.number(&traffic, "/", b"x");
        one.count(x, 1);
        assert!(one.flush(now));
        assert_eq!(
            totals(&traffic, "x"),
            Some((1, 1)),
            "a new one of that name"
        );
        traffic.retain(|_, exchange| exchange == "y");
        assert_eq!(
            (totals(&traffic, "x"), totals(&traffic, "y")),
            (None, Some((2, 0)))
        );
    }

    #[test]
    fn they_are_listed_page_by_page_and_a_session_remembers_so_many() {
        let traffic = Traffic::default();
        let mut passing = Passing::default();
        let all: Vec<String> = (0..=REMEMBERED_MAX).map(|n| format!("{n:05}")).collect();
        for name in &all {
            let number = passing.number(&traffic, "/", name.as_bytes());
            passing.count(number, 1);
        }
        assert!(!passing.flush(Instant::now()));
        assert!(passing.exchanges.is_empty() && passing.numbers.is_empty());
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = traffic.stats_after(after, 1000);
            let Some((vhost, name, _)) = page.last() else {
                break;
            };
            after = Some((vhost.clone(), name.clone()));
            assert!(
                page.iter()
                    .all(|(_, _, stats)| stats["publish_in"].total == 1)
            );
            listed.extend(page.into_iter().map(|(_, name, _)| name));
        }
        assert_eq!(listed, all);
    }
}
