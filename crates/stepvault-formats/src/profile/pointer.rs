//! What a trainer reads to find the step it goes on from, as data.

use serde::Deserialize;

use super::template::Template;

/// A file or link by which a trainer, or its user, finds a step.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pointer {
    /// Where it is.
    pub path: Template,
    /// What it is.
    pub kind: PointerKind,
    /// What it says of a step. Default: the step's name.
    #[serde(default = "name")]
    pub says: Template,
    /// Other words it may say, which name no numbered step.
    #[serde(default)]
    pub also: Vec<String>,
    /// What it is for.
    #[serde(default)]
    pub role: PointerRole,
}

fn name() -> Template {
    Template::name()
}

/// What a pointer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerKind {
    /// A file with a text.
    Text,
    /// A symbolic link to the step's name, from the directory that holds both.
    RelativeSymlink,
    /// A symbolic link that holds the step's path as the trainer was given it: relative to where the trainer runs, or
    /// absolute. It is read, not followed, so it must name the same path after a restore.
    PathSymlink,
    /// A file with the step's bytes: a copy or a hard link.
    Copy,
    /// A copy or a relative symbolic link, as the trainer was told.
    CopyOrSymlink,
}

/// What a pointer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerRole {
    /// The trainer goes on from what it names.
    #[default]
    Resume,
    /// It names the best step. It is never written for the trainer; what it names is never removed.
    Best,
}
