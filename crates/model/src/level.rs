//! Levels: what nodes of different releases may write and say to each other while a cluster is upgraded node by node.
//!
//! A release knows all levels up to [`Level::NEWEST`]. A cluster has one, too, which is part of the table: it rises when all nodes know
//! more, and never falls. What a level has brought is written and sent only once the cluster has come to it, so that a node of an
//! older release never meets what it cannot read; a node that knows less than its cluster's level is not let in any more.
//!
//! | level | brought |
//! |---|---|
//! | 1 | what every release knows |
//! | 2 | [`Command::Import`] and [`Command::RaiseLevel`]; a node asks whether the cluster has gone on without a break before it comes up |
//!
//! Whoever adds a command or a request gives it the next level, in the release that brings it. A form that is there never changes:
//! `golden` tests hold it to its bytes.

use crate::command::Command;

/// A level.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Level(pub u8);

impl Level {
    /// What every release knows.
    pub const FIRST: Level = Level(1);
    /// The newest that this release knows.
    pub const NEWEST: Level = Level(2);
    /// From here on [`Command::Import`] may be proposed.
    pub const IMPORTS: Level = Level(2);
    /// From here on a node asks before it comes up.
    pub const CONTINUITY: Level = Level(2);
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl Command {
    /// The least level at which all nodes can read it.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Command::FoundCluster { .. }
            | Command::NodeUp(_)
            | Command::NodeDown { .. }
            | Command::NodeForgotten { .. }
            | Command::PutVhost { .. }
            | Command::DeleteVhost { .. }
            | Command::PutUser(_)
            | Command::DeleteUser { .. }
            | Command::SetPermission(_)
            | Command::ClearPermission { .. }
            | Command::DeclareExchange(_)
            | Command::DeleteExchange { .. }
            | Command::DeclareQueue(_)
            | Command::DeleteQueue { .. }
            | Command::Bind(_)
            | Command::Unbind(_)
            | Command::SessionClosed { .. }
            | Command::MoveShard { .. }
            | Command::PlaceShards { .. }
            | Command::PutPolicy(_)
            | Command::DeletePolicy { .. }
            | Command::PutGlobalParameter { .. }
            | Command::DeleteGlobalParameter { .. }
            | Command::SetTopicPermission(_)
            | Command::ClearTopicPermissions { .. }
            | Command::DrainNode { .. }
            | Command::SetVhostDetails { .. }
            | Command::PutParameter { .. }
            | Command::DeleteParameter(_)
            | Command::SetVhostLimit { .. }
            | Command::SetUserLimit { .. } => Level::FIRST,
            Command::Import { .. } => Level::IMPORTS,
            Command::RaiseLevel { .. } => Level(2),
        }
    }
}
