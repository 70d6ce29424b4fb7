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

pub(crate) mod pattern;
mod set;
pub(crate) mod template;

use serde::Deserialize;

pub use pattern::{PathGlob, PathPattern};
pub use set::{GENERIC, OwnFault, ProfileFault, ProfileSet, builtin};
pub use template::{Template, last_component};

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

/// A file or link by which a trainer, or its user, finds a step.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pointer {
    /// Its path.
    pub path: Template,
    /// Its kind.
    pub kind: PointerKind,
    /// Its content for a step. Default: the step's name.
    #[serde(default = "Template::name")]
    pub says: Template,
    /// Other content it may have, which names no numbered step.
    #[serde(default)]
    pub also: Vec<String>,
    /// Its purpose.
    #[serde(default)]
    pub role: PointerRole,
}

/// The kind of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerKind {
    /// A file with a text.
    Text,
    /// A symbolic link to the step's name, from the directory that holds both.
    RelativeSymlink,
    /// A symbolic link that holds the step's path as the trainer was given it: relative to the trainer's working
    /// directory, or absolute. The trainer reads it without following it, so it must name the same path after a
    /// restore.
    PathSymlink,
    /// A file with the step's bytes: a copy or a hard link.
    Copy,
    /// A copy or a relative symbolic link, depending on the trainer's settings.
    CopyOrSymlink,
}

/// The purpose of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerRole {
    /// The trainer resumes from the step that it names.
    #[default]
    Resume,
    /// It names the best step. It is never written for the trainer; the step that it names is never removed.
    Best,
}

/// One series of steps that a framework writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct Series {
    /// Its name; unique within the profile.
    pub name: String,
    /// The kind of its steps.
    pub kind: StepKind,
    /// The paths of its steps, relative to the watched directory. Group `step` is the number; without it the name is
    /// parsed by [`crate::step_name::parse`]. Paths that differ only in group `rank` are one step.
    pub path: PathPattern,
    /// Paths inside a step, of which one must exist for the step to belong to this series. Empty: no condition.
    #[serde(default)]
    pub holds: Vec<PathGlob>,
    /// False when a name without a number is a step as well.
    #[serde(default = "yes")]
    pub numbered: bool,
    /// False when the trainer cannot resume from it (weights alone).
    #[serde(default = "yes")]
    pub resumable: bool,
    /// True when a file of this series is a step only while no other step has its bytes or its number (`last.ckpt`).
    #[serde(default)]
    pub alias: bool,
    /// True when a path without a number holds one step after another: each new content of it is a step.
    #[serde(default)]
    pub rewritten: bool,
    /// Where such a step states its number; the first that is found applies. Without any, its number is the next one of
    /// the run.
    #[serde(default)]
    pub number: Vec<StatedNumber>,
    /// Other files that belong to a step, if they exist (`best.pt` beside `last.pt`).
    #[serde(default)]
    pub with: Vec<Template>,
    /// What its numbers count, in the plural, if they count something else than those of the previous series: such
    /// steps cannot be one run with the others (`epochs` beside `updates`).
    pub counts: Option<String>,
    /// A rule in code, for what data cannot express.
    pub unit: Option<UnitRule>,
    /// What proves that a step is complete.
    pub complete: Complete,
}

fn yes() -> bool {
    true
}

/// Where a step states something.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Stated {
    /// The file, inside the step: JSON if its name says so, otherwise a file of `torch.save`. Default: the first file of
    /// the step.
    pub file: Option<PathGlob>,
    /// The keys that lead to it, joined with dots; `-1` is the last element of a list, and `*` any entry.
    pub key: String,
}

/// Where a step states its number.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StatedNumber {
    /// The file, as in [`Stated`].
    pub file: Option<PathGlob>,
    /// The keys that lead to the number, joined with dots; `-1` is the last element of a list.
    pub key: String,
    /// Keys in the same file. If they lead to anything but 0, `key` does not tell one step from the next.
    pub unless: Option<String>,
}

/// What a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Either.
    Either,
}

/// Steps that are assembled by code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnitRule {
    /// `recover_checkpoint` of every model and the one `recover_info` beside them, overwritten at each save
    /// (areal/utils/recover.py, saver.py).
    ArealRecover,
    /// `epoch_N`, and `recipe_state/recipe_state.pt` beside it if it is of this epoch
    /// (`torchtune/training/checkpointing/_checkpointer.py`).
    TorchtuneEpoch,
}

/// The proof that a step is complete. Evidence against it overrides any proof.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Complete {
    /// The required event.
    pub proof: Proof,
    /// Files that must exist and not be empty.
    #[serde(default)]
    pub required: Vec<Required>,
    /// Files that must exist if an earlier complete step of the series has one.
    #[serde(default)]
    pub as_before: Vec<PathGlob>,
    /// Files that mark the step as incomplete.
    #[serde(default)]
    pub refused: Vec<PathGlob>,
    /// Markers that must not be older than the data beside them: a step that is overwritten in place has its old
    /// marker next to new data.
    #[serde(default)]
    pub newest: Vec<Newest>,
    /// Markers that are empty files.
    #[serde(default)]
    pub may_be_empty: Vec<PathGlob>,
    /// Files that are written once per rank.
    #[serde(default)]
    pub ranks: Vec<RankSet>,
}

/// The event that makes a step complete.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It was renamed to its final name.
    Rename,
    /// One of these files, written last, exists.
    Marker(Vec<PathGlob>),
    /// The path with this suffix, which exists while the step is written, does not exist.
    MarkerRemoved(String),
    /// The trainer's pointer names it or a newer one.
    Pointer,
    /// As [`Proof::Pointer`]; if there is no pointer at all, as [`Proof::Quiet`].
    PointerOrQuiet,
    /// Nothing was written to it for the required time, or a newer step was started after it.
    Quiet,
}

/// A marker, and the data in the same directory that is written before it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Newest {
    /// The marker.
    pub file: PathGlob,
    /// The data.
    pub than: PathGlob,
}

/// One file, or one of several alternatives, that must exist.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Required {
    /// Paths inside the step, one of which must exist and not be empty.
    pub any: Vec<PathGlob>,
    /// The rule applies only if this path exists too.
    pub when: Option<PathGlob>,
}

/// Files that are written once per rank: 0, 1, 2, … without a gap.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RankSet {
    /// What the files are, in the plural ("random states").
    pub what: String,
    /// Paths inside the step, with group `rank`; group `world`, if the name contains the number of ranks; group
    /// `group`, if there are several sets of ranks of the same size.
    pub files: PathPattern,
    /// The minimum number of files once one exists.
    #[serde(default = "one")]
    pub at_least: u32,
    /// False when these are not the ranks of the whole run.
    #[serde(default = "yes")]
    pub counts_world: bool,
}

fn one() -> u32 {
    1
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
