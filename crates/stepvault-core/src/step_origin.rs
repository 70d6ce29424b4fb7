//! Where a trainer keeps a step, and what wrote it.

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
    /// Its series in that profile. Omitted when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
}

impl StepOrigin {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }
}
