//! Checks whether a run can seal between two saves, upload before the next save, drain within a notice, and store what
//! the rules keep. The checks use measured rates and the forecast of the next step.

mod keeping;
mod timing;

use super::Finding;
use super::forecast::Forecast;
use super::links::SealMethod;
use super::remote::MeasuredRates;
use stepvault_core::disk_facts::DiskRates;
use stepvault_core::forecast::Taken;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::room::Room;

/// Everything that matters for one run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct Situation {
    /// What was measured on this machine.
    pub local: RunFacts,
    /// The configuration table that sets what the vault keeps of the run: `keep.local`.
    pub keep_table: String,
    /// What the next step is expected to be.
    pub forecast: Forecast,
    /// The run's remotes.
    pub remotes: Vec<MeasuredRemote>,
    /// The notices that this machine may get before it is reclaimed.
    pub notices: Vec<Notice>,
    /// The rules for the vault.
    pub keep_local: KeepRules,
    /// Limits in addition to the rules.
    pub limits: LocalLimits,
}

/// What was measured of one run on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// The run's name, or else its directory.
    pub title: String,
    /// How files get into the vault.
    pub seal_method: SealMethod,
    /// Whether the vault and the checkpoints are on one filesystem.
    pub shares_disk: bool,
    /// Throughput of the vault's disk, or of the checkpoints' without a vault; `None` if it could not be measured.
    pub disk_rates: Option<DiskRates>,
    /// Free space of the vault's disk, limited by a quota; `None` if unknown or without a vault.
    pub room: Option<Room>,
    /// What the vault holds of all runs; the records count as files.
    pub kept: Taken,
}

/// The measured rates of a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredRemote {
    /// Its name.
    pub remote: String,
    /// Whether a step must be durable there before it may be removed elsewhere.
    pub required: bool,
    /// The rates, as far as they were measured or given.
    pub rates: MeasuredRates,
}

/// A notice that the machine will be reclaimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its name: `EC2 spot notice`.
    pub name: String,
    /// How many seconds in advance it comes.
    pub seconds: u64,
}

/// The findings, and configuration that would resolve the warnings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Feasibility {
    /// One finding for each question.
    pub findings: Vec<Finding>,
    /// Configuration lines that would make everything feasible; empty if it already is.
    pub suggested: Vec<String>,
}

/// Answers every question for which there are measurements.
pub fn feasibility(situation: &Situation) -> Feasibility {
    let mut findings = vec![timing::save(situation)];
    findings.extend(timing::uploads(situation));
    findings.extend(timing::drains(situation));
    findings.extend(keeping::steps(situation));
    findings.extend(timing::restores(situation));
    let mut suggested = timing::suggestion(situation);
    suggested.extend(keeping::suggestion(situation));
    Feasibility { findings, suggested }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of 12 GB every 10 minutes; a disk of 1 GB/s with 100 GB free; a remote of 100 MB/s.
    pub(super) fn situation() -> Situation {
        Situation {
            local: RunFacts {
                title: "my-run".to_owned(),
                seal_method: SealMethod::HardLink,
                shares_disk: true,
                disk_rates: Some(DiskRates {
                    probed_bytes: 1 << 26,
                    write_bytes_per_second: 1_000_000_000,
                    read_bytes_per_second: 2_000_000_000,
                    sync_seconds: 0.001,
                }),
                room: Some(Room {
                    free_bytes: 100_000_000_000,
                    total_bytes: 1_000_000_000_000,
                    free_inodes: None,
                    total_inodes: None,
                }),
                kept: Taken::default(),
            },
            keep_table: "run.\"my-run\".keep.local".to_owned(),
            forecast: Forecast {
                taken: Taken { bytes: 12_000_000_000, files: 8, directories: 2 },
                interval_seconds: Some(600),
                interval_steps: Some(100),
                source: "the newest 3 steps in the vault".to_owned(),
            },
            remotes: vec![MeasuredRemote {
                remote: "s3-main".to_owned(),
                required: true,
                rates: MeasuredRates {
                    up_bytes_per_second: Some(100_000_000),
                    down_bytes_per_second: Some(200_000_000),
                    latency_milliseconds: None,
                },
            }],
            notices: vec![Notice { name: "EC2 spot notice".to_owned(), seconds: 120 }],
            keep_local: KeepRules { last: Some(2), ..KeepRules::default() },
            limits: LocalLimits::default(),
        }
    }

    #[test]
    fn all_questions_are_answered_and_what_fits_needs_no_lines() {
        let all = feasibility(&situation());
        let checks: Vec<&str> = all.findings.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["save and seal", "upload", "drain", "steps on disk", "restore"]);
        let mut easy = situation();
        easy.forecast.taken.bytes = 6_000_000_000;
        let easy = feasibility(&easy);
        assert_eq!(super::super::worst(&easy.findings), super::super::Outcome::Pass, "{easy:#?}");
        assert!(easy.suggested.is_empty(), "{easy:#?}");
    }
}
