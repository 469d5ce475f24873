//! Heartbeats of all groups that this node leads, sent together: those to one node share a packet and wake it once. Each group in its own time, they cost a
//! cluster that does nothing several percent of a core.

use std::sync::Weak;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::handle::Groups;

/// Has the groups send heartbeats, until there are no groups any more.
pub(super) async fn beat(groups: Weak<Groups>, period: Duration) {
    let mut times = tokio::time::interval(period);
    times.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        times.tick().await;
        let Some(groups) = groups.upgrade() else {
            return;
        };
        for group in groups.read().values() {
            group.beat();
        }
    }
}
