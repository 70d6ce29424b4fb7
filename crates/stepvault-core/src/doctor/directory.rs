//! A directory that has to take files: whether it is there, and whether what the service does there works.

use super::Finding;

const CHECK: &str = "directory";

/// A directory, and what it is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// What it is for, in a word or two: `vault`, `TMPDIR`.
    pub role: String,
    /// Where it is.
    pub path: String,
    /// Who makes it where it is not there.
    pub maker: Maker,
}

/// Who makes a directory that does not exist yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// stepvault does, when it first needs it.
    Service,
    /// The trainer does, or its user.
    Trainer,
    /// Nobody: who uses it takes it to be there.
    Nobody,
}

impl Place {
    /// As the subject of a finding.
    pub fn subject(&self) -> String {
        format!("{} {}", self.role, self.path)
    }
}

/// What was tried in a directory, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryFacts {
    /// Whether it is there.
    pub presence: Presence,
    /// The first thing that did not work, of all that was tried in it, or in the nearest directory above that exists.
    pub failed: Option<FailedAct>,
    /// Why a file in it could not be given a second name, where everything else worked.
    pub link_refused: Option<String>,
}

/// Whether a directory is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    There,
    /// It is not, and this is the nearest directory above that is.
    Missing(String),
    /// Something else stands there.
    NotADirectory,
}

/// Something that did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAct {
    /// What was tried and why it failed: `cannot write: no space is left on its filesystem`.
    pub what: String,
    /// What to do about that, where it is known.
    pub hint: Option<String>,
}

/// What that means for whoever writes there.
pub fn directory(place: &Place, facts: &DirectoryFacts) -> Finding {
    let subject = place.subject();
    if facts.presence == Presence::NotADirectory {
        return Finding::fail(
            CHECK,
            subject,
            "it is not a directory",
            "move away what stands there, or name another directory",
        );
    }
    if let Some(failed) = &facts.failed {
        let measured = match &facts.presence {
            Presence::Missing(above) => format!("it does not exist, and in {above}: {}", failed.what),
            _ => failed.what.clone(),
        };
        let remedy = failed.hint.clone();
        let remedy = remedy.unwrap_or_else(|| "use a directory on a working local filesystem".to_owned());
        return Finding::fail(CHECK, subject, measured, remedy);
    }
    if let Presence::Missing(above) = &facts.presence {
        let can = format!("it does not exist; it can be made in {above}");
        return match place.maker {
            Maker::Service => Finding::pass(CHECK, subject, format!("{can}, and is when it is first needed")),
            Maker::Trainer => Finding::warn(
                CHECK,
                subject,
                can,
                format!("make it, unless the trainer does: mkdir -p '{}'", place.path),
            ),
            Maker::Nobody => {
                Finding::fail(CHECK, subject, can, format!("make it: mkdir -p '{}'", place.path))
            }
        };
    }
    match &facts.link_refused {
        None => Finding::pass(
            CHECK,
            subject,
            "a file and a directory were written, synced, renamed, linked and deleted",
        ),
        Some(why) => Finding::warn(
            CHECK,
            subject,
            format!("files are written, synced, renamed and deleted, and not linked: {why}"),
            "each step that is taken over from here is copied: use a filesystem with hard links, such as ext4 or XFS",
        ),
    }
}

/// A directory whose filesystem did not answer in time.
pub fn no_answer(place: &Place, waited_seconds: u64, mount: Option<&str>) -> Finding {
    let on = mount.map(|mount| format!(" ({mount})")).unwrap_or_default();
    Finding::fail(
        CHECK,
        place.subject(),
        format!("its filesystem did not answer within {waited_seconds} s{on}"),
        "everything that touches it would hang: bring its server back, or unmount it (umount -l) and mount it again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    fn place(maker: Maker) -> Place {
        Place {
            role: "vault".to_owned(),
            path: "/nvme/vault".to_owned(),
            maker,
        }
    }

    fn facts(presence: Presence) -> DirectoryFacts {
        DirectoryFacts {
            presence,
            failed: None,
            link_refused: None,
        }
    }

    #[test]
    fn all_that_worked_passes_and_no_links_are_worth_a_warning() {
        let found = directory(&place(Maker::Service), &facts(Presence::There));
        assert_eq!(
            (found.outcome, found.subject.as_str()),
            (Outcome::Pass, "vault /nvme/vault")
        );
        let mut without = facts(Presence::There);
        without.link_refused = Some("operation not supported".to_owned());
        let found = directory(&place(Maker::Service), &without);
        assert_eq!(found.outcome, Outcome::Warn);
        assert_eq!(
            found.measured,
            "files are written, synced, renamed and deleted, and not linked: operation not supported"
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
        assert_eq!(nobody.remedy.as_deref(), Some("make it: mkdir -p '/nvme/vault'"));
        let file = directory(&place(Maker::Service), &facts(Presence::NotADirectory));
        assert_eq!(
            (file.outcome, file.measured.as_str()),
            (Outcome::Fail, "it is not a directory")
        );
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
            "it does not exist, and in /nvme: cannot write: no space is left on its filesystem"
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
