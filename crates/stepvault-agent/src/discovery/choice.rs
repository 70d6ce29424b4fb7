//! Chooses the profile of a watched directory.

use std::sync::Arc;

use stepvault_formats::detect::detect;
use stepvault_formats::find::{Found, FoundStep};
use stepvault_formats::profile::{GENERIC, PathGlob, Profile, ProfileSet};
use stepvault_formats::tree::{OpenFile, Tree};

/// The current profile, and whether it may still change.
#[derive(Debug)]
pub(super) struct Choice {
    profile: Option<Profile>,
    /// The profiles to choose from; `None` once the choice is final: it was configured, or a step that is complete by
    /// it was seen.
    others: Option<Arc<ProfileSet>>,
    /// What the run excludes, in addition to what its profile excludes.
    ignored: Vec<PathGlob>,
}

impl Choice {
    /// Creates a final choice.
    pub(super) fn of(mut profile: Profile, ignored: Vec<PathGlob>) -> Self {
        profile.ignored.extend(ignored);
        Self { profile: Some(profile), others: None, ignored: Vec::new() }
    }

    /// Creates an open choice.
    pub(super) fn among(profiles: Arc<ProfileSet>, ignored: Vec<PathGlob>) -> Self {
        Self { profile: None, others: Some(profiles), ignored }
    }

    /// Returns the current profile; `None` before the first scan.
    pub(super) fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Returns the profiles to choose from while the choice is open.
    pub(super) fn others(&self) -> Option<&ProfileSet> {
        self.others.as_deref()
    }

    /// Returns whether the content of a directory need not be scanned. While the choice is open, every path is
    /// evidence.
    pub(super) fn ignores(&self, path: &str) -> bool {
        self.others.is_none() && self.profile.as_ref().is_some_and(|profile| profile.ignores(path))
    }

    /// Detects the profile from the directory's content, and returns a message when the choice changes.
    ///
    /// The first files of a run may look like several frameworks': the choice stays open until a step is complete by
    /// it.
    pub(super) fn detect(&mut self, tree: &Tree, files: &dyn OpenFile) -> Option<String> {
        let detection = detect(tree, files, self.others.as_ref()?)?;
        let name = &detection.profile.name;
        let is_first = self.profile.is_none();
        if self.profile.as_ref().is_some_and(|profile| profile.name == *name) {
            return None;
        }
        let text = if name == GENERIC {
            "no framework recognized yet: a directory or file with a step number in its name is sealed once it stops \
             changing"
                .to_owned()
        } else {
            format!("written by {}: {} ({})", name, detection.profile.description, detection.why.join(", "))
        };
        // An empty directory is not reported.
        let is_news = !is_first || name != GENERIC || tree.entries().next().is_some();
        let mut profile = detection.profile.clone();
        profile.ignored.extend(self.ignored.iter().cloned());
        self.profile = Some(profile);
        is_news.then_some(text)
    }

    /// Makes the choice final once a step is complete by it. The generic profile stays open, because it fits anything.
    pub(super) fn settle(&mut self, found: &Found) {
        let fits_anything = self.profile.as_ref().is_none_or(|profile| profile.name == GENERIC);
        if !fits_anything && found.steps.iter().any(FoundStep::is_complete) {
            self.others = None;
        }
    }
}
