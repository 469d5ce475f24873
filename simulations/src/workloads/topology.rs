//! Declares, binds, unbinds and deletes its own things through changing nodes, and publishes through other nodes at once, to see what took effect there.
//!
//! The client alone changes these names, so it knows after each answer what must be there. Durable things must be there whatever happens to the cluster; others
//! may have gone with a node since something last happened.

use super::Worker;
use crate::client::{Client, Failure};
use crate::invariants::{Fact, matches};
use crate::options::node_name;
use std::time::Duration;

const NAME: &str = "read-your-declares";
const KINDS: [&str; 4] = ["direct", "fanout", "topic", "x-consistent-hash"];

struct Exchange {
    name: String,
    kind: &'static str,
    durable: bool,
    made: Duration,
}

struct Queue {
    name: String,
    durable: bool,
    made: Duration,
}

struct Bound {
    exchange: String,
    queue: String,
    key: String,
}

impl Bound {
    fn fact(&self) -> Fact {
        Fact::Binding {
            source: self.exchange.clone(),
            queue: self.queue.clone(),
            key: self.key.clone(),
        }
    }
}

/// What this client has made.
#[derive(Default)]
struct Own {
    exchanges: Vec<Exchange>,
    queues: Vec<Queue>,
    bindings: Vec<Bound>,
    /// Names of queues that were deleted, free to be used again.
    free: Vec<String>,
    names: usize,
}

/// A step under way: what is not known if it fails.
struct Step<'a> {
    worker: &'a mut Worker,
    own: &'a mut Own,
}

pub(super) async fn run(worker: &mut Worker) {
    let mut own = Own::default();
    let mut other: Option<Client> = None;
    while let Some(mut client) = worker.connect().await {
        for _ in 0..worker.below(150) + 5 {
            if worker.oracle.is_stopping() {
                return;
            }
            let node = client.node();
            let mut step = Step {
                worker,
                own: &mut own,
            };
            let failed = step
                .run(&mut client)
                .await
                .is_err_and(|failure| failure.is_fatal());
            if failed {
                break;
            }
            if step.worker.chance(0.6) {
                step.look(node, &mut other).await;
            }
            worker.think().await;
        }
    }
}

