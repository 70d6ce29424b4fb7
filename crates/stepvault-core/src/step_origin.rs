//! Where a trainer keeps a step, and what wrote it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::entries::SymlinkEntry;
use crate::keys::check_step_name;
use crate::links::check_links;
use crate::placement::Evidence;
use crate::{RelativePath, Step};

/// Maximum number of steps that one names as the best.
pub const MAX_BEST: usize = 16;

/// Maximum number of links to a step.
pub const MAX_LINKS: usize = 16;

/// How a step names one that its trainer calls the best so far.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BestName {
    /// The name.
    pub name: String,
    /// The number in the name. A trainer may save a step under two names, of which only one is sealed. Omitted when the
    /// name has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
}

/// What was known of a step when it was sealed: enough to put it back where its trainer looks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepOrigin {
    /// Whether it is a revision that has all files of the one before it. Omitted when it is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amends: bool,
    /// The evidence with which its attempt begins. Omitted unless it is the first step of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Evidence>,
    /// The steps that its trainer calls the best so far, which may be itself: at most [`MAX_BEST`], sorted by name.
    /// Omitted when there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub best: Vec<BestName>,
    /// The directory of the step, below the watched one. Omitted when the step is directly in the watched directory, and
    /// when none was watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<RelativePath>,
    /// The symbolic links by which the trainer finds the step, to be made when it is restored: at most [`MAX_LINKS`],
    /// sorted by path, relative to the directory that holds the step. Omitted when there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<SymlinkEntry>,
    /// The name of the profile that found it. Omitted when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The version of the program that the profile came with. Omitted for a user's own profile, and without `profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_version: Option<String>,
    /// Whether the trainer saves one step after another under the same name. Omitted when it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rewritten: bool,
    /// Its series in that profile. Omitted when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Whether nothing tells its number, which is one more than that of the newest step with a number in its name. Omitted
    /// when something does, and in a run without such steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unnumbered: bool,
    /// The name of the watched directory. Omitted without `directory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched: Option<String>,
}

impl StepOrigin {
    /// Returns the directory of the step if its trainer's steps are restored into `target`: `target` itself if that is
    /// already the step's directory by its name, and not the watched one.
    pub fn directory_in(&self, target: &Path) -> PathBuf {
        let Some(directory) = &self.directory else {
            return target.to_owned();
        };
        let name = target.file_name().and_then(|name| name.to_str());
        let is_watched = name.is_some() && name == self.watched.as_deref();
        if !is_watched && target.ends_with(directory.as_str()) {
            return target.to_owned();
        }
        target.join(directory)
    }

    /// Returns what is wrong with the names of the best steps or with the links.
    pub(crate) fn fault(&self) -> Option<String> {
        if self.links.len() > MAX_LINKS || !self.links.is_sorted_by(|one, next| one.path < next.path) {
            return Some(format!("it has more than {MAX_LINKS} links, or they are not sorted"));
        }
        let of_links = || check_links(&self.links).err().map(|error| error.to_string());
        best_fault(&self.best).or_else(of_links)
    }

    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns what is wrong with names of best steps in a record.
pub(crate) fn best_fault(names: &[BestName]) -> Option<String> {
    if names.len() > MAX_BEST {
        return Some(format!("it names more than {MAX_BEST} best steps"));
    }
    if !names.is_sorted_by(|one, next| one.name < next.name) {
        return Some("the names of its best steps are not sorted, or one is listed twice".to_owned());
    }
    let fault = names.iter().find_map(|best| check_step_name(&best.name).err());
    fault.map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_goes_into_its_subdirectory_but_not_into_one_within_that() {
        let in_target = |directory: &str, watched: &str, target: &str| {
            let origin = StepOrigin {
                directory: Some(RelativePath::new(directory).unwrap()),
                watched: Some(watched.to_owned()),
                ..StepOrigin::default()
            };
            origin.directory_in(Path::new(target)).display().to_string()
        };
        assert_eq!(in_target("checkpoints", "project", "/new"), "/new/checkpoints");
        assert_eq!(in_target("checkpoints", "project", "/project/checkpoints"), "/project/checkpoints");
        assert_eq!(in_target("checkpoints", "checkpoints", "/checkpoints"), "/checkpoints/checkpoints");
        assert_eq!(in_target("logs/v_0", "out", "/out/logs/v_0"), "/out/logs/v_0");
        assert_eq!(in_target("logs/v_0", "out", "/out/v_0"), "/out/v_0/logs/v_0");
        assert_eq!(StepOrigin::default().directory_in(Path::new("/new")), Path::new("/new"));
    }
}
