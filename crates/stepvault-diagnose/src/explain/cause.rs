//! The causes that are distinguished, and what to do about each.

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
struct CauseText {
    name: &'static str,
    explanation: &'static str,
    remedy: &'static str,
}

impl Cause {
    /// All causes, in the order in which equally likely ones are listed.
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

    /// Returns its name for programs, in kebab-case.
    pub fn name(self) -> &'static str {
        self.words().name
    }

    /// Returns what happened, in one sentence.
    pub fn explanation(self) -> &'static str {
        self.words().explanation
    }

    /// Returns what to do about it.
    pub fn remedy(self) -> &'static str {
        self.words().remedy
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn words(self) -> CauseText {
        let (name, explanation, remedy) = match self {
            Self::DiskFull => (
                "disk-full",
                "The disk that the checkpoints are written to has no space left for a step.",
                "Free some space. 'stepvault prune --tier local' removes steps that every required remote has; \
                 'clean-source = true' and [keep.local] do so from now on. 'stepvault estimate' shows the size of a \
                 step, and 'stepvault doctor' shows whether the next ones fit.",
            ),
            Self::InodesFull => (
                "inodes-full",
                "The filesystem that the checkpoints are written to has no inodes left: no file can be created, even \
                 if bytes are free.",
                "Delete small files, Python caches and old logs first, or use a filesystem made with more inodes. \
                 'stepvault prune --tier local' removes local copies of steps that are durable; 'stepvault doctor' \
                 shows how many inodes the next steps need.",
            ),
            Self::TemporaryDirectoryFull => (
                "temporary-directory-full",
                "The disk that holds TMPDIR is full, not the one that holds the checkpoints: frameworks write to \
                 TMPDIR first.",
                "Set TMPDIR to a directory on a disk with room for a whole checkpoint. 'stepvault doctor' checks \
                 TMPDIR too; 'stepvault estimate --shuffle-buffer N --sample SIZE' shows the size of a data loader's \
                 state.",
            ),
            Self::SharedMemoryFull => (
                "shared-memory-full",
                "Shared memory (/dev/shm) is full: data-loader workers pass their batches through it.",
                "Give the container more shared memory (docker run --shm-size, or a memory-backed volume at \
                 /dev/shm), or use fewer workers.",
            ),
            Self::QuotaReached => (
                "quota-reached",
                "The quota of this user, group or project is used up; the disk itself may have free space.",
                "Delete files of this user, or have the quota raised. 'stepvault prune --tier local' removes local copies \
                 of steps that are durable.",
            ),
            Self::ReadOnly => (
                "read-only",
                "The filesystem is mounted read-only. The kernel remounts a filesystem read-only after a disk error.",
                "Check the kernel log for the disk error before you mount the filesystem writable again. To continue \
                 on another disk, run 'stepvault restore --into DIR'.",
            ),
            Self::PermissionDenied => (
                "permission-denied",
                "The user that writes checkpoints has no permission to write to the directory.",
                "Run the trainer as the owner of the directory, or give its user access. 'stepvault doctor' tests \
                 this by writing there before training.",
            ),
            Self::DirectoryMissing => (
                "directory-missing",
                "The directory that checkpoints are written to does not exist.",
                "Create or mount it before the trainer starts, and check the variable that names it \
                 (CHECKPOINT_ARTIFACT_PATH, OUTPUT_PATH or the like): 'stepvault doctor' checks both.",
            ),
            Self::FilesystemUnreachable => (
                "filesystem-unreachable",
                "A network or FUSE filesystem does not answer.",
                "Mount it again, and write checkpoints to a local disk: the agent ('stepvault agent') uploads them \
                 to the remotes, so that no save waits for a network.",
            ),
            Self::DiskFault => (
                "disk-fault",
                "The disk reports input/output errors: data written to it recently may be lost.",
                "Move to another machine or disk, and run 'stepvault restore --into DIR' there. 'stepvault verify \
                 --deep' shows which steps are intact.",
            ),
            Self::TooManyOpenFiles => (
                "too-many-open-files",
                "A process has reached its limit of open files.",
                "Raise the limit (ulimit -n, LimitNOFILE= of a service), or share tensors through the filesystem \
                 (torch.multiprocessing.set_sharing_strategy('file_system')).",
            ),
            Self::OutOfMemory => (
                "out-of-memory",
                "A process was killed, or could not allocate memory, because the machine or its cgroup had no memory \
                 left.",
                "Give the job more memory, or use fewer data-loader workers and smaller shuffle buffers ('stepvault \
                 estimate --shuffle-buffer N --sample SIZE'). upload.memory-budget limits stepvault's own buffers.",
            ),
            Self::OutOfGpuMemory => (
                "out-of-gpu-memory",
                "A GPU or other device ran out of memory; storage is not the cause.",
                "Use a smaller batch, or shard more; then resume from the step below.",
            ),
            Self::PathExists => (
                "path-exists",
                "A start command or a save fails at once because a file or directory that it creates already exists.",
                "Create it in the start command only if it is missing (test -d DIR || git clone …), or remove it \
                 first. Move away the temporary directory of an interrupted save by hand.",
            ),
            Self::RestartLoop => (
                "restart-loop",
                "A process that fails soon after its start is restarted again and again; training itself did not \
                 crash.",
                "Check how the first start ended, not the last lines of training. 'stepvault status' lists the last \
                 starts; [restart] sets how many starts make a loop, and after how many crashes a step is skipped.",
            ),
            Self::TakenAway => (
                "taken-away",
                "The job was ended from outside: preempted, out of time, or stopped.",
                "Start it with 'stepvault run -- CMD', which receives the provider's notice, uploads the finished \
                 steps, and resumes from the newest valid step at the next start.",
            ),
            Self::TimeOut => (
                "time-out",
                "Processes waited for each other, or for a save, longer than their timeout.",
                "First find the rank that is missing or slow, and why: a cause above, or a slow disk ('stepvault \
                 doctor' measures it). Save to a local disk and let the agent upload, so that no rank waits for a \
                 network; raise the timeout only after that.",
            ),
            Self::CredentialsExpired => (
                "credentials-expired",
                "The credentials for a store have expired.",
                "Renew them (aws sso login, gcloud auth application-default login), or use the machine's own role. \
                 The agent reads them again at its next attempt; 'stepvault doctor' shows when they expire.",
            ),
            Self::AccessRefused => (
                "access-refused",
                "A store refuses the credentials, or no credentials were found.",
                "Grant the required actions on the bucket and its objects, or use the right profile. 'stepvault \
                 doctor' tests each operation.",
            ),
            Self::ClockWrong => (
                "clock-wrong",
                "This machine's clock is wrong: stores refuse its requests, and ages of files are unreliable.",
                "Set the clock, by NTP if possible; 'stepvault doctor' compares it with the store's.",
            ),
            Self::UploadStalled => (
                "upload-stalled",
                "An upload was started and makes no progress.",
                "Check that an agent runs and why it waits ('stepvault status'); 'stepvault push DIR' uploads one \
                 step now. Parts that were sent are kept, and the upload resumes after them.",
            ),
            Self::PartialStep => (
                "partial-step",
                "A step lacks files that its framework writes: not every process finished the save.",
                "Resume from the step below. 'stepvault announce PATH', or complete = \"marker\", tells the agent \
                 when a save is finished; 'stepvault restore' skips steps like this one.",
            ),
            Self::InterruptedSave => (
                "interrupted-save",
                "A save was interrupted: a file is truncated, or still has its temporary name.",
                "Resume from the step below; do not load this one. 'stepvault inspect DIR' shows which files are \
                 intact; a trainer that saves with 'stepvault stage' and 'commit' never leaves a partial step under \
                 its final name.",
            ),
        };
        CauseText { name, explanation, remedy }
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
            assert!(name.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()), "{name}");
            for text in [cause.explanation(), cause.remedy()] {
                assert!(text.ends_with('.') && !text.contains("  "), "{name}: {text}");
            }
        }
        let mut sorted = Cause::ALL;
        sorted.sort_unstable();
        assert_eq!(sorted, Cause::ALL);
    }
}
