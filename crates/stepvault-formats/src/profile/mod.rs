//! Profiles: how a framework lays out its checkpoints, as data.
//!
//! Each framework is one file in `profiles/`. A user's own profile has the same form, as a `[[profile]]` table of the
//! configuration. What data cannot say is a small rule in code that a profile names ([`UnitRule`], [`Protects`],
//! [`ResumeBy`]).
//!
//! # Blind spots
//!
//! What a framework's layout does not tell, no profile does:
//!
//! - What is written only by some runs is asked for once an earlier step has it. The first step of a run can lack it
//!   and look complete when nothing is written for long: `optimizer.pt` of a Hugging Face run (one that saves weights
//!   alone has none), `entropy_ctrl_state.json` of TRL, tokenizer files of an `AReaL` export, `custom_checkpoint_N.pkl`
//!   of Accelerate, `*_optim_states.pt` of `DeepSpeed`.
//! - A loss of the highest ranks leaves no gap. It shows by the step before, or by the number of ranks that the caller
//!   expects; not in the first step of a run whose file names do not say how many there are.
//! - torchtune's last save has no recipe state, so that a missing one says nothing.
//! - A step of plain torch files or of Lightning is complete when it is quiet. Only its structure shows a cut-off.
//! - A directory overwritten in place is told by times. A copy that does not keep them can look overwritten; rank files
//!   of two saves whose times were made equal look like one.
//! - DCP directories called `step-N` are taken for torchtitan's only in `checkpoint/`, or by the training state in
//!   their metadata, which its model-only last step lacks.
//! - Ultralytics goes by the time of the last change of the inode, which is not among the facts.

mod builtin;
mod own;
pub(crate) mod pattern;
mod pointer;
mod series;
pub(crate) mod template;
mod validate;

use serde::Deserialize;

pub use builtin::{GENERIC, ProfileSet, builtin, generic};
pub use own::OwnFault;
pub use pattern::{PathGlob, PathPattern};
pub use pointer::{Pointer, PointerKind, PointerRole};
pub use series::{Complete, Newest, Proof, RankSet, Required, Series, StepKind, UnitRule};
pub use template::{Template, last_component};
pub use validate::ProfileFault;

/// How one framework lays out its checkpoints. All paths are relative to the watched directory.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// What it is called: lower-case letters, digits and hyphens.
    pub name: String,
    /// One line for a reader.
    pub description: String,
    /// What shows that this framework wrote a directory. Any one of these is enough.
    #[serde(default)]
    pub detect: Vec<Detect>,
    /// The steps it writes; of several that fit an entry, the first holds.
    pub series: Vec<Series>,
    /// Names that a step has only while it is written. Group `step`, where there is one, is its number.
    #[serde(default)]
    pub temporary: Vec<PathPattern>,
    /// What is never a step, with everything below it.
    #[serde(default)]
    pub ignored: Vec<PathGlob>,
    /// What the trainer, or its user, reads to find a step.
    #[serde(default)]
    pub pointer: Vec<Pointer>,
    /// How the trainer finds the step it goes on from.
    pub resume: Resume,
    /// What must never be created in the watched directory, because the trainer would stumble over it.
    #[serde(default)]
    pub hazard: Vec<Hazard>,
    /// What the trainer removes by itself.
    #[serde(default)]
    pub deletes: Option<Deletes>,
    /// What a clean-up of the source must leave, besides what pointers name and the newest complete step.
    #[serde(default)]
    pub protects: Vec<Protects>,
    /// How its files may be sealed.
    pub links: Links,
    /// True when the trainer goes by modification times, so that a restore must keep them.
    #[serde(default)]
    pub times_matter: bool,
}

/// What shows that a framework wrote a directory.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Detect {
    /// Each of these must match an entry.
    pub all: Vec<PathGlob>,
    /// None of these may.
    #[serde(default)]
    pub none: Vec<PathGlob>,
    /// A file that must hold a text.
    #[serde(default)]
    pub contains: Option<Contains>,
    /// How telling this is: of several frameworks that fit, the highest wins.
    pub specificity: u32,
}

/// A text within a file, looked for in its first and last [`crate::detect::CONTENT_LIMIT_BYTES`].
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Contains {
    /// Which files; one that holds the text is enough.
    pub file: PathGlob,
    /// The text.
    pub text: String,
}

/// How a trainer finds the step it goes on from.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Resume {
    /// By what.
    pub by: ResumeBy,
    /// What its own scan takes for a step, which may be more than what is one. Default: the paths of the series.
    #[serde(default)]
    pub scan: Vec<PathPattern>,
    /// What its scan asks of a step: one of these inside. Default: nothing.
    #[serde(default)]
    pub needs: Vec<PathGlob>,
    /// What to tell the user, with the step filled in.
    pub text: Template,
}

/// By what a trainer finds the step it goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResumeBy {
    /// By the pointer.
    Pointer,
    /// By the highest number.
    HighestNumber,
    /// By the newest modification time.
    NewestMtime,
    /// By the newest change of the inode, which no restore can set: what is restored last wins.
    NewestCtime,
    /// By the highest `(timestamp, step)` of the `metadata.json` inside (levanter/checkpoint.py).
    MetadataTimestamp,
    /// By a path that never changes.
    FixedPath,
    /// Not by itself: it is told.
    Told,
}

/// A name that a trainer stumbles over.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hazard {
    /// Which paths.
    pub path: PathPattern,
    /// What happens.
    pub effect: Effect,
    /// What happens, in words.
    pub words: String,
}

/// What a trainer does with a name that it stumbles over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// It fails.
    Fails,
    /// It takes it for a step.
    Counted,
    /// It removes it.
    Removed,
    /// It writes into it.
    WrittenTo,
}

/// What a trainer removes by itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Deletes {
    /// Which go first.
    pub first: DeletesFirst,
    /// The rule in words, with the trainer's own settings.
    pub words: String,
}

/// Which steps a trainer removes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeletesFirst {
    /// The lowest number.
    LowestNumber,
    /// The oldest modification time.
    OldestMtime,
    /// The worst by a metric.
    Worst,
    /// Those above the one its pointer names.
    AbovePointer,
}

/// What a clean-up must leave, found by code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protects {
    /// `best_model_checkpoint` in `trainer_state.json`, a path that the trainer loads at its end
    /// (transformers/trainer.py).
    HfBestModel,
}

/// How a framework's files may be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// It never writes to a finished file again: a hard link will do.
    Hard,
    /// It overwrites finished files in place: they must be copied, or cloned by the filesystem.
    CopyOrReflink,
}

impl Profile {
    /// Whether finished files may be written to again, so that a second name for one would change with it.
    pub fn overwrites_finished_files(&self) -> bool {
        self.links == Links::CopyOrReflink
    }

    /// True when a restore or a seal must not leave this path in the watched directory, and why.
    pub fn hazard_of(&self, path: &str) -> Option<&Hazard> {
        self.hazard.iter().find(|hazard| hazard.path.is_match(path))
    }
}
