//! Types of filesystems, and what each means for durability, links and speed.

use super::directory::Place;
use super::{Check, Finding};
use stepvault_core::disk_facts::{MountFacts, Nature};

/// Returns the finding on the filesystem of a directory.
pub fn filesystem(place: &Place, facts: Option<&MountFacts>) -> Finding {
    let check = Check::new("filesystem", place.subject());
    let Some(facts) = facts else {
        return check.pass("the filesystem's type is unknown");
    };
    let words = facts.words();
    let nature = if facts.read_only { Nature::ReadOnly } else { facts.nature() };
    let (what, remedy) = match nature {
        Nature::ReadOnly => {
            let remedy = format!(
                "mount it writable (mount -o remount,rw '{}'); check the kernel log first: the kernel makes a \
                 filesystem read-only after a disk error",
                facts.mount_point
            );
            return check.fail(format!("{words}: mounted read-only"), remedy);
        }
        Nature::Disk => return check.pass(words),
        Nature::Unknown => {
            return check.pass(format!("{words}: a filesystem type that stepvault does not know"));
        }
        Nature::Overlay => (
            "the container's own layer: deleted with the container, and shared with its image and its logs",
            "mount a volume of the node's disk into the container, and keep checkpoints and vault on it",
        ),
        Nature::Memory => (
            "in memory: lost when the machine or the container ends, and counted against the memory limit",
            "use a disk, unless every step may be lost until it is durable on a remote",
        ),
        Nature::Network => (
            "a network filesystem: each sync and rename waits for the network, and a step is only as safe and as \
             fast as the servers",
            "keep the vault on a disk of this machine; for checkpoints that all nodes write together set shared = true",
        ),
        Nature::Fuse => (
            "a FUSE filesystem: when a sync returns, the bytes may exist only in its process; renames may copy, and \
             links may not be supported",
            "keep checkpoints and vault on a disk of this machine, and let stepvault upload to the store itself",
        ),
    };
    check.warn(format!("{words}: {what}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use crate::doctor::directory::Maker;

    fn found(kind: &str, read_only: bool) -> Finding {
        let place =
            Place { role: "checkpoints".to_owned(), path: "/mnt/run".to_owned(), maker: Maker::Trainer };
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
            ("newfs", Outcome::Pass, "does not know"),
            ("overlay", Outcome::Warn, "the container's own layer"),
            ("tmpfs", Outcome::Warn, "in memory: lost when"),
            ("nfs4", Outcome::Warn, "a network filesystem"),
            ("lustre", Outcome::Warn, "a network filesystem"),
            ("fuse.gcsfuse", Outcome::Warn, "a FUSE filesystem"),
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
        assert!(found.remedy.is_some_and(|remedy| remedy.contains("remount,rw '/mnt'")));
    }
}
