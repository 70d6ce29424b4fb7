//! What is found in a directory.

use std::collections::{BTreeMap, BTreeSet};

use stepvault_core::keys::check_step_name;
use stepvault_core::step_origin::{BestName, MAX_BEST, StepOrigin};
use stepvault_core::{RelativePath, Step, Timestamp, Writer};

use super::stated;
use crate::pointer::PointerFound;
use crate::profile::template::{last_component, parent_prefix};
use crate::profile::{GENERIC, PointerRole, Profile, Proof, Series, UnitRule};
use crate::step_name;
use crate::tree::{EntryKind, OpenFile, Tree, is_inside};

/// How long after a step a trainer may write the same state under a name without a number, in seconds.
pub const LONGEST_SAVE_SECONDS: u64 = 600;

/// The parameters of a search for steps, besides the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindOptions {
    /// How long nothing must have been written when no other proof shows that a save is finished, in seconds.
    pub quiet_seconds: u64,
    /// The number of ranks of the run, if the caller knows it. Fewer ranks are too few, unless a newer step has as
    /// few.
    pub expected_world: Option<u32>,
    /// The number of ranks of the last step that the caller sealed, for the first step of the directory; every other
    /// step is compared with the previous one.
    pub previous_ranks: Option<u32>,
    /// How much of each step the directory holds.
    pub extent: Extent,
}

impl Default for FindOptions {
    fn default() -> Self {
        Self { quiet_seconds: 30, expected_world: None, previous_ranks: None, extent: Extent::Whole }
    }
}

/// Whether a step is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    /// The step is complete.
    Complete {
        /// The proof, as text.
        proof: String,
        /// When it must also be quiet.
        quiet_rule: QuietRule,
    },
    /// The step is not complete, or nothing proves it yet.
    NotYet {
        /// The reasons, as text; never empty.
        reasons: Vec<String>,
    },
}

/// When a complete step must also be quiet.
///
/// A marker or pointer proves nothing about later writes: a run that went back overwrites steps that still have their
/// old marker, and that the pointer has long since passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuietRule {
    /// Always: nothing else proves that its save is over.
    Always,
    /// Briefly, if the formats of its files prove each of them whole: the step is one file, or the run has since gone on to
    /// a later step, or it has all files that the complete step before it has.
    Briefly,
    /// Once an earlier state of it was sealed: what proved that one does not apply to later changes.
    OnceSealed,
    /// Never: its proof applies to each of its states.
    Never,
}

/// A step that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundStep {
    /// The path that it is named after, relative to the watched directory: of several entries with its number, the one
    /// that the trainer resumes from.
    pub path: String,
    /// All paths that make it up, in the order in which a restore must create them.
    pub members: Vec<String>,
    /// The series of the profile.
    pub series: String,
    /// Its number: the one in its name, otherwise the one that its content states.
    pub step: Option<u64>,
    /// Whether its path holds one step after another: its name has no number, and each new content is a step.
    pub rewritten: bool,
    /// Whether it is complete.
    pub complete: Completeness,
    /// The number of ranks that wrote it, if known.
    pub ranks: Option<u32>,
    /// The length of all its files, in bytes.
    pub bytes: u64,
    /// The number of its files.
    pub files: u64,
    /// The modification time of its newest file. A lower number that was written later belongs to another attempt.
    pub written_at: Timestamp,
    /// Differs for other paths, sizes or times of its files, except what tools leave among them.
    pub content: u64,
    /// False when the trainer cannot resume from it.
    pub resumable: bool,
}

/// What a found step is stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepIdentity {
    /// Its number, if its name or its content states one.
    pub number: Option<Step>,
    /// The name of its directory or file.
    pub name: String,
    /// Its paths in the directory that was searched, if there are several.
    pub members: Vec<RelativePath>,
    /// Where its trainer keeps it, and what wrote it.
    pub origin: StepOrigin,
}

impl FoundStep {
    /// Returns whether it is complete.
    pub fn is_complete(&self) -> bool {
        matches!(self.complete, Completeness::Complete { .. })
    }

    /// Returns when it must also be quiet: always, while it is not complete.
    pub fn quiet_rule(&self) -> QuietRule {
        match self.complete {
            Completeness::Complete { quiet_rule, .. } => quiet_rule,
            Completeness::NotYet { .. } => QuietRule::Always,
        }
    }

    /// Returns the number that its content states now, where its name has none.
    pub fn stated_step(&self, profile: &Profile, tree: &Tree, files: &dyn OpenFile) -> Option<u64> {
        let series = self.series_in(profile).filter(|_| self.rewritten)?;
        stated::stated_step(series, &self.own_members(), tree, files)
    }

    /// Whether the trainer can resume from steps of its series, if not from this one.
    pub fn was_resumable(&self, profile: &Profile) -> bool {
        self.series_in(profile).is_some_and(|series| series.resumable)
    }

    /// Whether one of its paths is overwritten by the next step, which has another path for the rest.
    pub(crate) fn has_shared_path(&self, profile: &Profile) -> bool {
        let unit = self.series_in(profile).and_then(|series| series.unit);
        let has_no_number = |path: &String| step_name::parse(last_component(path)).is_none();
        unit == Some(UnitRule::TorchtuneEpoch) && self.members.len() > 1
            || profile.name == GENERIC && !self.rewritten && self.members.iter().any(has_no_number)
    }

