//! Who sends a request.

use std::fmt;
use std::time::Duration;

/// What a process is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Stages, uploads and evicts.
    Agent,
    /// Applies the rules that everybody agrees on.
    Pruner,
    /// Applies rules that keep nothing, which has to be refused.
    KeepsNothing,
    /// Sweeps orphans away.
    Sweeper,
    Restorer,
    Pinner,
    /// Whatever stood there before, and hands that are none of ours.
    Somebody,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    pub machine: String,
    pub role: Role,
    /// Which process it is, counted over the whole run.
    pub process: u64,
    /// When it began.
    pub began: Duration,
}

impl Who {
    pub fn somebody() -> Self {
        Self {
            machine: "somewhere".to_owned(),
            role: Role::Somebody,
            process: 0,
            began: Duration::ZERO,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{:?}-{}", self.machine, self.role, self.process)
    }
}
