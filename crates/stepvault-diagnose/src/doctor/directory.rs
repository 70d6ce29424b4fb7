//! Checks of a directory: whether it exists, whether the file operations that stepvault needs work in it, and
//! what its type of filesystem means.

use stepvault_core::disk_facts::{DirectoryFacts, MountFacts, Nature, Presence};

use super::{Check, Finding};

/// A directory and its purpose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The purpose, in one or two words: `vault`, `TMPDIR`.
    pub role: String,
    /// The path.
    pub path: String,
    /// Who creates the directory if it does not exist.
    pub maker: Maker,
}

/// Who creates a directory that does not exist yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// Stepvault, on first use.
    Service,
    /// The trainer or its user.
    Trainer,
    /// Nobody: its users assume that it exists.
    Nobody,
}

impl Place {
    /// Returns the subject of its findings.
    pub fn subject(&self) -> String {
        format!("{} {}", self.role, self.path)
    }

    fn check(&self) -> Check {
        Check::new("directory", self.subject())
    }
}

/// Returns the finding for a directory.
pub fn directory(place: &Place, facts: &DirectoryFacts) -> Finding {
    let check = place.check();
    if facts.presence == Presence::NotADirectory {
        return check.fail("it is not a directory", "move it away, or name another directory");
    }
    if let Some(failed) = &facts.failed {
        let measured = match &facts.presence {
            Presence::Missing(above) => format!("it does not exist; test in {above}: {}", failed.what),
            _ => failed.what.clone(),
        };
        let hint = failed.hint.as_deref();
        return check.fail(measured, hint.unwrap_or("use a directory on a working local filesystem"));
    }
    if let Presence::Missing(above) = &facts.presence {
        let can = format!("it does not exist; it can be created in {above}");
        let command = format!("mkdir -p '{}'", place.path);
        return match place.maker {
            Maker::Service => check.pass(format!("{can}, and stepvault creates it on first use")),
            Maker::Trainer => check.warn(can, format!("create it, unless the trainer does: {command}")),
            Maker::Nobody => check.fail(can, format!("create it: {command}")),
        };
    }
    match &facts.link_refused {
        None => check.pass("files and directories can be written, synced, renamed, linked and deleted"),
        Some(why) => check.warn(
            format!("files can be written, synced, renamed and deleted, but not linked: {why}"),
            "use a filesystem with hard links, such as ext4 or XFS; otherwise each step is copied when it is sealed",
        ),
    }
}

/// Returns the finding for a directory whose filesystem did not answer in time.
pub fn no_answer(place: &Place, waited_seconds: u64, mount: Option<&str>) -> Finding {
    let on = mount.map(|mount| format!(" ({mount})")).unwrap_or_default();
    place.check().fail(
        format!("its filesystem did not answer within {waited_seconds} s{on}"),
        "restore its server, or unmount it (umount -l) and mount it again; until then every access to it hangs",
    )
}

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
    use stepvault_core::disk_facts::FailedAct;

    use super::*;
    use crate::doctor::Outcome;

    fn place(maker: Maker) -> Place {
        Place { role: "vault".to_owned(), path: "/nvme/vault".to_owned(), maker }
    }

    fn facts(presence: Presence) -> DirectoryFacts {
        DirectoryFacts { presence, failed: None, link_refused: None }
    }

    #[test]
    fn all_that_worked_passes_and_no_links_are_worth_a_warning() {
        let found = directory(&place(Maker::Service), &facts(Presence::There));
        assert_eq!((found.outcome, found.subject.as_str()), (Outcome::Pass, "vault /nvme/vault"));
        let mut without = facts(Presence::There);
        without.link_refused = Some("operation not supported".to_owned());
        let found = directory(&place(Maker::Service), &without);
        assert_eq!(found.outcome, Outcome::Warn);
        assert_eq!(
            found.measured,
            "files can be written, synced, renamed and deleted, but not linked: operation not supported"
        );
    }

    #[test]
    fn what_is_missing_matters_by_who_makes_it() {
        let missing = facts(Presence::Missing("/nvme".to_owned()));
        let outcome = |maker| directory(&place(maker), &missing).outcome;
        assert_eq!(outcome(Maker::Service), Outcome::Pass);
        assert_eq!(outcome(Maker::Trainer), Outcome::Warn);
        let nobody = directory(&place(Maker::Nobody), &missing);
        assert_eq!(nobody.outcome, Outcome::Fail);
        assert_eq!(nobody.remedy.as_deref(), Some("create it: mkdir -p '/nvme/vault'"));
        let file = directory(&place(Maker::Service), &facts(Presence::NotADirectory));
        assert_eq!((file.outcome, file.measured.as_str()), (Outcome::Fail, "it is not a directory"));
    }

    #[test]
    fn what_failed_is_said_with_its_remedy() {
        let failed = FailedAct {
            what: "cannot write: no space is left on its filesystem".to_owned(),
            hint: Some("free some space".to_owned()),
        };
        let mut facts = facts(Presence::There);
        facts.failed = Some(failed.clone());
        let found = directory(&place(Maker::Service), &facts);
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(found.measured, failed.what);
        assert_eq!(found.remedy, failed.hint);
        facts.presence = Presence::Missing("/nvme".to_owned());
        let found = directory(&place(Maker::Service), &facts);
        assert_eq!(
            found.measured,
            "it does not exist; test in /nvme: cannot write: no space is left on its filesystem"
        );
    }

    #[test]
    fn a_dead_mount_is_named() {
        let found = no_answer(&place(Maker::Service), 10, Some("nfs4, server:/export on /nvme"));
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(
            found.measured,
            "its filesystem did not answer within 10 s (nfs4, server:/export on /nvme)"
        );
    }

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
