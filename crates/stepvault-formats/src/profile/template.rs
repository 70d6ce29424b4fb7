//! Texts with names in braces that are filled in for a step.

use std::fmt;

use serde::Deserialize;

use super::Profile;
use super::pattern::PathParts;
use crate::step_name;

/// The names a template may use.
const NAMES: [&str; 7] = ["root", "path", "parent", "name", "stem", "step", "rank"];

/// A text in which `{root}`, `{path}`, `{parent}`, `{name}`, `{stem}`, `{step}` and `{rank}` are placeholders for
/// facts about a step: the watched directory, the step's full path, its parent directory (empty, or ending in `/`),
/// its last component, the part of its name that the user chose, its number, and the rank that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Name(&'static str),
}

impl Template {
    /// Returns a template of the step's name alone.
    pub(super) fn name() -> Self {
        Self(vec![Piece::Name("name")])
    }

    /// Returns the text, or `None` when it uses a name that has no value for this step.
    pub(crate) fn render(&self, values: &Values) -> Option<String> {
        let mut result = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => result.push_str(text),
                Piece::Name(name) => result.push_str(&values.get(name)?),
            }
        }
        Some(result)
    }

    /// Returns whether the template is only this name.
    pub(crate) fn is_only(&self, name: &str) -> bool {
        matches!(self.0.as_slice(), [Piece::Name(other)] if *other == name)
    }

    /// Returns whether the template uses this name.
    pub(crate) fn uses(&self, name: &str) -> bool {
        let is_it = |piece: &Piece| matches!(piece, Piece::Name(other) if *other == name);
        self.0.iter().any(is_it)
    }

    /// Returns a glob over every path that the template may render.
    pub(crate) fn as_glob(&self) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => globset::escape(text),
                Piece::Name("parent") => "{**/,}".to_owned(),
                Piece::Name(_) => "*".to_owned(),
            })
            .collect()
    }
}

/// Formats the template as it is written in a profile.
impl fmt::Display for Template {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_str(text)?,
                Piece::Name(name) => write!(out, "{{{name}}}")?,
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (name, behind) = after
                .split_once('}')
                .ok_or_else(|| format!("{text:?} opens a brace that it does not close"))?;
            let name = NAMES.iter().find(|known| **known == name).ok_or_else(|| {
                format!("{text:?} uses {{{name}}}, which is not one of {{{}}}", NAMES.join("}, {"))
            })?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Name(name));
            rest = behind;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }
}

/// The values of the names in a template.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values {
    root: Option<String>,
    path: String,
    stem: Option<String>,
    /// The number in its name.
    pub(crate) step: Option<u64>,
    /// The rank that wrote it, if its path contains it.
    pub(crate) rank: Option<u32>,
}

impl Values {
    /// Returns the values for a path that a profile treats as a step, or `None` if it does not.
    pub(crate) fn of(profile: &Profile, root: Option<&str>, path: &str) -> Option<Self> {
        let parts = profile.series.iter().find_map(|series| series.path.parts(path))?;
        Some(Self::from_parts(&parts, root, path))
    }

    pub(crate) fn from_parts(parts: &PathParts, root: Option<&str>, path: &str) -> Self {
        Self {
            root: root.map(|root| root.trim_end_matches('/').to_owned()),
            path: path.to_owned(),
            stem: parts.name.clone(),
            step: parts.step.or_else(|| step_name::parse(last_component(path))),
            rank: parts.rank,
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        match name {
            "root" => self.root.clone(),
            "path" => Some(match &self.root {
                Some(root) => format!("{root}/{}", self.path),
                None => self.path.clone(),
            }),
            "parent" => Some(parent_prefix(&self.path).to_owned()),
            "name" => Some(last_component(&self.path).to_owned()),
            "stem" => self.stem.clone(),
            "step" => self.step.map(|step| step.to_string()),
            // A step without a rank in its name was written by rank 0.
            "rank" => Some(self.rank.unwrap_or(0).to_string()),
            _ => None,
        }
    }
}

/// Returns the part after the last `/` of a path.
pub fn last_component(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns a path up to and including its last `/`; empty when it has none.
pub(crate) fn parent_prefix(path: &str) -> &str {
    path.rfind('/').and_then(|slash| path.get(..=slash)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Template {
        Template::try_from(text.to_owned()).unwrap()
    }

    fn values() -> Values {
        Values {
            root: Some("/run".to_owned()),
            path: "checkpoints/run7_checkpoint_12".to_owned(),
            stem: Some("run7".to_owned()),
            step: Some(12),
            rank: None,
        }
    }

    #[test]
    fn names_are_filled_in() {
        let filled = template("load {path} ({step}) under {root}").render(&values());
        assert_eq!(filled.as_deref(), Some("load /run/checkpoints/run7_checkpoint_12 (12) under /run"));
        let link = template("{parent}{stem}.latest_checkpoint");
        assert_eq!(link.render(&values()).as_deref(), Some("checkpoints/run7.latest_checkpoint"));
        assert_eq!(link.as_glob(), "{**/,}*.latest_checkpoint");
        assert_eq!(template("a[1]-{rank}").as_glob(), "a[[]1[]]-*");
    }

    #[test]
    fn a_name_without_a_value_makes_no_text() {
        let unnumbered = Values { step: None, ..values() };
        assert_eq!(template("{step}").render(&unnumbered), None);
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(
            Template::try_from("--load {dir}".to_owned()).unwrap_err(),
            "\"--load {dir}\" uses {dir}, which is not one of {root}, {path}, {parent}, {name}, {stem}, {step}, \
             {rank}"
        );
        assert_eq!(
            Template::try_from("{step".to_owned()).unwrap_err(),
            "\"{step\" opens a brace that it does not close"
        );
    }
}
