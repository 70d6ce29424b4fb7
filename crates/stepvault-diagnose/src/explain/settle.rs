//! Refines evidence with other evidence: which disk an unspecific text is about, and what causes a restart loop.

use super::texts::Open;
use super::{Cause, Evidence, EvidenceSource};

/// Returns the evidence, each piece with the cause that it points to when all evidence is considered, and the
/// directories of the checkpoints and for temporary files.
///
/// A text that names a file in a directory for temporary files is about the disk of that directory. A text that does
/// not say which disk it is about, or why a write failed, points to the fault that exists now. A restart loop together
/// with a start command that fails because a path already exists points to the existing path too.
pub fn settled(mut evidence: Vec<Evidence>, checkpoints: &[String], temporary: &[String]) -> Vec<Evidence> {
    for piece in &mut evidence {
        if piece.cause == Cause::DiskFull && is_about_temporary(piece, checkpoints, temporary) {
            piece.cause = Cause::TemporaryDirectoryFull;
            piece.open = Open::Nothing;
        }
    }
    let present = |fits: fn(Cause) -> bool| {
        let is_now = |piece: &&Evidence| piece.kind == EvidenceSource::Measured && fits(piece.cause);
        // The first of the strongest.
        let strongest = evidence.iter().rev().filter(is_now).max_by_key(|piece| piece.points());
        strongest.map(|piece| piece.cause)
    };
    let of_space = present(Cause::is_of_space);
    let of_writes = present(Cause::is_of_writes);
    for piece in &mut evidence {
        let cause = match piece.open {
            Open::Nothing => None,
            Open::WhichSpace => of_space,
            Open::WhyWrite => of_writes,
        };
        piece.cause = cause.unwrap_or(piece.cause);
    }
    let start_fails = evidence.iter().any(|piece| piece.cause == Cause::PathExists);
    let loops: Vec<Evidence> = evidence
        .iter()
        // Logs only repeat that text.
        .filter(|piece| start_fails && piece.cause == Cause::RestartLoop && piece.kind != EvidenceSource::Log)
        .cloned()
        .collect();
    evidence.extend(loops.into_iter().map(|piece| Evidence { cause: Cause::PathExists, ..piece }));
    evidence
}

/// Returns whether the quoted text names a temporary file that is not a checkpoint.
fn is_about_temporary(piece: &Evidence, checkpoints: &[String], temporary: &[String]) -> bool {
    let Some(quote) = &piece.quote else { return false };
    let names = |directories: &[String]| {
        directories
            .iter()
            .map(|directory| directory.trim_end_matches('/'))
            .any(|directory| !directory.is_empty() && quote.contains(&format!("{directory}/")))
    };
    names(temporary) && !names(checkpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cause: Cause, open: Open, quote: &str) -> Evidence {
        Evidence {
            kind: EvidenceSource::Log,
            open,
            quote: Some(quote.to_owned()),
            ..Evidence::now(cause, 60, "said")
        }
    }

    fn causes(evidence: Vec<Evidence>) -> Vec<Cause> {
        let temporary = ["/tmp".to_owned(), "/scratch/tmp/".to_owned()];
        settled(evidence, &["/tmp/run/out".to_owned()], &temporary).iter().map(|piece| piece.cause).collect()
    }

    #[test]
    fn a_text_is_about_the_disk_of_the_file_it_names() {
        let full = |quote| vec![said(Cause::DiskFull, Open::WhichSpace, quote)];
        let temporary = [Cause::TemporaryDirectoryFull];
        assert_eq!(causes(full("No space left on device: '/tmp/tmpab12/x'")), temporary);
        assert_eq!(causes(full("No space left on device: '/scratch/tmp/x'")), temporary);
        for quote in [
            "No space left on device: '/tmp/run/out/step_2.pt'",
            "No space left on device: '/data/x'",
            "No space left on device",
        ] {
            assert_eq!(causes(full(quote)), [Cause::DiskFull], "{quote}");
        }
    }

    #[test]
    fn a_vague_text_speaks_for_the_fault_that_is_there_now() {
        let inodes = Evidence::now(Cause::InodesFull, 60, "0 free");
        let space = said(Cause::DiskFull, Open::WhichSpace, "No space left on device");
        assert_eq!(causes(vec![space.clone(), inodes]), [Cause::InodesFull, Cause::InodesFull]);
        let read_only = Evidence::now(Cause::ReadOnly, 60, "ro");
        let write = said(Cause::DiskFull, Open::WhyWrite, "file write failed");
        assert_eq!(
            causes(vec![write, space, read_only]),
            [Cause::ReadOnly, Cause::DiskFull, Cause::ReadOnly],
            "that no space was left is no word on rights"
        );
    }

    #[test]
    fn a_loop_of_starts_that_fail_speaks_for_what_they_fail_over() {
        let looped = Evidence::left(Cause::RestartLoop, 60, "5 starts");
        let clone = said(Cause::PathExists, Open::Nothing, "already exists");
        assert_eq!(
            causes(vec![looped.clone(), clone]),
            [Cause::RestartLoop, Cause::PathExists, Cause::PathExists]
        );
        assert_eq!(causes(vec![looped]), [Cause::RestartLoop]);
    }
}
