//! The causes that are distinguished, and what to do about each.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Why a run failed. Equally likely causes are listed in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Cause {
    /// The disk of the checkpoints has no bytes left.
    DiskFull,
    /// It has no inodes left.
    InodesFull,
    /// The disk of TMPDIR has no bytes or inodes left.
    TemporaryDirectoryFull,
    /// Shared memory is used up.
    SharedMemoryFull,
    /// The user's quota is used up.
    QuotaReached,
    /// The filesystem is read-only.
    ReadOnly,
    /// The user has no permission to write there.
    PermissionDenied,
    /// The directory does not exist.
    DirectoryMissing,
    /// The filesystem does not answer.
    FilesystemUnreachable,
    /// The disk reports errors.
    DiskFault,
    /// A process has reached its limit of open files.
    TooManyOpenFiles,
    /// A process was killed because memory was exhausted, or could not allocate any.
    OutOfMemory,
    /// The memory of a device is exhausted.
    OutOfGpuMemory,
    /// A path that a start command or a save creates already exists.
    PathExists,
    /// A process is restarted again and again.
    RestartLoop,
    /// The job or the machine was stopped from outside.
    TakenAway,
    /// Processes waited for each other longer than their timeout.
    TimeOut,
    /// Credentials have expired.
    CredentialsExpired,
    /// A store refuses these credentials.
    AccessRefused,
    /// This machine's clock is wrong.
    ClockWrong,
    /// An upload makes no progress.
    UploadStalled,
    /// A step lacks files.
    PartialStep,
    /// A save was interrupted.
    InterruptedSave,
}

/// The texts of a cause.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CauseText {
    explanation: String,
    remedy: String,
}

// A test reads the texts of every cause.
static TEXTS: LazyLock<BTreeMap<Cause, CauseText>> =
    LazyLock::new(|| crate::table(include_str!("../../texts/causes.toml")));

impl Cause {
    /// Returns what happened, in one sentence.
    pub fn explanation(self) -> &'static str {
        &TEXTS[&self].explanation
    }

    /// Returns what to do about it.
    pub fn remedy(self) -> &'static str {
        &TEXTS[&self].remedy
    }

    /// Returns whether this is a cause of failed writes.
    pub(super) fn is_of_writes(self) -> bool {
        self.is_of_space()
            || matches!(
                self,
                Self::QuotaReached | Self::ReadOnly | Self::PermissionDenied | Self::DirectoryMissing
            )
    }

    /// Returns whether this is a cause of failed writes for lack of space or inodes.
    pub(super) fn is_of_space(self) -> bool {
        matches!(self, Self::DiskFull | Self::InodesFull | Self::TemporaryDirectoryFull)
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantNames;

    use super::*;

    #[test]
    fn every_cause_has_a_name_a_sentence_and_a_remedy() {
        for name in Cause::VARIANTS {
            let cause: Cause = name.parse().unwrap();
            assert_eq!(serde_json::to_value(cause).unwrap(), *name);
            assert!(name.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()), "{name}");
            for text in [cause.explanation(), cause.remedy()] {
                assert!(text.ends_with('.') && !text.contains("  "), "{name}: {text}");
            }
        }
    }
}
