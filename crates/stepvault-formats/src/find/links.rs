//! The symbolic links by which a trainer, or its user, finds a step.

use super::found::{Found, FoundStep};
use crate::profile::template::{last_component, parent_prefix};
use crate::tree::{EntryKind, Tree};

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
    let found = all
        .filter(|(path, _)| !is_pointer(path))
        .filter_map(|(path, target)| {
            let place = parent_prefix(path);
            let own = format!("{place}{}", last_component(target.trim_end_matches('/')));
            let step = steps.iter().find(|step| step.members.contains(&own))?;
            // A link inside a step is stored with it.
            let is_inside = step
                .members
                .iter()
                .any(|member| place.starts_with(&format!("{member}/")));
            (!is_inside).then(|| LinkFound {
                path: path.to_owned(),
                step: step.path.clone(),
            })
        });
    found.collect()
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
        self.links
            .iter()
            .filter(is_its)
            .map(|link| link.path.as_str())
            .collect()
    }
}
