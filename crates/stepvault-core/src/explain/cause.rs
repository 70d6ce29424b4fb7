//! The causes that are told apart, and what to do about each.

use serde::{Serialize, Serializer};

/// Why a run failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// The user may not write there.
    PermissionDenied,
    /// The directory is not there.
    DirectoryMissing,
    /// The filesystem does not answer.
    FilesystemUnreachable,
    /// The disk reports errors.
    DiskFault,
    /// A process may open no more files.
    TooManyOpenFiles,
    /// A process was killed because memory was out, or could get none.
    OutOfMemory,
    /// A device's memory was out.
    OutOfGpuMemory,
    /// What a start command or a save wants to create is there already.
    PathExists,
    /// Something is started again and again.
    RestartLoop,
    /// The job or the machine was ended from outside.
    TakenAway,
    /// Processes waited for each other longer than they may.
    TimeOut,
    /// Credentials have expired.
    CredentialsExpired,
    /// A store refuses these credentials.
    AccessRefused,
    /// This machine's clock is wrong.
    ClockWrong,
    /// An upload does not go on.
    UploadStalled,
    /// A step lacks files.
    PartialStep,
    /// A save was cut off.
    InterruptedSave,
}

/// A cause in words.
struct Words {
    name: &'static str,
    explanation: &'static str,
    remedy: &'static str,
}

impl Cause {
    /// All of them, in the order in which equals are told.
    pub const ALL: [Self; 23] = [
        Self::DiskFull,
        Self::InodesFull,
        Self::TemporaryDirectoryFull,
        Self::SharedMemoryFull,
        Self::QuotaReached,
        Self::ReadOnly,
        Self::PermissionDenied,
        Self::DirectoryMissing,
        Self::FilesystemUnreachable,
        Self::DiskFault,
        Self::TooManyOpenFiles,
        Self::OutOfMemory,
        Self::OutOfGpuMemory,
        Self::PathExists,
        Self::RestartLoop,
        Self::TakenAway,
        Self::TimeOut,
        Self::CredentialsExpired,
        Self::AccessRefused,
        Self::ClockWrong,
        Self::UploadStalled,
        Self::PartialStep,
        Self::InterruptedSave,
    ];

