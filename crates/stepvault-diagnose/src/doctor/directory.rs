//! Checks of a directory: whether it exists, and whether the file operations that stepvault needs work in it.

use super::{Check, Finding};
use stepvault_core::disk_facts::{DirectoryFacts, Presence};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::disk_facts::FailedAct;

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
}
