//! The checks of the remotes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use stepvault_core::Result;
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::keys::RunKeys;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::feasibility::MeasuredRemote;
use stepvault_diagnose::doctor::remote::{self as judge, MeasuredRates};
use stepvault_engine::blocking::blocking;
use stepvault_engine::doctor::local::RunToCheck;
use stepvault_engine::doctor::remote::{RemoteToCheck, check_remote};
use stepvault_local::clock::SystemClock;
use stepvault_local::space;
use stepvault_remote::open::OpenOptions;

use super::gc_commands::GcCommands;
use crate::context::Settings;

/// The findings and rates of the remotes.
#[derive(Debug, Default)]
pub(super) struct RemoteLook {
    /// The findings, in the order of the remotes.
    pub(super) findings: Vec<Finding>,
    /// The measured rates of each remote.
    measured: BTreeMap<RemoteName, MeasuredRemote>,
}

impl RemoteLook {
    /// Returns the measured rates of a run's remotes.
    pub(super) fn rates_of(&self, settings: &Settings, run: &RunToCheck) -> Vec<MeasuredRemote> {
        let remotes = settings.remotes(&run.settings);
        let rates = |remote: &RemoteSettings| {
            let known = self.measured.get(&remote.name).cloned();
            known.unwrap_or_else(|| not_measured(remote))
        };
        remotes.iter().map(rates).collect()
    }
}

/// Which checks of the remotes to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Whether to skip the remotes.
    pub(super) none: bool,
    /// An upload rate that replaces the measured one.
    pub(super) upload_rate: Option<u64>,
}

/// Checks every remote of the runs concurrently.
pub(super) async fn check(
    settings: &Settings,
    runs: &[RunToCheck],
    wanted: Wanted,
    gc_commands: &GcCommands,
) -> Result<RemoteLook> {
    let remotes = remotes_of(settings, runs);
    let keys = RunKeys::new(probed_run(runs)?);
    // If any run needs it, the checksum that fewer stores check.
    let digest = runs.iter().map(|run| run.settings.digest).max().unwrap_or_default();
    let asked = remotes.iter().filter(|_| !wanted.none);
    let reports = join_all(asked.map(|remote| async {
        let check =
            RemoteToCheck { settings: remote, keys: &keys, digest, runs: &gc_commands.of(&remote.name) };
        check_remote(check, &SystemClock, OpenOptions::default()).await
    }));
    let mut look = RemoteLook::default();
    let mut reports = reports.await.into_iter();
    for remote in remotes {
        let mut measured = not_measured(&remote);
        if let Some(report) = reports.next() {
            measured.rates = report.rates;
            look.findings.extend(report.findings);
        }
        let given = wanted.upload_rate.map(|rate| allowed(rate, &remote));
        measured.rates.up_bytes_per_second = given.or(measured.rates.up_bytes_per_second);
        look.measured.insert(remote.name, measured);
    }
    Ok(look)
}

/// Checks whether the directory remotes are on another filesystem than the vault. Where that is unknown, there is no
/// finding.
pub(super) async fn devices(
    settings: &Settings,
    runs: &[RunToCheck],
    vault: Option<PathBuf>,
) -> Result<Vec<Finding>> {
    let Some(vault) = vault else {
        return Ok(Vec::new());
    };
    let directories: Vec<RemoteSettings> =
        remotes_of(settings, runs).into_iter().filter(|remote| remote.url.scheme.is_directory()).collect();
    blocking(move || {
        let finding = |remote: &RemoteSettings| {
            let is_vaults = space::on_one_filesystem(&vault, Path::new(&remote.url.prefix))?;
            Some(judge::device(remote, is_vaults))
        };
        Ok(directories.iter().filter_map(finding).collect())
    })
    .await
}

/// Returns the run whose keys are used for the checks, because permissions may cover only one run's keys.
fn probed_run(runs: &[RunToCheck]) -> Result<RunName> {
    let named = runs.iter().find_map(|run| run.name.clone());
    named.map_or_else(|| RunName::new("stepvault-doctor"), Ok)
}

/// Returns each remote once; without a run every configured or named remote.
fn remotes_of(settings: &Settings, runs: &[RunToCheck]) -> Vec<RemoteSettings> {
    let named = |name: &RemoteName| settings.named_remotes().is_none_or(|names| names.contains(name));
    let of_runs = |name: &RemoteName| {
        let mut remotes = runs.iter().flat_map(|run| settings.remotes(&run.settings));
        runs.is_empty() || remotes.any(|remote| remote.name == *name)
    };
    let configured = settings.config.remotes.iter();
    configured.filter(|remote| named(&remote.name) && of_runs(&remote.name)).cloned().collect()
}

/// Caps a rate at the configured bandwidth limit.
fn allowed(rate: u64, remote: &RemoteSettings) -> u64 {
    remote.bandwidth_limit_bytes_per_second.map_or(rate, |limit| rate.min(limit))
}

fn not_measured(remote: &RemoteSettings) -> MeasuredRemote {
    MeasuredRemote {
        remote: remote.name.to_string(),
        required: remote.required,
        rates: MeasuredRates::default(),
    }
}
