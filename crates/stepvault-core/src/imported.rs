//! Steps that another program has written to a remote: where their objects are, and which step of a run each becomes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::keys::FileKeys;
use crate::{Attempt, RelativePath, Step, StepId};

/// The node that imported steps have in all records. Two imports at once write the same bytes, wherever they run.
pub const IMPORT_NODE: &str = "import";

/// Where the objects of an imported part are. They stay where another program has written them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imported {
    /// The directory of the remote, relative to its URL, below which each file has its own path; `None` for the remote's
    /// own directory.
    pub prefix: Option<RelativePath>,
}

impl Imported {
    /// Returns the keys of the files.
    pub fn file_keys(&self) -> FileKeys {
        FileKeys::below(self.prefix.as_ref())
    }
}

/// What tells two imported steps apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSource {
    /// Where its objects are.
    pub imported: Imported,
    /// The name of its directory or file.
    pub name: String,
}

/// The steps of a run, as they decide which ones an import may add.
#[derive(Debug, Clone, Default)]
pub struct StepsOfRun {
    /// The committed steps, each with where it was imported from; `None` for the run's own.
    pub committed: BTreeMap<StepId, Option<ImportSource>>,
    /// Steps whose upload has begun.
    pub uploading: BTreeSet<StepId>,
    /// Steps whose identities are used up.
    pub removed: BTreeSet<StepId>,
}

/// What becomes of a step that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportPlacement {
    /// It becomes this step.
    New(StepId),
    /// It is this step already.
    Known(StepId),
    /// It is left alone, for this reason.
    Left(String),
}

impl StepsOfRun {
    /// Decides which step of the run an imported step becomes.
    ///
    /// It belongs to the given attempt, else to the lowest one of the run, and the times of its objects do not count: they say
    /// when it was copied. Without a given attempt it is left alone where it would be newer than the newest step that the
    /// run's own nodes have written: an import never changes the step from which a run resumes.
    pub fn place(&self, step: Step, source: &ImportSource, given: Option<Attempt>) -> ImportPlacement {
        let id = StepId::new(given.unwrap_or_else(|| self.lowest_attempt()), step);
        let is_source = |(_, known): &(&StepId, &Option<ImportSource>)| known.as_ref() == Some(source);
        let of_number = self.committed.iter().filter(|(known, _)| known.step == step);
        if let Some((known, _)) = of_number.filter(is_source).max_by_key(|(known, _)| **known) {
            return ImportPlacement::Known(*known);
        }
        let is_taken = |known: &&StepId| known.is_revision_of(id);
        if self.committed.keys().any(|known| is_taken(&known)) {
            return ImportPlacement::Left(format!(
                "{id} of the run is another one; --attempt N imports it under attempt N"
            ));
        }
        if self.removed.iter().any(|known| is_taken(&known)) {
            let why = format!("{id} was removed from the run, and its identity is never used again");
            return ImportPlacement::Left(format!("{why}; --attempt N imports it under attempt N"));
        }
        match self.newest_own().filter(|newest| given.is_none() && *newest < id) {
            Some(newest) => ImportPlacement::Left(format!(
                "it would be newer than {newest}, the run's own newest step; --attempt N imports it under attempt N"
            )),
            None => ImportPlacement::New(id),
        }
    }

    fn lowest_attempt(&self) -> Attempt {
        let known = self.committed.keys().chain(&self.uploading).chain(&self.removed);
        known.map(|id| id.attempt).min().unwrap_or(Attempt::FIRST)
    }

    fn newest_own(&self) -> Option<StepId> {
        let own = self.committed.iter().filter(|(_, source)| source.is_none()).map(|(id, _)| id);
        own.chain(&self.uploading).max().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(attempt: u32, step: u64) -> StepId {
        StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
    }

    fn source(prefix: &str) -> ImportSource {
        let prefix = Some(RelativePath::new(prefix).unwrap());
        ImportSource { imported: Imported { prefix }, name: "step".to_owned() }
    }

    fn place(run: &StepsOfRun, step: u64, given: Option<u32>) -> ImportPlacement {
        let given = given.map(|attempt| Attempt::new(attempt).unwrap());
        run.place(Step::new(step).unwrap(), &source("old"), given)
    }

    #[test]
    fn a_new_run_takes_every_step_into_its_first_attempt() {
        let run = StepsOfRun::default();
        assert_eq!(place(&run, 100, None), ImportPlacement::New(id(1, 100)));
        assert_eq!(place(&run, 100, Some(3)), ImportPlacement::New(id(3, 100)));
    }

    #[test]
    fn no_import_is_newer_than_the_runs_own_newest_step_unless_its_attempt_is_given() {
        for run in [
            StepsOfRun {
                committed: BTreeMap::from([(id(2, 50), None), (id(3, 10), None)]),
                ..StepsOfRun::default()
            },
            StepsOfRun { uploading: BTreeSet::from([id(2, 50)]), ..StepsOfRun::default() },
        ] {
            assert_eq!(place(&run, 40, None), ImportPlacement::New(id(2, 40)));
            let is_left =
                |placement| matches!(placement, ImportPlacement::Left(why) if why.contains("--attempt"));
            assert_eq!(is_left(place(&run, 60, None)), run.committed.is_empty());
            assert_eq!(place(&run, 60, Some(4)), ImportPlacement::New(id(4, 60)));
        }
        // Imported steps are no reason.
        let run = StepsOfRun {
            committed: BTreeMap::from([(id(1, 50), Some(source("a")))]),
            ..StepsOfRun::default()
        };
        assert_eq!(place(&run, 60, None), ImportPlacement::New(id(1, 60)));
    }

    #[test]
    fn an_identity_is_used_once_and_a_source_is_imported_once() {
        let committed = BTreeMap::from([
            (id(1, 7), Some(source("old"))),
            (id(1, 8), Some(source("other"))),
            (id(1, 9), None),
        ]);
        let run = StepsOfRun { committed, removed: BTreeSet::from([id(1, 6)]), ..StepsOfRun::default() };
        assert_eq!(place(&run, 7, None), ImportPlacement::Known(id(1, 7)));
        assert_eq!(place(&run, 7, Some(2)), ImportPlacement::Known(id(1, 7)));
        for taken in [6, 8, 9] {
            assert!(matches!(place(&run, taken, None), ImportPlacement::Left(_)), "{taken}");
        }
        assert_eq!(place(&run, 6, Some(2)), ImportPlacement::New(id(2, 6)));
    }
}
