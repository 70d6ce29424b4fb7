//! Resume handoff: moves newer checkpoints out of the trainer's way, then writes its pointers to the restored step.
//!
//! The order makes this safe to interrupt. Until the step is in place, the trainer at worst finds nothing to resume
//! from; a pointer never names a missing step; and repeating the restore does the rest.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::handoff::{HandoffPlan, PlannedPointer, Restored, plan};
use stepvault_formats::pointer::PointerContent;
use stepvault_formats::profile::{Profile, ProfileSet};
use stepvault_formats::tree::OpenFile;
use stepvault_local::handoff::HandoffDirectory;
use stepvault_local::staging::Staging;
use stepvault_local::survey::SurveyFiles;
use stepvault_local::vault::Vault;

use super::peek::RangeReader;
use super::prospect::{Layout, Overlay, Staged, tree_with_step};
use super::resolve::Resolved;
use super::{RestoreContext, RestoreRequest, Target};
use crate::blocking::blocking;
use crate::profiles::named;

/// How the trainer is made to resume from a restored step.
#[derive(Debug, Clone)]
pub struct HandoffOptions {
    /// The known frameworks.
    pub profiles: Arc<ProfileSet>,
    /// The framework to use instead of the detected one.
    pub profile: Option<String>,
    /// False to only report how to resume, without changing anything.
    pub write: bool,
}

/// A path that was moved out of the trainer's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedAside {
    /// The path before.
    pub from: PathBuf,
    /// The path now.
    pub to: PathBuf,
}

/// What was done for the trainer.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) plan: HandoffPlan,
    pub(super) moved_aside: Vec<MovedAside>,
}

/// The resume handoff of one step.
pub(super) struct Handoff {
    options: HandoffOptions,
    /// The directory in which the trainer looks for its steps.
    directory: PathBuf,
    /// The step's paths in it.
    layout: Layout,
    asked_for: bool,
    vault: Option<Vault>,
    resolved: Arc<Resolved>,
}

impl Handoff {
    /// Returns the handoff for this restore, if any. A partial step is nothing that a trainer could resume from.
    pub(super) fn of(
        context: &RestoreContext,
        request: &RestoreRequest,
        resolved: &Arc<Resolved>,
    ) -> Result<Option<Self>> {
        let Some(mut options) = request.handoff.clone() else {
            return Ok(None);
        };
        if !request.include.is_empty() {
            return Ok(None);
        }
        // With a name chosen by the user, the trainer's pointers cannot name the step.
        options.write &= matches!(request.target, Target::Into(_));
        let place = request.target.place(resolved)?;
        let names = place.names.iter();
        let handoff = Self {
            options,
            layout: Layout {
                paths: names.map(|name| name.to_string_lossy().into_owned()).collect(),
                several: !resolved.members.is_empty(),
            },
            directory: place.directory,
            asked_for: request.step.is_some(),
            vault: context.vault.clone(),
            resolved: Arc::clone(resolved),
        };
        handoff.profile()?;
        Ok(Some(handoff))
    }

    /// Returns the plan, before anything is fetched.
    pub(super) async fn foresee(self) -> Result<HandoffPlan> {
        let files = RangeReader::new(Arc::clone(&self.resolved));
        blocking(move || self.plan(Some(Box::new(files)))).await
    }

    /// Moves other checkpoints away, runs `place` to publish the staged step, and writes the trainer's pointers.
    pub(super) fn around(
        self,
        staging: Staging,
        place: impl FnOnce(Staging) -> Result<()>,
    ) -> Result<HandedOver> {
        let open = || HandoffDirectory::open(&self.directory, self.vault.as_ref());
        let open = self.options.write.then(open).transpose()?;
        let files = Staged {
            files: staging.files()?,
            single: self.single_file(),
        };
        let plan = self.plan(Some(Box::new(files)))?;
        let moved_aside = open.as_ref().map(|open| self.make_way(open, &plan)).transpose()?;
        place(staging)?;
        if let Some(open) = open {
            self.point(open, &plan)?;
        }
        Ok(HandedOver {
            plan,
            moved_aside: moved_aside.unwrap_or_default(),
        })
    }

