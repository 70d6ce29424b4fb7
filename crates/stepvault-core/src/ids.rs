//! Names of runs, steps, attempts, nodes and remotes.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Maximum length of a run name in bytes; leaves room for the rest of an object key, which S3 and GCS limit to 1,024.
pub const MAX_RUN_NAME_BYTES: usize = 200;
/// The directory under a run that contains stepvault's own records; no step may have this name.
pub const RECORDS_DIRECTORY: &str = ".stepvault";

/// The name of a series of steps, with one or more segments: `grpo-30b/checkpoints`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RunName(String);

impl RunName {
    /// Checks the name: segments of `A-Z a-z 0-9 . _ - = +`; no empty, `.`, `..` or dot-leading segment, and none that
    /// has the form of a step's label, because those are the prefixes of the steps' data below a run.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let fault = if name.is_empty() {
            Some("it is empty")
        } else if name.len() > MAX_RUN_NAME_BYTES {
            Some("it is longer than 200 bytes")
        } else if !name.split('/').all(is_plain_segment) {
            Some(
                "a segment between slashes may contain only letters, digits and ._-=+ and must not begin with a dot",
            )
        } else if name.split('/').any(|segment| StepId::from_label(segment).is_some()) {
            Some("a segment is the label of a step, such as 000000000100.a1")
        } else {
            None
        };
        match fault {
            None => Ok(Self(name)),
            Some(why) => {
                Err(Error::new(ErrorKind::Usage, "not a run name").on(format!("{name:?}")).because(why))
            }
        }
    }

    /// Returns the name as a single path component, with `/` written as `%2F`, for directories of the local tier.
    pub fn as_component(&self) -> String {
        self.0.replace('/', "%2F")
    }
}

/// The name of a node: one segment of `A-Z a-z 0-9 . _ -`, at most 63 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Checks the name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.len() <= 63 && is_plain_segment(&name) {
            return Ok(Self(name));
        }
        Err(Error::new(ErrorKind::Usage, "not a node name")
            .on(format!("{name:?}"))
            .because("use 1 to 63 letters, digits and ._-=+; it must not begin with a dot"))
    }
}

/// The configured name of a remote, as in `[remote.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RemoteName(String);

impl RemoteName {
    /// Checks the name: one segment like a node's. `local` is reserved for the local tier.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if name.len() <= 63 && is_plain_segment(&name) && name != "local" && name != "all" {
            return Ok(Self(name));
        }
        Err(Error::new(ErrorKind::Usage, "not a remote's name").on(format!("{name:?}")).because(
            "use 1 to 63 letters, digits and ._-=+; it must not begin with a dot, and must not be 'local' or 'all'",
        ))
    }
}

fn is_plain_segment(segment: &str) -> bool {
    !segment.is_empty()
        && !segment.starts_with('.')
        && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-=+".contains(&byte))
}

/// The number of a step: 0 to 999,999,999,999 (twelve digits, so that listings sort by number).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u64", into = "u64")]
pub struct Step(u64);

impl Step {
    /// The largest step.
    pub const MAX: Self = Self(999_999_999_999);
}

/// The incarnation of the run that wrote a step: 1, 2, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32", into = "u32")]
pub struct Attempt(u32);

impl Attempt {
    /// The first attempt of every run.
    pub const FIRST: Self = Self(1);

    /// Returns the next attempt.
    pub fn next(self) -> Result<Self> {
        Self::new(self.0.saturating_add(1))
    }
}

/// One state of a step that was stored: 1, 2, … Files that are added to a stored step, or changed in it, become its next
/// revision. A revision never moves the step in the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "u32", into = "u32")]
pub struct Revision(u32);

impl Revision {
    /// The first revision of every step.
    pub const FIRST: Self = Self(1);

    /// Returns whether it is the first revision, which records and labels do not mention.
    pub fn is_first(&self) -> bool {
        *self == Self::FIRST
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self::FIRST
    }
}

/// The identity of one stored checkpoint of a run. Ids are ordered by age: the newest has the highest (attempt, step,
/// revision).
///
/// Tools that order by step alone or by file times have deleted their users' newest checkpoints (transformers issues
/// 26961 and 37260).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepId {
    /// The attempt.
    pub attempt: Attempt,
    /// The revision of the step. Omitted when it is the first.
    #[serde(default, skip_serializing_if = "Revision::is_first")]
    pub revision: Revision,
    /// The step's number.
    pub step: Step,
}

impl Ord for StepId {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |id: &Self| (id.attempt, id.step, id.revision);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for StepId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl StepId {
    /// Returns the id of the first revision of this attempt and step.
    pub const fn new(attempt: Attempt, step: Step) -> Self {
        Self { attempt, step, revision: Revision::FIRST }
    }

    /// Returns the id of the step's first revision: what all its revisions have in common.
    #[must_use]
    pub const fn first_revision(self) -> Self {
        Self::new(self.attempt, self.step)
    }

    /// Returns the id of the step's next revision.
    pub fn next_revision(self) -> Result<Self> {
        let revision = Revision::new(self.revision.0.saturating_add(1))?;
        Ok(Self { revision, ..self })
    }

    /// Returns whether both are revisions of one step.
    pub fn is_revision_of(self, other: Self) -> bool {
        self.first_revision() == other.first_revision()
    }

