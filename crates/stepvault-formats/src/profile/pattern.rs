//! The two ways in which a profile names paths: globs, and regular expressions with named groups.

use globset::{GlobBuilder, GlobMatcher};
use regex::{Captures, Regex};
use serde::Deserialize;

/// A glob over paths of a tree. `*` stops at `/`, `**` does not, and `{a/,}` may be empty.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct PathGlob(GlobMatcher);

impl PathGlob {
    /// Returns the glob as it was written.
    pub fn text(&self) -> &str {
        self.0.glob().glob()
    }

    /// Returns whether it matches the whole of this path.
    pub fn is_match(&self, path: &str) -> bool {
        self.0.is_match(path)
    }
}

impl TryFrom<String> for PathGlob {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        GlobBuilder::new(&text)
            .literal_separator(true)
            .empty_alternates(true)
            .build()
            .map(|glob| Self(glob.compile_matcher()))
            .map_err(|error| format!("{text:?} is not a glob: {}", error.kind()))
    }
}

/// A regular expression that must match the whole of a path. Its named groups extract parts of a name: `step`, `name`
/// (the part that the user chose), `rank`, `world`, `group`; any other group only serves the reader.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern {
    text: String,
    regex: Regex,
}

/// The parts of a path, by the named groups of the pattern that matches it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PathParts {
    /// The group `step`, if present and a number.
    pub(crate) step: Option<u64>,
    /// The group `name`.
    pub(crate) name: Option<String>,
    /// The group `rank`, when it is a number.
    pub(crate) rank: Option<u32>,
    /// The group `world`, when it is a number.
    pub(crate) world: Option<u32>,
    /// The group `group`.
    pub(crate) group: Option<String>,
    /// The path without `rank` and `group`: the same for all files of one set.
    pub(crate) without_rank: String,
}

impl PathPattern {
    /// Returns the expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether it matches the whole of this path.
    pub fn is_match(&self, path: &str) -> bool {
        self.regex.is_match(path)
    }

    /// Returns whether it has a group of this name.
    pub fn has_group(&self, name: &str) -> bool {
        self.regex.capture_names().flatten().any(|other| other == name)
    }

    pub(crate) fn parts(&self, path: &str) -> Option<PathParts> {
        let captures = self.regex.captures(path)?;
        let text = |name: &str| captures.name(name).map(|group| group.as_str().to_owned());
        Some(PathParts {
            step: number(&captures, "step"),
            name: text("name"),
            rank: number(&captures, "rank"),
            world: number(&captures, "world"),
            group: text("group"),
            without_rank: blanked(&captures, path),
        })
    }
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let regex = Regex::new(&format!("^(?:{text})$"))
            .map_err(|error| format!("{text:?} is not a regular expression: {error}"))?;
        Ok(Self { text, regex })
    }
}

fn number<T: std::str::FromStr>(captures: &Captures<'_>, name: &str) -> Option<T> {
    captures.name(name)?.as_str().parse().ok()
}

fn blanked(captures: &Captures<'_>, path: &str) -> String {
    let mut spans: Vec<_> =
        ["rank", "group"].iter().filter_map(|name| captures.name(name).map(|group| group.range())).collect();
    spans.sort_by_key(|span| span.start);
    let mut result = String::new();
    let mut end = 0;
    for span in spans {
        result.push_str(path.get(end..span.start).unwrap_or_default());
        result.push('*');
        end = span.end;
    }
    result.push_str(path.get(end..).unwrap_or_default());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> PathPattern {
        PathPattern::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn a_pattern_matches_whole_paths_only() {
        let steps = pattern("(?:checkpoints/)?step_(?<step>[0-9]+)");
        assert_eq!(steps.parts("checkpoints/step_7").unwrap().step, Some(7));
        assert!(!steps.is_match("checkpoints/step_7.partial"));
        assert!(!steps.is_match("x/step_7"));
        let alternatives = pattern("a|b");
        assert!(!alternatives.is_match("ab"));
    }

    #[test]
    fn the_files_of_one_set_differ_in_their_rank_alone() {
        let shards =
            pattern("(?:bf16_)?zero_pp_rank_(?<rank>[0-9]+)_mp_rank_(?<group>[0-9]+)_optim_states[.]pt");
        let one = shards.parts("zero_pp_rank_1_mp_rank_00_optim_states.pt").unwrap();
        let other = shards.parts("zero_pp_rank_0_mp_rank_01_optim_states.pt").unwrap();
        assert_eq!(one.without_rank, other.without_rank);
        assert_eq!((one.rank, one.group.as_deref()), (Some(1), Some("00")));
        assert_eq!(one.without_rank, "zero_pp_rank_*_mp_rank_*_optim_states.pt");
    }

    #[test]
    fn a_number_too_large_for_a_step_is_none() {
        let steps = pattern("step_(?<step>[0-9]+)");
        assert_eq!(steps.parts("step_99999999999999999999999").unwrap().step, None);
    }

    #[test]
    fn a_star_stops_at_a_slash_and_a_prefix_may_be_empty() {
        let glob = PathGlob::try_from("{checkpoints/,}step_*/.metadata".to_owned()).unwrap();
        assert!(glob.is_match("step_1/.metadata") && glob.is_match("checkpoints/step_1/.metadata"));
        assert!(!glob.is_match("step_1/trainer/.metadata"));
    }

    #[test]
    fn what_is_wrong_with_a_pattern_is_said_with_the_pattern() {
        let error = PathGlob::try_from("step_[".to_owned()).unwrap_err();
        assert!(error.starts_with("\"step_[\" is not a glob: "), "{error}");
        let error = PathPattern::try_from("step_(".to_owned()).unwrap_err();
        assert!(error.starts_with("\"step_(\" is not a regular expression: "), "{error}");
    }
}
