//! The other runs of the tiers, for a run that none of them has: its name may be mistyped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use stepvault_core::config::nearest;
use stepvault_core::keys::RunKeys;
use stepvault_core::words::first_of;
use stepvault_core::{Error, Result, RunName, SilentObserver};
use stepvault_engine::blocking::blocking;
use stepvault_engine::tier::runs::list_runs;
use stepvault_remote::open::open_with;

use super::settings::Settings;
use super::tiers::{DefaultVault, open_vault};

/// Maximum number of objects of a remote that are listed to find other runs.
const MAX_OBJECTS: usize = 10_000;
const MAX_NAMED: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns what to do about a run that is not configured and that no tier has: the name that is nearest to it, else the
/// names of the others. `None` if there is no other: then it may be the first one.
pub(crate) async fn hint_for_unknown_run(settings: &Settings) -> Option<String> {
    let run = settings.run().ok()?.name;
    if settings.config.runs.iter().any(|configured| configured.name == run) {
        return None;
    }
    let names = tokio::time::timeout(PATIENCE, names(settings, &run)).await.ok()?.ok()?;
    if names.is_empty() || names.contains(&run) {
        return None;
    }
    let names: Vec<&str> = names.iter().map(RunName::as_str).collect();
    Some(match nearest(run.as_str(), names.iter().copied()) {
        Some(name) => format!("no tier has a run '{run}'; did you mean --run {name}?"),
        None => format!("no tier has a run '{run}'; there are {}", first_of(&names, MAX_NAMED, 0)),
    })
}

/// Returns the runs of the vault and of the remotes; of a large remote, those that are listed first. If a remote has the
/// given run, the others do not matter.
async fn names(settings: &Settings, run: &RunName) -> Result<BTreeSet<RunName>> {
    for remote in settings.all_remotes() {
        let store = open_with(&remote, Arc::new(SilentObserver), settings.open_options()).await?;
        if store.list(&RunKeys::new(run.clone()).prefix()).try_next().await?.is_some() {
            return Ok(BTreeSet::from([run.clone()]));
        }
    }
    let (names, failed) = all_runs(settings, MAX_OBJECTS).await?;
    failed.into_iter().next().map_or(Ok(names), |(_, error)| Err(error))
}

/// Returns the runs of the vault and of the remotes, as far as the first `maximum_objects` of each remote tell, and the
/// remotes that could not be listed.
///
/// # Errors
/// When the vault cannot be read.
pub(crate) async fn all_runs(
    settings: &Settings,
    maximum_objects: usize,
) -> Result<(BTreeSet<RunName>, Vec<(String, Error)>)> {
    let (mut names, mut failed) = (BTreeSet::new(), Vec::new());
    if let Some(vault) = open_vault(settings, DefaultVault::here()).await? {
        names.extend(blocking(move || vault.runs()).await?);
    }
    for remote in settings.all_remotes() {
        let opened = open_with(&remote, Arc::new(SilentObserver), settings.open_options()).await;
        let listed = match opened {
            Ok(store) => list_runs(&*store, maximum_objects).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(runs) => names.extend(runs.runs.into_keys()),
            Err(error) => failed.push((remote.name.to_string(), error)),
        }
    }
    Ok((names, failed))
}
