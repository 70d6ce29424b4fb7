//! How a framework's steps are named and what proves that one is complete, as data.

use serde::Deserialize;

use super::pattern::{PathGlob, PathPattern};

/// One series of steps that a framework writes.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Series {
    /// What it is called; unique within the profile.
    pub name: String,
    /// What its steps are.
    pub kind: StepKind,
    /// The paths of its steps, relative to the watched directory. Group `step` is the number; without it the name is
    /// read as [`crate::step_name::parse`] does. Paths that differ in group `rank` alone are one step.
    pub path: PathPattern,
    /// Paths inside a step, of which one must be there for it to belong to this series. Empty: no condition.
    #[serde(default)]
    pub holds: Vec<PathGlob>,
    /// False when a name without a number is a step as well.
    #[serde(default = "yes")]
    pub numbered: bool,
    /// False when the trainer cannot go on from it (weights alone).
    #[serde(default = "yes")]
    pub resumable: bool,
    /// True when a file of this series is a step only as long as no other step has its bytes (`last.ckpt`).
    #[serde(default)]
    pub alias: bool,
    /// What its numbers count, in the plural, where they count something else than those of the series before it: such
    /// steps cannot be one run with the others (`epochs` beside `updates`).
    #[serde(default)]
    pub counts: Option<String>,
    /// A rule in code, for what data cannot say.
    #[serde(default)]
    pub unit: Option<UnitRule>,
    /// What proves that a step is complete.
    pub complete: Complete,
}

fn yes() -> bool {
    true
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

/// Steps that are put together by code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnitRule {
    /// `recover_checkpoint` of every model and the one `recover_info` beside them, overwritten at each save
    /// (areal/utils/recover.py, saver.py).
    ArealRecover,
}

/// What proves that a step is complete. Evidence against it wins over any proof.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Complete {
    /// What must have happened.
    pub proof: Proof,
    /// Files that must be there, not empty.
    #[serde(default)]
    pub required: Vec<Required>,
    /// Files that must be there when an earlier complete step of the series has one such.
    #[serde(default)]
    pub as_before: Vec<PathGlob>,
    /// Files that say the step is not complete.
    #[serde(default)]
    pub refused: Vec<PathGlob>,
    /// Markers that no data beside them may be newer than: a step that is overwritten in place has its old marker next
    /// to new data.
    #[serde(default)]
    pub newest: Vec<Newest>,
    /// Markers that are empty files.
    #[serde(default)]
    pub may_be_empty: Vec<PathGlob>,
    /// Files of which there is one for each rank.
    #[serde(default)]
    pub ranks: Vec<RankSet>,
}

/// What must have happened for a step to be complete.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proof {
    /// It was renamed to its final name.
    Rename,
    /// One of these files, written last, is there.
    Marker(Vec<PathGlob>),
    /// The path with this text behind it, which is there while the step is written, is gone.
    MarkerRemoved(String),
    /// The trainer's pointer names it or a newer one.
    Pointer,
    /// The same; where there is no pointer at all, as for [`Proof::Quiet`].
    PointerOrQuiet,
    /// Nothing was written to it for as long as is asked for, or a newer step was begun after it.
    Quiet,
}

/// A marker and the data beside it, in the same directory, that it is written after.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Newest {
    /// The marker.
    pub file: PathGlob,
    /// The data.
    pub than: PathGlob,
}

/// One file, or one of several alternatives, that must be there.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Required {
    /// Paths inside the step, one of which must be there, not empty.
    pub any: Vec<PathGlob>,
    /// Only when this is there too.
    #[serde(default)]
    pub when: Option<PathGlob>,
}

/// Files of which each rank writes one: 0, 1, 2, … without a gap.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RankSet {
    /// What each is, in the plural ("random states").
    pub what: String,
    /// Paths inside the step, with group `rank`; group `world`, where the name says how many there are; group
    /// `group`, where there are several sets of ranks, each as large as the others.
    pub files: PathPattern,
    /// How many there are at least, once there is one.
    #[serde(default = "one")]
    pub at_least: u32,
    /// False when these are not the ranks of the whole run.
    #[serde(default = "yes")]
    pub counts_world: bool,
}

fn one() -> u32 {
    1
}
