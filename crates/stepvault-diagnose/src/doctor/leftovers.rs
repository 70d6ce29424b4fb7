//! Reports what interrupted processes left behind, with its size and age.

use std::time::Duration;

use super::{Check, Finding};
use stepvault_core::disk_facts::{Leftover, LeftoverKind};
use stepvault_core::words;
use stepvault_core::words::shell_word;

pub(super) const CHECK: &str = "leftovers";
/// If it is younger than this, another process may still be writing it.
const YOUNG_SECONDS: u64 = 3600;
/// Maximum number of paths that a finding names.
const NAMED: usize = 3;

/// Every kind, in the order of the findings, with its description.
const KINDS: [(LeftoverKind, &str); 6] = [
    (LeftoverKind::Temporary, "with a temporary name"),
    (LeftoverKind::HalfStep, "of incomplete steps"),
    (LeftoverKind::Vault, "partly sealed or partly deleted"),
    (LeftoverKind::Staging, "of interrupted restores and saves"),
    (LeftoverKind::MovedAside, "moved aside by a restore"),
    (LeftoverKind::Check, "of an earlier check"),
];

fn remedy(kind: LeftoverKind, paths: &str) -> String {
    match kind {
        LeftoverKind::Temporary | LeftoverKind::Check => {
            format!("if no process is still writing them, remove them: rm -r {paths}")
        }
        LeftoverKind::HalfStep => format!(
            "no trainer can resume from them; 'stepvault inspect' shows what each lacks; if no process is still \
             writing them, remove them: rm -r {paths}"
        ),
        LeftoverKind::Vault => {
            "nothing to do: the next start of the agent, or the next 'stepvault push', removes them"
                .to_owned()
        }
        LeftoverKind::Staging => format!(
            "repeat the same restore or save to reuse them; any later one removes those older than a day; or \
             remove them: rm -r {paths}"
        ),
        LeftoverKind::MovedAside => {
            format!(
                "inspect them and remove those you do not need, because stepvault never does: rm -r {paths}"
            )
        }
    }
}

/// Returns one finding for each kind of leftover below a directory; one that passes if there is none.
pub fn leftovers(subject: &str, found: &[Leftover]) -> Vec<Finding> {
    let check = Check::new(CHECK, subject);
    let findings: Vec<Finding> = KINDS
        .iter()
        .filter_map(|(kind, description)| {
            let mut of_kind: Vec<&Leftover> = found.iter().filter(|left| left.kind == *kind).collect();
            of_kind.sort_by_key(|left| std::cmp::Reverse(left.bytes));
            of_one_kind(&check, (*kind, description), &of_kind)
        })
        .collect();
    if findings.is_empty() {
        return vec![check.pass("none")];
    }
    findings
}

/// Returns the first few paths, quoted for a shell, and the number of the others.
pub(super) fn named(paths: &[&str]) -> (String, String) {
    let quoted: Vec<String> = paths.iter().take(NAMED).map(|path| shell_word(path)).collect();
    let more = match paths.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (quoted.join(" "), more)
}

fn of_one_kind(
    check: &Check,
    (kind, description): (LeftoverKind, &str),
    found: &[&Leftover],
) -> Option<Finding> {
    let oldest = found.iter().map(|left| left.age_seconds).max()?;
    let bytes: u64 = found.iter().fold(0, |sum, left| sum.saturating_add(left.bytes));
    let paths: Vec<&str> = found.iter().map(|left| left.path.as_str()).collect();
    let (paths, more) = named(&paths);
    let measured = format!(
        "{} {}, {} in total, the oldest {} old: {paths}{more}",
        words::count(found.len() as u64, "entry"),
        description,
        words::bytes(bytes),
        words::duration(Duration::from_secs(oldest)),
    );
    if oldest < YOUNG_SECONDS {
        return Some(check.pass(format!("{measured}; a process may still be writing them")));
    }
    Some(check.warn(measured, remedy(kind, &paths)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    fn left(kind: LeftoverKind, path: &str, age_seconds: u64) -> Leftover {
        Leftover { kind, path: path.to_owned(), bytes: 3 << 30, entries: 2, age_seconds }
    }

    #[test]
    fn each_kind_is_told_with_size_age_and_remedy() {
        assert_eq!(leftovers("/run", &[])[0].outcome, Outcome::Pass);
        let found = leftovers(
            "/run",
            &[
                left(LeftoverKind::HalfStep, "/run/step_7", 90_000),
                left(LeftoverKind::Temporary, "/run/it's.tmp", 60),
                left(LeftoverKind::Vault, "/vault/staging/0", 7200),
            ],
        );
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].outcome, Outcome::Pass, "young");
        assert!(found[0].measured.contains(r#""/run/it's.tmp""#), "{}", found[0].measured);
        assert_eq!(found[1].outcome, Outcome::Warn);
        assert_eq!(
            found[1].measured,
            "1 entry of incomplete steps, 3.0 GiB in total, the oldest 1day 1h old: /run/step_7"
        );
        assert!(found[1].remedy.as_ref().unwrap().ends_with("rm -r /run/step_7"));
        assert!(found[2].remedy.as_ref().unwrap().starts_with("nothing to do: the next start of the agent"));
    }

    #[test]
    fn many_are_counted_and_some_named() {
        let many: Vec<Leftover> =
            (0..5).map(|number| left(LeftoverKind::Temporary, &format!("/run/{number}.tmp"), 7200)).collect();
        let found = leftovers("/run", &many);
        assert!(found[0].measured.starts_with("5 entries with a temporary name, 15.0 GiB in total"));
        assert!(found[0].measured.ends_with("/run/2.tmp and 2 more"));
    }
}
