//! Structural check of a step: selects the check for each file and combines the results.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::find::{Extent, FoundStep};
use crate::not_checkpoint::is_in_clutter;
use crate::soundness::{Fault, Finding, Soundness};
use crate::structure::{dcp, deepspeed, hf_index, kind, megatron, ocdbt, orbax, tf_bundle, zarr};
use crate::tree::{OpenFile, Tree};

/// Maximum size of all files together that may be of unknown formats where the others prove a save finished: texts.
const MAX_UNPROVED_BYTES: u64 = 64 << 10;

/// A structural check to run. Directories and files are paths of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// One file, checked by its kind.
    File(String),
    /// A directory of PyTorch's distributed checkpoint.
    Dcp(String),
    /// A directory of DCP that holds only the files of this node's own ranks.
    DcpPart(String),
    /// The files of every rank of a DeepSpeed step.
    DeepSpeed(String),
    /// The shards that an index names.
    HfIndex(String),
    /// Shards that carry their count in their names.
    HfShards(String),
    /// A distributed checkpoint of Megatron, without its DCP files.
    Megatron(String),
    /// A step of Orbax.
    Orbax(String),
    /// An OCDBT database outside a step of Orbax.
    Ocdbt(String),
    /// A TensorFlow bundle, by the prefix of its files.
    TfBundle(String),
    /// A zarr array outside a step of Orbax.
    Zarr(String),
}

/// The result of the checks of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepCheck {
    /// The findings that are not sound: broken or unknown.
    pub findings: Vec<Finding>,
    /// Bytes of all files of the step.
    pub bytes: u64,
    /// Bytes of the files whose soundness is unknown.
    pub unknown_bytes: u64,
}

impl StepCheck {
    /// Returns false when any check found a broken rule; true when none did and the format of more than half of the
    /// bytes is known; `None` when only a digest could tell.
    pub fn is_sound(&self) -> Option<bool> {
        if self.broken().next().is_some() {
            return Some(false);
        }
        (self.bytes > 0 && self.unknown_bytes < self.bytes.div_ceil(2)).then_some(true)
    }

    /// Returns whether the formats of the files prove that they were written to their ends, but for a few small ones.
    pub fn is_proved(&self) -> bool {
        self.broken().next().is_none() && self.bytes > 0 && self.unknown_bytes <= MAX_UNPROVED_BYTES
    }

    /// Returns the broken rules as text; empty if there are none.
    pub fn damage(&self) -> Vec<String> {
        self.broken().map(|(path, why)| format!("{path}: {why}")).collect()
    }

    /// Returns the broken rules: path and reason.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.findings.iter().filter_map(|finding| match &finding.soundness {
            Soundness::Broken { why, .. } => Some((finding.path.as_str(), why.as_str())),
            _ => None,
        })
    }
}

