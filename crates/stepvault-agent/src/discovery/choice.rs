//! Which profile a watched directory goes by.

use std::sync::Arc;

use stepvault_formats::detect::detect;
use stepvault_formats::find::Found;
use stepvault_formats::profile::{GENERIC, PathGlob, Profile, ProfileSet};
use stepvault_formats::tree::{OpenFile, Tree};

/// The profile in force, and whether it may still change.
#[derive(Debug)]
pub(super) struct Choice {
    profiles: Arc<ProfileSet>,
    name: Option<String>,
    /// Nothing changes it any more: it was configured, or a step that is complete by it was seen.
    settled: bool,
}

impl Choice {
    /// `configured` is the name of the profile to go by, where one is given.
    pub(super) fn new(profiles: Arc<ProfileSet>, configured: Option<String>) -> Self {
        Self {
            profiles,
            settled: configured.is_some(),
            name: configured,
        }
    }

    /// The profile in force; `None` before the first look.
    pub(super) fn profile(&self) -> Option<&Profile> {
        self.profiles.get(self.name.as_deref()?)
    }

    /// What need not be looked into. While the choice is open, everything tells something.
    pub(super) fn ignored(&self) -> &[PathGlob] {
        match self.profile() {
            Some(profile) if self.settled => &profile.ignored,
            _ => &[],
        }
    }

    /// Looks at what is there, and gives what there is to say when that changes the choice.
    ///
    /// The first files of a run may look like more than one framework's: the choice stays open until a step is complete
    /// by it.
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
            "no known framework yet: a directory or file whose name says a step is taken once it is quiet"
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
        // An empty directory is no news.
        (!is_first || name != GENERIC || tree.entries().next().is_some()).then_some(text)
    }

    /// Keeps the choice once a step is complete by it. The generic one is kept open: it fits anything.
    pub(super) fn settle(&mut self, found: &Found) {
        if self.name.as_deref() != Some(GENERIC) {
            self.settled |= found
                .steps
                .iter()
                .any(stepvault_formats::find::FoundStep::is_complete);
        }
    }
}
