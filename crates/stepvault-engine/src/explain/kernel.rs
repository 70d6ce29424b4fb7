//! Reads the kernel's log: messages about the whole machine, and about the checked disks.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind};
use stepvault_diagnose::explain::{Cause, Scanner, evidence_of};
use stepvault_local::log_source::kernel_log;

use super::gathered::{Gathered, PLACE_DEADLINE, within};

const NAME: &str = "the kernel's log";
/// How far back the log is read.
const WITHIN: Duration = Duration::from_hours(24);

/// Reads the log, if permitted. Messages about disks count only for `devices`.
pub(super) async fn gather(devices: Vec<String>, scanner: &Arc<Scanner>, gathered: &mut Gathered) {
    let scanner = Arc::clone(scanner);
    let look = move || match kernel_log(WITHIN) {
        Ok(text) => scanner
            .scan(about(&text, &devices, &scanner).as_slice())
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot read it").caused_by(error)),
        Err(why) => Err(Error::new(ErrorKind::Denied, why)),
    };
    match within(PLACE_DEADLINE, look).await {
        Ok(scan) => {
            let mut evidence = evidence_of(&scan, NAME, 1000, 0);
            for piece in &mut evidence {
                // It may concern other processes than the run's.
                piece.weight /= 2;
                // Users could not look it up at that position.
                piece.position.line = None;
                piece.position.offset_bytes = Some(0);
            }
            gathered.evidence.extend(evidence);
        }
        Err(error) => gathered.miss(NAME, &error, false),
    }
}

/// Returns the lines without those about other disks.
fn about(text: &[u8], devices: &[String], scanner: &Scanner) -> Vec<u8> {
    let mut kept = Vec::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let words = String::from_utf8_lossy(line);
        let found = scanner.recognise(words.trim_end());
        let is_of_disks = found.iter().any(|text| matches!(text.cause, Cause::ReadOnly | Cause::DiskFault));
        if !is_of_disks || devices.iter().any(|device| names(&words, device)) {
            kept.extend_from_slice(line);
        }
    }
    kept
}

/// Whether a line names the device, and not one whose name merely begins with it.
fn names(line: &str, device: &str) -> bool {
    line.split(|character: char| !character.is_ascii_alphanumeric() && character != '_')
        .any(|word| word == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_disks_do_not_count() {
        let text = "EXT4-fs (sdb1): Remounting filesystem read-only\n\
                    blk_update_request: I/O error, dev sdb, sector 8\n\
                    Aborting journal on device sdb12-8.\n\
                    Out of memory: Killed process 12 (python)\n";
        let about = |devices: &[&str]| {
            let devices: Vec<String> = devices.iter().map(|&device| device.to_owned()).collect();
            let kept = about(text.as_bytes(), &devices, &Scanner::default());
            String::from_utf8(kept).unwrap().lines().count()
        };
        assert_eq!(about(&[]), 1);
        assert_eq!(about(&["sdb1"]), 2);
        assert_eq!(about(&["sdb1", "sdb"]), 3);
    }
}
