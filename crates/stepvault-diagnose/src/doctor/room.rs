//! Compares free bytes and inodes with what the next steps need.

use super::Finding;
use super::forecast::Forecast;
use stepvault_core::room::Room;
use stepvault_core::words;

/// Files and directories of each step in the vault other than its own: its records, its journal, its names.
pub const RECORDS_OF_A_STEP: u64 = 12;

/// With room for fewer steps than this the disk is soon full.
const FEW_STEPS: u64 = 3;
/// Less than this is little, whatever the size of the steps.
const LITTLE_BYTES: u64 = 1 << 30;
const LITTLE_INODES: u64 = 1000;

/// What the next step needs on one filesystem, in all directories on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// The source of these numbers.
    pub source: String,
}

/// What limits the space, which sets the names of the two checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The filesystem's.
    Filesystem,
    /// The quota of this user.
    Quota,
}

impl Limit {
    const fn checks(self) -> (&'static str, &'static str) {
        match self {
            Self::Filesystem => ("free bytes", "free inodes"),
            Self::Quota => ("quota bytes", "quota inodes"),
        }
    }

    const fn more_bytes(self) -> &'static str {
        match self {
            Self::Filesystem => {
                "delete files you do not need, keep fewer steps ([keep.local] last, and the trainer's own limit), or \
                 use a larger disk"
            }
            Self::Quota => "delete files of this user, keep fewer steps, or have the quota raised",
        }
    }

    const fn more_inodes(self) -> &'static str {
        match self {
            Self::Filesystem => {
                "delete files (many small ones use up inodes, df -i shows it), or use a filesystem made with more \
                 inodes: mkfs.ext4 -i, or XFS"
            }
            Self::Quota => "delete files of this user, or have the quota on files raised",
        }
    }
}

/// Returns the findings on room for the next steps: one for bytes, one for inodes if they are limited.
pub fn room(subject: &str, limit: Limit, room: &Room, demand: Option<&Demand>) -> Vec<Finding> {
    let (bytes_check, inodes_check) = limit.checks();
    let left = format!(
        "{} of {}",
        words::bytes(room.free_bytes),
        words::bytes(room.total_bytes)
    );
    let mut findings = vec![judge(
        &Case {
            check: bytes_check,
            subject,
            left: format!("{left} free"),
            little: LITTLE_BYTES,
            more: limit.more_bytes(),
        },
        room.free_bytes,
        demand.map(|demand| (demand.bytes, words::bytes(demand.bytes), demand)),
    )];
    if let (Some(free), Some(total)) = (room.free_inodes, room.total_inodes) {
        findings.push(judge(
            &Case {
                check: inodes_check,
                subject,
                left: format!("{free} of {total} free"),
                little: LITTLE_INODES,
                more: limit.more_inodes(),
            },
            free,
            demand.map(|demand| (demand.inodes, words::count(demand.inodes, "inode"), demand)),
        ));
    }
    findings
}

/// Returns the finding on a directory for temporary files. Some frameworks that write to an object store's URL write a
/// whole step there first, others nothing: too little space is a warning, and none a failure.
pub fn temporary(subject: &str, room: &Room, largest: Option<&Forecast>) -> Vec<Finding> {
    const MORE: &str =
        "free some space there, or export TMPDIR=/a/directory on a larger disk where the trainer is started";
    let left = format!(
        "{} of {} free",
        words::bytes(room.free_bytes),
        words::bytes(room.total_bytes)
    );
    if room.free_bytes == 0 || room.free_inodes == Some(0) {
        let what = if room.free_bytes == 0 {
            left
        } else {
            format!("{left}, but no inodes")
        };
        return vec![Finding::fail("temporary space", subject, what, MORE)];
    }
    let needed = largest.map_or(LITTLE_BYTES, |forecast| forecast.taken.bytes);
    if room.free_bytes < needed {
        let measured = format!(
            "{left}: less than {}; frameworks that save to an object store's URL write a whole step there first",
            words::bytes(needed)
        );
        return vec![Finding::warn("temporary space", subject, measured, MORE)];
    }
    if room.lacks_inodes(LITTLE_INODES) {
        let inodes = room.free_inodes.unwrap_or_default();
        let measured = format!("{left}, and {}", words::count(inodes, "inode"));
        return vec![Finding::warn("temporary space", subject, measured, MORE)];
    }
    vec![Finding::pass("temporary space", subject, left)]
}

/// The inputs of one of the two checks.
struct Case<'a> {
    check: &'a str,
    subject: &'a str,
    left: String,
    little: u64,
    more: &'a str,
}

