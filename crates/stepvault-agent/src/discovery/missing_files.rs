//! Steps that lack a file which all earlier ones have. If nothing else proves such a step whole, its save may have been
//! cut off between two files; or the trainer has left the file out, as some do in their last step.

use std::collections::BTreeMap;

use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_formats::find::{StepNames, UsualFiles};
use stepvault_local::{Checkpoint, SealedStep, Tree};

/// The files that all sealed steps of a series have, by series.
#[derive(Debug, Default)]
pub(super) struct SealedFiles(BTreeMap<Option<String>, UsualFiles>);

impl SealedFiles {
    /// Returns the files of the steps in the vault. A step that this node wrote with others does not count: its
    /// directory holds what other nodes write only after a restore.
    pub(super) fn of(sealed: &[SealedStep]) -> Self {
        let mut files: BTreeMap<_, UsualFiles> = BTreeMap::new();
        for step in sealed {
            let record = step.record();
            if record.shape == Shape::Directory && record.nodes.is_none() && !record.origin.rewritten {
                let paths = record.files.iter().map(|file| &file.path);
                let names = names_of(record.id.step.number(), &record.members, paths);
                files.entry(record.origin.series.clone()).or_default().add(&names);
            }
        }
        Self(files)
    }

    /// Returns the files that every known step of the series has and this one lacks; `in_directory` are those that all
    /// earlier steps in the watched directory have, `None` if there is none.
    pub(super) fn missing(
        &self,
        checkpoint: &Checkpoint,
        number: u64,
        tree: &Tree,
        in_directory: Option<&Vec<String>>,
    ) -> Vec<String> {
        let usual = self.0.get(&checkpoint.origin.series);
        match (in_directory, usual) {
            (Some(missing), None) => missing.clone(),
            (Some(missing), Some(usual)) => missing.iter().filter(|file| usual.has(file)).cloned().collect(),
            (None, Some(usual)) => {
                let itself = tree.files.iter().map(|file| file.path.clone());
                let itself: Vec<RelativePath> = itself.filter(|_| tree.shape == Shape::File).collect();
                let entries = if itself.is_empty() { &checkpoint.members } else { &itself };
                let names = names_of(number, entries, tree.files.iter().map(|file| &file.path));
                usual.lacking(&names).unwrap_or_default()
            }
            (None, None) => Vec::new(),
        }
    }
}

/// Returns the names of a step's files. Without entries they are paths inside its directory.
fn names_of<'a>(
    number: u64,
    entries: &[RelativePath],
    files: impl Iterator<Item = &'a RelativePath>,
) -> StepNames {
    if entries.is_empty() {
        return StepNames::new(Some(number), files.map(RelativePath::as_str));
    }
    let entries: Vec<&str> = entries.iter().map(RelativePath::as_str).collect();
    StepNames::of_entries(Some(number), &entries, files.map(|path| path.as_str().to_owned()))
}
