//! Events that the library reports while it works. It draws nothing itself: a terminal, a log or a test observes them.

use crate::{Error, RelativePath, RemoteName, RunName, Sha256Digest, StepId, Timestamp};

/// Source or target of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Tier {
    /// The local vault.
    Local,
    /// A named remote.
    #[strum(to_string = "{0}")]
    Remote(RemoteName),
}

/// What is done with a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum OperationKind {
    /// It is sealed into the vault.
    Seal,
    /// It is uploaded to a remote.
    Upload,
    /// It is restored from a tier.
    Restore,
    /// It is removed from a tier.
    Removal,
}

impl OperationKind {
    /// Returns its name in metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether its bytes are moved to or from a tier.
    pub fn is_transfer(self) -> bool {
        matches!(self, Self::Upload | Self::Restore)
    }
}

/// An operation on a step, from its start to its end.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'a> {
    /// What is done.
    pub kind: OperationKind,
    /// The step's run.
    pub run: &'a RunName,
    /// The tier that the step is moved to or from.
    pub tier: &'a Tier,
    /// The step.
    pub id: StepId,
    /// The trainer's path of a sealed step, the target of a transfer, or where a removed step is.
    pub location: &'a str,
    /// Number of its files; 0 if that is not known.
    pub files: u64,
    /// Bytes of its files; `None` if an interrupted removal is resumed.
    pub bytes: Option<u64>,
}

/// This node's part of a step that has become durable on a remote.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// When the trainer last wrote it.
    pub written_at: Timestamp,
    /// Bytes of its files.
    pub bytes: u64,
    /// All remotes on which it is durable.
    pub durable_on: &'a [RemoteName],
}

/// Returns the number of the trace that all work on a step belongs to, on every node and in every process: 32 hexadecimal
/// digits, made of the run and the step's identity.
pub fn trace_id(run: &RunName, id: StepId) -> String {
    let mut digits = Sha256Digest::of(format!("{run}\n{}", id.label()).as_bytes()).to_string();
    digits.truncate(32);
    digits
}

/// One event.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An operation on a step starts. `Finished`, `Failed`, or `Skipped` for a step that is kept, follows, unless a restore
    /// goes on with another version of the step or an older one.
    Started(Operation<'a>),
    /// An operation succeeded.
    Finished {
        /// The operation.
        operation: Operation<'a>,
        /// Those of its bytes that the store copied from an earlier step.
        copied_bytes: u64,
        /// How long it took.
        seconds: f64,
    },
    /// An operation failed.
    Failed {
        /// The operation.
        operation: Operation<'a>,
        /// How long it was tried.
        seconds: f64,
        /// Why.
        error: &'a Error,
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
    /// All bytes of a step that is uploaded are sent and proved; its records follow. `Finished` or `Failed` follows.
    Sent {
        /// The step's run.
        run: &'a RunName,
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
    },
    /// A step is durable on a remote.
    Durable {
        /// The step's run.
        run: &'a RunName,
        /// The tier.
        tier: &'a Tier,
        /// The step.
        id: StepId,
        /// What this node saved, unless the vault has known that it is durable there, or there is no vault that has it.
        saved: Option<Saved<'a>>,
    },
    /// A remote's answer to a write has shown its clock.
    ClockCompared {
        /// The tier.
        tier: &'a Tier,
        /// How far its clock is ahead of this machine's; negative if it is behind.
        ahead_seconds: i64,
    },
    /// A request is sent to a remote, for the first time or again.
    Requested {
        /// The tier.
        tier: &'a Tier,
    },
    /// A step was verified where it is.
    Verified {
        /// The tier.
        tier: &'a Tier,
        /// Whether no fault was found.
        is_sound: bool,
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

impl dyn Observer + '_ {
    /// Reports a problem that stopped nothing.
    pub fn warn(&self, message: impl AsRef<str>) {
        let message = message.as_ref();
        self.on_event(&Event::Warning { message });
    }

    /// Reports information that requires no action.
    pub fn info(&self, message: impl AsRef<str>) {
        let message = message.as_ref();
        self.on_event(&Event::Info { message });
    }
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn on_event(&self, _event: &Event<'_>) {}
}