/// Runs every check that [`plan`] returns. Reads headers, never tensors. A file that cannot be read is unknown, with
/// the reason: it may have vanished, or belong to another user.
pub fn check_step(step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> StepCheck {
    check_extent(Extent::Whole, step, tree, files)
}

/// Runs the checks for as much of a step as the directory holds. In a part, each file is checked by itself, and
/// tables that list files are compared only with those that exist: the others are on other nodes.
pub fn check_extent(extent: Extent, step: &FoundStep, tree: &Tree, files: &dyn OpenFile) -> StepCheck {
    check_extent_by(&|checks, run| checks.iter().flat_map(run).collect(), extent, step, tree, files)
}

/// How the checks of a step are run: one after another, or several at once. Returns the findings in the order of the
/// checks.
pub type RunChecks<'a> = dyn Fn(&[Check], &(dyn Fn(&Check) -> Vec<Finding> + Sync)) -> Vec<Finding> + 'a;

/// Like [`check_extent`], with the checks run by `run`.
pub fn check_extent_by(
    run: &RunChecks<'_>,
    extent: Extent,
    step: &FoundStep,
    tree: &Tree,
    files: &dyn OpenFile,
) -> StepCheck {
    // What tools leave among the files of a step is no part of it.
    let own = tree.within(&step.members, |inside| !is_in_clutter(inside));
    let checks = if extent.is_part() { plan_part(step, &own) } else { plan(step, &own) };
    // Sound files are not remembered: there may be very many.
    let findings = run(&checks, &|check| {
        let findings = check.run(&own, files).into_iter();
        findings.filter(|finding| finding.soundness != Soundness::Sound).collect()
    });
    combine(findings, step, &own)
}

fn combine(findings: Vec<Finding>, step: &FoundStep, tree: &Tree) -> StepCheck {
    let mut result = StepCheck::default();
    // The indexes of the findings of a path, by its hash: there may be one for each of very many files.
    let mut known: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for finding in findings {
        if matches!(finding.soundness, Soundness::Unknown { .. }) {
            let size_bytes = tree.file_size_bytes(&finding.path).unwrap_or_default();
            result.unknown_bytes = result.unknown_bytes.saturating_add(size_bytes);
        }
        // Two checks may report the same about one file.
        let mut hasher = DefaultHasher::new();
        finding.path.hash(&mut hasher);
        let of_path = known.entry(hasher.finish()).or_default();
        if of_path.iter().all(|index| result.findings[*index] != finding) {
            of_path.push(result.findings.len());
            result.findings.push(finding);
        }
    }
    result.bytes = step.bytes;
    result
}

/// Returns the checks that a step needs.
pub fn plan(step: &FoundStep, tree: &Tree) -> Vec<Check> {
    let mut plan = Plan::of(tree);
    for directory in paths_of(step, tree).filter(|path| tree.is_directory(path)) {
        if plan.covers(directory) {
            continue;
        }
        plan.add_directory(directory);
        if !plan.covers(directory) && hf_index::holds_shards(tree, directory) {
            plan.checks.push(Check::HfShards(directory.to_owned()));
        }
    }
    plan.add_files(step);
    plan.checks
}

/// Returns the checks that a part of a step needs.
fn plan_part(step: &FoundStep, tree: &Tree) -> Vec<Check> {
    let mut plan = Plan::of(tree);
    for directory in paths_of(step, tree).filter(|path| tree.is_directory(path)) {
        let names = tree.file_names(directory).filter(|name| is_dcp(name));
        if plan.cover(names.map(|name| format!("{directory}/{name}"))) {
            plan.checks.push(Check::DcpPart(directory.to_owned()));
        }
    }
    plan.add_files(step);
    plan.checks
}

/// Returns every path of a step, and those below them.
fn paths_of<'a>(step: &'a FoundStep, tree: &'a Tree) -> impl Iterator<Item = &'a str> {
    step.members.iter().flat_map(move |member| {
        let inside = tree.inside(member).map(|(path, _)| path);
        std::iter::once(member.as_str()).chain(inside)
    })
}

/// Returns whether a file name is one of DCP's.
fn is_dcp(name: &str) -> bool {
    name.ends_with(".metadata") || name.ends_with(".distcp")
}

/// The checks of a step, and what they cover, so that no other check covers it.
struct Plan<'a> {
    tree: &'a Tree,
    checks: Vec<Check>,
    files: BTreeSet<String>,
    directories: BTreeSet<String>,
}

impl<'a> Plan<'a> {
    fn of(tree: &'a Tree) -> Self {
        Self { tree, checks: Vec::new(), files: BTreeSet::new(), directories: BTreeSet::new() }
    }

    fn covers(&self, path: &str) -> bool {
        let mut above = path;
        loop {
            if self.directories.contains(above) {
                return true;
            }
            match above.rsplit_once('/') {
                Some((parent, _)) => above = parent,
                None => return self.files.contains(path),
            }
        }
    }

    /// Covers files, and returns whether there are any that were not covered.
    fn cover(&mut self, files: impl Iterator<Item = String>) -> bool {
        let before = self.files.len();
        self.files.extend(files);
        self.files.len() > before
    }

    /// Adds a check for every file that no other check covers.
    fn add_files(&mut self, step: &FoundStep) {
        for path in paths_of(step, self.tree) {
            if self.tree.is_file(path) && !self.covers(path) {
                self.checks.push(Check::File(path.to_owned()));
            }
        }
    }

