//! Who is dialled, and when.
//!
//! One task a peer waits while a link to it is up, else dials (greater name) or knocks (lesser name), with pauses that double up to
//! a limit. A knock from a node that is not on the list starts a task too, which ends when it fails for long.

use crate::{
    Hello, PeerAddress,
    close::Ended,
    opening::{self, Purpose},
    transport::Inner,
};
use std::{collections::BTreeMap, sync::Arc};
use tokio::{
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep},
};

/// Nodes not on the list that are dialled because they knocked.
const KNOCKERS_MAX: usize = 64;
/// Failures in a row after which a knocker is forgotten: it knocks again if it lives.
const KNOCKER_FAILURES_MAX: u32 = 10;

#[derive(Default)]
pub(crate) struct Peers {
    tasks: BTreeMap<String, PeerTask>,
    closed: bool,
}

struct PeerTask {
    address: String,
    /// On the list, not only a knocker.
    listed: bool,
    wake: Arc<Notify>,
    abort: AbortHandle,
}

/// Makes the list the nodes to be linked with. Links that are up stay up.
pub(crate) fn set(inner: &Arc<Inner>, list: Vec<PeerAddress>) {
    let own = &inner.name;
    let mut peers = inner.peers.lock();
    let wanted: BTreeMap<String, String> = list
        .into_iter()
        .filter(|p| p.name != *own)
        .map(|p| (p.name, p.address))
        .collect();
    peers.tasks.retain(|name, task| {
        let keep = !task.listed || wanted.contains_key(name);
        if !keep {
            task.abort.abort();
        }
        keep
    });
    for (name, address) in wanted {
        start(inner, &mut peers, name, address, true);
    }
}

/// A node asks to be dialled.
pub(crate) fn knocked(inner: &Arc<Inner>, peer: &Hello) {
    inner.close_if_restarted(peer);
    let mut peers = inner.peers.lock();
    match peers.tasks.get(&peer.name) {
        Some(task) if task.listed || task.address == peer.address => task.wake.notify_one(),
        Some(_) => start(
            inner,
            &mut peers,
            peer.name.clone(),
            peer.address.clone(),
            false,
        ),
        None => {
            let finished: Vec<String> = peers
                .tasks
                .iter()
                .filter(|(_, t)| t.abort.is_finished())
                .map(|(n, _)| n.clone())
                .collect();
            for name in finished {
                peers.tasks.remove(&name);
            }
            if peers.tasks.values().filter(|t| !t.listed).count() < KNOCKERS_MAX {
                start(
                    inner,
                    &mut peers,
                    peer.name.clone(),
                    peer.address.clone(),
                    false,
                );
            } else {
                tracing::debug!(
                    "node {:?} is not dialled: too many unknown nodes knock",
                    peer.name
                );
            }
        }
    }
}

/// Ends all tasks, for good.
pub(crate) fn close(inner: &Inner) {
    let mut peers = inner.peers.lock();
    peers.closed = true;
    for task in std::mem::take(&mut peers.tasks).into_values() {
        task.abort.abort();
    }
}

fn start(inner: &Arc<Inner>, peers: &mut Peers, name: String, address: String, listed: bool) {
    if peers.closed {
        return;
    }
    if let Some(task) = peers.tasks.get_mut(&name) {
        if task.address == address && task.listed == listed && !task.abort.is_finished() {
            return;
        }
        task.abort.abort();
    }
    let wake = Arc::new(Notify::new());
    let seeking = seek(
        inner.clone(),
        name.clone(),
        address.clone(),
        listed,
        wake.clone(),
    );
    let abort = inner.runtime.spawn(seeking).abort_handle();
    peers.tasks.insert(
        name,
        PeerTask {
            address,
            listed,
            wake,
            abort,
        },
    );
}

/// Keeps a link to the peer.
async fn seek(inner: Arc<Inner>, name: String, address: String, listed: bool, wake: Arc<Notify>) {
    let purpose = if inner.name > name {
        Purpose::Link
    } else {
        Purpose::Knock
    };
    let (pause_min, pause_max) = (inner.limits.redial_min, inner.limits.redial_max);
    let mut pause = pause_min;
    let mut failures = 0;
    loop {
        if inner.is_linked(&name) {
            let since = Instant::now();
            inner.until_unlinked(&name).await;
            if since.elapsed() >= pause_max {
                pause = pause_min;
            }
            failures = 0;
        }
        // A peer that is restarted gets a moment, and a knock the chance to be needless.
        tokio::select! {
            biased;
            () = inner.until_linked(&name) => continue,
            () = wake.notified() => {}
            () = sleep(pause) => {}
        }
        match opening::dial(&inner, &name, &address, purpose).await {
            Ok(()) => failures = 0,
            Err(problem) => {
                failures += 1;
                report(&inner, &name, &address, purpose, problem);
                if !listed && failures >= KNOCKER_FAILURES_MAX {
                    return;
                }
            }
        }
        pause = (pause * 2).min(pause_max);
    }
}

fn report(inner: &Inner, name: &str, address: &str, purpose: Purpose, problem: Ended) {
    let (problem, refused) = match problem {
        Ended::Refused(problem) => (problem, true),
        lost @ (Ended::Lost(_) | Ended::Heard) => (lost.text(), false),
    };
    let first = inner.first_time(&format!("to {name}"), &problem);
    match (first, refused) {
        (true, true) => tracing::warn!("no link with node {name:?} at {address}: {problem}"),
        (true, false) => {
            tracing::info!("no link with node {name:?} at {address}, trying on: {problem}")
        }
        (false, _) => {
            tracing::debug!("{purpose:?} of node {name:?} at {address} failed again: {problem}")
        }
    }
    if first && refused {
        inner.handler.refused(address, problem);
    }
}
