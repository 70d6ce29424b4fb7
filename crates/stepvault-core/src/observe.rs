//! Events that the library reports while it works. It draws nothing itself: a terminal, a log or a test observes them.

use std::path::Path;

use crate::error::Error;
use crate::ids::{RemoteName, StepId};
use crate::path::RelativePath;

/// Source or target of a transfer.
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

/// One event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A step is about to be sealed into the vault.
    SealStarted {
        /// The step.
        id: StepId,
        /// The trainer's path of it.
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
        /// The trainer's path of it.
        source: &'a Path,
        /// Files in it.
        files: u64,
        /// Bytes in it.
        bytes: u64,
        /// How long it took, in seconds.
        seconds: f64,
    },
    /// A step could not be sealed.
    SealFailed {
        /// The step.
        id: StepId,
        /// The trainer's path of it.
        source: &'a Path,
        /// How long it was tried, in seconds.
        seconds: f64,
        /// Why.
        error: &'a Error,
    },
    /// A transfer of a step starts on a tier.
    TransferStarted {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// The target.
        place: &'a str,
        /// Files to move.
        files: u64,
        /// Bytes to move.
        bytes: u64,
    },
    /// Bytes were moved; sent often, from many threads.
    BytesMoved {
        /// The tier.
        tier: &'a Tier,
        /// Bytes since the last such event.
        bytes: u64,
    },
    /// Bytes of a file part were sent that the store has not acknowledged. What was reported is taken back in the moment
    /// in which `BytesMoved` reports the acknowledged part.
    BytesInFlight {
        /// The tier.
        tier: &'a Tier,
        /// The difference to the last such event.
        change_bytes: i64,
    },
    /// A file part of which bytes were in flight has failed or was cancelled.
    BytesGivenUp {
        /// The tier.
        tier: &'a Tier,
        /// Its bytes in flight.
        bytes: u64,
    },
    /// The store copied bytes from an earlier step, so that they were not sent.
    BytesCopied {
        /// The tier.
        tier: &'a Tier,
        /// Bytes since the last such event.
        bytes: u64,
    },
    /// Bytes did not have to be moved: they were found in the store or on disk, and verified.
    BytesReused {
        /// The tier.
        tier: &'a Tier,
        /// The number of bytes.
        bytes: u64,
    },
    /// Data of a tier is about to be read and checked; `BytesMoved` follows.
    ReadingStarted {
        /// The tier.
        tier: &'a Tier,
        /// Bytes to read.
        bytes: u64,
    },
    /// All of it was read.
    ReadingFinished {
        /// The tier.
        tier: &'a Tier,
    },
    /// A file is done.
    FileDone {
        /// The tier.
        tier: &'a Tier,
        /// The file.
        path: &'a RelativePath,
    },
    /// A transfer succeeded.
    TransferFinished {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// The target.
        place: &'a str,
        /// Bytes that were to move.
        bytes: u64,
        /// Those of them that the store copied from an earlier step.
        copied_bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// A transfer failed.
    TransferFailed {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// The target.
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
    /// A request is retried.
    Retrying {
        /// The tier.
        tier: &'a Tier,
        /// What failed.
        error: &'a Error,
        /// The wait before the next attempt, in seconds.
        wait_seconds: f64,
    },
    /// A step was skipped.
    Skipped {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Why.
        reason: &'a str,
    },
    /// A step is about to be removed from a tier. `Removed`, `RemovalFailed`, or `Skipped` if it is kept, follows.
    RemovalStarted {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Its location.
        place: &'a str,
        /// Bytes of its files; `None` if an interrupted removal is resumed.
        bytes: Option<u64>,
    },
    /// A step was removed from a tier.
    Removed {
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// Its location.
        place: &'a str,
        /// Bytes of its files; `None` if an interrupted removal was resumed.
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
        /// Its location.
        place: &'a str,
        /// How long it was tried.
        seconds: f64,
        /// Why.
        error: &'a Error,
    },
    /// Information for a log that requires no action.
    Info {
        /// The text.
        message: &'a str,
    },
    /// A problem that a person should know about, but that stopped nothing.
    Warning {
        /// The text.
        message: &'a str,
    },
}

/// Receives events. It is called from many threads and must not block.
pub trait Observer: Send + Sync + std::fmt::Debug {
    /// Receives one event.
    fn on_event(&self, event: &Event<'_>);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn on_event(&self, _event: &Event<'_>) {}
}