    /// Its name for programs, in kebab-case.
    pub fn name(self) -> &'static str {
        self.words().name
    }

    /// What happened, in one sentence.
    pub fn explanation(self) -> &'static str {
        self.words().explanation
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        self.words().remedy
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn words(self) -> Words {
        let (name, explanation, remedy) = match self {
            Self::DiskFull => (
                "disk-full",
                "The disk that the checkpoints are written to has no space left for a step.",
                "Free some space. So that it stays free: 'clean-source = true' and [keep.local] remove steps that every \
                 required remote has, 'stepvault prune --tier local' does so now; 'stepvault estimate' tells how large a \
                 step is, and 'stepvault doctor' whether the next ones fit.",
            ),
            Self::InodesFull => (
                "inodes-full",
                "The filesystem that the checkpoints are written to has no inodes left: no file can be created, whatever \
                 number of bytes is free.",
                "Delete small files, Python caches and old logs first, or use a filesystem made with more inodes. \
                 'stepvault prune --tier local' removes local copies of steps that are durable; 'stepvault doctor' shows \
                 the inodes that the next steps need.",
            ),
            Self::TemporaryDirectoryFull => (
                "temporary-directory-full",
                "The disk that holds TMPDIR is full, and not the one of the checkpoints: frameworks write there first.",
                "Set TMPDIR to a directory on a disk with room for a whole checkpoint. 'stepvault doctor' looks at TMPDIR \
                 too; 'stepvault estimate --shuffle-buffer N --sample SIZE' tells what a data loader's state takes.",
            ),
            Self::SharedMemoryFull => (
                "shared-memory-full",
                "Shared memory (/dev/shm) is used up: data-loader workers hand their batches over in it.",
                "Give the container more (docker run --shm-size, or a memory-backed volume at /dev/shm), or use fewer \
                 workers.",
            ),
            Self::QuotaReached => (
                "quota-reached",
                "The quota of this user, group or project is used up; the disk itself may have space.",
                "Delete files of this user, or have the quota raised. 'stepvault prune --tier local' removes local copies \
                 of steps that are durable.",
            ),
            Self::ReadOnly => (
                "read-only",
                "The filesystem is mounted read-only; after a disk error the kernel makes it so by itself.",
                "Look into the kernel's log for the disk error before mounting it writable again. Go on elsewhere with \
                 'stepvault restore --into DIR' on another disk.",
            ),
            Self::PermissionDenied => (
                "permission-denied",
                "The user that writes checkpoints may not write there.",
                "Run the trainer as the owner of the directory, or give its user access; 'stepvault doctor' really writes \
                 there before training.",
            ),
            Self::DirectoryMissing => (
                "directory-missing",
                "The directory that checkpoints are written to is not there.",
                "Create or mount it before the trainer starts, and check the variable that names it \
                 (CHECKPOINT_ARTIFACT_PATH, OUTPUT_PATH or the like): 'stepvault doctor' checks both.",
            ),
            Self::FilesystemUnreachable => (
                "filesystem-unreachable",
                "A network or FUSE filesystem does not answer.",
                "Mount it again, and write checkpoints to a local disk: the agent ('stepvault agent') carries them to the \
                 remotes, so that no save waits for a network.",
            ),
            Self::DiskFault => (
                "disk-fault",
                "The disk reports input/output errors: what was written to it lately may be lost.",
                "Move to another machine or disk, and 'stepvault restore --into DIR' there; 'stepvault verify --deep' \
                 tells which steps are whole.",
            ),
            Self::TooManyOpenFiles => (
                "too-many-open-files",
                "A process has reached its limit of open files.",
                "Raise it (ulimit -n, LimitNOFILE= of a service), or share tensors by file system \
                 (torch.multiprocessing.set_sharing_strategy('file_system')).",
            ),
            Self::OutOfMemory => (
                "out-of-memory",
                "A process was killed, or could get no memory, because the memory of the machine or of its cgroup was out.",
                "Give the job more memory, or use fewer data-loader workers and smaller shuffle buffers ('stepvault \
                 estimate --shuffle-buffer N --sample SIZE'). Stepvault's own buffers are bounded by upload.memory-budget.",
            ),
            Self::OutOfGpuMemory => (
                "out-of-gpu-memory",
                "The memory of a device was out; this is no fault of the storage.",
                "Use a smaller batch, or shard more; then go on from the step below.",
            ),
            Self::PathExists => (
                "path-exists",
                "What a start command or a save wants to create is there already, so that it fails at once.",
                "Make the start command do it only where it is missing (test -d DIR || git clone …), or remove it first. A \
                 temporary directory of an interrupted save has to be moved away by hand.",
            ),
            Self::RestartLoop => (
                "restart-loop",
                "This is no crash in training: something that fails soon after its start is started again and again.",
                "Look at how the first start ended, not at the last lines of training. 'stepvault status' lists the last \
                 starts; [restart] says how many make a loop, and after how many crashes a step is passed over.",
            ),
            Self::TakenAway => (
                "taken-away",
                "The job was ended from outside: preempted, out of time, or stopped.",
                "Start it with 'stepvault run -- CMD', which takes the provider's notice, uploads what is finished, and \
                 goes on from the newest valid step at the next start.",
            ),
            Self::TimeOut => (
                "time-out",
                "Processes waited for each other, or for a save, longer than their time-out allows.",
                "Look first for the rank that is missing or slow: a cause above, or a slow disk ('stepvault doctor' \
                 measures it). Save to a local disk and let the agent upload, so that no rank waits for a network; only \
                 then raise the time-out.",
            ),
            Self::CredentialsExpired => (
                "credentials-expired",
                "The credentials for a store have expired.",
                "Renew them (aws sso login, gcloud auth application-default login, or use the machine's own role): the \
                 agent reads them again at its next try. 'stepvault doctor' tells when they expire.",
            ),
            Self::AccessRefused => (
                "access-refused",
                "A store refuses these credentials, or found none.",
                "Grant the actions on the bucket and its objects, or name the right profile; 'stepvault doctor' tries \
                 each operation.",
            ),
            Self::ClockWrong => (
                "clock-wrong",
                "This machine's clock is off: stores refuse its requests, and ages of files mean nothing.",
                "Set the clock, by NTP if possible; 'stepvault doctor' compares it with the store's.",
            ),
            Self::UploadStalled => (
                "upload-stalled",
                "An upload was begun and does not go on.",
                "See that an agent runs ('stepvault status'), and why it waits; 'stepvault push DIR' does one step now. \
                 What was sent is kept, and it goes on part by part.",
            ),
            Self::PartialStep => (
                "partial-step",
                "A step lacks files that its framework writes: the save was not finished by every process.",
                "Go on from the step below. 'stepvault announce PATH', or complete = \"marker\", tells the agent when a \
                 save is over; 'stepvault restore' passes over steps like this one.",
            ),
            Self::InterruptedSave => (
                "interrupted-save",
                "A save was cut off while it wrote: a file is torn, or has the name of one that is still being written.",
                "Go on from the step below; do not load this one. 'stepvault inspect DIR' shows what is whole; a trainer \
                 that saves through 'stepvault stage' and 'commit' never leaves half a step under its final name.",
            ),
        };
        Words {
            name,
            explanation,
            remedy,
        }
    }

    /// A write that failed, for one reason or another.
    pub(super) fn is_of_writes(self) -> bool {
        self.is_of_space()
            || matches!(
                self,
                Self::QuotaReached | Self::ReadOnly | Self::PermissionDenied | Self::DirectoryMissing
            )
    }

    /// A write that found no space, of one kind or another.
    pub(super) fn is_of_space(self) -> bool {
        matches!(
            self,
            Self::DiskFull | Self::InodesFull | Self::TemporaryDirectoryFull
        )
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_cause_has_a_name_a_sentence_and_a_remedy() {
        let names: BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.name()).collect();
        assert_eq!(names.len(), Cause::ALL.len());
        for cause in Cause::ALL {
            let name = cause.name();
            assert!(
                name.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()),
                "{name}"
            );
            for text in [cause.explanation(), cause.remedy()] {
                assert!(text.ends_with('.') && !text.contains("  "), "{name}: {text}");
            }
        }
        let mut sorted = Cause::ALL;
        sorted.sort_unstable();
        assert_eq!(sorted, Cause::ALL);
    }
}
