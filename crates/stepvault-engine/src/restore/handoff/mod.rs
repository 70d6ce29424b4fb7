//! Resume handoff: moves newer checkpoints out of the trainer's way, then writes its pointers to the restored step.
//!
//! The order makes this safe to interrupt. Until the step is in place, the trainer at worst finds nothing to resume
//! from; a pointer never names a missing step; and repeating the restore does the rest.

mod directory;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::manifest::Shape;
use stepvault_core::{Error, ErrorKind, RelativePath, Result};
use stepvault_formats::handoff::{
    FirstStart, HandoffPlan, PlannedPointer, Restored, in_the_way_of_a_first_start, kept_in_place, plan,
};
use stepvault_formats::pointer::{PointerContent, PointerWrite, copies_of_best};
use stepvault_formats::profile::Profile;
use stepvault_formats::tree::{EntryKind, OpenFile, Tree};
use stepvault_local::handoff::HandoffDirectory;
use stepvault_local::staging::Staging;
use stepvault_local::survey::SurveyFiles;
use stepvault_local::tree::absolute;
use stepvault_local::vault::Vault;

use super::plan::RestorePlan;
use super::request::{HandoffOptions, Restore, RestoreContext, Target};
use super::resolve::ResolvedStep;
use crate::blocking::blocking;
use crate::inspect::named;
use directory::{
    Layout, OverlayFiles, RangeReader, StagedFiles, other_content, present_tree, tree_with_step,
};

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
pub(super) struct HandoffReport {
    pub(super) plan: HandoffPlan,
    pub(super) moved_aside: Vec<MovedAside>,
}

/// The resume handoff of one step.
pub(super) struct Handoff {
    options: HandoffOptions,
    /// The directory in which the trainer looks for its steps.
    directory: PathBuf,
    /// The same, as text.
    directory_text: String,
    /// The step's paths in it.
    layout: Layout,
    overrides_newer: bool,
    /// Paths of the step that hold other content, which is moved aside.
    displaced: Vec<String>,
    /// The numbers of the steps that were skipped.
    skipped: BTreeSet<u64>,
    vault: Option<Vault>,
    resolved: Arc<ResolvedStep>,
}

/// A handoff of which everything is done that comes before the step is published.
pub(super) struct PreparedHandoff {
    handoff: Handoff,
    /// Locked; `None` if there is nothing to do.
    directory: Option<HandoffDirectory>,
    report: HandoffReport,
}

impl Handoff {
    /// Returns the handoff for this restore, if any. A partial step is nothing that a trainer could resume from.
    ///
    /// # Errors
    /// When the requested profile is unknown.
    pub(super) fn new(Restore { context, request }: Restore<'_>, plan: &RestorePlan) -> Result<Option<Self>> {
        let Some(mut options) = request.handoff.clone() else {
            return Ok(None);
        };
        if !request.include.is_empty() {
            return Ok(None);
        }
        // With a name chosen by the user, the trainer's pointers cannot name the step.
        options.write &= matches!(request.target, Target::Into(_));
        let handoff = Self {
            options,
            layout: Layout::of(plan),
            directory: plan.directory.clone(),
            directory_text: plan.directory.to_string_lossy().into_owned(),
            overrides_newer: request.wanted.step.is_some(),
            displaced: Vec::new(),
            skipped: (plan.skipped.iter()).map(|skipped| skipped.id.step.number()).collect(),
            vault: context.vault.clone(),
            resolved: Arc::clone(&plan.step),
        };
        handoff.requested_profile()?;
        Ok(Some(handoff))
    }

    /// Returns what would be done, before anything is fetched. Whether other content is at the step's paths is judged by
    /// sizes and times.
    pub(super) async fn preview(self) -> Result<HandoffPlan> {
        let files = RangeReader::new(Arc::clone(&self.resolved));
        blocking(move || {
            let mut handoff = self;
            if handoff.displaces() {
                handoff.displaced = other_content(&handoff.tree()?, &handoff.layout, &handoff.resolved);
            }
            if !handoff.displaced.is_empty()
                && let Some(kept) = handoff.plan_to_keep()?
            {
                return Ok(kept);
            }
            handoff.plan(Some(Box::new(files)))
        })
        .await
    }

    /// Returns what is done for the trainer if the other content at the step's paths stays, because it is newer than the
    /// step and the trainer resumes from it. Otherwise it is moved aside for the step.
    pub(super) async fn kept_in_place(self) -> Result<(Self, Option<HandoffReport>)> {
        blocking(move || {
            let kept = self.plan_to_keep()?.map(|plan| HandoffReport { plan, moved_aside: Vec::new() });
            Ok((self, kept))
        })
        .await
    }

    /// Returns the directory's content without stepvault's own files.
    fn tree(&self) -> Result<Tree> {
        present_tree(&self.directory, self.vault.as_ref())
    }

