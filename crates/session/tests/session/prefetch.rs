//! basic.qos: what is for consumers to come, what the channel shares, and that leave never leaks, against a model of the queues' owners.

use crate::peer::{Call, M, Peer, consume, message, short};
use crate::rng::Rng;
use std::collections::{BTreeMap, VecDeque};
use warren_protocol as wire;
use warren_protocol::{BasicAck, BasicQos, Method};
use warren_session::{Delivered, Reply, Request};

fn qos(prefetch_count: u16, global: bool) -> BasicQos {
    BasicQos {
        prefetch_size: 0,
        prefetch_count,
        global,
    }
}

fn subscribe(peer: &mut Peer, tag: &str, no_ack: bool) -> (u32, u32, bool) {
    peer.method(1, consume(tag, no_ack));
    let Request::Consume {
        consumer,
        subscription,
        ..
    } = peer.host.asked[0].2.clone()
    else {
        panic!()
    };
    peer.answer(Reply::Done);
    peer.session.out().clear();
    (consumer, subscription.prefetch, subscription.by_leave)
}

#[test]
fn prefetch_is_for_consumers_to_come_and_the_shared_limit_for_all() {
    let mut peer = Peer::open();
    let (a, prefetch, by_leave) = subscribe(&mut peer, "a", false);
    assert_eq!((prefetch, by_leave), (0, false));
    peer.method(1, qos(5, false));
    peer.expect(&[M(1, Method::BasicQosOk)]);
    let (b, prefetch, _) = subscribe(&mut peer, "b", false);
    assert_eq!(prefetch, 5);
    let (_, prefetch, _) = subscribe(&mut peer, "no-ack", true);
    assert_eq!(prefetch, 0);
    peer.open_channel(2);
    let (number, ..) = (peer.consume(2, "other", false), 0);
    peer.calls();
    peer.method(1, qos(15, true));
    assert_eq!(
        peer.calls(),
        [Call::ByLeave(a, true), Call::ByLeave(b, true)],
        "not {number}, nor who needs no acks"
    );
    let (_, prefetch, by_leave) = subscribe(&mut peer, "c", false);
    assert_eq!((prefetch, by_leave), (5, true));
    peer.calls();
    peer.method(1, qos(16, true));
    assert_eq!(peer.calls(), [], "only on and off concern the owners");
    peer.method(1, qos(0, true));
    assert_eq!(peer.calls().len(), 3);
}

#[test]
fn raising_the_limit_or_an_ack_grants_at_once() {
    let mut peer = Peer::open();
    peer.method(1, qos(15, true));
    let (a, ..) = subscribe(&mut peer, "a", false);
    let (b, ..) = subscribe(&mut peer, "b", false);
    peer.calls();
    peer.session.wants_leave(a, &mut peer.host);
    peer.session.wants_leave(b, &mut peer.host);
    assert_eq!(peer.calls(), [Call::Grant(a, 15)]);
    for position in 0..10 {
        peer.deliver(a, position, false);
    }
    peer.session.leave_back(a, 5, &mut peer.host);
    assert_eq!(peer.calls(), [Call::Grant(b, 5)]);
    for position in 0..5 {
        peer.deliver(b, position, false);
    }
    peer.session.wants_leave(b, &mut peer.host);
    peer.session.wants_leave(b, &mut peer.host);
    assert_eq!(peer.calls(), []);
    peer.method(
        1,
        BasicAck {
            delivery_tag: 1,
            multiple: false,
        },
    );
    assert_eq!(
        peer.calls(),
        [
            Call::Settle(a, 0, warren_model::Settlement::Accept),
            Call::Grant(b, 1)
        ]
    );
    peer.deliver(b, 6, false);
    peer.session.wants_leave(b, &mut peer.host);
    peer.method(1, qos(20, true));
    assert_eq!(peer.calls(), [Call::Grant(b, 5)]);
}

/// One queue and its one consumer, as its owner sees them; messages between it and the session take their time.
struct Owner {
    ready: u64,
    taken: u64,
    prefetch: u32,
    unacked: u32,
    by_leave: bool,
    asked: bool,
    active: bool,
    to_session: VecDeque<Up>,
    to_owner: VecDeque<Down>,
}

enum Up {
    Deliver(u64),
    Ask,
    Back(u32),
    CancelDone(u64),
}

enum Down {
    Grant(u32),
    ByLeave(bool),
    Settled,
    Cancel(u64),
}

impl Owner {
    fn able(&self) -> bool {
        self.active && self.ready > 0 && (self.prefetch == 0 || self.unacked < self.prefetch)
    }

    fn take(&mut self, mut leave: u32) -> u32 {
        while self.able() && (!self.by_leave || leave > 0) {
            self.ready -= 1;
            self.taken += 1;
            self.unacked += 1;
            leave -= u32::from(self.by_leave);
            self.to_session.push_back(Up::Deliver(self.taken));
        }
        leave
    }

    fn ask(&mut self) {
        if self.able() && self.by_leave && !self.asked {
            self.asked = true;
            self.to_session.push_back(Up::Ask);
        }
    }

