//! The remotes' part of the look.

use std::collections::BTreeMap;

use stepvault_core::doctor::Finding;
use stepvault_core::doctor::feasibility::MeasuredRemote;
use stepvault_core::ids::RemoteName;
use stepvault_core::remote_settings::RemoteSettings;

use super::local::ChosenRun;
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

/// Looks at every remote of the runs, all at once. A rate that was given takes the place of one that is measured.
pub(super) fn look(settings: &Settings, runs: &[ChosenRun], upload_rate: Option<u64>) -> RemoteLook {
    let mut look = RemoteLook::default();
    for remote in remotes_of(settings, runs) {
        let mut rates = not_measured(&remote);
        rates.up_bytes_per_second = upload_rate.map(|rate| allowed(rate, &remote));
        look.measured.insert(remote.name, rates);
    }
    look
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