    /// Returns the handoff to newer content at the step's own path, which the trainer resumes from.
    fn plan_to_keep(&self) -> Result<Option<HandoffPlan>> {
        let tree = self.tree()?;
        let files = SurveyFiles::open(&self.directory)?;
        let written_at = self.resolved.files.iter().map(|file| file.mtime).max();
        let of_step = (self.resolved.id.step.number(), written_at.unwrap_or_default());
        let restored = self.restored(&tree)?;
        Ok(kept_in_place(&restored, of_step, &self.options.profiles, &files))
    }

    /// Whether other content at the step's paths is moved aside: the trainer saves every step under the same name.
    pub(super) fn displaces(&self) -> bool {
        self.options.write && self.resolved.origin.rewritten
    }

    /// Moves these paths of the step aside as well: they hold other content.
    #[must_use]
    pub(super) fn displacing(mut self, paths: &[PathBuf]) -> Self {
        let inside = |path: &PathBuf| path.strip_prefix(&self.directory).ok()?.to_str().map(str::to_owned);
        self.displaced = paths.iter().filter_map(inside).collect();
        self
    }

    /// Moves other checkpoints out of the way of the staged step; of one that is in place, if there is no staging
    /// directory.
    pub(super) fn prepare(self, staging: Option<&Staging>) -> Result<PreparedHandoff> {
        let prepared = |handoff, directory, plan, moved_aside| PreparedHandoff {
            handoff,
            directory,
            report: HandoffReport { plan, moved_aside },
        };
        if staging.is_none() {
            let plan = self.plan(None)?;
            if plan.is_done() {
                return Ok(prepared(self, None, plan, Vec::new()));
            }
        }
        let open = || HandoffDirectory::open(&self.directory, self.vault.as_ref());
        let directory = self.options.write.then(open).transpose()?;
        // Planned under the lock: another restore may have changed the directory until now.
        let plan = self.plan(staging.map(|staging| self.staged_files(staging)).transpose()?)?;
        let moved_aside = match &directory {
            Some(directory) => move_aside(directory, &self.directory, &plan.aside)?,
            None => Vec::new(),
        };
        Ok(prepared(self, directory, plan, moved_aside))
    }

    /// Opens the staged files by their paths inside the step.
    fn staged_files(&self, staging: &Staging) -> Result<Box<dyn OpenFile>> {
        let single = self.resolved.shape == Shape::File;
        let file = self.resolved.files.first().filter(|_| single);
        Ok(Box::new(StagedFiles { files: staging.files()?, single: file.map(|file| file.path.to_string()) }))
    }

    fn requested_profile(&self) -> Result<Option<&Profile>> {
        let name = self.options.profile.as_deref();
        name.map(|name| named(&self.options.profiles, name)).transpose()
    }

    /// Returns the profile that was asked for, else the one that found the step when it was sealed. On a new node the
    /// directory shows too little to detect one.
    fn profile(&self) -> Result<Option<&Profile>> {
        let recorded = self.resolved.origin.profile.as_deref();
        Ok(self.requested_profile()?.or_else(|| self.options.profiles.get(recorded?)))
    }

    /// Plans the handoff. `step_files` opens the step's files by their paths inside it while it is not in place.
    fn plan(&self, step_files: Option<Box<dyn OpenFile>>) -> Result<HandoffPlan> {
        let tree = tree_with_step(&self.tree()?, &self.layout, &self.resolved);
        let directory = self.directory.is_dir().then(|| SurveyFiles::open(&self.directory));
        let files =
            OverlayFiles { layout: &self.layout, step: step_files, directory: directory.transpose()? };
        let restored = self.restored(&tree)?;
        let mut plan = plan(&restored, &self.options.profiles, &files).ok_or_else(|| {
            Error::new(ErrorKind::Failed, "cannot determine how the trainer resumes")
                .on(self.directory.display())
                .because("there is no generic profile")
        })?;
        if plan.kept.is_none() {
            plan.pointers.extend(self.recorded_links(&plan, &tree));
        }
        plan.aside.extend(self.displaced.iter().cloned());
        if !self.options.write {
            plan.aside.clear();
            plan.pointers.clear();
        }
        Ok(plan)
    }

    /// Returns the links that led to the step when it was sealed, except those that the profile writes. What is no link
    /// stays.
    fn recorded_links(&self, plan: &HandoffPlan, tree: &Tree) -> Vec<PlannedPointer> {
        let is_planned = |path: &str| plan.pointers.iter().any(|pointer| pointer.write.path == path);
        let links = self.resolved.origin.links.iter();
        let links = links.filter(|link| !is_planned(link.path.as_str()));
        let planned = links.filter_map(|link| {
            let is_right = match tree.get(link.path.as_str()).map(|entry| &entry.kind) {
                None => false,
                Some(EntryKind::Symlink { target }) => *target == link.target,
                Some(_) => return None,
            };
            let (path, content) = (link.path.to_string(), PointerContent::Symlink(link.target.clone()));
            Some(PlannedPointer { write: PointerWrite { path, content }, is_right })
        });
        planned.collect()
    }

    /// Returns the step as the plans of a handoff take it; `tree` is the directory.
    fn restored<'a>(&'a self, tree: &'a Tree) -> Result<Restored<'a>> {
        Ok(Restored {
            directory: &self.directory_text,
            tree,
            paths: &self.layout.paths,
            overrides_newer: self.overrides_newer,
            skipped: &self.skipped,
            profile: self.profile()?,
        })
    }

