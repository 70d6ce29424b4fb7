//! What interrupted processes left, with its size and age.

use super::Finding;
use super::words;

pub(super) const CHECK: &str = "leftovers";
/// Younger than this, somebody may still be writing it.
const YOUNG_SECONDS: u64 = 3600;
/// So many paths are named.
const NAMED: usize = 3;

/// What a leftover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something with a name that is only given while writing: `*.tmp`.
    Temporary,
    /// A step that lacks something.
    HalfStep,
    /// The vault's own, which its next start removes.
    Vault,
    /// What interrupted restores and saves wrote.
    Staging,
    /// What a restore moved out of the trainer's way, which nothing removes.
    MovedAside,
    /// What a check like this one left when it was killed.
    Check,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Temporary,
        Self::HalfStep,
        Self::Vault,
        Self::Staging,
        Self::MovedAside,
        Self::Check,
    ];

    const fn words(self) -> &'static str {
        match self {
            Self::Temporary => "with a temporary name",
            Self::HalfStep => "of steps that are not whole",
            Self::Vault => "half sealed or half deleted",
            Self::Staging => "of restores and saves that did not end",
            Self::MovedAside => "moved out of a trainer's way",
            Self::Check => "of an earlier check",
        }
    }

    fn remedy(self, paths: &str) -> String {
        match self {
            Self::Temporary | Self::Check => {
                format!("if nothing is writing them any more, remove them: rm -r {paths}")
            }
            Self::HalfStep => format!(
                "no trainer can go on from them; 'stepvault inspect' says what each lacks; if nothing is writing them any \
                 more, remove them: rm -r {paths}"
            ),
            Self::Vault => {
                "the next start of the agent, or the next 'stepvault push', removes them".to_owned()
            }
            Self::Staging => format!(
                "the same restore or save again goes on with them, and the next one removes what is older than a day; \
                 or remove them: rm -r {paths}"
            ),
            Self::MovedAside => {
                format!("nothing removes them: look at them, and remove what is not needed: rm -r {paths}")
            }
        }
    }
}

/// Something that was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// What it is.
    pub kind: Kind,
    /// Where it is.
    pub path: String,
    /// Bytes of all files in it.
    pub bytes: u64,
    /// Files and directories.
    pub entries: u64,
    /// Since anything in it was written.
    pub age_seconds: u64,
}

/// One finding for each kind that was found below a directory; one that passes when there is nothing.
pub fn leftovers(subject: &str, found: &[Leftover]) -> Vec<Finding> {
    let findings: Vec<Finding> = Kind::ALL
        .iter()
        .filter_map(|kind| {
            let mut of_kind: Vec<&Leftover> = found.iter().filter(|left| left.kind == *kind).collect();
            of_kind.sort_by_key(|left| std::cmp::Reverse(left.bytes));
            of_one_kind(subject, *kind, &of_kind)
        })
        .collect();
    if findings.is_empty() {
        return vec![Finding::pass(CHECK, subject, "none")];
    }
    findings
}

/// The first few paths as words of a shell, and how many there are besides.
pub(super) fn named(paths: &[&str]) -> (String, String) {
    let quoted: Vec<String> = paths
        .iter()
        .take(NAMED)
        .map(|path| format!("'{}'", path.replace('\'', "'\\''")))
        .collect();
    let more = match paths.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (quoted.join(" "), more)
}

fn of_one_kind(subject: &str, kind: Kind, found: &[&Leftover]) -> Option<Finding> {
    let oldest = found.iter().map(|left| left.age_seconds).max()?;
    let bytes: u64 = found.iter().fold(0, |sum, left| sum.saturating_add(left.bytes));
    let paths: Vec<&str> = found.iter().map(|left| left.path.as_str()).collect();
    let (paths, more) = named(&paths);
    let measured = format!(
        "{} {}, {} in all, the oldest {} old: {paths}{more}",
        words::count(found.len() as u64, "entry"),
        kind.words(),
        words::bytes(bytes),
        words::whole_seconds(oldest),
    );
    if oldest < YOUNG_SECONDS {
        let measured = format!("{measured}; somebody may still be writing");
        return Some(Finding::pass(CHECK, subject, measured));
    }
    Some(Finding::warn(CHECK, subject, measured, kind.remedy(&paths)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    fn left(kind: Kind, path: &str, age_seconds: u64) -> Leftover {
        Leftover {
            kind,
            path: path.to_owned(),
            bytes: 3 << 30,
            entries: 2,
            age_seconds,
        }
    }

    #[test]
    fn each_kind_is_told_with_size_age_and_remedy() {
        assert_eq!(leftovers("/run", &[])[0].outcome, Outcome::Pass);
        let found = leftovers(
            "/run",
            &[
                left(Kind::HalfStep, "/run/step_7", 90_000),
                left(Kind::Temporary, "/run/it's.tmp", 60),
                left(Kind::Vault, "/vault/staging/0", 7200),
            ],
        );
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].outcome, Outcome::Pass, "young");
        assert!(
            found[0].measured.contains(r"'/run/it'\''s.tmp'"),
            "{}",
            found[0].measured
        );
        assert_eq!(found[1].outcome, Outcome::Warn);
        assert_eq!(
            found[1].measured,
            "1 entry of steps that are not whole, 3.0 GiB in all, the oldest 1day 1h old: '/run/step_7'"
        );
        assert!(found[1].remedy.as_ref().unwrap().ends_with("rm -r '/run/step_7'"));
        assert!(
            found[2]
                .remedy
                .as_ref()
                .unwrap()
                .starts_with("the next start of the agent")
        );
    }

    #[test]
    fn many_are_counted_and_some_named() {
        let many: Vec<Leftover> = (0..5)
            .map(|number| left(Kind::Temporary, &format!("/run/{number}.tmp"), 7200))
            .collect();
        let found = leftovers("/run", &many);
        assert!(
            found[0]
                .measured
                .starts_with("5 entries with a temporary name, 15.0 GiB in all")
        );
        assert!(found[0].measured.ends_with("'/run/2.tmp' and 2 more"));
    }
}