    fn hear(&mut self, down: Down) {
        match down {
            Down::Grant(count) if self.active && self.by_leave => {
                self.asked = false;
                let unused = self.take(count);
                if unused > 0 {
                    self.to_session.push_back(Up::Back(unused));
                }
            }
            Down::Grant(count) => self.to_session.push_back(Up::Back(count)),
            Down::ByLeave(by_leave) => {
                if self.active && self.by_leave != by_leave {
                    (self.by_leave, self.asked) = (by_leave, false);
                }
            }
            Down::Settled => self.unacked -= 1,
            Down::Cancel(id) => {
                self.active = false;
                self.to_session.push_back(Up::CancelDone(id));
            }
        }
        self.take(0);
        self.ask();
    }
}

struct World {
    peer: Peer,
    owners: BTreeMap<u32, Owner>,
    tags: BTreeMap<u32, String>,
    /// Open delivery tags and their consumers.
    open: VecDeque<(u64, u32)>,
    limit: u32,
    /// The limit was never lifted: it may not be overrun.
    strict: bool,
    /// Leave out with consumers, as the test counts it.
    out: BTreeMap<u32, u32>,
    /// Consumers so far.
    made: u32,
    /// The channel waits for cancel-ok.
    cancelling: bool,
    last_tag: u64,
    delivered: u64,
}

impl World {
    fn new(limit: u32, strict: bool) -> Self {
        let mut peer = Peer::open();
        peer.method(1, qos(limit as u16, true));
        peer.session.out().clear();
        Self {
            peer,
            owners: BTreeMap::new(),
            tags: BTreeMap::new(),
            open: VecDeque::new(),
            limit,
            strict,
            out: BTreeMap::new(),
            made: 0,
            cancelling: false,
            last_tag: 0,
            delivered: 0,
        }
    }

    fn consumer(&mut self, prefetch: u16, ready: u64) {
        self.peer.method(1, qos(prefetch, false));
        self.made += 1;
        let tag = format!("t{}", self.made);
        let (number, prefetch, by_leave) = subscribe(&mut self.peer, &tag, false);
        self.peer.calls();
        let owner = Owner {
            ready,
            taken: 0,
            prefetch,
            unacked: 0,
            by_leave,
            asked: false,
            active: true,
            to_session: VecDeque::new(),
            to_owner: VecDeque::new(),
        };
        self.owners.insert(number, owner);
        self.tags.insert(number, tag);
        self.poke(number);
    }

    fn poke(&mut self, number: u32) {
        if let Some(owner) = self.owners.get_mut(&number) {
            owner.take(0);
            owner.ask();
        }
    }

    /// Hands the host's calls to the owners.
    fn calls(&mut self) {
        for call in self.peer.calls() {
            let (number, down) = match call {
                Call::Grant(number, count) => {
                    *self.out.entry(number).or_default() += count;
                    let used = self.open.len() as u32 + self.out.values().sum::<u32>();
                    assert!(
                        !self.strict || used <= self.limit,
                        "{used} of {}",
                        self.limit
                    );
                    (number, Down::Grant(count))
                }
                Call::ByLeave(number, by_leave) => (number, Down::ByLeave(by_leave)),
                Call::Settle(number, ..) => (number, Down::Settled),
                Call::Request(_, Request::Cancel { consumer }) => {
                    let (_, id, _) = self.peer.host.asked.pop_front().unwrap();
                    self.cancelling = true;
                    (consumer, Down::Cancel(id))
                }
                Call::Credit(..) => continue,
                other => panic!("{other:?}"),
            };
            if let Some(owner) = self.owners.get_mut(&number) {
                owner.to_owner.push_back(down);
            }
        }
    }

    /// One message between an owner and the session goes its way; false if none is under way.
    fn step(&mut self, rng: &mut Rng) -> bool {
        let busy: Vec<(u32, bool)> = self
            .owners
            .iter()
            .flat_map(|(n, o)| {
                [
                    (!o.to_session.is_empty()).then_some((*n, true)),
                    (!o.to_owner.is_empty()).then_some((*n, false)),
                ]
            })
            .flatten()
            .collect();
        if busy.is_empty() {
            return false;
        }
        let (number, up) = busy[rng.below(busy.len())];
        let owner = self.owners.get_mut(&number).unwrap();
        if !up {
            let down = owner.to_owner.pop_front().unwrap();
            owner.hear(down);
            return true;
        }
        let (session, host) = (&mut self.peer.session, &mut self.peer.host);
        match owner.to_session.pop_front().unwrap() {
            Up::Deliver(position) => {
                session.deliver(
                    &Delivered {
                        consumer: number,
                        position,
                        redelivered: false,
                        message: message(b"m"),
                    },
                    host,
                );
                self.last_tag += 1;
                self.delivered += 1;
                self.open.push_back((self.last_tag, number));
                if let Some(out) = self.out.get_mut(&number) {
                    *out = out.saturating_sub(1);
                }
                assert!(!self.strict || self.open.len() as u32 <= self.limit);
            }
            Up::Ask => session.wants_leave(number, host),
            Up::Back(unused) => {
                if let Some(out) = self.out.get_mut(&number) {
                    *out = out.saturating_sub(unused);
                }
                session.leave_back(number, unused, host);
            }
            Up::CancelDone(id) => {
                self.out.remove(&number);
                self.cancelling = false;
                session.reply(1, id, Reply::Done, host);
            }
        }
        self.peer.send(&[]);
        self.peer.session.out().clear();
        self.calls();
        true
    }

