//! What a step is sealed from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stepvault_core::Result;
use stepvault_core::config::LinkPolicy;
use stepvault_core::path::RelativePath;
use stepvault_core::step_origin::StepOrigin;

use crate::tree::{Tree, scan_members};

/// A checkpoint that a trainer wrote, from its discovery to its seal: where its files are, and what is stored with them.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The directory or file; the watched directory for a multi-path step.
    pub source: PathBuf,
    /// The paths below `source` that make up the step, in the order in which a restore must create them. Empty when the
    /// step is all of `source`.
    pub members: Vec<RelativePath>,
    /// The name that the step's directory or file has, or will have, where the trainer looks for it.
    pub name: String,
    /// Where its trainer keeps it, and what wrote it.
    pub origin: StepOrigin,
    /// Metrics by name; finite numbers.
    pub metrics: BTreeMap<String, f64>,
    /// How its files may be linked or copied into the vault.
    pub links: LinkPolicy,
}

impl Checkpoint {
    /// Returns the checkpoint that is all of a directory or file, stored under this name. Its files may be hard links.
    pub fn of_path(source: &Path, name: impl Into<String>) -> Self {
        Self {
            source: source.to_owned(),
            members: Vec::new(),
            name: name.into(),
            origin: StepOrigin::default(),
            metrics: BTreeMap::new(),
            links: LinkPolicy::Auto,
        }
    }

    /// Lists its files as they are now. Blocks.
    ///
    /// # Errors
    /// As for [`scan_members`].
    pub fn scan(&self) -> Result<Tree> {
        scan_members(&self.source, &self.members)
    }
}
