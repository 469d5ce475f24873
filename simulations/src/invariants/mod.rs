//! What must hold in every run, one file each. Each is fed by the [`crate::oracle`] or by clients, and says what it saw when it does not hold.
//!
//! Further ones that need no state of their own: no client operation hangs and no client is cut off in calm ([`crate::client`]), and the cluster serves again soon
//! after the last fault (`probe`); no simulated code panics and every node starts (`run`, `cluster`).

mod declares;
mod digests;
mod exclusives;
mod hash_ring;
mod holds;
mod homes;
mod leaders;
mod levels;
mod messages;
mod patterns;
mod space;
mod stakes;

pub use declares::{Declares, Fact};
pub use digests::Digests;
pub use exclusives::Exclusives;
pub use hash_ring::HashRing;
pub use holds::Holds;
pub use homes::Homes;
pub use leaders::Leaders;
pub use levels::Levels;
pub use messages::{Delivery, Messages};
pub use patterns::matches;
pub use space::Space;
pub use stakes::Stake;

/// Names of all invariants, and what they say.
pub const ALL: [(&str, &str); 17] = [
    (
        Digests::NAME,
        "tables of equal applied index have equal digests",
    ),
    (
        Declares::NAME,
        "a node that may route has everything in its table that was answered, and nothing whose deletion was",
    ),
    (
        "read-your-declares",
        "what was declared through one node routes at once through every other, and what was unbound does not",
    ),
    (
        Homes::NAME,
        "queues in a node's memory exist only while that incarnation of the node is up",
    ),
    (
        HashRing::NAME,
        "a consistent-hash exchange with the same bindings maps keys alike at all times, and a change moves no key between queues that stay",
    ),
    (
        Messages::NAME,
        "what is delivered was published, as it was, by a way that was bound, once, in order, and not refused; what was confirmed is delivered and acknowledged at the end",
    ),
    (
        Holds::NAME,
        "what a consumer holds or has acknowledged is delivered to nobody else while its node lives and has no fault",
    ),
    (
        Leaders::NAME,
        "soon after the last fault every shard is led by its preferred leader, and every node knows it",
    ),
    (
        Levels::NAME,
        "the cluster's level is the newest that all its nodes know soon after the last was upgraded, and never more",
    ),
    (
        Space::NAME,
        "when all is drained, disks hold no more than what is still there and the log's bounds",
    ),
    (
        Exclusives::NAME,
        "exclusive queues of connections that are gone disappear",
    ),
    (
        "no-hang",
        "every operation of a client ends within its deadline",
    ),
    (
        "calm",
        "while nothing happens to the cluster, no client is refused or cut off",
    ),
    (
        "no-internal-error",
        "no client that keeps the protocol is told that it broke it, or that the server did",
    ),
    (
        "serves-again",
        "soon after the last fault every node serves clients again",
    ),
    (
        "nodes-start",
        "a node starts from whatever its disk holds after a crash",
    ),
    ("no-panic", "no simulated code panics"),
];
