//! Rules that decide when a step is complete.

use stepvault_core::timestamp::Timestamp;

use crate::temporary::{is_temporary, is_unfinished_file};

/// The proof that a step is complete. The framework that wrote the step determines the rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The framework writes under a temporary name and renames: a step with its final name is complete.
    Rename,
    /// The framework writes this file last.
    Marker {
        /// The file, relative to the step's directory.
        file: String,
    },
    /// No proof exists: the step is complete when nothing was written for this long.
    Quiet {
        /// The required time without a write, in seconds.
        seconds: u64,
    },
}

/// The facts of a file that completeness depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts<'a> {
    /// Path inside the step.
    pub path: &'a str,
    /// Modification time.
    pub mtime: Timestamp,
}

/// The facts of a step that completeness depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepFacts<'a> {
    /// The name of its directory or file.
    pub name: &'a str,
    /// Its regular files.
    pub files: &'a [FileFacts<'a>],
}

/// Whether a step is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The step is complete.
    Complete,
    /// The step is not complete, or nothing proves it yet.
    NotYet {
        /// The reason, as text.
        why: String,
    },
}

/// Judges a step by a rule. `now` comes from the clock that stamps the files.
pub fn verdict(rule: &Rule, step: &StepFacts<'_>, now: Timestamp) -> Verdict {
    match missing_proof(rule, step, now) {
        None => Verdict::Complete,
        Some(why) => Verdict::NotYet { why },
    }
}

fn missing_proof(rule: &Rule, step: &StepFacts<'_>, now: Timestamp) -> Option<String> {
    if is_temporary(step.name) {
        return Some("it has a temporary name".to_owned());
    }
    let Some(newest) = step.files.iter().map(|file| file.mtime).max() else {
        return Some("it contains no files yet".to_owned());
    };
    match rule {
        Rule::Rename => None,
        Rule::Marker { file } => {
            let there = step.files.iter().any(|entry| entry.path == file);
            (!there).then(|| format!("its marker {file} does not exist yet"))
        }
        Rule::Quiet { seconds } => {
            let name = |path: &str| path.rsplit('/').next().is_some_and(is_unfinished_file);
            if let Some(file) = step.files.iter().find(|file| name(file.path)) {
                return Some(format!("{} has the name of an unfinished file", file.path));
            }
            if newest > now {
                return Some("its newest file is stamped with a time in the future".to_owned());
            }
            let quiet_seconds = now.seconds_since(newest);
            (quiet_seconds < *seconds).then(|| {
                format!("it was written {quiet_seconds} s ago, and must be unchanged for {seconds} s")
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(rule: &Rule, name: &str, files: &[(&str, i64)], now: i64) -> Result<(), String> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, seconds)| FileFacts {
                path,
                mtime: Timestamp::from_seconds(*seconds),
            })
            .collect();
        match verdict(
            rule,
            &StepFacts { name, files: &files },
            Timestamp::from_seconds(now),
        ) {
            Verdict::Complete => Ok(()),
            Verdict::NotYet { why } => Err(why),
        }
    }

    #[test]
    fn an_empty_or_temporary_step_is_never_complete() {
        for rule in [
            Rule::Rename,
            Rule::Marker { file: "m".to_owned() },
            Rule::Quiet { seconds: 0 },
        ] {
            assert_eq!(
                judge(&rule, "40", &[], 9),
                Err("it contains no files yet".to_owned())
            );
            let temporary = judge(&rule, "40.orbax-checkpoint-tmp", &[("m", 1)], 9);
            assert_eq!(temporary, Err("it has a temporary name".to_owned()));
        }
    }

    #[test]
    fn a_rename_proves_it_at_once() {
        assert_eq!(judge(&Rule::Rename, "40", &[("a", 9)], 9), Ok(()));
    }

    #[test]
    fn a_marker_must_be_at_its_exact_path() {
        let rule = Rule::Marker {
            file: "trainer/.metadata".to_owned(),
        };
        assert_eq!(judge(&rule, "step_1", &[("trainer/.metadata", 1)], 9), Ok(()));
        let missing = judge(
            &rule,
            "step_1",
            &[(".metadata", 1), ("trainer/.metadata.tmp", 1)],
            9,
        );
        assert_eq!(
            missing,
            Err("its marker trainer/.metadata does not exist yet".to_owned())
        );
    }

    #[test]
    fn quiet_counts_from_the_newest_file() {
        let rule = Rule::Quiet { seconds: 30 };
        assert_eq!(judge(&rule, "checkpoint-1", &[("a", 10), ("b", 70)], 100), Ok(()));
        let early = judge(&rule, "checkpoint-1", &[("a", 10), ("b", 71)], 100);
        assert_eq!(
            early,
            Err("it was written 29 s ago, and must be unchanged for 30 s".to_owned())
        );
        let future = judge(&rule, "checkpoint-1", &[("a", 101)], 100);
        assert!(future.is_err_and(|why| why.contains("with a time in the future")));
        let unfinished = judge(&rule, "checkpoint-1", &[("x/.tmpAbCd", 1)], 100);
        assert_eq!(
            unfinished,
            Err("x/.tmpAbCd has the name of an unfinished file".to_owned())
        );
    }
}
