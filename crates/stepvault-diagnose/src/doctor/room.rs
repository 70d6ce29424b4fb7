//! Compares free bytes and inodes with what the next steps need.

use super::forecast::Forecast;
use super::{Check, Finding};
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

/// What limits the space: the names of its two checks, and how to get more.
#[derive(Debug)]
pub struct Limit {
    bytes: &'static str,
    inodes: &'static str,
    more_bytes: &'static str,
    more_inodes: &'static str,
}

impl Limit {
    /// The filesystem's.
    pub const FILESYSTEM: Self = Self {
        bytes: "free bytes",
        inodes: "free inodes",
        more_bytes: "delete files you do not need, keep fewer steps ([keep.local] last, and the trainer's own limit), \
                     or use a larger disk",
        more_inodes: "delete files (many small ones use up inodes, df -i shows it), or use a filesystem made with more \
                      inodes: mkfs.ext4 -i, or XFS",
    };
    /// The quota of this user.
    pub const QUOTA: Self = Self {
        bytes: "quota bytes",
        inodes: "quota inodes",
        more_bytes: "delete files of this user, keep fewer steps, or have the quota raised",
        more_inodes: "delete files of this user, or have the quota on files raised",
    };
}

/// Returns the findings on room for the next steps: one for bytes, one for inodes if they are limited.
pub fn room(subject: &str, limit: &Limit, room: &Room, demand: Option<&Demand>) -> Vec<Finding> {
    let check = Check::new(limit.bytes, subject)
        .with("free_bytes", room.free_bytes)
        .with("total_bytes", room.total_bytes);
    let needed = demand.map(|demand| (demand.bytes, words::bytes(demand.bytes), demand));
    let mut findings =
        vec![supply(&check, room.free_bytes, &free_bytes(room), LITTLE_BYTES, limit.more_bytes, needed)];
    if let (Some(free), Some(total)) = (room.free_inodes, room.total_inodes) {
        let check = Check::new(limit.inodes, subject).with("free_inodes", free).with("total_inodes", total);
        let left = format!("{free} of {total} free");
        let needed = demand.map(|demand| (demand.inodes, words::count(demand.inodes, "inode"), demand));
        findings.push(supply(&check, free, &left, LITTLE_INODES, limit.more_inodes, needed));
    }
    findings
}

/// Judges the free bytes or the free inodes. `demand` is what the next step needs, as a number and as text.
fn supply(
    check: &Check,
    free: u64,
    left: &str,
    little: u64,
    more: &str,
    demand: Option<(u64, String, &Demand)>,
) -> Finding {
    if free == 0 {
        return check.fail(left, more);
    }
    let Some((each, text, demand)) = demand.filter(|(each, ..)| *each > 0) else {
        let measured = format!("{left}; the size of the next step is unknown");
        return check.pass_or_warn(free >= little, measured, more);
    };
    let measured = format!("{left}; the next step takes {text} (by {})", demand.source);
    let fits = free / each;
    let check = check.clone().with("fits_steps", fits);
    match fits {
        0 => check.fail(format!("{measured}: it does not fit"), more),
        fits @ 1..FEW_STEPS => check.warn(format!("{measured}: room for {fits}"), more),
        fits => check.pass(format!("{measured}: room for {fits}")),
    }
}

fn free_bytes(room: &Room) -> String {
    format!("{} of {} free", words::bytes(room.free_bytes), words::bytes(room.total_bytes))
}

/// Returns the finding on a directory for temporary files. Some frameworks that write to an object store's URL write a
/// whole step there first, others nothing: too little space is a warning, and none a failure.
pub fn temporary(subject: &str, room: &Room, largest: Option<&Forecast>) -> Finding {
    const MORE: &str =
        "free some space there, or export TMPDIR=/a/directory on a larger disk where the trainer is started";
    let check = Check::new("temporary space", subject).with("free_bytes", room.free_bytes);
    let left = free_bytes(room);
    if room.free_bytes == 0 {
        return check.fail(left, MORE);
    }
    if room.free_inodes == Some(0) {
        return check.fail(format!("{left}, but no inodes"), MORE);
    }
    let needed = largest.map_or(LITTLE_BYTES, |forecast| forecast.taken.bytes);
    if room.free_bytes < needed {
        let measured = format!(
            "{left}: less than {}; frameworks that save to an object store's URL write a whole step there first",
            words::bytes(needed)
        );
        return check.warn(measured, MORE);
    }
    if room.lacks_inodes(LITTLE_INODES) {
        let inodes = room.free_inodes.unwrap_or_default();
        return check.warn(format!("{left}, and {}", words::count(inodes, "inode")), MORE);
    }
    check.pass(left)
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
        room("vault on /nvme", &Limit::FILESYSTEM, &facts, demand.as_ref())
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
        assert_eq!(outcomes(&found(1, Some(10), None)), [Outcome::Warn, Outcome::Warn]);
        let full = found(0, Some(0), None);
        assert_eq!(outcomes(&full), [Outcome::Fail, Outcome::Fail]);
        assert_eq!(full[0].measured, "0 B of 100.0 GiB free");
    }

    #[test]
    fn a_step_should_fit_among_the_temporary_files() {
        let mut facts =
            Room { free_bytes: 2 * GIB, total_bytes: 4 * GIB, free_inodes: None, total_inodes: None };
        let forecast = Forecast {
            taken: Taken { bytes: 125_000_000_000, files: 1, directories: 1 },
            interval_seconds: None,
            interval_steps: None,
            source: "x".to_owned(),
        };
        let found = temporary("TMPDIR on /tmp", &facts, Some(&forecast));
        assert_eq!(found.outcome, Outcome::Warn);
        assert_eq!(
            found.measured,
            "2.0 GiB of 4.0 GiB free: less than 116.4 GiB; frameworks that save to an object store's URL write a \
             whole step there first"
        );
        assert_eq!(temporary("x", &facts, None).outcome, Outcome::Pass);
        facts.free_inodes = Some(0);
        let found = temporary("x", &facts, None);
        assert_eq!(found.outcome, Outcome::Fail);
        assert_eq!(found.measured, "2.0 GiB of 4.0 GiB free, but no inodes");
    }

    #[test]
    fn a_quota_has_checks_of_its_own() {
        let facts = Room { free_bytes: 0, total_bytes: GIB, free_inodes: None, total_inodes: None };
        let found = room("/nvme", &Limit::QUOTA, &facts, None);
        assert_eq!((found[0].check, found[0].outcome), ("quota bytes", Outcome::Fail));
        assert!(found[0].remedy.as_ref().unwrap().contains("quota raised"));
    }
}
