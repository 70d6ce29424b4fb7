//! Steps whose files are linked into the vault while their quiet time passes, so that a trainer which deletes a step
//! meanwhile does not take it away.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stepvault_core::config::LinkPolicy;
use stepvault_core::{ErrorKind, RelativePath, Timestamp};
use stepvault_formats::check::check_extent;
use stepvault_formats::find::{Extent, FoundStep, QuietRule};
use stepvault_formats::tree::{EntryKind, Tree as SurveyTree};
use stepvault_local::early_links::EarlyLinks;
use stepvault_local::survey::{SurveyFiles, survey};
use stepvault_local::{Vault, space};

use super::entry::{EntryState, is_as_found};
use super::{Discovery, Ready, ScanReport, selection};

/// Maximum number of steps of a run that are linked at a time.
const MAX_STEPS: usize = 8;

impl Discovery {
    /// Seals the linked steps that the trainer deletes, as far as they are proved whole.
    pub(super) fn seal_deleted(&mut self, report: &mut ScanReport) {
        let is_space_low = self.early.is_space_low();
        for early in self.early.deleted(&self.seen.survey) {
            let key = early.step.path.clone();
            let ready = if is_space_low {
                Err("its links were removed, because the disk has little space left".to_owned())
            } else {
                early.check(self.extent).and_then(|()| self.ready_from(&early))
            };
            match ready {
                Ok(ready) => {
                    report.infos.push(format!(
                        "the trainer deletes {} before its quiet time has passed: it is whole, and is sealed from links \
                         in the vault",
                        ready.path.display()
                    ));
                    // It is not reported as vanished; none of its remaining files is newer.
                    if let Some(entry) = self.entries.get_mut(&key) {
                        entry.handled(&ready.tree);
                    }
                    report.ready.push(ready);
                }
                Err(reason) => {
                    // What is damaged was reported already.
                    let entry = self.entries.get_mut(&key);
                    if let Some(EntryState::Waiting(why) | EntryState::Unsealed(why)) =
                        entry.map(|entry| &mut entry.state)
                    {
                        *why = reason;
                    }
                }
            }
        }
    }

    /// Returns a step that is sealed from its links.
    fn ready_from(&self, early: &EarlyStep) -> Result<Ready, String> {
        let (step, links) = (&early.step, &early.links);
        let profile = self.choice.profile.as_ref().ok_or("its profile is unknown")?;
        let (number, mut checkpoint) = selection::identity(profile, &self.directory, step)?;
        if let Ok(below) = checkpoint.source.strip_prefix(&self.directory) {
            checkpoint.source = links.data().join(below);
        }
        let tree = checkpoint.scan().map_err(|error| error.to_string())?;
        let data = links.data();
        let best = survey(&data).and_then(|tree| {
            let files = SurveyFiles::open(&data)?;
            Ok(self.seen.found.best_of(step, profile, &tree, &files))
        });
        let best = best.map_err(|error| error.to_string())?;
        selection::add_names(&mut checkpoint, best, &self.seen.found, step);
        Ok(Ready {
            key: step.path.clone(),
            path: self.directory.join(&step.path),
            checkpoint,
            step: number,
            tree: Arc::new(tree),
            early: Some(Arc::clone(links)),
        })
    }
}

/// Where steps are linked early, and how.
#[derive(Debug, Clone)]
pub(crate) struct EarlyPlace {
    pub(crate) vault: Vault,
    /// The configured policy: with copies alone, nothing is linked.
    pub(crate) links: LinkPolicy,
    /// Below this many free bytes, nothing is linked.
    pub(crate) low_bytes: Option<u64>,
}

/// The steps of one run that are linked.
#[derive(Debug, Default)]
pub(super) struct EarlySteps {
    place: Option<EarlyPlace>,
    /// The policies by which a step could not be linked.
    refused: Vec<LinkPolicy>,
    steps: BTreeMap<String, EarlyStep>,
}

/// A step that is linked.
#[derive(Debug)]
struct EarlyStep {
    links: Arc<EarlyLinks>,
    members: Vec<RelativePath>,
    /// The step as it was found last.
    step: FoundStep,
}

/// What became of the files of a linked step in the watched directory.
#[derive(Debug, PartialEq, Eq)]
enum SourceState {
    Unchanged,
    /// Some are gone, and the others are unchanged.
    Deleted,
    Changed,
}

impl EarlySteps {
    /// Sets where steps are linked.
    pub(super) fn enable(&mut self, place: EarlyPlace) {
        self.place = Some(place).filter(|place| place.links != LinkPolicy::Copy);
    }

    /// Records what is known now of a step that is still as it was linked: a later save proves that its own is over, also
    /// if it is finished then and waits no more.
    pub(super) fn found_again(&mut self, step: &FoundStep) {
        if let Some(early) = self.steps.get_mut(&step.path)
            && early.is_of(step)
        {
            early.step = step.clone();
        }
    }