impl Step<'_> {
    /// Makes one change.
    async fn run(&mut self, client: &mut Client) -> Result<(), Failure> {
        let (exchanges, queues, bindings) = (
            self.own.exchanges.len(),
            self.own.queues.len(),
            self.own.bindings.len(),
        );
        match self.worker.below(20) {
            0..=3 if exchanges < 4 => self.declare_exchange(client).await,
            0..=7 if queues < 5 => self.declare_queue(client).await,
            8..=13 if exchanges > 0 && queues > 0 => self.bind(client).await,
            14..=16 if bindings > 0 => self.unbind(client).await,
            17 | 18 if queues > 0 => self.delete_queue(client).await,
            19 if exchanges > 0 => self.delete_exchange(client).await,
            _ if queues > 0 && exchanges > 0 => self.bind(client).await,
            _ if queues == 0 => self.declare_queue(client).await,
            _ => self.declare_exchange(client).await,
        }
    }

    fn new_name(&mut self, letter: char) -> String {
        self.own.names += 1;
        format!("t.{}.{letter}{}", self.worker.host, self.own.names)
    }

    fn settle(&self, fact: Fact, exists: bool) {
        self.worker.oracle.state().declares.settle(fact, exists);
    }

    fn unsettle(&self, fact: &Fact) {
        self.worker.oracle.state().declares.unsettle(fact);
    }

    async fn declare_exchange(&mut self, client: &mut Client) -> Result<(), Failure> {
        let exchange = Exchange {
            name: self.new_name('x'),
            kind: self.worker.pick::<&'static str>(&KINDS),
            durable: self.worker.chance(0.8),
            made: self.worker.oracle.now(),
        };
        self.worker
            .oracle
            .state()
            .messages
            .exchange(&exchange.name, exchange.kind);
        let result = client
            .declare_exchange(&exchange.name, exchange.kind, exchange.durable)
            .await;
        self.expect(&result, true, "declare", &exchange.name, client.node());
        result?;
        if exchange.durable {
            self.settle(Fact::Exchange(exchange.name.clone()), true);
        }
        self.own.exchanges.push(exchange);
        Ok(())
    }

    async fn declare_queue(&mut self, client: &mut Client) -> Result<(), Failure> {
        let again = if self.worker.chance(0.5) {
            self.own.free.pop()
        } else {
            None
        };
        let name = again.unwrap_or_else(|| self.new_name('q'));
        let queue = Queue {
            name,
            durable: self.worker.chance(0.75),
            made: self.worker.oracle.now(),
        };
        self.unsettle(&Fact::Queue(queue.name.clone()));
        let result = client
            .declare_queue(&queue.name, queue.durable, false)
            .await;
        self.expect(&result, true, "declare", &queue.name, client.node());
        result?;
        if queue.durable {
            self.settle(Fact::Queue(queue.name.clone()), true);
        }
        self.own.queues.push(queue);
        Ok(())
    }

    async fn bind(&mut self, client: &mut Client) -> Result<(), Failure> {
        let (x, q) = (
            self.worker.below(self.own.exchanges.len()),
            self.worker.below(self.own.queues.len()),
        );
        let (exchange, queue) = (&self.own.exchanges[x], &self.own.queues[q]);
        let durable = exchange.durable && queue.durable;
        let keys: &[&str] = match exchange.kind {
            "topic" => &["a.*", "#", "a.b", "*.b.#"],
            "x-consistent-hash" => &["1", "3"],
            _ => &["a.b", "c", "a.x"],
        };
        let bound = Bound {
            exchange: exchange.name.clone(),
            queue: queue.name.clone(),
            key: (*self.worker.pick(keys)).to_owned(),
        };
        self.unsettle(&bound.fact());
        let result = client.bind(&bound.queue, &bound.exchange, &bound.key).await;
        self.expect(
            &result,
            durable,
            "bind",
            &bound.fact().to_string(),
            client.node(),
        );
        if let Err(failure) = result {
            self.retire_queue(&bound.queue);
            self.retire_exchange(&bound.exchange);
            return Err(failure);
        }
        if durable {
            self.settle(bound.fact(), true);
        }
        if !self
            .own
            .bindings
            .iter()
            .any(|known| known.fact() == bound.fact())
        {
            self.own.bindings.push(bound);
        }
        Ok(())
    }

    async fn unbind(&mut self, client: &mut Client) -> Result<(), Failure> {
        let place = self.worker.below(self.own.bindings.len());
        let bound = self.own.bindings.swap_remove(place);
        let durable = self.is_durable(&bound);
        self.unsettle(&bound.fact());
        let result = client
            .unbind(&bound.queue, &bound.exchange, &bound.key)
            .await;
        self.expect(
            &result,
            durable,
            "unbind",
            &bound.fact().to_string(),
            client.node(),
        );
        if let Err(failure) = result {
            self.retire_queue(&bound.queue);
            self.retire_exchange(&bound.exchange);
            return Err(failure);
        }
        self.settle(bound.fact(), false);
        Ok(())
    }

    async fn delete_queue(&mut self, client: &mut Client) -> Result<(), Failure> {
        let place = self.worker.below(self.own.queues.len());
        let queue = self.own.queues.swap_remove(place);
        let facts: Vec<Fact> = self
            .own
            .bindings
            .iter()
            .filter(|bound| bound.queue == queue.name)
            .map(Bound::fact)
            .chain([Fact::Queue(queue.name.clone())])
            .collect();
        facts.iter().for_each(|fact| self.unsettle(fact));
        let result = client.delete_queue(&queue.name).await;
        self.expect(&result, true, "delete", &queue.name, client.node());
        if let Err(failure) = result {
            self.retire_queue(&queue.name);
            return Err(failure);
        }
        facts.into_iter().for_each(|fact| self.settle(fact, false));
        self.own.bindings.retain(|bound| bound.queue != queue.name);
        self.own.free.push(queue.name);
        Ok(())
    }

    async fn delete_exchange(&mut self, client: &mut Client) -> Result<(), Failure> {
        let place = self.worker.below(self.own.exchanges.len());
        let name = self.own.exchanges[place].name.clone();
        self.unsettle(&Fact::Exchange(name.clone()));
        let facts: Vec<Fact> = self
            .own
            .bindings
            .iter()
            .filter(|bound| bound.exchange == name)
            .map(Bound::fact)
            .chain([Fact::Exchange(name.clone())])
            .collect();
        // Its name is never used again, whatever comes of it.
        self.retire_exchange(&name);
        let result = client.delete_exchange(&name).await;
        self.expect(&result, true, "delete", &name, client.node());
        result?;
        facts.into_iter().for_each(|fact| self.settle(fact, false));
        Ok(())
    }

    fn is_durable(&self, bound: &Bound) -> bool {
        let exchange = self
            .own
            .exchanges
            .iter()
            .find(|exchange| exchange.name == bound.exchange);
        let queue = self
            .own
            .queues
            .iter()
            .find(|queue| queue.name == bound.queue);
        exchange.is_some_and(|exchange| exchange.durable)
            && queue.is_some_and(|queue| queue.durable)
    }

    /// Nobody else changes these names, so a refusal means that a node did not know what was answered before, unless it may have gone with another node.
    fn expect(
        &self,
        result: &Result<(), Failure>,
        sure: bool,
        what: &str,
        whom: &str,
        node: usize,
    ) {
        if let Err(Failure::ChannelClosed(code, text)) = result
            && sure
        {
            self.worker.oracle.violated(
                NAME,
                format_args!(
                    "{} has refused to {what} {whom}: {code} {text}",
                    node_name(node)
                ),
            );
        }
    }

    /// The queue is not known to be there any more, nor are its bindings, nor what its exchanges do with a message.
    fn retire_queue(&mut self, name: &str) {
        let exchanges: Vec<String> = self
            .own
            .bindings
            .iter()
            .filter(|bound| bound.queue == name)
            .map(|bound| bound.exchange.clone())
            .collect();
        exchanges
            .iter()
            .for_each(|exchange| self.retire_exchange(exchange));
        self.unsettle(&Fact::Queue(name.to_owned()));
        self.own.queues.retain(|queue| queue.name != name);
    }

    fn retire_exchange(&mut self, name: &str) {
        self.unsettle(&Fact::Exchange(name.to_owned()));
        for bound in self
            .own
            .bindings
            .iter()
            .filter(|bound| bound.exchange == name)
        {
            self.unsettle(&bound.fact());
        }
        self.own.bindings.retain(|bound| bound.exchange != name);
        self.own.exchanges.retain(|exchange| exchange.name != name);
    }

    /// Publishes to an own exchange through another node than `node`, and holds what becomes of it against what must be there.
    async fn look(&mut self, node: usize, other: &mut Option<Client>) {
        if self.own.exchanges.is_empty() {
            return;
        }
        if self.worker.chance(0.05) {
            *other = None;
        }
        let mut client = match other.take() {
            Some(client) => client,
            None => {
                let elsewhere = self.worker.node_other_than(node);
                match self.worker.connect_to(elsewhere).await {
                    Ok(mut client) => match client.confirm().await {
                        Ok(()) => client,
                        Err(_) => return,
                    },
                    Err(_) => return,
                }
            }
        };
        let place = self.worker.below(self.own.exchanges.len());
        let key = *self.worker.pick(&["a.b", "c", "a.x"]);
        let began = self.worker.oracle.now();
        let name = self.own.exchanges[place].name.clone();
        let result = client.publish_and_wait(&name, key).await;
        match result {
            Ok((returned, ok)) => {
                self.judge(place, key, returned, ok, client.node(), began);
                *other = Some(client);
            }
            Err(Failure::ChannelClosed(code, text)) => {
                if self.own.exchanges[place].durable
                    || self.worker.oracle.last_disturbed() < self.own.exchanges[place].made
                {
                    self.worker.oracle.violated(NAME, format_args!("{} refuses a publish to '{name}', whose declare was answered: {code} {text}", node_name(client.node())));
                }
            }
            Err(_) => {}
        }
    }

    fn judge(
        &self,
        exchange: usize,
        key: &str,
        returned: bool,
        ok: bool,
        node: usize,
        began: Duration,
    ) {
        let exchange = &self.own.exchanges[exchange];
        let hits: Vec<&Bound> = self
            .own
            .bindings
            .iter()
            .filter(|bound| {
                bound.exchange == exchange.name && matches(exchange.kind, &bound.key, key)
            })
            .collect();
        let quiet_since = |made: Duration| self.worker.oracle.last_disturbed() < made;
        let is_there = |bound: &&&Bound| {
            let made = self
                .own
                .queues
                .iter()
                .find(|queue| queue.name == bound.queue)
                .map_or(began, |queue| queue.made);
            self.is_durable(bound) || quiet_since(made.min(exchange.made))
        };
        if let Some(bound) = hits.iter().find(is_there)
            && returned
        {
            let what = format!(
                "{} has returned a message with key '{key}' to '{}', although the {} was answered",
                node_name(node),
                exchange.name,
                bound.fact()
            );
            self.worker.oracle.violated(NAME, what);
        }
        if hits.is_empty() && !returned && ok {
            let what = format!(
                "{} has routed a message with key '{key}' to '{}', although nothing that matches is bound to it",
                node_name(node),
                exchange.name
            );
            self.worker.oracle.violated(NAME, what);
        }
    }
}
