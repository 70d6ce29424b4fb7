//! What the library tells while it works. It draws nothing: a terminal, a log or a test listens.

use std::path::Path;

use crate::error::Error;
use crate::ids::{RemoteName, StepId};
use crate::path::RelativePath;

/// Where a transfer goes to or comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The local vault.
    Local,
    /// A named remote.
    Remote(RemoteName),
}

impl std::fmt::Display for Tier {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => out.write_str("local"),
            Self::Remote(name) => name.fmt(out),
        }
    }
}

/// One thing that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step is about to be sealed into the vault.
    SealStarted {
        /// The step.
        id: StepId,
        /// Where the trainer has it.
        source: &'a Path,
        /// Files in it.
        files: u64,
        /// Bytes in it.
        bytes: u64,
    },
    /// A step was sealed into the vault.
    Sealed {
        /// The step.
        id: StepId,
        /// Where the trainer has it.
        source: &'a Path,
        /// Files in it.
        files: u64,
        /// Bytes in it.
        bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// A step could not be sealed.
    SealFailed {
        /// The step.
        id: StepId,
        /// Where the trainer has it.
        source: &'a Path,
        /// How long it was tried.
        seconds: f64,
        /// Why.
        error: &'a Error,
    },
    /// A transfer of a step begins on a tier.
    TransferStarted {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where to.
        place: &'a str,
        /// Files to move.
        files: u64,
        /// Bytes to move.
        bytes: u64,
    },
    /// Bytes moved; many of these come, from many threads.
    BytesMoved {
        /// The tier.
        tier: &'a Tier,
        /// How many more.
        bytes: u64,
    },
    /// Bytes that the store copied from an earlier step, instead of being sent.
    BytesCopied {
        /// The tier.
        tier: &'a Tier,
        /// How many more.
        bytes: u64,
    },
    /// Bytes that did not have to move: found in the store or on disk, and verified.
    BytesReused {
        /// The tier.
        tier: &'a Tier,
        /// How many.
        bytes: u64,
    },
    /// A file is done.
    FileDone {
        /// The tier.
        tier: &'a Tier,
        /// The file.
        path: &'a RelativePath,
    },
    /// A transfer ended well.
    TransferFinished {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where to.
        place: &'a str,
        /// Bytes that were to move.
        bytes: u64,
        /// Of these, how many the store copied from an earlier step.
        copied_bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// A transfer ended with an error.
    TransferFailed {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where to.
        place: &'a str,
        /// Bytes that were to move.
        bytes: u64,
        /// How long it was tried.
        seconds: f64,
        /// Why.
        error: &'a Error,
    },
    /// A step is durable on a remote.
    Durable {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
    },
    /// A request is tried again.
    Retrying {
        /// The tier.
        tier: &'a Tier,
        /// What failed.
        error: &'a Error,
        /// Wait before the next try, in seconds.
        wait_seconds: f64,
    },
    /// A step was passed over, and why.
    Skipped {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Why.
        reason: &'a str,
    },
    /// A step is about to be removed from a tier. It ends with `Removed`, `RemovalFailed`, or `Skipped` where it is spared.
    RemovalStarted {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where it is.
        place: &'a str,
        /// Bytes of its files; `None` where a removal goes on that was cut off.
        bytes: Option<u64>,
    },
    /// A step was removed from a tier.
    Removed {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where it was.
        place: &'a str,
        /// Bytes of its files; `None` where a removal went on that was cut off.
        bytes: Option<u64>,
        /// How long it took.
        seconds: f64,
    },
    /// A step could not be removed from a tier.
    RemovalFailed {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Where it is.
        place: &'a str,
        /// How long it was tried.
        seconds: f64,
        /// Why.
        error: &'a Error,
    },
    /// Something that is worth a line in a log, and nothing to do about.
    Info {
        /// The text.
        message: &'a str,
    },
    /// Something a person should know that stopped nothing.
    Warning {
        /// The text.
        message: &'a str,
    },
}

/// Listens. Called from many threads; must not block.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Takes one event.
    fn on_event(&self, event: &Event<'_>);
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn on_event(&self, _event: &Event<'_>) {}
}
