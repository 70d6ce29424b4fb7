//! The texts that are recognized in logs and records, each with the cause that it points to, its weight and its
//! source.
//!
//! Patterns are matched against bytes, line by line. Each has an example: the text as its source prints it. The tests
//! match every example against the whole table.

mod disk;
mod memory;
mod recogniser;
mod start;
mod stores;
mod time;
mod torn;

pub use recogniser::{Open, Recogniser};

const TABLES: [&[Recogniser]; 6] =
    [disk::TEXTS, memory::TEXTS, start::TEXTS, time::TEXTS, stores::TEXTS, torn::TEXTS];

/// Returns every recognizer.
pub fn all() -> impl Iterator<Item = &'static Recogniser> {
    TABLES.iter().flat_map(|table| table.iter())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Scanner;
    use super::*;
    use crate::explain::Cause;

    #[test]
    fn every_text_is_recognised_for_what_it_speaks_for_and_nothing_else() {
        let scanner = Scanner::new();
        for text in all() {
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
        for text in all() {
            assert!(patterns.insert(text.pattern), "twice: {}", text.pattern);
            assert!((1..=100).contains(&text.weight), "{}", text.pattern);
            assert!(!text.source.is_empty() && !text.example.contains('\n'), "{}", text.pattern);
        }
        let spoken_for: BTreeSet<Cause> = all().map(|text| text.cause).collect();
        for cause in Cause::ALL {
            assert!(spoken_for.contains(&cause), "no text speaks for {cause:?}");
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
        let scanner = Scanner::new();
        for line in HARMLESS {
            let scan = scanner.scan(line.as_bytes()).unwrap();
            let found: Vec<_> = scan.sightings.iter().map(|found| found.recogniser.pattern).collect();
            assert!(found.is_empty(), "{line}: {found:?}");
        }
    }
}
