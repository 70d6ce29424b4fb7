//! Making the trainer go on from a restored step: out of its way with what it would take instead, then its pointers.
//!
//! The order is what makes this safe to interrupt. Until the step is in place the trainer finds at worst nothing to go
//! on from; a pointer never names what is not there; and the same restore again does what is left.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::manifest::Shape;
use stepvault_core::path::RelativePath;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::handover::{HandoverPlan, PlannedPointer, Restored, plan};
use stepvault_formats::pointer::PointerContent;
use stepvault_formats::profile::{Profile, ProfileSet};
use stepvault_formats::tree::OpenFile;
use stepvault_local::handover::HandoverDirectory;
use stepvault_local::staging::Staging;
use stepvault_local::survey::SurveyFiles;
use stepvault_local::vault::Vault;

use super::peek::Peek;
use super::prospect::{Layout, Overlay, Staged, tree_with_step};
use super::resolve::Resolved;
use super::{RestoreContext, RestoreRequest, Target};
use crate::blocking::blocking;
use crate::profiles::named;

/// How a trainer is made to go on from a restored step.
#[derive(Debug, Clone)]
pub struct HandoverOptions {
    /// The frameworks that are known.
    pub profiles: Arc<ProfileSet>,
    /// The framework, instead of the one whose marks the directory has.
    pub profile: Option<String>,
    /// False to say how to go on, and change nothing for it.
    pub write: bool,
}

/// Something that was moved out of the trainer's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedAside {
    /// Where it was.
    pub from: PathBuf,
    /// Where it is.
    pub to: PathBuf,
}

/// What was done for the trainer.
#[derive(Debug)]
pub(super) struct HandedOver {
    pub(super) plan: HandoverPlan,
    pub(super) moved_aside: Vec<MovedAside>,
}

/// One step to be handed over.
pub(super) struct Handover {
    options: HandoverOptions,
    /// Where the trainer looks for its steps.
    directory: PathBuf,
    /// The step's paths there.
    layout: Layout,
    asked_for: bool,
    vault: Option<Vault>,
    resolved: Arc<Resolved>,
}

impl Handover {
    /// What to do for this restore, if anything. Some files of a step are nothing that a trainer could go on from.
    pub(super) fn of(
        context: &RestoreContext,
        request: &RestoreRequest,
        resolved: &Arc<Resolved>,
    ) -> Result<Option<Self>> {
        let Some(mut options) = request.handover.clone() else {
            return Ok(None);
        };
        if !request.include.is_empty() {
            return Ok(None);
        }
        // The user's own name for it is no name that the trainer's pointers are made of.
        options.write &= matches!(request.target, Target::Into(_));
        let place = request.target.place(resolved)?;
        let names = place.names.iter();
        let handover = Self {
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
        handover.profile()?;
        Ok(Some(handover))
    }

    /// The plan, before anything is fetched.
    pub(super) async fn foresee(self) -> Result<HandoverPlan> {
        let files = Peek::new(Arc::clone(&self.resolved));
        blocking(move || self.plan(Some(Box::new(files)))).await
    }

    /// Makes way, lets `place` put what is staged in place, and points the trainer to it.
    pub(super) fn around(
        self,
        staging: Staging,
        place: impl FnOnce(Staging) -> Result<()>,
    ) -> Result<HandedOver> {
        let open = || HandoverDirectory::open(&self.directory, self.vault.as_ref());
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

    /// Does what is left to do for a step that is in place.
    pub(super) fn complete(self) -> Result<HandedOver> {
        let mut plan = self.plan(None)?;
        let mut moved_aside = Vec::new();
        if !plan.is_done() {
            let open = HandoverDirectory::open(&self.directory, self.vault.as_ref())?;
            // Another restore may have been at it until now.
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

    /// `step_files` opens the step's own files by their paths inside it, while it is not in place.
    fn plan(&self, step_files: Option<Box<dyn OpenFile>>) -> Result<HandoverPlan> {
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
            Error::new(ErrorKind::Failed, "cannot tell how the trainer goes on")
                .on(self.directory.display())
                .because("there is no generic profile")
        })?;
        if !self.options.write {
            plan.aside.clear();
            plan.pointers.clear();
        }
        Ok(plan)
    }

    fn make_way(&self, open: &HandoverDirectory, plan: &HandoverPlan) -> Result<Vec<MovedAside>> {
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

    fn point(&self, open: HandoverDirectory, plan: &HandoverPlan) -> Result<()> {
        for PlannedPointer { write, .. } in plan.pointers.iter().filter(|pointer| !pointer.is_right) {
            let path = RelativePath::new(&write.path)?;
            match &write.content {
                PointerContent::Text(text) => open.write_text(&path, text, self.pointer_mode())?,
                PointerContent::Symlink(target) => open.write_link(&path, target)?,
                PointerContent::CopyOf(of) => open.write_copy(&path, &RelativePath::new(of)?)?,
            }
        }
        if let Err(error) = open.finish() {
            // Everything is in place; what is left is a directory of ours.
            tracing::warn!(%error, "what a restore made for itself could not be deleted");
        }
        Ok(())
    }

    /// Whoever may read the step may read what points to it.
    fn pointer_mode(&self) -> u32 {
        let root = self
            .resolved
            .directories
            .iter()
            .find(|entry| entry.path.is_none());
        let of_file = || self.resolved.files.first().map_or(0o600, |file| file.mode);
        (root.map_or_else(of_file, |entry| entry.mode) & 0o666) | 0o600
    }

    /// What a single-file step is called where it is staged.
    fn single_file(&self) -> Option<String> {
        let single = self.resolved.shape == Shape::File;
        let file = self.resolved.files.first().filter(|_| single);
        file.map(|file| file.path.to_string())
    }
}
