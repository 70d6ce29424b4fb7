//! Determines which of its own steps the trainer no longer needs.

use stepvault_core::Result;
use stepvault_formats::find::FoundStep;
use stepvault_formats::profile::{GENERIC, Profile};
use stepvault_formats::prunable::prunable;
use stepvault_local::survey::SurveyFiles;

use super::entry::Entry;
use super::{Discovery, PrunableStep, selection};

impl Discovery {
    /// Returns the trainer's own steps that it no longer needs, as far as its profile knows, the oldest first. Blocks.
    pub(crate) fn prunable_steps(&mut self) -> Result<Vec<PrunableStep>> {
        let tree = self.list()?;
        // It is unknown what an unknown trainer needs.
        let is_known = |profile: &&Profile| profile.name != GENERIC && profile.names.is_none();
        let Some(profile) = self.choice.profile().filter(is_known) else {
            return Ok(Vec::new());
        };
        // A directory that changed since the last scan is judged by the next scan first.
        if tree != self.seen.survey || tree.entries().next().is_none() {
            return Ok(Vec::new());
        }
        let files = SurveyFiles::open(&self.directory)?;
        let handled_as = |step: &FoundStep| self.entries.get(&step.path).and_then(Entry::handled_as);
        // A run that went back writes lower numbers later: its newest step is the one written last.
        let is_followed = |step: &FoundStep| {
            self.seen.found.steps.iter().any(|newer| {
                newer.series == step.series
                    && newer.is_complete()
                    && newer.step > step.step
                    && newer.written_at >= step.written_at
                    && handled_as(newer).is_some()
            })
        };
        let mut steps = prunable(profile, &tree, &files, &self.seen.found);
        // A path that is rewritten is where the trainer resumes from.
        steps.retain(|step| !step.rewritten && is_followed(step));
        steps.sort_by_key(|step| (step.written_at, step.step));
        let identified = |step: &FoundStep| {
            let (number, checkpoint) = selection::identity(profile, &self.directory, step).ok()?;
            Some(PrunableStep {
                path: self.directory.join(&step.path),
                checkpoint,
                step: number?,
                fingerprint: handled_as(step)?,
            })
        };
        Ok(steps.into_iter().filter_map(identified).collect())
    }
}
