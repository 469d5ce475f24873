//! Bugs that can be planted, to see that the tests find them. Behind the feature `planted-bugs`, which nothing that ships has: without it, every place where
//! one could be is dead code.
//!
//! Flow: a test's process calls [`plant`] once, before anything runs; the places ask by [`planted!`](crate::planted!).

/// Declares the bugs with their names and what they do.
macro_rules! bugs {
    ($($bug:ident $name:literal $what:literal,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        impl Bug {
            /// All bugs.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// What it does.
            pub fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what,)*
                }
            }
        }
    };
}

bugs! {
    ConfirmBeforeCommit "confirm-before-commit" "a shard's leader confirms a publish before a majority has it",
    ConfirmBeforeSync "confirm-before-sync" "an entry counts as durable before it is synced",
    VoteNotPersisted "vote-not-persisted" "a vote is not written down",
    TruncationForgotten "truncation-forgotten" "a follower keeps the entries that its leader has it remove",
    BindingSkipped "binding-skipped" "one node passes over some bindings when it applies them",
    RouteWithoutLease "route-without-lease" "a node routes without a lease",
    LeaseWithoutTable "lease-without-table" "a node holds its lease although it lacks what was answered",
    ExclusivesKept "exclusives-kept" "the exclusive queues of a closed connection are not deleted",
    DedupLostInView "dedup-lost-in-view" "a shard's state that is sent to another node lacks the numbers of the sessions' batches",
    GapAccepted "gap-accepted" "a session's batch is taken although the one before it is missing",
    RequeueAtTail "requeue-at-tail" "a message that is put back goes to the queue's end",
    HoldsIgnored "holds-ignored" "a new leader ignores what a consumer that comes back says it holds",
    GatherSkipped "gather-skipped" "a new leader delivers before consumers have said what they hold",
    SettlesNotSentAgain "settles-not-sent-again" "acknowledgements that a leader has not taken are not sent to the next one",
    BatchesNotSentAgain "batches-not-sent-again" "publishes that a leader has not taken count as confirmed when it is lost",
    StaleLeaderDelivers "stale-leader-delivers" "a leader that no majority has confirmed goes on delivering",
    TouchedIgnored "touched-ignored" "a new leader does not mark what an earlier one may have delivered",
    CheckpointBeforeIndexes "checkpoint-before-indexes" "a checkpoint says that it covers entries whose queues it has not written",
    IndexesNotRestored "indexes-not-restored" "a shard's queues are empty after a restart",
    ReleasedTooEarly "released-too-early" "entries that hold messages are purged from the log",
    StoredMessagesLost "stored-messages-lost" "messages are not written when they move from the log to the store",
    ChecksumIgnored "checksum-ignored" "stored records are served whatever their checksum says",
    LeaseMarginMissing "lease-margin-missing" "a leader counts leases by its own clock as if all clocks were one",
    LevelRaisedEarly "level-raised-early" "the cluster's level rises although some of its nodes know less",
    RefusedButSent "refused-but-sent" "publishes that a leader may have taken are refused",
}

#[cfg(feature = "planted-bugs")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Plants a bug by its name. None if there is none of that name.
#[cfg(feature = "planted-bugs")]
pub fn plant(name: &str) -> Option<Bug> {
    let bug = Bug::ALL.iter().copied().find(|bug| bug.name() == name)?;
    PLANTED.store(bug as u8, std::sync::atomic::Ordering::Relaxed);
    Some(bug)
}

/// Whether this bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn is(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// No bug is.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// Whether a bug of [`planted::Bug`](crate::planted::Bug) is planted.
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is($crate::planted::Bug::$bug)
    };
}
