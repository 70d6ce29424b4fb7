//! Adds up the evidence, once what outweighs it is settled.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use strum::VariantNames as _;

use super::texts::Open;
use super::{Cause, Evidence, EvidenceSource};

/// Maximum number of pieces of evidence that are reported for one cause.
const MAXIMUM_TOLD: usize = 8;
/// Points from which a cause is likely, and very likely.
const LIKELY: u32 = 40;
const VERY_LIKELY: u32 = 90;

/// How likely a cause is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
pub enum Likelihood {
    /// There is some evidence for it.
    Possible,
    /// A log names it, or it is visible on disk.
    Likely,
    /// It is true now, or several pieces of evidence support it.
    #[strum(serialize = "very likely")]
    VeryLikely,
}

/// A cause with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explanation {
    /// The cause.
    #[schemars(with = "String", extend("enum" = Cause::VARIANTS))]
    pub cause: Cause,
    /// How likely it is: very likely from 90 points, likely from 40.
    pub likelihood: Likelihood,
    /// The sum of its evidence; comparable only within one document.
    pub points: u32,
    /// The evidence for it, the strongest first, at most 8 pieces.
    pub evidence: Vec<Evidence>,
}

/// Returns the causes for which there is evidence, the likeliest first.
///
/// The pieces of one cause are added up, each with half the weight of the one before it, so that a log that says one
/// thing in ten ways does not outweigh a fact. Among causes with equal points, the one with the most recent evidence
/// comes first. A restart loop comes after what is as likely: that may be why each start fails.
pub fn explanations(evidence: Vec<Evidence>) -> Vec<Explanation> {
    let mut by_cause: BTreeMap<Cause, Vec<Evidence>> = BTreeMap::new();
    for piece in evidence {
        by_cause.entry(piece.cause).or_default().push(piece);
    }
    let mut found: Vec<Explanation> =
        by_cause.into_iter().map(|(cause, evidence)| explanation(cause, evidence)).collect();
    found.sort_by_key(|found| {
        let latest = found.evidence.iter().map(|piece| piece.recency).max();
        let is_loop = found.cause == Cause::RestartLoop;
        (Reverse(found.likelihood), is_loop, Reverse(found.points), Reverse(latest), found.cause)
    });
    found
}

fn explanation(cause: Cause, mut evidence: Vec<Evidence>) -> Explanation {
    evidence.sort_by_key(|piece| (Reverse(piece.points()), piece.kind, Reverse(piece.recency)));
    evidence.dedup();
    evidence.truncate(MAXIMUM_TOLD);
    let in_order = evidence.iter().enumerate();
    let points = in_order.map(|(position, piece)| piece.points() >> position).sum();
    Explanation {
        cause,
        likelihood: match points {
            VERY_LIKELY.. => Likelihood::VeryLikely,
            LIKELY.. => Likelihood::Likely,
            _ => Likelihood::Possible,
        },
        points,
        evidence,
    }
}

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

    fn said(cause: Cause, weight: u32, recency: u32) -> Evidence {
        Evidence {
            kind: EvidenceSource::Log,
            ..Evidence::now(cause, weight, format!("{cause:?} {weight}")).earlier(recency)
        }
    }

    fn order(evidence: &[Evidence]) -> Vec<Cause> {
        let found = explanations(evidence.to_vec());
        found.iter().map(|found| found.cause).collect()
    }

    #[test]
    fn nothing_speaks_for_nothing() {
        assert_eq!(explanations(Vec::new()), []);
    }

    #[test]
    fn what_is_so_now_beats_what_a_log_says() {
        let now = Evidence::now(Cause::ReadOnly, 60, "it is");
        let found = explanations(vec![said(Cause::DiskFull, 60, 1000), now]);
        assert_eq!(found[0].cause, Cause::ReadOnly);
        assert_eq!(found[0].likelihood, Likelihood::VeryLikely);
        assert_eq!(found[1].likelihood, Likelihood::Likely);
        let left = Evidence::left(Cause::InterruptedSave, 40, "torn");
        assert_eq!(order(&[said(Cause::TimeOut, 45, 1000), left]), [Cause::InterruptedSave, Cause::TimeOut]);
    }

    #[test]
    fn of_equals_the_later_comes_first() {
        let evidence = [said(Cause::DiskFull, 60, 100), said(Cause::OutOfMemory, 60, 900)];
        assert_eq!(order(&evidence), [Cause::OutOfMemory, Cause::DiskFull]);
        // A consequence at the end of the log does not hide the cause before it.
        let evidence = [said(Cause::DiskFull, 60, 100), said(Cause::TimeOut, 45, 1000)];
        assert_eq!(order(&evidence), [Cause::DiskFull, Cause::TimeOut]);
    }

    #[test]
    fn what_makes_each_start_fail_comes_before_the_loop_of_starts() {
        let looped = Evidence::now(Cause::RestartLoop, 90, "6 starts");
        let evidence = [
            looped.clone(),
            said(Cause::RestartLoop, 60, 900),
            Evidence::now(Cause::PathExists, 60, "it exists"),
        ];
        assert_eq!(order(&evidence), [Cause::PathExists, Cause::RestartLoop]);
        assert_eq!(
            order(&[looped, said(Cause::PathExists, 45, 900)]),
            [Cause::RestartLoop, Cause::PathExists]
        );
    }

    #[test]
    fn pieces_add_up_and_many_weak_ones_do_not_outweigh_a_fact() {
        let twice = [
            said(Cause::OutOfMemory, 60, 500),
            said(Cause::DiskFull, 50, 500),
            said(Cause::DiskFull, 40, 500),
        ];
        assert_eq!(order(&twice), [Cause::DiskFull, Cause::OutOfMemory]);
        let mut many: Vec<Evidence> = (0..50).map(|index| said(Cause::TimeOut, 40, index)).collect();
        many.push(Evidence::now(Cause::DiskFull, 60, "full"));
        let found = explanations(many);
        assert_eq!(found[0].cause, Cause::DiskFull);
        assert_eq!(found[1].evidence.len(), MAXIMUM_TOLD);
    }

    fn quoted(cause: Cause, open: Open, quote: &str) -> Evidence {
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
        let full = |quote| vec![quoted(Cause::DiskFull, Open::WhichSpace, quote)];
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
        let space = quoted(Cause::DiskFull, Open::WhichSpace, "No space left on device");
        assert_eq!(causes(vec![space.clone(), inodes]), [Cause::InodesFull, Cause::InodesFull]);
        let read_only = Evidence::now(Cause::ReadOnly, 60, "ro");
        let write = quoted(Cause::DiskFull, Open::WhyWrite, "file write failed");
        assert_eq!(
            causes(vec![write, space, read_only]),
            [Cause::ReadOnly, Cause::DiskFull, Cause::ReadOnly],
            "that no space was left is no word on rights"
        );
    }

    #[test]
    fn a_loop_of_starts_that_fail_speaks_for_what_they_fail_over() {
        let looped = Evidence::left(Cause::RestartLoop, 60, "5 starts");
        let clone = quoted(Cause::PathExists, Open::Nothing, "already exists");
        assert_eq!(
            causes(vec![looped.clone(), clone]),
            [Cause::RestartLoop, Cause::PathExists, Cause::PathExists]
        );
        assert_eq!(causes(vec![looped]), [Cause::RestartLoop]);
    }
}
