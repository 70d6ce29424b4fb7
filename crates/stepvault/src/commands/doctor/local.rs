//! Selects the local checks from the configuration and the arguments.

use std::path::{Path, PathBuf};

use stepvault_core::config::RunSettings;
use stepvault_core::{Clock as _, Error, ErrorKind, Result, RunName};
use stepvault_engine::doctor::local::{GivenForecast, LocalToCheck, RunToCheck};
use stepvault_local::clock::SystemClock;

use crate::context::{Settings, absolute, vault_beside};

/// Default directory for temporary files, unless TMPDIR is set.
const SYSTEM_TEMPORARY: &str = "/tmp";

/// Returns the configuration table with the run's local keep rules.
pub(super) fn keep_table(run: &RunToCheck) -> String {
    match &run.name {
        Some(name) => format!("run.\"{name}\".keep.local"),
        None => "keep.local".to_owned(),
    }
}

/// Returns the named run, the run of the given directory, or else all configured runs.
pub(super) fn chosen_runs(settings: &Settings, directory: Option<&Path>) -> Result<Vec<RunToCheck>> {
    let named = settings.named_run().map(|name| settings.config.run(name));
    let of = |run: RunSettings| RunToCheck {
        title: run.name.to_string(),
        name: Some(run.name.clone()),
        settings: run,
    };
    if let Some(directory) = directory {
        let directory = PathBuf::from(absolute(directory)?);
        let mut configured = settings.config.runs.iter();
        let watched = || configured.find(|run| run.watch.as_ref() == Some(&directory)).cloned();
        return Ok(vec![match named.or_else(watched) {
            Some(run) => of(RunSettings { watch: Some(directory), ..run }),
            // A run with any name has the default of every key.
            None => RunToCheck {
                title: directory.display().to_string(),
                name: None,
                settings: RunSettings {
                    watch: Some(directory),
                    ..settings.config.run(&RunName::new("doctor")?)
                },
            },
        }]);
    }
    let runs: Vec<RunToCheck> = match named {
        Some(run) => vec![of(run)],
        None => settings.config.runs.iter().cloned().map(of).collect(),
    };
    let nothing = runs.iter().all(|run| run.settings.watch.is_none())
        && settings.local_directory().is_none()
        && settings.config.remotes.is_empty()
        && settings.config.required_environment.is_empty()
        && settings.config.notify.is_empty();
    if nothing {
        return Err(Error::new(ErrorKind::Usage, "nothing to check")
            .because("no directory is given, and no run, vault or remote is configured")
            .hint("give the directory of the checkpoints, --local DIR, --remote URL, or a configuration with --config FILE"));
    }
    Ok(runs)
}

/// Returns the local checks for these runs.
pub(super) fn to_check(
    settings: &Settings,
    runs: &[RunToCheck],
    given: GivenForecast,
) -> Result<LocalToCheck> {
    let config = &settings.config;
    let beside = || {
        let watch = runs.iter().find_map(|run| run.settings.watch.as_ref())?;
        vault_beside(&watch.join("step")).ok()
    };
    let variable = |name: &String| {
        let value = std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        (name.clone(), value)
    };
    Ok(LocalToCheck {
        runs: runs.to_vec(),
        vault: settings.local_directory().or_else(beside),
        vault_parents: settings.vault_parents(),
        temporary: temporary(),
        variables: config.required_environment.iter().map(variable).collect(),
        links: config.local.links,
        memory_budget_bytes: config.upload.memory_budget_bytes,
        profiles: settings.profiles()?,
        given,
        now: SystemClock.now(),
    })
}

/// Returns the directories into which frameworks and libraries write temporary files.
fn temporary() -> Vec<(String, PathBuf)> {
    let own = std::env::var_os("TMPDIR").filter(|value| !value.is_empty());
    let own = own.map(|path| ("TMPDIR".to_owned(), PathBuf::from(path)));
    own.into_iter().chain([("temporary directory".to_owned(), PathBuf::from(SYSTEM_TEMPORARY))]).collect()
}