fn judge(case: &Case<'_>, free: u64, demand: Option<(u64, String, &Demand)>) -> Finding {
    let Case {
        check,
        subject,
        left,
        little,
        more,
    } = case;
    if free == 0 {
        return Finding::fail(check, *subject, left.clone(), *more);
    }
    let Some((each, text, demand)) = demand.filter(|(each, ..)| *each > 0) else {
        let measured = format!("{left}; the size of the next step is unknown");
        if free < *little {
            return Finding::warn(check, *subject, measured, *more);
        }
        return Finding::pass(check, *subject, measured);
    };
    let fits = free / each;
    let room_for = match fits {
        0 => "it does not fit".to_owned(),
        _ => format!("room for {fits}"),
    };
    let measured = format!(
        "{left}; the next step takes {text} (by {}): {room_for}",
        demand.source
    );
    match fits {
        0 => Finding::fail(check, *subject, measured, *more),
        1..FEW_STEPS => Finding::warn(check, *subject, measured, *more),
        _ => Finding::pass(check, *subject, measured),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use stepvault_core::forecast::Taken;

    const GIB: u64 = 1 << 30;

    fn found(free_bytes: u64, free_inodes: Option<u64>, step: Option<(u64, u64)>) -> Vec<Finding> {
        let facts = Room {
            free_bytes,
            total_bytes: 100 * GIB,
            free_inodes,
            total_inodes: free_inodes.map(|_| 1_000_000),
        };
        let demand = step.map(|(bytes, inodes)| Demand {
            bytes,
            inodes,
            source: "the newest 3 steps in the vault".to_owned(),
        });
        room("vault on /nvme", Limit::Filesystem, &facts, demand.as_ref())
    }

    fn outcomes(findings: &[Finding]) -> Vec<Outcome> {
        findings.iter().map(|finding| finding.outcome).collect()
    }

    #[test]
    fn the_next_step_has_to_fit_and_a_few_after_it_should() {
        let few = found(25 * GIB, Some(30), Some((10 * GIB, 50)));
        assert_eq!(outcomes(&few), [Outcome::Warn, Outcome::Fail]);
        assert_eq!(
            few[0].measured,
            "25.0 GiB of 100.0 GiB free; the next step takes 10.0 GiB (by the newest 3 steps in the vault): room for 2"
        );
        assert_eq!(
            few[1].measured,
            "30 of 1000000 free; the next step takes 50 inodes (by the newest 3 steps in the vault): it does not fit"
        );
        assert!(few[1].remedy.as_ref().unwrap().contains("df -i"));
        let enough = found(50 * GIB, Some(1000), Some((10 * GIB, 50)));
        assert_eq!(outcomes(&enough), [Outcome::Pass, Outcome::Pass]);
    }

    #[test]
    fn without_a_step_only_little_is_said() {
        assert_eq!(outcomes(&found(50 * GIB, None, None)), [Outcome::Pass]);
        assert_eq!(
            outcomes(&found(1, Some(10), None)),
            [Outcome::Warn, Outcome::Warn]
        );
        let full = found(0, Some(0), None);
        assert_eq!(outcomes(&full), [Outcome::Fail, Outcome::Fail]);
        assert_eq!(full[0].measured, "0 B of 100.0 GiB free");
    }

    #[test]
    fn a_step_should_fit_among_the_temporary_files() {
        let mut facts = Room {
            free_bytes: 2 * GIB,
            total_bytes: 4 * GIB,
            free_inodes: None,
            total_inodes: None,
        };
        let forecast = Forecast {
            taken: Taken {
                bytes: 125_000_000_000,
                files: 1,
                directories: 1,
            },
            interval_seconds: None,
            interval_steps: None,
            source: "x".to_owned(),
        };
        let found = temporary("TMPDIR on /tmp", &facts, Some(&forecast));
        assert_eq!(found[0].outcome, Outcome::Warn);
        assert_eq!(
            found[0].measured,
            "2.0 GiB of 4.0 GiB free: less than 116.4 GiB; frameworks that save to an object store's URL write a \
             whole step there first"
        );
        assert_eq!(temporary("x", &facts, None)[0].outcome, Outcome::Pass);
        facts.free_inodes = Some(0);
        let found = temporary("x", &facts, None);
        assert_eq!(found[0].outcome, Outcome::Fail);
        assert_eq!(found[0].measured, "2.0 GiB of 4.0 GiB free, but no inodes");
    }

    #[test]
    fn a_quota_has_checks_of_its_own() {
        let facts = Room {
            free_bytes: 0,
            total_bytes: GIB,
            free_inodes: None,
            total_inodes: None,
        };
        let found = room("/nvme", Limit::Quota, &facts, None);
        assert_eq!(
            (found[0].check.as_str(), found[0].outcome),
            ("quota bytes", Outcome::Fail)
        );
        assert!(found[0].remedy.as_ref().unwrap().contains("quota raised"));
    }
}
