//! Chooses the profile of a watched directory.

use std::sync::Arc;

use stepvault_formats::detect::detect;
use stepvault_formats::find::Found;
use stepvault_formats::profile::{GENERIC, PathGlob, Profile, ProfileSet};
use stepvault_formats::tree::{OpenFile, Tree};

/// The current profile, and whether it may still change.
#[derive(Debug)]
pub(super) struct Choice {
    profiles: Arc<ProfileSet>,
    name: Option<String>,
    /// Whether it is final: it was configured, or a step that is complete by it was seen.
    settled: bool,
}

impl Choice {
    /// `configured` is the name of the profile to use, if one is given.
    pub(super) fn new(profiles: Arc<ProfileSet>, configured: Option<String>) -> Self {
        Self {
            profiles,
            settled: configured.is_some(),
            name: configured,
        }
    }

    /// Returns the current profile; `None` before the first scan.
    pub(super) fn profile(&self) -> Option<&Profile> {
        self.profiles.get(self.name.as_deref()?)
    }

    /// Returns the paths that need not be scanned. While the choice is open, every path is evidence.
    pub(super) fn ignored(&self) -> &[PathGlob] {
        match self.profile() {
            Some(profile) if self.settled => &profile.ignored,
            _ => &[],
        }
    }

    /// Detects the profile from the directory's content, and returns a message when the choice changes.
    ///
    /// The first files of a run may look like several frameworks': the choice stays open until a step is complete by
    /// it.
    pub(super) fn look(&mut self, tree: &Tree, files: &dyn OpenFile) -> Option<String> {
        if self.settled {
            return None;
        }
        let detection = detect(tree, files, &self.profiles)?;
        let name = &detection.profile.name;
        if self.name.as_ref() == Some(name) {
            return None;
        }
        let is_first = self.name.is_none();
        let text = if name == GENERIC {
            "no framework recognized yet: a directory or file with a step number in its name is sealed once it stops \
             changing"
                .to_owned()
        } else {
            format!(
                "written by {}: {} ({})",
                name,
                detection.profile.description,
                detection.why.join(", ")
            )
        };
        self.name = Some(name.clone());
        // An empty directory is not reported.
        (!is_first || name != GENERIC || tree.entries().next().is_some()).then_some(text)
    }

    /// Makes the choice final once a step is complete by it. The generic profile stays open, because it fits anything.
    pub(super) fn settle(&mut self, found: &Found) {
        if self.name.as_deref() != Some(GENERIC) {
            self.settled |= found
                .steps
                .iter()
                .any(stepvault_formats::find::FoundStep::is_complete);
        }
    }
}
