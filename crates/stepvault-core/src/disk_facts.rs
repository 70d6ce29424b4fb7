//! Facts about directories, disks and memory, as they are measured on a machine. What they mean is decided elsewhere.

use crate::room::Room;

/// The results of the tests in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryFacts {
    /// Whether it exists.
    pub presence: Presence,
    /// The first operation that failed, in the directory or in the nearest existing directory above it.
    pub failed: Option<FailedAct>,
    /// Why a hard link to a file in it could not be created, if everything else worked.
    pub link_refused: Option<String>,
}

/// Whether a directory exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It exists.
    There,
    /// It does not exist; contains the nearest existing directory above it.
    Missing(String),
    /// The path exists but is not a directory.
    NotADirectory,
}

/// An operation that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAct {
    /// The operation and the cause: `cannot write: no space is left on its filesystem`.
    pub what: String,
    /// What to do about it, if known.
    pub hint: Option<String>,
}

/// The purpose of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryRole {
    /// Steps are written there.
    Checkpoints,
    /// The local tier.
    Vault,
    /// Temporary files.
    Temporary,
    /// Memory that processes share.
    SharedMemory,
}

/// What this user can do with a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryAccess {
    /// It is writable.
    Writable,
    /// This user has no permission to write.
    Forbidden,
    /// It is mounted read-only.
    ReadOnly,
    /// It does not exist.
    Missing,
    /// Its filesystem did not answer in time.
    Silent,
}

/// What was measured of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryCondition {
    /// Its purpose.
    pub role: DirectoryRole,
    /// Its path.
    pub path: String,
    /// What this user can do with it.
    pub access: DirectoryAccess,
    /// The free space of its filesystem.
    pub room: Option<Room>,
    /// The id of this user.
    pub user: u32,
    /// The id of its owner.
    pub owner: Option<u32>,
}

/// What a filesystem type means for what is on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    /// On a disk of this machine.
    Disk,
    /// A container's own layer.
    Overlay,
    /// In memory.
    Memory,
    /// On other machines.
    Network,
    /// Served by a process of this machine.
    Fuse,
    /// Read-only by design.
    ReadOnly,
    /// Unknown.
    Unknown,
}

/// The mount that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountFacts {
    /// The filesystem type as the kernel names it: `ext4`, `fuse.gcsfuse`.
    pub kind: String,
    /// The mounted device or export.
    pub source: String,
    /// The mount point.
    pub mount_point: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

impl MountFacts {
    /// Returns what the type of the filesystem means.
    pub fn nature(&self) -> Nature {
        match self.kind.as_str() {
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "bcachefs" | "jfs" | "reiserfs" => {
                Nature::Disk
            }
            "overlay" | "aufs" | "overlayfs" => Nature::Overlay,
            "tmpfs" | "ramfs" | "devtmpfs" | "rootfs" => Nature::Memory,
            "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "lustre" | "gpfs" | "beegfs"
            | "glusterfs" | "afs" | "9p" | "virtiofs" | "gfs2" | "ocfs2" | "orangefs" | "wekafs"
            | "pvfs2" => Nature::Network,
            "squashfs" | "erofs" | "iso9660" | "cramfs" => Nature::ReadOnly,
            kind if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") => Nature::Fuse,
            _ => Nature::Unknown,
        }
    }

    /// Returns a short description: `nfs4, server:/export on /mnt`.
    pub fn words(&self) -> String {
        format!("{}, {} on {}", self.kind, self.source, self.mount_point)
    }
}

/// Whether an operation is available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkAbility {
    /// It works.
    Works,
    /// It was refused, for this reason.
    Refused(String),
}

/// The results of tests between the checkpoint directory and the vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFacts {
    /// Hard links.
    pub hard_link: LinkAbility,
    /// Reflinks: files that share blocks.
    pub reflink: LinkAbility,
    /// Owner of a file of another user among the trainer's files, which the kernel does not let this user link.
    pub foreign_owner: Option<u32>,
}

/// The measurements of one filesystem.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskRates {
    /// Bytes that were written and read back for the measurement.
    pub probed_bytes: u64,
    /// Sequential write rate, including the sync.
    pub write_bytes_per_second: u64,
    /// Read rate, after the page cache was asked to drop the data.
    pub read_bytes_per_second: u64,
    /// Median duration of writing and syncing a small file.
    pub sync_seconds: f64,
}

/// The tightest memory limit of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryFacts {
    /// The source of the limit: a cgroup's path, or the machine.
    pub source: String,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Bytes in use by all processes under the limit, without those that the kernel can reclaim at once.
    pub used_bytes: u64,
}

/// The kind of a leftover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftoverKind {
    /// A file or directory with a temporary name, such as `*.tmp`.
    Temporary,
    /// An incomplete step.
    HalfStep,
    /// Temporary data of the vault, which its next start removes.
    Vault,
    /// Data of interrupted restores and saves.
    Staging,
    /// Files that a restore moved aside; nothing removes them.
    MovedAside,
    /// Data of an earlier check that was killed.
    Check,
}

/// A leftover file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its kind.
    pub kind: LeftoverKind,
    /// Its path.
    pub path: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Number of files and directories.
    pub entries: u64,
    /// Seconds since anything in it was written.
    pub age_seconds: u64,
}
