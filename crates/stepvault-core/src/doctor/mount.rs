//! Kinds of filesystems, and what each means for durability, links and speed.

use super::Finding;
use super::directory::Place;

const CHECK: &str = "filesystem";

/// The mount that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountFacts {
    /// The kind of filesystem, as the kernel names it: `ext4`, `fuse.gcsfuse`.
    pub kind: String,
    /// What is mounted: a device, a server's export.
    pub source: String,
    /// Where.
    pub mount_point: String,
    /// Whether nothing can be written.
    pub read_only: bool,
}

impl MountFacts {
    /// In a few words: `nfs4, server:/export on /mnt`.
    pub fn words(&self) -> String {
        format!("{}, {} on {}", self.kind, self.source, self.mount_point)
    }
}

/// What a kind of filesystem is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// On a disk of this machine.
    Disk,
    /// A container's own layer.
    Overlay,
    /// In memory.
    Memory,
    /// On other machines.
    Network,
    /// In a process of this machine.
    Fuse,
    /// Written once, or not at all.
    ReadOnly,
    /// Something else.
    Unknown,
}

fn nature(kind: &str) -> Nature {
    match kind {
        "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "bcachefs" | "jfs" | "reiserfs" => {
            Nature::Disk
        }
        "overlay" | "aufs" | "overlayfs" => Nature::Overlay,
        "tmpfs" | "ramfs" | "devtmpfs" | "rootfs" => Nature::Memory,
        "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "ceph" | "lustre" | "gpfs" | "beegfs" | "glusterfs"
        | "afs" | "9p" | "virtiofs" | "gfs2" | "ocfs2" | "orangefs" | "wekafs" | "pvfs2" => Nature::Network,
        "squashfs" | "erofs" | "iso9660" | "cramfs" => Nature::ReadOnly,
        _ if kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") => Nature::Fuse,
        _ => Nature::Unknown,
    }
}

/// What the filesystem of a directory means for what is kept there.
pub fn filesystem(place: &Place, facts: Option<&MountFacts>) -> Finding {
    let subject = place.subject();
    let Some(facts) = facts else {
        return Finding::pass(CHECK, subject, "its kind cannot be told here");
    };
    let words = facts.words();
    if facts.read_only || nature(&facts.kind) == Nature::ReadOnly {
        return Finding::fail(
            CHECK,
            subject,
            format!("{words}: mounted read-only"),
            format!(
                "mount it writable (mount -o remount,rw '{}'); after a disk error the kernel makes a filesystem \
                 read-only, and its log says so",
                facts.mount_point
            ),
        );
    }
    let warn =
        |what: &str, remedy: &str| Finding::warn(CHECK, subject.clone(), format!("{words}: {what}"), remedy);
    match nature(&facts.kind) {
        Nature::Disk | Nature::ReadOnly => Finding::pass(CHECK, subject, words),
        Nature::Unknown => Finding::pass(
            CHECK,
            subject,
            format!("{words}: a kind that stepvault knows nothing of"),
        ),
        Nature::Overlay => warn(
            "the container's own layer, which goes with the container, and is shared with its image and its logs",
            "mount a volume of the node's disk into the container, and keep checkpoints and vault on it",
        ),
        Nature::Memory => warn(
            "in memory: lost when the machine or the container ends, and counted against the memory limit",
            "use a disk, unless every step may be lost until it is durable on a remote",
        ),
        Nature::Network => warn(
            "on other machines: each sync and rename waits for the network, and a step there is only as safe and as \
             fast as they are",
            "keep the vault on a disk of this machine; for checkpoints that all nodes write together set shared = true",
        ),
        Nature::Fuse => warn(
            "served by a process: when a sync returns, the bytes may be in that process alone; renames may copy, and \
             links may be missing",
            "keep checkpoints and vault on a disk of this machine, and let stepvault upload to the store itself",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use crate::doctor::directory::Maker;

    fn found(kind: &str, read_only: bool) -> Finding {
        let place = Place {
            role: "checkpoints".to_owned(),
            path: "/mnt/run".to_owned(),
            maker: Maker::Trainer,
        };
        let facts = MountFacts {
            kind: kind.to_owned(),
            source: "source".to_owned(),
            mount_point: "/mnt".to_owned(),
            read_only,
        };
        filesystem(&place, Some(&facts))
    }

    #[test]
    fn each_kind_has_its_words() {
        for (kind, outcome, text) in [
            ("ext4", Outcome::Pass, "ext4, source on /mnt"),
            ("xfs", Outcome::Pass, "xfs, source on /mnt"),
            ("newfs", Outcome::Pass, "knows nothing of"),
            ("overlay", Outcome::Warn, "the container's own layer"),
            ("tmpfs", Outcome::Warn, "in memory: lost when"),
            ("nfs4", Outcome::Warn, "on other machines"),
            ("lustre", Outcome::Warn, "on other machines"),
            ("fuse.gcsfuse", Outcome::Warn, "served by a process"),
            ("squashfs", Outcome::Fail, "mounted read-only"),
        ] {
            let found = found(kind, false);
            assert_eq!(found.outcome, outcome, "{kind}");
            assert!(found.measured.contains(text), "{kind}: {}", found.measured);
            assert_eq!(found.remedy.is_some(), outcome != Outcome::Pass, "{kind}");
        }
    }

    #[test]
    fn read_only_fails_whatever_the_kind() {
        let found = found("ext4", true);
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(found.measured, "ext4, source on /mnt: mounted read-only");
        assert!(
            found
                .remedy
                .is_some_and(|remedy| remedy.contains("remount,rw '/mnt'"))
        );
    }
}
