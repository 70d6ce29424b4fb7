//! What a trainer reads to find the step that it resumes from, as data.

use serde::Deserialize;

use super::template::Template;

/// A file or link by which a trainer, or its user, finds a step.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pointer {
    /// Its path.
    pub path: Template,
    /// Its kind.
    pub kind: PointerKind,
    /// Its content for a step. Default: the step's name.
    #[serde(default = "name")]
    pub says: Template,
    /// Other content it may have, which names no numbered step.
    #[serde(default)]
    pub also: Vec<String>,
    /// Its purpose.
    #[serde(default)]
    pub role: PointerRole,
}

fn name() -> Template {
    Template::name()
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