    /// Returns whether files of it may be written to again: it, or one of its paths, is overwritten in place, and its
    /// contents are not renamed to its path.
    pub fn is_overwritten(&self, profile: &Profile) -> bool {
        let is_renamed =
            self.series_in(profile).is_some_and(|series| matches!(series.complete.proof, Proof::Rename));
        profile.overwrites_finished_files() || self.rewritten && !is_renamed || self.has_shared_path(profile)
    }

    /// Returns its series; `None` for a temporary name.
    pub(crate) fn series_in<'a>(&self, profile: &'a Profile) -> Option<&'a Series> {
        profile.series.iter().find(|series| series.name == self.series)
    }

    /// Returns the names of the steps that its content states to be the best so far, as [`stated::stated_best`].
    pub(crate) fn stated_best(
        &self,
        profile: &Profile,
        tree: &Tree,
        files: &dyn OpenFile,
    ) -> Option<BTreeSet<String>> {
        stated::stated_best(profile, &self.own_members(), tree, files)
    }

    /// Returns its paths, that it is named after first.
    pub(super) fn own_members(&self) -> Vec<&str> {
        // A path with a number is another step's.
        let is_own = |path: &&String| !self.rewritten || step_name::parse(last_component(path)).is_none();
        let others = self.members.iter().filter(|path| **path != self.path);
        let others = others.filter(is_own);
        std::iter::once(&self.path).chain(others).map(String::as_str).collect()
    }

    /// Returns its name: that of the path that is created last, if the step is named after it; otherwise one made of the
    /// profile, the series and, unless its paths are rewritten, its number.
    pub fn name(&self, profile: &Profile) -> String {
        let profile = &profile.name;
        match (self.members.last(), self.step) {
            (Some(last), _) if *last == self.path => last_component(last).to_owned(),
            (_, Some(step)) if !self.rewritten => format!("{profile}-{}-{step}", self.series),
            _ => format!("{profile}-{}", self.series),
        }
    }

    /// Returns what is recorded of the profile that found it; only whether its path is rewritten for the generic one.
    pub fn origin(&self, profile: &Profile) -> StepOrigin {
        let is_framework = profile.name != GENERIC;
        StepOrigin {
            rewritten: self.rewritten || self.has_shared_path(profile),
            profile: is_framework.then(|| profile.name.clone()),
            profile_version: profile.version.filter(|_| is_framework).map(str::to_owned),
            series: is_framework.then(|| self.series.clone()),
            ..StepOrigin::default()
        }
    }

    /// Returns what it is stored as, or why it cannot be stored. Without a number it gets the next one of the run. A step of
    /// several paths has no name of its own, and keeps its paths relative to the directory that was searched, which is called
    /// `directory`.
    pub fn identity(&self, profile: &Profile, directory: Option<&str>) -> Result<StepIdentity, String> {
        let shown = |error: stepvault_core::Error| error.to_string();
        let number = match self.step.map(Step::new).transpose() {
            // A file may state a number that no step can have.
            Err(_) if self.rewritten => None,
            other => other.map_err(shown)?,
        };
        if number.is_none() && !self.rewritten {
            return Err("its name contains no step number".to_owned());
        }
        // A profile made from the run's own pattern says nothing about the trainer.
        let found_by = match profile.names {
            Some(_) => StepOrigin { rewritten: self.rewritten, ..StepOrigin::default() },
            None => self.origin(profile),
        };
        let [path] = self.members.as_slice() else {
            let members = self.members.iter().map(RelativePath::new);
            let members = members.collect::<stepvault_core::Result<_>>().map_err(shown)?;
            return Ok(StepIdentity { number, name: self.name(profile), members, origin: found_by });
        };
        let above = path.rsplit_once('/').map(|(above, _)| RelativePath::new(above));
        let above = above.transpose().map_err(shown)?;
        let watched = directory.map(str::to_owned).filter(|_| above.is_some());
        let origin = StepOrigin { watched, directory: above, ..found_by };
        Ok(StepIdentity { number, name: last_component(path).to_owned(), members: Vec::new(), origin })
    }

    /// Returns the reasons why it is not complete; empty when it is.
    pub fn reasons(&self) -> &[String] {
        match &self.complete {
            Completeness::Complete { .. } => &[],
            Completeness::NotYet { reasons } => reasons,
        }
    }
}

/// The contents of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The steps by series, then by number and path. A temporary name with a number in it is listed as an incomplete
    /// step.
    pub steps: Vec<FoundStep>,
    /// The files and links that the trainer, or its user, reads to find a step.
    pub pointers: Vec<PointerFound>,
    /// Paths with a name that is used only while writing.
    pub temporary: Vec<String>,
    /// Paths that the profile excludes as steps.
    pub ignored: Vec<String>,
    /// Symbolic links to steps that are no pointers of the profile.
    pub links: Vec<LinkFound>,
    /// Paths without a number that hold a copy of a step with one, and what [`copied_files`](super::copied_files) returned.
    pub copies: Vec<String>,
    /// For each complete directory that nothing but its files proves whole, by its path: the files that all earlier
    /// complete steps of its series have and it lacks, with `*` in place of a step's number; `None` where there is no
    /// earlier one.
    pub missing: BTreeMap<String, Option<Vec<String>>>,
}

