//! What to look at on this machine, and what comes of it.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::config::Links;
use stepvault_core::doctor::Finding;
use stepvault_core::doctor::forecast::Forecast;
use stepvault_core::doctor::links::Takeover;
use stepvault_core::doctor::speed::Rates;
use stepvault_core::doctor::variables::Value;
use stepvault_core::forecast::Taken;
use stepvault_core::ids::RunName;
use stepvault_core::room::Room;
use stepvault_core::timestamp::Timestamp;
use stepvault_formats::profile::ProfileSet;

/// What to look at.
#[derive(Debug, Clone)]
pub struct LocalToCheck {
    /// The runs.
    pub runs: Vec<RunToCheck>,
    /// The vault, if there is to be one.
    pub vault: Option<PathBuf>,
    /// Directories for temporary files, each with what names it.
    pub temporary: Vec<(String, PathBuf)>,
    /// The variables that have to hold directories, and what they hold.
    pub variables: Vec<(String, Value)>,
    /// How files are taken into the vault.
    pub links: Links,
    /// Most bytes of buffers.
    pub memory_budget_bytes: u64,
    /// The profiles to find steps by.
    pub profiles: Arc<ProfileSet>,
    /// The next step, where somebody has said how large it is.
    pub given: GivenForecast,
    /// The time.
    pub now: Timestamp,
}

/// A run to look at.
#[derive(Debug, Clone)]
pub struct RunToCheck {
    /// What it is called in findings.
    pub title: String,
    /// Its name, where it has one.
    pub run: Option<RunName>,
    /// The directory that its trainer writes steps into.
    pub watch: Option<PathBuf>,
    /// Whether its steps are found by a profile, or by one rule for all.
    pub by_profile: bool,
    /// The profile to go by; `None` to tell from what is there.
    pub profile: Option<String>,
    /// How long nothing has to have been written.
    pub quiet_seconds: u64,
}

/// What somebody has said of the next step; takes the place of what the past says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenForecast {
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// How many files.
    pub files: Option<u64>,
    /// Seconds from one save to the next.
    pub interval_seconds: Option<u64>,
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct LocalLook {
    /// All findings.
    pub findings: Vec<Finding>,
    /// What was measured for each run, in the same order.
    pub runs: Vec<RunLook>,
}

/// What was measured for a run.
#[derive(Debug, Clone)]
pub struct RunLook {
    /// What it is called.
    pub title: String,
    /// What the next step is expected to be.
    pub forecast: Option<Forecast>,
    /// How files get into the vault.
    pub takeover: Takeover,
    /// Whether vault and checkpoints are on one filesystem.
    pub shares_disk: bool,
    /// What the vault's disk does, or the checkpoints' where there is no vault.
    pub disk_rates: Option<Rates>,
    /// What the vault's disk, and a quota on it, have left.
    pub room: Option<Room>,
    /// What the vault holds of all runs, its records among the files.
    pub kept: Taken,
}

impl GivenForecast {
    /// What somebody has said wins over what the past says.
    pub(super) fn over(self, past: Option<Forecast>) -> Option<Forecast> {
        let mut forecast = past.or_else(|| {
            Some(Forecast {
                taken: Taken {
                    bytes: self.bytes?,
                    files: 1,
                    directories: 1,
                },
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
            // How many steps that is, is not known.
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
        let said = GivenForecast {
            bytes: Some(50),
            files: None,
            interval_seconds: Some(60),
        };
        let alone = said.over(None).unwrap();
        assert_eq!(
            (alone.taken.bytes, alone.taken.files, alone.interval_seconds),
            (50, 1, Some(60))
        );
        assert_eq!(alone.source, "--step-size");
        let past = Forecast {
            taken: Taken {
                bytes: 9,
                files: 7,
                directories: 2,
            },
            interval_seconds: Some(600),
            interval_steps: Some(100),
            source: "the newest 3 steps in the vault".to_owned(),
        };
        let both = said.over(Some(past.clone())).unwrap();
        assert_eq!(
            (both.taken.bytes, both.taken.files, both.interval_seconds),
            (50, 7, Some(60))
        );
        assert_eq!(
            both.interval_steps, None,
            "how many steps a minute is, is not known"
        );
        assert_eq!(GivenForecast::default().over(Some(past.clone())), Some(past));
        assert_eq!(GivenForecast::default().over(None), None);
    }
}
