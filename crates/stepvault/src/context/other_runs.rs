//! The other runs of the tiers, for a run that none of them has: its name may be mistyped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use stepvault_core::config::nearest;
use stepvault_core::keys::RunKeys;
use stepvault_core::words::first_of;
use stepvault_core::{Result, RunName, SilentObserver};
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
    let mut names = BTreeSet::new();
    if let Some(vault) = open_vault(settings, DefaultVault::here()).await? {
        names.extend(blocking(move || vault.runs()).await?);
    }
    for remote in settings.all_remotes() {
        let store = open_with(&remote, Arc::new(SilentObserver), settings.open_options()).await?;
        if store.list(&RunKeys::new(run.clone()).prefix()).try_next().await?.is_some() {
            return Ok(BTreeSet::from([run.clone()]));
        }
        names.extend(list_runs(&*store, MAX_OBJECTS).await?.runs.into_keys());
    }
    Ok(names)
}
