//! The remotes' part of the look.

use std::collections::BTreeMap;

use futures::future::join_all;
use stepvault_agent::SystemClock;
use stepvault_core::Result;
use stepvault_core::doctor::Finding;
use stepvault_core::doctor::feasibility::MeasuredRemote;
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::keys::RunKeys;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_engine::doctor::remote::{RemoteToCheck, check_remote};
use stepvault_remote::open::OpenOptions;

use super::local::ChosenRun;
use super::sweeps::Sweeps;
use crate::context::Settings;

/// What was found at the remotes.
#[derive(Debug, Default)]
pub(super) struct RemoteLook {
    /// In the order of the remotes.
    pub(super) findings: Vec<Finding>,
    /// What each took and gave in a second.
    measured: BTreeMap<RemoteName, MeasuredRemote>,
}

impl RemoteLook {
    /// What the remotes of a run were measured to do.
    pub(super) fn rates_of(&self, settings: &Settings, run: &ChosenRun) -> Vec<MeasuredRemote> {
        let remotes = settings.remotes(&run.settings);
        let rates = |remote: &RemoteSettings| {
            let known = self.measured.get(&remote.name).cloned();
            known.unwrap_or_else(|| not_measured(remote))
        };
        remotes.iter().map(rates).collect()
    }
}

/// What is asked of the remotes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// They are to be left alone.
    pub(super) none: bool,
    /// A rate that takes the place of one that is measured.
    pub(super) upload_rate: Option<u64>,
}

/// Looks at every remote of the runs, all at once.
pub(super) async fn look(
    settings: &Settings,
    runs: &[ChosenRun],
    wanted: Wanted,
    sweeps: &Sweeps,
) -> Result<RemoteLook> {
    let remotes = remotes_of(settings, runs);
    let keys = RunKeys::new(probed_run(runs)?);
    let asked = remotes.iter().filter(|_| !wanted.none);
    let reports = join_all(asked.map(|remote| async {
        let check = RemoteToCheck {
            settings: remote,
            keys: &keys,
            runs: &sweeps.of(&remote.name),
        };
        check_remote(check, &SystemClock, OpenOptions::default()).await
    }));
    let mut look = RemoteLook::default();
    let mut reports = reports.await.into_iter();
    for remote in remotes {
        let mut rates = not_measured(&remote);
        if let Some(report) = reports.next() {
            rates.up_bytes_per_second = report.rates.up_bytes_per_second;
            rates.down_bytes_per_second = report.rates.down_bytes_per_second;
            look.findings.extend(report.findings);
        }
        let given = wanted.upload_rate.map(|rate| allowed(rate, &remote));
        rates.up_bytes_per_second = given.or(rates.up_bytes_per_second);
        look.measured.insert(remote.name, rates);
    }
    Ok(look)
}

/// The run under whose keys it is tried: rights may be given for one run's keys alone.
fn probed_run(runs: &[ChosenRun]) -> Result<RunName> {
    let named = runs.iter().find_map(|run| run.name.clone());
    named.map_or_else(|| RunName::new("stepvault-doctor"), Ok)
}

/// Each remote once; without a run every one that is configured or was named.
fn remotes_of(settings: &Settings, runs: &[ChosenRun]) -> Vec<RemoteSettings> {
    let named = |name: &RemoteName| settings.named_remotes().is_none_or(|names| names.contains(name));
    let of_runs = |name: &RemoteName| {
        let mut remotes = runs.iter().flat_map(|run| settings.remotes(&run.settings));
        runs.is_empty() || remotes.any(|remote| remote.name == *name)
    };
    let configured = settings.config.remotes.iter();
    configured
        .filter(|remote| named(&remote.name) && of_runs(&remote.name))
        .cloned()
        .collect()
}

/// No faster than the configuration lets it be.
fn allowed(rate: u64, remote: &RemoteSettings) -> u64 {
    remote
        .bandwidth_limit_bytes_per_second
        .map_or(rate, |limit| rate.min(limit))
}

fn not_measured(remote: &RemoteSettings) -> MeasuredRemote {
    MeasuredRemote {
        remote: remote.name.to_string(),
        required: remote.required,
        up_bytes_per_second: None,
        down_bytes_per_second: None,
    }
}
