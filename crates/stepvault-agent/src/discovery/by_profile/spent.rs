//! Which of the trainer's own steps it can do without.

use std::collections::BTreeMap;
use std::path::Path;

use stepvault_core::Result;
use stepvault_formats::expendable::expendable;
use stepvault_formats::find::FoundStep;
use stepvault_formats::profile::GENERIC;
use stepvault_local::survey::SurveyFiles;

use super::{ByProfile, candidates};
use crate::discovery::Spent;
use crate::discovery::entry::Entry;

impl ByProfile {
    /// Of the steps that were taken over, those that the profile calls expendable, the oldest first.
    pub(in crate::discovery) fn spent(
        &mut self,
        directory: &Path,
        entries: &mut BTreeMap<String, Entry>,
    ) -> Result<Vec<Spent>> {
        let tree = self.survey(directory, entries)?;
        // What has changed since the last look is judged by the next one first.
        if tree != self.tree || tree.entries().next().is_none() {
            return Ok(Vec::new());
        }
        // Nobody knows what a trainer needs of which nothing is known.
        let Some(profile) = self.choice.profile().filter(|profile| profile.name != GENERIC) else {
            return Ok(Vec::new());
        };
        let files = SurveyFiles::open(directory)?;
        let handled_as = |step: &FoundStep| entries.get(&step.path).and_then(Entry::handled_as);
        // A run that went back writes lower numbers later: its newest step is the one that was written last.
        let is_followed = |step: &FoundStep| {
            self.found.steps.iter().any(|newer| {
                newer.series == step.series
                    && newer.is_complete()
                    && newer.step > step.step
                    && newer.written_at >= step.written_at
                    && handled_as(newer).is_some()
            })
        };
        let mut steps = expendable(profile, &tree, &files, &self.found);
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
