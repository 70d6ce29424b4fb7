//! The checks of the remotes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures::future::join_all;
use stepvault_core::keys::RunKeys;
use stepvault_core::words::shell_word;
use stepvault_core::{RemoteName, RemoteSettings, Result, RunName};
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::feasibility::MeasuredRemote;
use stepvault_diagnose::doctor::remote::{self as judge, MeasuredRates};
use stepvault_engine::blocking::blocking;
use stepvault_engine::doctor::left_uploads::GcCommand;
use stepvault_engine::doctor::local::RunToCheck;
use stepvault_engine::doctor::remote::{RemoteToCheck, check_remote};
use stepvault_engine::explain::quoted;
use stepvault_local::{SystemClock, space};
use stepvault_remote::open::OpenOptions;

use crate::context::{Settings, choose_remotes, given_remotes};
use crate::session::Session;

/// The findings and rates of the remotes.
#[derive(Debug, Default)]
pub(super) struct RemoteLook {
    /// The findings, in the order of the remotes.
    pub(super) findings: Vec<Finding>,
    /// The measured rates of each remote.
    rates: BTreeMap<RemoteName, MeasuredRates>,
}

impl RemoteLook {
    /// Returns the measured rates of the remotes that a run's steps are uploaded to.
    pub(super) fn rates_of(&self, settings: &Settings, run: &RunToCheck) -> Vec<MeasuredRemote> {
        let measured = |remote: RemoteSettings| MeasuredRemote {
            remote: remote.name.to_string(),
            required: remote.required,
            rates: self.rates.get(&remote.name).copied().unwrap_or_default(),
        };
        let remotes = settings.remotes(&run.settings).into_iter();
        remotes.filter(|remote| !remote.is_selective()).map(measured).collect()
    }
}

/// Checks every remote of the runs concurrently, unless they are skipped. `upload_rate` replaces the measured one.
pub(super) async fn check(
    settings: &Settings,
    runs: &[RunToCheck],
    is_skipped: bool,
    upload_rate: Option<u64>,
    gc_commands: &GcCommands,
) -> Result<RemoteLook> {
    let remotes = remotes_of(settings, runs);
    // Permissions may cover only one run's keys.
    let named = runs.iter().find_map(|run| run.name.clone());
    let keys = RunKeys::new(named.map_or_else(|| RunName::new("stepvault-doctor"), Ok)?);
    // If any run needs it, the checksum that fewer stores check.
    let digest = runs.iter().filter_map(|run| run.settings.digest).max().unwrap_or_default();
    let asked = remotes.iter().filter(|_| !is_skipped);
    let reports = join_all(asked.map(|remote| async {
        let check =
            RemoteToCheck { settings: remote, keys: &keys, digest, runs: &gc_commands.of(&remote.name) };
        check_remote(check, &SystemClock, OpenOptions::default()).await
    }));
    let mut look = RemoteLook::default();
    let mut reports = reports.await.into_iter();
    for remote in remotes {
        let report = reports.next().unwrap_or_default();
        look.findings.extend(report.findings);
        let mut rates = report.rates;
        if let Some(rate) = upload_rate {
            let limit = remote.bandwidth_limit.lowest_bytes_per_second();
            rates.up_bytes_per_second = Some(limit.map_or(rate, |limit| rate.min(limit)));
        }
        look.rates.insert(remote.name, rates);
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

/// The runs, and the parts of the command for each.
#[derive(Debug)]
pub(super) struct GcCommands {
    /// Empty if no run has a name.
    runs: Vec<RunName>,
    config: Option<String>,
    /// The remotes that the command line or its variable names, as given.
    given: Vec<(RemoteName, String)>,
}

/// Collects the parts that are common to the commands of all remotes.
pub(super) fn gc_commands(session: &Session, settings: &Settings, runs: &[RunToCheck]) -> Result<GcCommands> {
    let global = &session.global;
    let (given, _) = given_remotes(global)?;
    let chosen = choose_remotes(&given, &settings.config.remotes)?;
    let names = chosen.into_iter().map(|remote| remote.name);
    Ok(GcCommands {
        runs: runs.iter().filter_map(|run| run.name.clone()).collect(),
        config: global.config.as_deref().map(quoted),
        given: names.zip(given).collect(),
    })
}

impl GcCommands {
    /// Returns the runs to check on this remote.
    pub(super) fn of(&self, remote: &RemoteName) -> Vec<GcCommand> {
        if self.runs.is_empty() {
            return vec![GcCommand {
                keys: None,
                command: self.command(remote, "NAME") + ", with the run name that the path starts with",
            }];
        }
        let of_run = |run: &RunName| GcCommand {
            keys: Some(RunKeys::new(run.clone())),
            command: self.command(remote, &shell_word(run.as_str())),
        };
        self.runs.iter().map(of_run).collect()
    }

    fn command(&self, remote: &RemoteName, run: &str) -> String {
        let given = self.given.iter().find(|(name, _)| name == remote);
        let remote = given.map_or(remote.as_str(), |(_, text)| text.as_str());
        let config = self.config.iter().map(|path| format!(" --config {path}"));
        format!("stepvault gc{} --run {run} --remote {}", config.collect::<String>(), shell_word(remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_what_the_command_line_named() {
        let name = |name: &str| RemoteName::new(name).unwrap();
        let gc_commands = GcCommands {
            runs: vec![RunName::new("grpo/checkpoints").unwrap(), RunName::new("sft").unwrap()],
            config: Some("'/etc/step vault.toml'".to_owned()),
            given: vec![(name("other"), "other=s3://b/p?region=eu".to_owned())],
        };
        let commands = |remote| -> Vec<String> {
            let commands = gc_commands.of(&name(remote)).into_iter();
            commands.map(|run| run.command).collect()
        };
        assert_eq!(
            commands("main"),
            [
                "stepvault gc --config '/etc/step vault.toml' --run grpo/checkpoints --remote main",
                "stepvault gc --config '/etc/step vault.toml' --run sft --remote main",
            ]
        );
        assert!(commands("other")[1].ends_with("--run sft --remote 'other=s3://b/p?region=eu'"));
    }

    #[test]
    fn without_a_run_everything_is_looked_at() {
        let gc_commands = GcCommands { runs: Vec::new(), config: None, given: Vec::new() };
        let commands = gc_commands.of(&RemoteName::new("main").unwrap());
        assert_eq!(commands.len(), 1);
        assert!(commands[0].keys.is_none());
        assert_eq!(
            commands[0].command,
            "stepvault gc --run NAME --remote main, with the run name that the path starts with"
        );
    }
}