    /// Adds the checks of what a directory holds together.
    fn add_directory(&mut self, directory: &str) {
        let tree = self.tree;
        let at = |name: &str| format!("{directory}/{name}");
        let has = |name: &str| tree.is_file(&at(name));
        let whole = directory.to_owned();
        let of_whole: Option<fn(String) -> Check> = if has(orbax::STEP_METADATA_NAME) {
            Some(Check::Orbax)
        } else if has(ocdbt::MANIFEST_NAME) {
            Some(Check::Ocdbt)
        } else if zarr::is_array(tree, directory) {
            Some(Check::Zarr)
        } else {
            None
        };
        if let Some(check) = of_whole {
            self.directories.insert(whole.clone());
            self.checks.push(check(whole));
            return;
        }
        let names: Vec<&str> = tree.file_names(directory).collect();
        if names.iter().any(|name| is_dcp(name)) {
            self.checks.push(Check::Dcp(whole.clone()));
            self.cover(names.iter().filter(|name| is_dcp(name)).map(|name| at(name)));
        }
        let of_megatron = [".metadata", "common.pt", megatron::INTEGRITY_NAME];
        if has(megatron::METADATA_NAME) && of_megatron.into_iter().any(has) {
            self.checks.push(Check::Megatron(whole.clone()));
        }
        let is_deepspeed =
            |name: &str| name.ends_with("_model_states.pt") || name.ends_with("_optim_states.pt");
        if names.iter().any(|name| is_deepspeed(name)) {
            self.checks.push(Check::DeepSpeed(whole));
        }
        for name in names {
            if hf_index::is_index(name) {
                self.checks.push(Check::HfIndex(at(name)));
            }
            if let Some(prefix) = name.strip_suffix(tf_bundle::INDEX_ENDING) {
                self.add_bundle(&at(prefix), &at(name));
            }
        }
    }

    /// Adds a TensorFlow bundle if a data file exists beside the file that is named like an index.
    fn add_bundle(&mut self, prefix: &str, index: &str) {
        let parts = self.tree.starting_with(&format!("{prefix}.data-"));
        if self.cover(parts.map(|(path, _)| path.to_owned())) {
            self.files.insert(index.to_owned());
            self.checks.push(Check::TfBundle(prefix.to_owned()));
        }
    }
}

impl Check {
    fn run(&self, tree: &Tree, files: &dyn OpenFile) -> Vec<Finding> {
        match self {
            Self::File(path) => {
                let checked = files.open(path).and_then(|source| kind::check_file(path, &*source));
                vec![checked.map_or_else(
                    |error| unreadable(path, &error),
                    |soundness| Finding { path: path.clone(), soundness },
                )]
            }
            Self::Dcp(path) => several(path, dcp::check(tree, path, files)),
            Self::DcpPart(path) => several(path, dcp::check_part(tree, path, files)),
            Self::DeepSpeed(path) => several(path, deepspeed::check(tree, path, files)),
            Self::HfIndex(path) => one(path, hf_index::check(tree, path, files)),
            Self::HfShards(path) => one(path, hf_index::check_sharded(tree, path, files)),
            Self::Megatron(path) => one(path, megatron::check(tree, path, files)),
            Self::Orbax(path) => one(path, orbax::check(tree, path, files)),
            Self::Ocdbt(path) => one(path, ocdbt::check(tree, path, files)),
            Self::TfBundle(path) => one(path, tf_bundle::check(tree, path, files)),
            Self::Zarr(path) => one(path, zarr::check(tree, path, files, zarr::Presence::Optional)),
        }
    }
}

fn one(path: &str, outcome: Result<(), Fault>) -> Vec<Finding> {
    vec![Finding::of(path, outcome).unwrap_or_else(|error| unreadable(path, &error))]
}

fn several(path: &str, outcome: std::io::Result<Vec<Finding>>) -> Vec<Finding> {
    outcome.unwrap_or_else(|error| vec![unreadable(path, &error)])
}

fn unreadable(path: &str, error: &std::io::Error) -> Finding {
    Finding::unknown(path, format!("it cannot be read: {error}"))
}
