//! The oracle: what everybody in a run has seen, and the first invariant that does not hold.
//!
//! Flow: nodes are looked at every few milliseconds ([`Oracle::look_at`]); clients tell what they ask for and what they are told. Both go on to the invariants.
//! "Disturbed" is whatever may excuse a client's trouble: a fault's beginning or end, a change of the members, a lost lease. Invariants that hold in calm only
//! ask how long ago the last one was.

use crate::invariants::{Declares, Digests, Exclusives, HashRing, Holds, Homes, Levels, Messages};
use crate::options::node_name;
use crate::timeline::Timeline;
use crate::workloads::traffic;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use warren_node::Node;

/// A broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// When.
    pub at: Duration,
    /// What was seen.
    pub what: String,
}

/// A handle of the run's oracle.
#[derive(Clone)]
pub struct Oracle {
    inner: Rc<Inner>,
}

struct Inner {
    timeline: Timeline,
    /// Simulated time as of the latest step, for those outside of the hosts.
    clock: Cell<Duration>,
    state: RefCell<State>,
}

/// Everything known.
pub(crate) struct State {
    violation: Option<Violation>,
    phase: Phase,
    nodes: Vec<Seen>,
    disturbed: Duration,
    publishers: u32,
    clients_done: usize,
    operations: u64,
    pub(crate) digests: Digests,
    pub(crate) declares: Declares,
    pub(crate) messages: Messages,
    pub(crate) homes: Homes,
    pub(crate) ring: HashRing,
    pub(crate) exclusives: Exclusives,
    pub(crate) holds: Holds,
    /// The shared traffic's queues are empty.
    drained: bool,
    /// Bytes published to queues that nobody drains.
    pub(crate) kept_bytes: u64,
}

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// The cluster comes up for the first time.
    Forming,
    /// Clients work, faults strike.
    Working,
    /// All faults are over; clients still work.
    Healing,
    /// Clients finish.
    Stopping,
    /// Last checks.
    Checking,
}

/// What is known of a node.
#[derive(Default)]
struct Seen {
    node: Option<Arc<Node>>,
    starts: u64,
    /// When its process was last started or ended, or it was paused or went on.
    changed: Duration,
    /// Until when a fault of the node, or of one of its links, lasts.
    faulted: Duration,
    paused: bool,
    routes: bool,
    epoch: u64,
    /// The table's index when it was last looked at.
    index: Option<u64>,
    looks: u64,
}

impl Oracle {
    pub(crate) fn new(nodes: usize, timeline: Timeline) -> Self {
        let state = State {
            violation: None,
            phase: Phase::Forming,
            nodes: (0..nodes).map(|_| Seen::default()).collect(),
            disturbed: Duration::ZERO,
            publishers: 0,
            clients_done: 0,
            operations: 0,
            digests: Digests::default(),
            declares: Declares::new(nodes),
            messages: Messages::default(),
            homes: Homes,
            ring: HashRing::default(),
            exclusives: Exclusives::default(),
            holds: Holds::default(),
            drained: false,
            kept_bytes: 0,
        };
        Self {
            inner: Rc::new(Inner {
                timeline,
                clock: Cell::default(),
                state: RefCell::new(state),
            }),
        }
    }

