//! Determines which of its own steps the trainer no longer needs.

use std::collections::BTreeMap;
use std::path::Path;

use stepvault_core::Result;
use stepvault_formats::find::FoundStep;
use stepvault_formats::profile::GENERIC;
use stepvault_formats::prunable::prunable;
use stepvault_local::survey::SurveyFiles;

use super::{ByProfile, candidates};
use crate::discovery::Spent;
use crate::discovery::entry::Entry;

impl ByProfile {
    /// Returns the sealed steps that the profile calls prunable, the oldest first.
    pub(in crate::discovery) fn spent(
        &mut self,
        directory: &Path,
        entries: &mut BTreeMap<String, Entry>,
    ) -> Result<Vec<Spent>> {
        let tree = self.survey(directory, entries)?;
        // A directory that changed since the last scan is judged by the next scan first.
        if tree != self.tree || tree.entries().next().is_none() {
            return Ok(Vec::new());
        }
        // It is unknown what an unknown trainer needs.
        let Some(profile) = self.choice.profile().filter(|profile| profile.name != GENERIC) else {
            return Ok(Vec::new());
        };
        let files = SurveyFiles::open(directory)?;
        let handled_as = |step: &FoundStep| entries.get(&step.path).and_then(Entry::handled_as);
        // A run that went back writes lower numbers later: its newest step is the one written last.
        let is_followed = |step: &FoundStep| {
            self.found.steps.iter().any(|newer| {
                newer.series == step.series
                    && newer.is_complete()
                    && newer.step > step.step
                    && newer.written_at >= step.written_at
                    && handled_as(newer).is_some()
            })
        };
        let mut steps = prunable(profile, &tree, &files, &self.found);
        steps.retain(|step| is_followed(step));
        steps.sort_by_key(|step| (step.written_at, step.step));
        let spent = |step: &FoundStep| {
            let (number, origin) = candidates::identity(profile, directory, step).ok()?;
            Some(Spent {
                path: directory.join(&step.path),
                origin,
                step: number,
                fingerprint: handled_as(step)?,
            })
        };
        Ok(steps.into_iter().filter_map(spent).collect())
    }
}
