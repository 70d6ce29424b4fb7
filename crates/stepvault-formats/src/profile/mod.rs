//! Profiles: descriptions of how frameworks lay out their checkpoints, as data.
//!
//! Each framework is one file in `profiles/`. A user's own profile has the same form, as a `[[profile]]` table of the
//! configuration. What data cannot express is a small rule in code that a profile names ([`UnitRule`],
//! [`ResumeBy`]).
//!
//! # Blind spots
//!
//! A profile cannot know what the framework's layout does not show:
//!
//! - A file that only some runs write is required once an earlier step has it. The first step of a run can lack it
//!   and look complete when nothing is written for long enough: `optimizer.pt` of a Hugging Face run (a run that
//!   saves only weights has none), `entropy_ctrl_state.json` of TRL, tokenizer files of an `AReaL` export,
//!   `custom_checkpoint_N.pkl` of Accelerate, `*_optim_states.pt` of `DeepSpeed`.
//! - The loss of the highest ranks leaves no gap. It is detected from the previous step or from the number of ranks
//!   that the caller expects, but not in the first step of a run whose file names do not state the number of ranks.
//! - The last checkpoint of a torchtune run has no recipe state, so a missing recipe state proves nothing where no other
//!   epoch has left one. Where all epochs share one, an epoch that was not sealed before the next one overwrote it is not
//!   sealed: its weights alone are nothing to resume from.
//! - A step of plain torch files or of Lightning is complete when it is quiet. Only the check of its structure
//!   detects a file that is cut off.
//! - An overwrite in place is detected from modification times. A copy that does not keep them can look overwritten;
//!   rank files of two saves whose times were made equal look like one save.
//! - DCP directories called `step-N` are attributed to torchtitan only in `checkpoint/`, or when their metadata
//!   contains the training state, which the model-only last step lacks.
//! - Ultralytics uses the time of the last inode change, which is not among the facts.

mod builtin;
mod own;
pub(crate) mod pattern;
mod pointer;
mod series;
pub(crate) mod template;
mod validate;

use serde::Deserialize;

pub use builtin::{GENERIC, ProfileSet, builtin};
pub use own::OwnFault;
pub use pattern::{PathGlob, PathPattern};
pub use pointer::{Pointer, PointerKind, PointerRole};
pub use series::{
    Complete, Newest, Proof, RankSet, Required, Series, Stated, StatedNumber, StepKind, UnitRule,
};
pub use template::{Template, last_component};
pub use validate::ProfileFault;

/// How one framework lays out its checkpoints. All paths are relative to the watched directory.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// Its name: lower-case letters, digits and hyphens.
    pub name: String,
    /// A description in one line.
    pub description: String,
    /// The evidence that this framework wrote a directory. Any one entry is enough.
    #[serde(default)]
    pub detect: Vec<Detect>,
    /// The steps that it writes; of several series that match an entry, the first one applies.
    pub series: Vec<Series>,
    /// Names that a step has only while it is written. Group `step`, if present, is its number.
    #[serde(default)]
    pub temporary: Vec<PathPattern>,
    /// Paths that are never a step, with everything below them.
    #[serde(default)]
    pub ignored: Vec<PathGlob>,
    /// The files and links that the trainer, or its user, reads to find a step.
    #[serde(default)]
    pub pointer: Vec<Pointer>,
    /// How the trainer finds the step that it resumes from.
    pub resume: Resume,
    /// Names that must never be created in the watched directory, because the trainer mishandles them.
    #[serde(default)]
    pub hazard: Vec<Hazard>,
    /// Where a step names the best step so far, as a path or a name. The trainer, or its user, loads it at the end.
    #[serde(default)]
    pub best: Vec<Stated>,
    /// True when a clean-up of the source must keep every step: the trainer deletes its own steps by a list in memory, and
    /// fails or logs an error if one is gone (`composer/callbacks/checkpoint_saver.py`, `timm/utils/checkpoint_saver.py`).
    #[serde(default)]
    pub own_rotation: bool,
    /// How its files may be sealed.
    pub links: Links,
    /// The names of steps in the watched directory, when a run's configuration gives them and their proof. A rename or
    /// a marker then needs no other evidence, on every node, and the files may be in any format.
    #[serde(skip)]
    pub names: Option<PathGlob>,
    /// The version of the program that it came with; `None` for a user's own.
    #[serde(skip)]
    pub version: Option<&'static str>,
}

/// Evidence that a framework wrote a directory.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Detect {
    /// Globs that must each match an entry.
    pub all: Vec<PathGlob>,
    /// Globs that must match no entry.
    #[serde(default)]
    pub none: Vec<PathGlob>,
    /// A file that must contain a text.
    #[serde(default)]
    pub contains: Option<Contains>,
    /// The weight of the evidence: of several matching frameworks, the highest wins.
    pub specificity: u32,
}

/// A text within a file, searched in its first and last [`crate::detect::CONTENT_LIMIT_BYTES`].
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Contains {
    /// The files to search; one that contains the text is enough.
    pub file: PathGlob,
    /// The text.
    pub text: String,
}

/// How a trainer finds the step that it resumes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Resume {
    /// The method.
    pub by: ResumeBy,
    /// The paths that the trainer's own scan treats as steps, which may be more than the real steps. Default: the
    /// paths of the series.
    #[serde(default)]
    pub scan: Vec<PathPattern>,
    /// Paths of which the scan requires one inside a step. Default: none.
    #[serde(default)]
    pub needs: Vec<PathGlob>,
    /// The text shown to the user, with the step filled in.
    pub text: Template,
}

/// The method by which a trainer finds the step that it resumes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResumeBy {
    /// The pointer.
    Pointer,
    /// The highest number.
    HighestNumber,
    /// The newest modification time.
    NewestMtime,
    /// The newest inode change, which no restore can set: the step that is restored last wins.
    NewestCtime,
    /// The highest `(timestamp, step)` of the `metadata.json` inside (levanter/checkpoint.py).
    MetadataTimestamp,
    /// A path that never changes.
    FixedPath,
    /// None: the user names the step.
    Told,
}

/// A name that a trainer mishandles.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hazard {
    /// The paths.
    pub path: PathPattern,
    /// The effect.
    pub effect: Effect,
    /// The effect, as text.
    pub words: String,
}

/// What a trainer does with a name that it mishandles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// It fails.
    Fails,
    /// It treats it as a step.
    Counted,
    /// It removes it.
    Removed,
    /// It writes into it.
    WrittenTo,
}

/// How a framework's files may be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Links {
    /// It never writes to a finished file again, so a hard link is enough.
    Hard,
    /// It overwrites finished files in place, so they must be copied, or cloned by the filesystem.
    CopyOrReflink,
}

impl Profile {
    /// Returns whether finished files may be written to again, so that a second name for one would change with it.
    pub fn overwrites_finished_files(&self) -> bool {
        self.links == Links::CopyOrReflink
    }

    /// Returns whether a path is never a step, with everything below it.
    pub fn ignores(&self, path: &str) -> bool {
        let is_other = |names: &PathGlob| !path.contains('/') && !names.is_match(path);
        self.ignored.iter().any(|glob| glob.is_match(path)) || self.names.as_ref().is_some_and(is_other)
    }
}