    pub(crate) fn state(&self) -> RefMut<'_, State> {
        self.inner.state.borrow_mut()
    }

    /// Simulated time since the run began.
    #[must_use]
    pub fn now(&self) -> Duration {
        turmoil::sim_elapsed().unwrap_or_else(|| self.inner.clock.get())
    }

    /// The simulation has come this far.
    pub(crate) fn stepped(&self, to: Duration) {
        self.inner.clock.set(to);
        self.inner.timeline.stepped(to);
    }

    /// Adds to the timeline.
    pub fn note(&self, source: &str, text: impl fmt::Display) {
        self.inner.timeline.note(self.now(), source, text);
    }

    /// Adds to the timeline where everything is wanted.
    pub(crate) fn trace(&self, source: &str, text: impl fmt::Display) {
        if self.inner.timeline.is_detailed() {
            self.note(source, text);
        }
    }

    /// An invariant is broken. The first one is kept, and ends the run.
    pub fn violated(&self, invariant: &'static str, what: impl fmt::Display) {
        let at = self.now();
        let violation = Violation {
            invariant,
            at,
            what: what.to_string(),
        };
        self.note("!", format_args!("{invariant}: {what}"));
        self.state().violation.get_or_insert(violation);
    }

    /// Passes on what an invariant has found.
    pub fn judge(&self, invariant: &'static str, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.violated(invariant, what);
        }
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.state().violation.clone()
    }

    /// Where the run is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.state().phase = phase;
        self.note("run", format_args!("{phase:?}"));
    }

    /// Whether clients are to finish.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.phase() >= Phase::Stopping
    }

    /// Something happened that may excuse a client's trouble.
    pub(crate) fn disturbed(&self, what: impl fmt::Display) {
        self.note("fault", what);
        let now = self.now();
        self.state().disturbed = now;
    }

    /// When something last happened that may excuse a client's trouble.
    #[must_use]
    pub fn last_disturbed(&self) -> Duration {
        self.state().disturbed
    }

    /// Whether nothing has happened for so long.
    #[must_use]
    pub fn is_calm_for(&self, long: Duration) -> bool {
        self.last_disturbed() + long <= self.now()
    }

    /// The number of a new publisher.
    pub(crate) fn new_publisher(&self) -> u32 {
        let mut state = self.state();
        state.publishers += 1;
        state.publishers
    }

    /// A client has done something.
    pub(crate) fn count_operation(&self) {
        self.state().operations += 1;
    }

    pub(crate) fn operations(&self) -> u64 {
        self.state().operations
    }

    pub(crate) fn client_done(&self) {
        self.state().clients_done += 1;
    }

    pub(crate) fn clients_done(&self) -> usize {
        self.state().clients_done
    }

    /// These messages were confirmed.
    pub(crate) fn confirmed(&self, ids: &[crate::message::MessageId]) {
        let mut state = self.state();
        ids.iter().for_each(|id| state.messages.confirmed(*id));
    }

    /// These messages were refused.
    pub(crate) fn refused(&self, ids: &[crate::message::MessageId]) {
        for id in ids {
            let verdict =
                self.state()
                    .messages
                    .refused(*id, &traffic::QUEUES, &[traffic::MEMORY_QUEUE]);
            self.judge(Messages::NAME, verdict);
        }
    }

    /// The shared queues are empty.
    pub(crate) fn drained(&self) {
        self.state().drained = true;
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.state().drained
    }

    /// A node has a fault, or one of its links, until then.
    pub(crate) fn node_faulted(&self, node: usize, until: Duration) {
        let mut state = self.state();
        let seen = &mut state.nodes[node];
        seen.faulted = seen.faulted.max(until);
    }

    /// A node is gone for good.
    pub(crate) fn node_gone(&self, node: usize) {
        self.node_faulted(node, Duration::MAX);
    }

    /// Whether a node is gone for good: nobody can expect anything of it.
    pub(crate) fn is_gone(&self, node: usize) -> bool {
        self.state().nodes[node].faulted == Duration::MAX
    }

    /// Whether a node has a fault now, or its aftermath.
    pub(crate) fn is_faulted(&self, node: usize) -> bool {
        let now = self.now();
        self.state().nodes[node].faulted >= now
    }

    /// Judges what had to wait for what comes after it.
    pub(crate) fn judge_suspicions(&self) {
        let now = self.now();
        let verdict = {
            let mut state = self.state();
            let State { holds, nodes, .. } = &mut *state;
            holds.check(now, |node, since| nodes[node].faulted >= since)
        };
        self.judge(Holds::NAME, verdict);
    }

    /// A process starts on a node. Returns how many have.
    pub(crate) fn node_starts(&self, node: usize) -> u64 {
        self.note(&node_name(node), "process starts");
        let now = self.now();
        let mut state = self.state();
        let seen = &mut state.nodes[node];
        seen.starts += 1;
        seen.changed = now;
        seen.starts
    }

    /// A node accepts clients.
    pub(crate) fn node_up(&self, number: usize, node: Arc<Node>) {
        let now = self.now();
        let mut state = self.state();
        let seen = &mut state.nodes[number];
        *seen = Seen {
            node: Some(node),
            starts: seen.starts,
            changed: now,
            faulted: seen.faulted,
            paused: seen.paused,
            ..Seen::default()
        };
        state.declares.node_up(number);
    }

    /// A node's process is about to end.
    pub(crate) fn node_down(&self, node: usize) {
        let now = self.now();
        // The last handle may go here: not while the state is borrowed.
        let last = {
            let mut state = self.state();
            state.nodes[node].changed = now;
            state.nodes[node].routes = false;
            state.nodes[node].node.take()
        };
        drop(last);
    }

    pub(crate) fn node_paused(&self, node: usize, paused: bool) {
        let now = self.now();
        let mut state = self.state();
        let seen = &mut state.nodes[node];
        if seen.paused != paused {
            (seen.paused, seen.changed) = (paused, now);
        }
    }

    /// Whether a client could have talked with a node all the time since then.
    #[must_use]
    pub fn was_there_since(&self, node: usize, since: Duration) -> bool {
        let state = self.state();
        let seen = &state.nodes[node];
        seen.node.is_some() && !seen.paused && seen.changed < since
    }

    /// Nodes whose processes run.
    pub(crate) fn running(&self) -> Vec<(usize, Arc<Node>)> {
        self.state()
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(number, seen)| Some((number, seen.node.clone()?)))
            .collect()
    }

    /// Whether these nodes run and were seen to route.
    pub(crate) fn all_route(&self, nodes: usize) -> bool {
        self.state()
            .nodes
            .iter()
            .take(nodes)
            .all(|seen| seen.routes)
    }

    /// Looks at a node, on its own host: its lease counts by its own clock.
    pub(crate) fn look_at(&self, number: usize, node: &Arc<Node>) {
        let routes = node.metadata().may_route();
        let table = node.metadata().table().read();
        let (now, name) = (self.now(), node_name(number));
        let mut changes = None;
        let mut verdicts: Vec<(&'static str, Result<(), String>)> = Vec::new();
        {
            let mut state = self.state();
            let state = &mut *state;
            let seen = &mut state.nodes[number];
            seen.looks += 1;
            let moved = seen.index != Some(table.index());
            let thorough = seen.looks.is_multiple_of(128);
            if seen.routes != routes || seen.epoch != table.epoch() {
                changes = Some(format!(
                    "{name} {} at epoch {}",
                    if routes { "routes" } else { "does not route" },
                    table.epoch()
                ));
                if seen.routes != routes {
                    seen.faulted = seen.faulted.max(now);
                }
                state.disturbed = now;
            }
            (seen.routes, seen.epoch, seen.index) = (routes, table.epoch(), Some(table.index()));
            if moved {
                verdicts.push((Digests::NAME, state.digests.seen(&name, &table)));
            }
            if moved || thorough {
                verdicts.push((Homes::NAME, state.homes.check(&name, &table)));
            }
            if moved {
                let running = state.nodes.iter().enumerate();
                let known = running
                    .filter_map(|(other, seen)| Some((other, seen.node.as_ref()?.config().knows)));
                verdicts.push((Levels::NAME, Levels::check(table.level(), known)));
            }
            if thorough {
                verdicts.push((HashRing::NAME, state.ring.check(&name, &table)));
            }
            if routes {
                verdicts.push((
                    Declares::NAME,
                    state.declares.check_routing(number, &table, thorough),
                ));
            }
        }
        if let Some(changes) = changes {
            self.note("fault", changes);
        }
        for (invariant, verdict) in verdicts {
            self.judge(invariant, verdict);
        }
    }
}
