//! The inputs and results of the local checks.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::config::{LinkPolicy, RunSettings};
use stepvault_core::forecast::Taken;
use stepvault_core::ids::RunName;
use stepvault_core::timestamp::Timestamp;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::feasibility::RunFacts;
use stepvault_diagnose::doctor::forecast::Forecast;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::ownership::Parents;

/// What to check.
#[derive(Debug, Clone)]
pub struct LocalToCheck {
    /// The runs.
    pub runs: Vec<RunToCheck>,
    /// The vault, if there is to be one.
    pub vault: Option<PathBuf>,
    /// Whether the directories above it may be open to other users.
    pub vault_parents: Parents,
    /// Directories for temporary files, each with the setting that names it.
    pub temporary: Vec<(String, PathBuf)>,
    /// The variables that must hold directories, with their values.
    pub variables: Vec<(String, Option<String>)>,
    /// How files are linked or copied into the vault.
    pub links: LinkPolicy,
    /// Maximum number of bytes in buffers.
    pub memory_budget_bytes: u64,
    /// The profiles used to find steps.
    pub profiles: Arc<ProfileSet>,
    /// The next step's size, if given explicitly.
    pub given: GivenForecast,
    /// The current time.
    pub now: Timestamp,
}

/// A run to check.
#[derive(Debug, Clone)]
pub struct RunToCheck {
    /// Its title in findings: its name, or else its directory.
    pub title: String,
    /// Its name, if it has one.
    pub name: Option<RunName>,
    /// Its settings.
    pub settings: RunSettings,
}

/// Explicitly given facts about the next step; they override those of earlier steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenForecast {
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// Number of its files.
    pub files: Option<u64>,
    /// Seconds between saves.
    pub interval_seconds: Option<u64>,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct LocalLook {
    /// All findings.
    pub findings: Vec<Finding>,
    /// The measurements for each run, in the same order.
    pub runs: Vec<RunLook>,
}

/// The measurements for one run.
#[derive(Debug, Clone)]
pub struct RunLook {
    /// The expected next step.
    pub forecast: Option<Forecast>,
    /// What was measured.
    pub facts: RunFacts,
}

impl GivenForecast {
    /// Given facts override those of earlier steps.
    pub(super) fn over(self, past: Option<Forecast>) -> Option<Forecast> {
        let mut forecast = past.or_else(|| {
            Some(Forecast {
                taken: Taken { bytes: self.bytes?, files: 1, directories: 1 },
                interval_seconds: None,
                interval_steps: None,
                source: String::new(),
            })
        })?;
        if let Some(bytes) = self.bytes {
            forecast.taken.bytes = bytes;
            "--step-size".clone_into(&mut forecast.source);
        }
        forecast.taken.files = self.files.unwrap_or(forecast.taken.files);
        if self.interval_seconds.is_some() {
            forecast.interval_seconds = self.interval_seconds;
            // The corresponding number of steps is unknown.
            forecast.interval_steps = None;
        }
        Some(forecast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_wins_over_what_was() {
        let said = GivenForecast { bytes: Some(50), files: None, interval_seconds: Some(60) };
        let given = said.over(None).unwrap();
        assert_eq!((given.taken.bytes, given.taken.files, given.interval_seconds), (50, 1, Some(60)));
        assert_eq!(given.source, "--step-size");
        let past = Forecast {
            taken: Taken { bytes: 9, files: 7, directories: 2 },
            interval_seconds: Some(600),
            interval_steps: Some(100),
            source: "the newest 3 steps in the vault".to_owned(),
        };
        let both = said.over(Some(past.clone())).unwrap();
        assert_eq!((both.taken.bytes, both.taken.files, both.interval_seconds), (50, 7, Some(60)));
        assert_eq!(both.interval_steps, None, "how many steps a minute is, is not known");
        assert_eq!(GivenForecast::default().over(Some(past.clone())), Some(past));
        assert_eq!(GivenForecast::default().over(None), None);
    }
}