impl Found {
    /// Returns the names of the links that must lead to a step when it is restored: those that lead to it, and those that
    /// the trainer moves from an earlier step to the newest. Each is in the directory of the step.
    pub fn links_to(&self, step: &FoundStep) -> Vec<&str> {
        let number_of = |path: &str| self.steps.iter().find(|other| other.path == path)?.step;
        let is_its = |link: &&LinkFound| {
            let is_moved = !last_component(&link.path).to_ascii_lowercase().contains("best");
            let is_beside = parent_prefix(&link.path) == parent_prefix(&step.path);
            is_beside && (link.step == step.path || is_moved && number_of(&link.step) < step.step)
        };
        self.links.iter().filter(is_its).map(|link| link.path.as_str()).collect()
    }

    /// Returns the steps that a step of these calls the best so far, which may be itself: those that its content states,
    /// and those that the trainer's pointer names.
    pub fn best_of(
        &self,
        step: &FoundStep,
        profile: &Profile,
        tree: &Tree,
        files: &dyn OpenFile,
    ) -> Vec<BestName> {
        let mut names = step.stated_best(profile, tree, files).unwrap_or_default();
        let pointers = self.pointers.iter();
        let of_best = pointers.filter(|pointer| pointer.role == PointerRole::Best);
        for target in of_best.filter_map(|pointer| pointer.target.as_ref()) {
            let best = self.steps.iter().find(|other| other.path == *target);
            names.extend(best.map(|other| other.name(profile)));
        }
        let number = |name: &str| {
            let mut steps = self.steps.iter();
            if let Some(found) = steps.find(|other| other.name(profile) == name) {
                return found.step;
            }
            let path = format!("{}{name}", parent_prefix(&step.path));
            let parts = profile.series.iter().find_map(|series| series.path.parts(&path))?;
            parts.step.or_else(|| step_name::parse(name))
        };
        let names = names.into_iter().filter(|name| check_step_name(name).is_ok());
        let best = names
            .map(|name| BestName { step: number(&name).and_then(|number| Step::new(number).ok()), name });
        best.take(MAX_BEST).collect()
    }

    /// Returns the pointer that the trainer resumes by.
    pub fn pointer(&self) -> Option<&PointerFound> {
        self.pointers.iter().find(|pointer| pointer.is_for_resuming())
    }
}

/// The part of a step that a directory holds, where several nodes write the step together.
///
/// If each node has its own disk, no directory holds all of a step. Rank 0 alone writes the files that prove it, a
/// marker or a pointer, when all ranks are done. So only the node of rank 0 has a proof. On every other node, the
/// files of its ranks are complete once they write no more. A save that was cut off is never proved on the first node
/// and cannot become durable without it.
///
/// Nothing is compared with earlier steps: on a node that a restore has filled, they hold the files of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Extent {
    /// The whole step.
    #[default]
    Whole,
    /// The files written by the ranks of one node, including rank 0.
    LeadingPart,
    /// The files written by the ranks of another node.
    OtherPart,
}

impl Extent {
    /// Returns the part that the directory of a step's writer holds. Rank 0 is assumed to run on the first node by
    /// name, as with the names that launchers' ranks give.
    pub fn of(writer: &Writer) -> Self {
        let (node, nodes) = (writer.place.node(), writer.place.nodes());
        if writer.shared || !nodes.is_several() {
            Self::Whole
        } else if nodes.iter().next() == Some(node) {
            Self::LeadingPart
        } else {
            Self::OtherPart
        }
    }

    /// Returns whether the directory may lack files of the step that no rank of this node writes.
    pub fn is_part(self) -> bool {
        self != Self::Whole
    }
}

/// A symbolic link beside steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkFound {
    /// Its path, in the directory of the steps.
    pub path: String,
    /// The path of the step that it leads to.
    pub step: String,
}

/// Returns the links that lead to one of these steps from its own directory, except the pointers of the profile.
pub(super) fn links(steps: &[FoundStep], is_pointer: impl Fn(&str) -> bool, tree: &Tree) -> Vec<LinkFound> {
    let all = tree.entries().filter_map(|(path, entry)| match &entry.kind {
        EntryKind::Symlink { target } => Some((path, target)),
        _ => None,
    });
    let found = all.filter(|(path, _)| !is_pointer(path)).filter_map(|(path, target)| {
        let place = parent_prefix(path);
        let own = format!("{place}{}", last_component(target.trim_end_matches('/')));
        let step = steps.iter().find(|step| step.members.contains(&own))?;
        // A link inside a step is stored with it.
        let is_in_step = step.members.iter().any(|member| is_inside(place, member));
        (!is_in_step).then(|| LinkFound { path: path.to_owned(), step: step.path.clone() })
    });
    found.collect()
}
