//! The sender of a request.

use std::fmt;
use std::time::Duration;

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Stages, uploads and evicts.
    Agent,
    /// Applies the rules that everybody agrees on.
    Pruner,
    /// Applies rules that keep nothing, which must be refused.
    KeepsNothing,
    /// Deletes orphans.
    Gc,
    /// Copies steps from one store to another.
    Copier,
    /// Restores each new step into a directory of its own.
    Follower,
    Restorer,
    Pinner,
    /// The author of objects that existed before, and of changes by others.
    Somebody,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub machine: String,
    pub role: Role,
    /// The number of the process, counted over the whole run.
    pub process: u64,
    /// When it started.
    pub began: Duration,
}

impl Actor {
    pub fn somebody() -> Self {
        Self { machine: "somewhere".to_owned(), role: Role::Somebody, process: 0, began: Duration::ZERO }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{:?}-{}", self.machine, self.role, self.process)
    }
}
