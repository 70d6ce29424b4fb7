//! How a framework names its steps, and what proves that one is complete, as data.

use serde::Deserialize;

use super::pattern::{PathGlob, PathPattern};
use super::template::Template;

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
    #[serde(default)]
    pub counts: Option<String>,
    /// A rule in code, for what data cannot express.
    #[serde(default)]
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
    #[serde(default)]
    pub file: Option<PathGlob>,
    /// The keys that lead to it, joined with dots; `-1` is the last element of a list, and `*` any entry.
    pub key: String,
}

/// Where a step states its number.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StatedNumber {
    /// The file, as in [`Stated`].
    #[serde(default)]
    pub file: Option<PathGlob>,
    /// The keys that lead to the number, joined with dots; `-1` is the last element of a list.
    pub key: String,
    /// Keys in the same file. If they lead to anything but 0, `key` does not tell one step from the next.
    #[serde(default)]
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
    #[serde(default)]
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
