//! What may rightly be lost: messages that were on their way to somebody who need not acknowledge them, and whose connection ended.
//!
//! A get is one message at most; a consumer may have been sent whatever was in its queue by then.

use std::collections::BTreeMap;
use std::time::Duration;

/// What is on its way without an acknowledgement to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stake {
    /// One message: a get.
    One,
    /// Whatever is in the queue: a consumer.
    All,
}

/// What is at stake, and what may be lost.
#[derive(Debug, Default)]
pub(crate) struct Stakes {
    /// By channel.
    open: BTreeMap<u32, (String, Stake)>,
    /// Gets without an answer, by queue.
    gets: BTreeMap<String, usize>,
    /// Until when what was published may be lost, by queue.
    until: BTreeMap<String, Duration>,
}

impl Stakes {
    pub(crate) fn open(&mut self, channel: u32, queue: &str, stake: Stake) {
        self.open.insert(channel, (queue.to_owned(), stake));
    }

    /// All that was on its way has come.
    pub(crate) fn over(&mut self, channel: u32) {
        self.open.remove(&channel);
    }

    /// The channel has ended, and its node knows it by then.
    pub(crate) fn ended(&mut self, channel: u32, until: Duration) {
        match self.open.remove(&channel) {
            None => {}
            Some((queue, Stake::One)) => *self.gets.entry(queue).or_default() += 1,
            Some((queue, Stake::All)) => {
                let last = self.until.entry(queue).or_default();
                *last = until.max(*last);
            }
        }
    }

    /// Whether a message that was published then may be lost on its way to a consumer.
    pub(crate) fn may_lose(&self, queue: &str, published: Duration) -> bool {
        self.until
            .get(queue)
            .is_some_and(|until| published <= *until)
    }

    /// How many further ones may be lost.
    pub(crate) fn gets(&self, queue: &str) -> usize {
        self.gets.get(queue).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_come_is_not_lost() {
        let at = Duration::from_secs;
        let mut stakes = Stakes::default();
        stakes.open(1, "q", Stake::All);
        stakes.over(1);
        stakes.ended(1, at(5));
        stakes.open(2, "q", Stake::One);
        stakes.over(2);
        stakes.ended(2, at(5));
        assert!(!stakes.may_lose("q", at(1)));
        assert_eq!(stakes.gets("q"), 0);
    }

    #[test]
    fn an_ended_channel_excuses_what_was_on_its_way() {
        let at = Duration::from_secs;
        let mut stakes = Stakes::default();
        stakes.open(1, "q", Stake::All);
        stakes.ended(1, at(5));
        stakes.ended(1, at(9));
        assert!(stakes.may_lose("q", at(5)) && !stakes.may_lose("q", at(6)));
        assert!(!stakes.may_lose("other", at(1)));
        stakes.open(2, "other", Stake::One);
        stakes.ended(2, at(9));
        assert_eq!((stakes.gets("other"), stakes.gets("q")), (1, 0));
    }
}