    fn act(&mut self, rng: &mut Rng) {
        match rng.below(if self.strict { 8 } else { 10 }) {
            0..=3 if !self.open.is_empty() => {
                let (tag, _) = self.open.remove(rng.below(self.open.len())).unwrap();
                self.peer.method(
                    1,
                    BasicAck {
                        delivery_tag: tag,
                        multiple: false,
                    },
                );
            }
            4 if self.owners.len() < 12 => {
                self.consumer(rng.below(4) as u16, 1 + rng.below(40) as u64)
            }
            5 => {
                for (_, owner) in self.owners.iter_mut() {
                    owner.ready += rng.below(5) as u64;
                }
                let numbers: Vec<u32> = self.owners.keys().copied().collect();
                numbers.into_iter().for_each(|n| self.poke(n));
            }
            6 => {
                // Raised only, where it may not be overrun.
                self.limit = if self.strict {
                    self.limit + rng.below(3) as u32
                } else {
                    1 + rng.below(9) as u32
                };
                self.peer.method(1, qos(self.limit as u16, true));
            }
            7 if !self.tags.is_empty() => {
                let (&number, _) = self.tags.iter().nth(rng.below(self.tags.len())).unwrap();
                let tag = self.tags.remove(&number).unwrap();
                if rng.one_in(2) {
                    // The owner is gone, with all that was under way. What the client holds, it may still settle.
                    self.owners.remove(&number);
                    self.out.remove(&number);
                    self.peer.session.cancelled(number, &mut self.peer.host);
                } else {
                    self.peer.method(
                        1,
                        wire::BasicCancel {
                            consumer_tag: short(&tag),
                            no_wait: false,
                        },
                    );
                }
            }
            8 => {
                self.limit = 0;
                self.peer.method(1, qos(0, true));
            }
            9 => {
                // A new owner takes over: whatever leave the old one had is void.
                if let Some((&number, owner)) = self.owners.iter_mut().nth(rng.below(12)) {
                    owner.to_owner.retain(|d| !matches!(d, Down::Grant(_)));
                    owner
                        .to_session
                        .retain(|u| !matches!(u, Up::Back(_) | Up::Ask));
                    owner.asked = false;
                    self.out.remove(&number);
                    self.peer
                        .session
                        .leave_back(number, u32::MAX, &mut self.peer.host);
                    owner.ask();
                }
            }
            _ => {}
        }
        self.calls();
        self.peer.session.out().clear();
    }

    /// With nothing under way: either the limit is used up, or nobody could take anything.
    fn check_rest(&self, seed: u64) {
        let used = self.open.len() as u32;
        if self.limit == 0 || used < self.limit {
            for (number, owner) in &self.owners {
                assert!(
                    !owner.able(),
                    "seed {seed}: consumer {number} starves with {used} of {} used",
                    self.limit
                );
            }
        }
    }

    fn settle_down(&mut self, rng: &mut Rng, seed: u64) {
        while self.step(rng) {}
        self.check_rest(seed);
    }
}

fn run(seed: u64, strict: bool) -> u64 {
    let mut rng = Rng(seed);
    let mut world = World::new(1 + rng.below(6) as u32, strict);
    for _ in 0..400 {
        for _ in 0..rng.below(6) {
            world.step(&mut rng);
        }
        if !world.cancelling {
            world.act(&mut rng);
        }
        if rng.one_in(40) {
            world.settle_down(&mut rng, seed);
        }
    }
    // All is acknowledged until nothing is left.
    world.settle_down(&mut rng, seed);
    while let Some((tag, _)) = world.open.pop_front() {
        world.peer.method(
            1,
            BasicAck {
                delivery_tag: tag,
                multiple: false,
            },
        );
        world.calls();
        world.settle_down(&mut rng, seed);
    }
    assert!(
        world.owners.values().all(|o| !o.active || o.ready == 0),
        "seed {seed}"
    );
    assert_eq!(world.peer.session.phase(), warren_session::Phase::Running);
    world.delivered
}

#[test]
fn the_shared_limit_is_never_overrun_and_nobody_starves() {
    let delivered: u64 = (0..300).map(|seed| run(seed, true)).sum();
    assert!(delivered > 30_000, "{delivered}");
}

#[test]
fn lifting_the_limit_and_losing_owners_leaks_no_leave() {
    let delivered: u64 = (0..300).map(|seed| run(seed, false)).sum();
    assert!(delivered > 30_000, "{delivered}");
}
