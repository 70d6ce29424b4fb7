//! The texts that are recognized in logs and records, each with the cause that it points to, its weight and its
//! source.
//!
//! Patterns are matched against bytes, line by line. Each has an example: the text as its source prints it. The tests
//! match every example against the whole table.

use std::sync::LazyLock;

use serde::Deserialize;

use super::Cause;

/// What a text leaves undetermined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Open {
    /// Nothing.
    #[default]
    Nothing,
    /// Which disk, and whether bytes or inodes ran out.
    WhichSpace,
    /// Why a write failed.
    WhyWrite,
}

/// Recognizes one text.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recogniser {
    /// The cause it points to.
    pub cause: Cause,
    /// How strong it is by itself, from 1 to 100.
    pub weight: u32,
    /// What it leaves undetermined.
    #[serde(default)]
    pub open: Open,
    /// A regular expression over bytes.
    pub pattern: String,
    /// The program or library that prints it.
    pub source: String,
    /// An example line.
    pub example: String,
}

/// Every text, by what it is about.
pub static TEXTS: LazyLock<Vec<Recogniser>> =
    LazyLock::new(|| crate::entries(include_str!("../../texts/logs.toml")));

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use strum::VariantNames as _;

    use super::super::Scanner;
    use super::*;

    #[test]
    fn every_text_is_recognised_for_what_it_speaks_for_and_nothing_else() {
        let scanner = Scanner::default();
        for text in TEXTS.iter() {
            let scan = scanner.scan(text.example.as_bytes()).unwrap();
            let found: Vec<_> = scan.sightings.iter().map(|found| found.recogniser).collect();
            assert!(found.contains(&text), "{:?} does not match {:?}", text.pattern, text.example);
            let causes: BTreeSet<Cause> = found.iter().map(|found| found.cause).collect();
            assert_eq!(causes.len(), 1, "{:?} speaks for {causes:?}", text.example);
        }
    }

    #[test]
    fn every_text_has_a_source_and_a_weight() {
        let mut patterns = BTreeSet::new();
        for text in TEXTS.iter() {
            assert!(patterns.insert(&text.pattern), "twice: {}", text.pattern);
            assert!((1..=100).contains(&text.weight), "{}", text.pattern);
            assert!(!text.source.is_empty() && !text.example.contains('\n'), "{}", text.pattern);
        }
        let spoken_for: BTreeSet<String> = TEXTS.iter().map(|text| text.cause.to_string()).collect();
        for cause in Cause::VARIANTS {
            assert!(spoken_for.contains(*cause), "no text speaks for {cause}");
        }
    }

    /// What trainers print when all is well.
    const HARMLESS: &[&str] = &[
        "INFO Saving checkpoint to /out/checkpoints/step_100",
        "  3%|###       | 300/10000 [01:12<38:11,  4.23it/s, loss=2.31]",
        "2025-06-29 09:30:17,120 - checkpoint_utils - INFO - tr /mnt/checkpoints/checkpoint_20250629-093015_2000.pth",
        "Loading weights from disk done",
        "Rank 0: Final synchronization completed",
        "dist.init_process_group(backend='nccl', timeout=datetime.timedelta(seconds=1800))",
        "Checkpoint saved successfully: ./work_dir/checkpoints/checkpoint_step_1000.pt",
        "git@github.com: Permission denied (publickey).",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.jsonl'",
        "the trainer ended: exit 0",
        "exit code 0, memory 12 GB, disk 40% full",
    ];

    #[test]
    fn what_is_harmless_speaks_for_nothing() {
        let scanner = Scanner::default();
        for line in HARMLESS {
            let scan = scanner.scan(line.as_bytes()).unwrap();
            let found: Vec<_> = scan.sightings.iter().map(|found| &found.recogniser.pattern).collect();
            assert!(found.is_empty(), "{line}: {found:?}");
        }
    }
}