    /// Links a step that has all its files, unless it is as it was linked. `links` is how its framework allows files to
    /// be linked.
    pub(super) fn link(&mut self, directory: &Path, step: &FoundStep, links: LinkPolicy) {
        let Some(place) = &self.place else { return };
        if self.steps.get(&step.path).is_some_and(|early| early.is_of(step)) {
            return;
        }
        self.steps.remove(&step.path);
        let members = step.members.iter().map(RelativePath::new);
        let Ok(members) = members.collect::<stepvault_core::Result<Vec<_>>>() else {
            return;
        };
        if self.is_space_low() {
            return;
        }
        let links = std::cmp::max_by_key(place.links, links, |policy| *policy != LinkPolicy::Auto);
        if self.refused.contains(&links) {
            return;
        }
        match EarlyLinks::create(&place.vault, directory, &members, links) {
            Ok(links) => {
                let early = EarlyStep { links: Arc::new(links), members, step: step.clone() };
                if early.is_of(step) {
                    self.make_room();
                    self.steps.insert(step.path.clone(), early);
                }
            }
            Err(error) if error.kind() == ErrorKind::SourceChanged => {}
            Err(error) => {
                tracing::info!(%error, ?links, "steps are not linked before they are sealed");
                self.refused.push(links);
            }
        }
    }

    /// Removes the links of a step.
    pub(super) fn forget(&mut self, key: &str) {
        self.steps.remove(key);
    }

    /// Removes and returns the steps that the trainer deletes. The links of a step that it changes are removed.
    fn deleted(&mut self, survey: &SurveyTree) -> Vec<EarlyStep> {
        self.steps.retain(|_, early| early.source_state(survey) != SourceState::Changed);
        let gone = self.steps.extract_if(.., |_, early| early.source_state(survey) == SourceState::Deleted);
        gone.map(|(_, early)| early).collect()
    }

    /// Whether the links of deleted files would take space that is needed.
    fn is_space_low(&self) -> bool {
        let low = self.place.as_ref().and_then(|place| place.low_bytes);
        let free = |place: &EarlyPlace| space::free(place.vault.root()).map_or(0, |room| room.free_bytes);
        low.is_some_and(|low| self.place.as_ref().is_some_and(|place| free(place) < low))
    }

    /// Removes the links of the step that was written first, if there are too many.
    fn make_room(&mut self) {
        while self.steps.len() >= MAX_STEPS {
            let first = self.steps.iter().min_by_key(|(_, early)| early.step.written_at);
            let Some(key) = first.map(|(key, _)| key.clone()) else {
                return;
            };
            self.steps.remove(&key);
        }
    }
}

impl EarlyStep {
    /// Checks that the links are a whole step: its save was over, nothing was written since, and the format of every
    /// file proves it whole. Returns the reason why they are not, or may not be.
    fn check(&self, extent: Extent) -> Result<(), String> {
        if self.step.quiet_rule() != QuietRule::Briefly {
            return Err("nothing proved that its save was over".to_owned());
        }
        match self.links.is_unchanged(&self.members) {
            Ok(true) => {}
            Ok(false) => return Err("the trainer wrote to its files before it deleted them".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        let data = self.links.data();
        let checked = survey(&data).and_then(|tree| {
            let files = SurveyFiles::open(&data)?;
            Ok(check_extent(extent, &self.step, &tree, &files))
        });
        let checked = checked.map_err(|error| error.to_string())?;
        if checked.is_proved() {
            return Ok(());
        }
        Err(match checked.damage().as_slice() {
            [] => "the formats of its files do not prove it whole".to_owned(),
            damage => damage.join("; "),
        })
    }

    /// Whether the linked files are those of the step as it was found.
    fn is_of(&self, step: &FoundStep) -> bool {
        self.step.members == step.members && is_as_found(self.links.source(), step)
    }

    fn source_state(&self, survey: &SurveyTree) -> SourceState {
        let source = self.links.source();
        let linked: BTreeMap<&str, (u64, Timestamp)> =
            source.files.iter().map(|file| (file.path.as_str(), (file.size_bytes, file.mtime))).collect();
        let mut present = 0;
        for member in &self.step.members {
            let itself = survey.get(member).map(|entry| (member.as_str(), entry));
            for (path, entry) in itself.into_iter().chain(survey.inside(member)) {
                let EntryKind::File { size_bytes, .. } = entry.kind else { continue };
                if linked.get(path) != Some(&(size_bytes, entry.mtime)) {
                    return SourceState::Changed;
                }
                present += 1;
            }
        }
        if present < linked.len() { SourceState::Deleted } else { SourceState::Unchanged }
    }
}