    /// Returns the pointers' mode: readable by everyone who may read the step.
    fn pointer_mode(&self) -> u32 {
        let mut directories = self.resolved.directories.iter();
        let root = directories.find(|entry| entry.path.is_none());
        let of_file = || self.resolved.files.first().map_or(0o600, |file| file.mode);
        (root.map_or_else(of_file, |entry| entry.mode) & 0o666) | 0o600
    }
}

/// Writes the copies by which a user finds the best step, such as `model_best.pth.tar`, where nothing has their names.
///
/// # Errors
/// When the directory cannot be read or written.
pub(super) async fn write_best_copies(
    context: &RestoreContext,
    options: &HandoffOptions,
    plan: &RestorePlan,
) -> Result<()> {
    let name = options.profile.as_deref().or(plan.step.origin.profile.as_deref());
    let profile = name.and_then(|name| options.profiles.get(name)).cloned();
    let (directory, vault) = (plan.directory.clone(), context.vault.clone());
    let paths = Layout::of(plan).paths;
    blocking(move || {
        let Some(profile) = profile else { return Ok(()) };
        let tree = present_tree(&directory, vault.as_ref())?;
        let copies = copies_of_best(&profile, &tree, &paths);
        if copies.is_empty() {
            return Ok(());
        }
        let open = HandoffDirectory::open(&directory, vault.as_ref())?;
        for (copy, of) in copies {
            open.write_copy(&RelativePath::new(copy)?, &RelativePath::new(of)?)?;
        }
        open.finish()
    })
    .await
}

/// Moves out of the trainer's sight what it must not resume from, when there is no step to restore: steps that are not
/// whole, and `from_scratch` all steps. A directory that cannot be read causes a warning.
pub(super) async fn clear_first_start(Restore { context, request }: Restore<'_>, from_scratch: bool) {
    let (Some(options), Target::Into(directory)) = (&request.handoff, &request.target) else {
        return;
    };
    if !options.write || !directory.is_dir() {
        return;
    }
    let (options, directory, vault) = (options.clone(), directory.clone(), context.vault.clone());
    let moved = blocking(move || move_what_is_in_the_way(&options, &directory, vault.as_ref(), from_scratch));
    let warn = |message: &str| context.observer.warn(message);
    match moved.await {
        Ok(moved) => {
            let why = if from_scratch {
                "no step is whole on all nodes"
            } else {
                "it is not whole, and there is no step to restore"
            };
            for MovedAside { from, to } in moved {
                warn(&format!("{} is moved to {}: {why}", from.display(), to.display()));
            }
        }
        Err(error) => {
            warn(&format!("the trainer may find steps that are not whole: {}", error.text_with_hint()));
        }
    }
}

fn move_what_is_in_the_way(
    options: &HandoffOptions,
    directory: &Path,
    vault: Option<&Vault>,
    from_scratch: bool,
) -> Result<Vec<MovedAside>> {
    let path = absolute(directory)?;
    let profile = options.profile.as_deref();
    let start = FirstStart {
        directory: &path.to_string_lossy(),
        tree: &present_tree(directory, vault)?,
        from_scratch,
        profile: profile.map(|name| named(&options.profiles, name)).transpose()?,
    };
    let files = SurveyFiles::open(directory)?;
    let aside = in_the_way_of_a_first_start(&start, &options.profiles, &files);
    if aside.is_empty() {
        return Ok(Vec::new());
    }
    let open = HandoffDirectory::open(directory, vault)?;
    let moved = move_aside(&open, directory, &aside)?;
    open.finish()?;
    Ok(moved)
}

fn move_aside(open: &HandoffDirectory, directory: &Path, paths: &[String]) -> Result<Vec<MovedAside>> {
    let mut moved = Vec::new();
    for path in paths {
        if let Some(to) = open.move_aside(&RelativePath::new(path.as_str())?)? {
            let from = directory.join(path);
            moved.push(MovedAside { from, to });
        }
    }
    Ok(moved)
}

impl PreparedHandoff {
    /// Writes the trainer's pointers to the step, which is in place now.
    pub(super) fn finish(self) -> Result<HandoffReport> {
        let Some(directory) = self.directory else {
            return Ok(self.report);
        };
        let pointers = self.report.plan.pointers.iter();
        for PlannedPointer { write, .. } in pointers.filter(|pointer| !pointer.is_right) {
            let path = RelativePath::new(&write.path)?;
            match &write.content {
                PointerContent::Text(text) => {
                    directory.write_text(&path, text, self.handoff.pointer_mode())?;
                }
                PointerContent::Symlink(target) => directory.write_link(&path, target)?,
                PointerContent::CopyOf(of) => directory.write_copy(&path, &RelativePath::new(of)?)?,
            }
        }
        if let Err(error) = directory.finish() {
            // Everything is in place; only a temporary directory is left.
            tracing::warn!(%error, "cannot delete a restore's temporary files");
        }
        Ok(self.report)
    }
}