    /// Does the rest for a step that is already in place.
    pub(super) fn complete(self) -> Result<HandedOver> {
        let mut plan = self.plan(None)?;
        let mut moved_aside = Vec::new();
        if !plan.is_done() {
            let open = HandoffDirectory::open(&self.directory, self.vault.as_ref())?;
            // Another restore may have changed the directory until now.
            plan = self.plan(None)?;
            moved_aside = self.make_way(&open, &plan)?;
            self.point(open, &plan)?;
        }
        Ok(HandedOver { plan, moved_aside })
    }

    fn profile(&self) -> Result<Option<&Profile>> {
        let name = self.options.profile.as_deref();
        name.map(|name| named(&self.options.profiles, name)).transpose()
    }

    /// Plans the handoff. `step_files` opens the step's files by their paths inside it while it is not in place.
    fn plan(&self, step_files: Option<Box<dyn OpenFile>>) -> Result<HandoffPlan> {
        let tree = tree_with_step(&self.directory, &self.layout, self.vault.as_ref(), &self.resolved)?;
        let directory = self
            .directory
            .is_dir()
            .then(|| SurveyFiles::open(&self.directory));
        let files = Overlay {
            layout: &self.layout,
            step: step_files,
            directory: directory.transpose()?,
        };
        let restored = Restored {
            directory: &self.directory.to_string_lossy(),
            tree: &tree,
            paths: &self.layout.paths,
            asked_for: self.asked_for,
            profile: self.profile()?,
        };
        let mut plan = plan(&restored, &self.options.profiles, &files).ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot determine how the trainer resumes")
                .on(self.directory.display())
                .because("there is no generic profile")
        })?;
        if !self.options.write {
            plan.aside.clear();
            plan.pointers.clear();
        }
        Ok(plan)
    }

    fn make_way(&self, open: &HandoffDirectory, plan: &HandoffPlan) -> Result<Vec<MovedAside>> {
        let mut moved = Vec::new();
        for path in &plan.aside {
            if let Some(to) = open.move_aside(&RelativePath::new(path)?)? {
                moved.push(MovedAside {
                    from: self.directory.join(path),
                    to,
                });
            }
        }
        Ok(moved)
    }

    fn point(&self, open: HandoffDirectory, plan: &HandoffPlan) -> Result<()> {
        for PlannedPointer { write, .. } in plan.pointers.iter().filter(|pointer| !pointer.is_right) {
            let path = RelativePath::new(&write.path)?;
            match &write.content {
                PointerContent::Text(text) => open.write_text(&path, text, self.pointer_mode())?,
                PointerContent::Symlink(target) => open.write_link(&path, target)?,
                PointerContent::CopyOf(of) => open.write_copy(&path, &RelativePath::new(of)?)?,
            }
        }
        if let Err(error) = open.finish() {
            // Everything is in place; only a temporary directory is left.
            tracing::warn!(%error, "cannot delete a restore's temporary files");
        }
        Ok(())
    }

    /// Returns the pointers' mode: readable by everyone who may read the step.
    fn pointer_mode(&self) -> u32 {
        let root = self
            .resolved
            .directories
            .iter()
            .find(|entry| entry.path.is_none());
        let of_file = || self.resolved.files.first().map_or(0o600, |file| file.mode);
        (root.map_or_else(of_file, |entry| entry.mode) & 0o666) | 0o600
    }

    /// Returns the staged name of a single-file step.
    fn single_file(&self) -> Option<String> {
        let single = self.resolved.shape == Shape::File;
        let file = self.resolved.files.first().filter(|_| single);
        file.map(|file| file.path.to_string())
    }
}
