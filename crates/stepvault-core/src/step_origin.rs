//! Where a trainer keeps a step, and what wrote it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::path::RelativePath;

/// What was known of a step when it was sealed: enough to put it back where its trainer looks for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepOrigin {
    /// The directory of the step, below the watched one. Omitted when the step is directly in the watched directory, and
    /// when none was watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<RelativePath>,
    /// The name of the profile that found it. Omitted when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Whether the trainer saves one step after another under the same name. Omitted when it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rewritten: bool,
    /// Its series in that profile. Omitted when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
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

    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
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
        assert_eq!(
            in_target("checkpoints", "project", "/project/checkpoints"),
            "/project/checkpoints"
        );
        assert_eq!(
            in_target("checkpoints", "checkpoints", "/checkpoints"),
            "/checkpoints/checkpoints"
        );
        assert_eq!(in_target("logs/v_0", "out", "/out/logs/v_0"), "/out/logs/v_0");
        assert_eq!(in_target("logs/v_0", "out", "/out/v_0"), "/out/v_0/logs/v_0");
        assert_eq!(
            StepOrigin::default().directory_in(Path::new("/new")),
            Path::new("/new")
        );
    }
}