    /// Returns the label, `000000000100.a1`: the name of the step's records, on remotes and in the vault. Later revisions
    /// have theirs at the end: `000000000100.a1r2`.
    pub fn label(self) -> String {
        let revision = match self.revision {
            Revision::FIRST => String::new(),
            Revision(revision) => format!("r{revision}"),
        };
        format!("{:012}.a{}{revision}", self.step.0, self.attempt.0)
    }

    /// Reads a label back, strictly: exactly twelve digits, no leading zeros in attempt and revision, and no first
    /// revision.
    pub fn from_label(label: &str) -> Option<Self> {
        let (step, rest) = label.split_once(".a")?;
        let (attempt, revision) = match rest.split_once('r') {
            Some((attempt, revision)) => (attempt, Some(revision)),
            None => (rest, None),
        };
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
            text.parse::<u32>().ok().filter(|_| is_plain)
        };
        if step.len() != 12 || !step.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let revision = match revision {
            Some(text) => Revision::new(number(text)?).ok().filter(|revision| !revision.is_first())?,
            None => Revision::FIRST,
        };
        Some(Self {
            step: Step::new(step.parse().ok()?).ok()?,
            attempt: Attempt::new(number(attempt)?).ok()?,
            revision,
        })
    }
}

impl fmt::Display for StepId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "step {} (attempt {}", self.step.0, self.attempt.0)?;
        if !self.revision.is_first() {
            write!(out, ", revision {}", self.revision.0)?;
        }
        out.write_str(")")
    }
}

/// Implements the conversions of a name that is a text with rules.
macro_rules! text_name {
    ($name:ident) => {
        impl $name {
            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        $crate::ids::string_form!($name, $name::new);
    };
}

pub(crate) use text_name;

/// Implements the conversions of a value to and from its text in records.
macro_rules! string_form {
    ($name:ident, $parse:expr) => {
        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                let parse: fn(String) -> Result<Self> = $parse;
                parse(text)
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use string_form;

/// Implements a number of a limited range.
macro_rules! number {
    ($name:ident, $integer:ty, $range:expr, $what:literal, $why:literal) => {
        impl $name {
            /// Checks the range.
            pub fn new(number: $integer) -> Result<Self> {
                if $range.contains(&number) {
                    return Ok(Self(number));
                }
                Err(Error::new(ErrorKind::Usage, concat!("not ", $what)).on(number).because($why))
            }

            /// Returns the number.
            pub const fn number(self) -> $integer {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                let number = text.parse::<$integer>().map_err(|error| {
                    Error::new(ErrorKind::Usage, "not a whole number")
                        .on(format!("{text:?}"))
                        .caused_by(error)
                })?;
                Self::new(number)
            }
        }

        impl TryFrom<$integer> for $name {
            type Error = Error;

            fn try_from(number: $integer) -> Result<Self> {
                Self::new(number)
            }
        }

        impl From<$name> for $integer {
            fn from(number: $name) -> Self {
                number.0
            }
        }
    };
}

text_name!(RunName);
text_name!(NodeName);
text_name!(RemoteName);
number!(Step, u64, (0..=Step::MAX.0), "a step", "the largest step is 999999999999");
// Each leaves room for successors.
number!(Attempt, u32, (1..=999_999_999), "an attempt", "attempts are numbered from 1 to 999999999");
number!(Revision, u32, (1..=999_999_999), "a revision", "revisions are numbered from 1 to 999999999");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_names_take_segments_and_refuse_escapes() {
        for good in ["a", "grpo-30b/checkpoints", "x/y/z", "lr=1e-4"] {
            assert_eq!(RunName::new(good).expect("a good name").as_str(), good);
        }
        for bad in [
            "my-run/000000000100.a1",
            "000000000100.a1",
            "",
            "/a",
            "a/",
            "a//b",
            "..",
            "a/../b",
            ".stepvault",
            "a/.stepvault",
            "a b",
            "a\0",
            "ü",
        ] {
            assert_eq!(RunName::new(bad).expect_err(bad).kind(), ErrorKind::Usage);
        }
    }

    #[test]
    fn labels_round_trip_and_nothing_else_is_one() {
        let id = StepId::new(Attempt::new(12).unwrap(), Step::new(100).unwrap());
        assert_eq!(id.label(), "000000000100.a12");
        assert_eq!(StepId::from_label(&id.label()), Some(id));
        let second = id.next_revision().unwrap();
        assert_eq!(second.label(), "000000000100.a12r2");
        assert_eq!(StepId::from_label(&second.label()), Some(second));
        for bad in [
            "",
            "100.a1",
            "000000000100.a",
            "000000000100.a01",
            "000000000100.a0",
            "+00000000100.a1",
            "000000000100.a1r",
            "000000000100.a1r1",
            "000000000100.a1r02",
            "000000000100.a1r2r3",
        ] {
            assert_eq!(StepId::from_label(bad), None, "{bad}");
        }
    }

    #[test]
    fn newest_is_highest_attempt_then_step_then_revision() {
        let id = |attempt, step| StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap());
        assert!(id(2, 10) > id(1, 5000));
        assert!(id(2, 11) > id(2, 10));
        assert!(id(2, 11) > id(2, 10).next_revision().unwrap());
        assert!(id(2, 10).next_revision().unwrap() > id(2, 10));
    }
}
