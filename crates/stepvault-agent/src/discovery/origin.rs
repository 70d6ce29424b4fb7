//! Where a step is found, and under which name it is stored.

use std::path::{Path, PathBuf};

use stepvault_core::Result;
use stepvault_core::entries::SymlinkEntry;
use stepvault_core::path::RelativePath;
use stepvault_core::step_origin::{BestName, MAX_LINKS, StepOrigin};
use stepvault_formats::find::{Found, FoundStep};
use stepvault_formats::profile::last_component;
use stepvault_local::tree::{Tree, scan_members};

/// A step's location, and the name it is stored under.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The directory or file; the watched directory for a multi-path step.
    pub(crate) source: PathBuf,
    /// Its paths below that, for a multi-path step.
    pub(crate) members: Vec<RelativePath>,
    pub(crate) name: String,
    /// What is recorded of it with the step.
    pub(crate) recorded: StepOrigin,
}

impl Origin {
    /// Creates the origin of one directory or file.
    pub(super) fn of_path(source: &Path, name: &str) -> Self {
        Self {
            source: source.to_owned(),
            members: Vec::new(),
            name: name.to_owned(),
            recorded: StepOrigin::default(),
        }
    }

    /// Records the steps that it names as the best, and the links by which the trainer finds it.
    pub(super) fn naming(mut self, best: Vec<BestName>, found: &Found, step: &FoundStep) -> Self {
        self.recorded.best = best;
        let name = last_component(&step.path);
        let links = found.links_to(step).into_iter().map(|path| {
            // Several paths are relative to the watched directory, one to its own.
            let path = if self.members.is_empty() {
                last_component(path)
            } else {
                path
            };
            let target = name.to_owned();
            RelativePath::new(path).map(|path| SymlinkEntry { path, target })
        });
        self.recorded.links = links.filter_map(Result::ok).take(MAX_LINKS).collect();
        self
    }

    /// Lists the files. Blocks.
    pub(super) fn scan(&self) -> Result<Tree> {
        scan_members(&self.source, &self.members)
    }
}
