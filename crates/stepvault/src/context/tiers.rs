//! The tiers of one run, opened.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_core::ids::{RunName, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::{Observer, Tier};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::LocalLimits;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::seal::LinkPolicy;
use stepvault_local::vault::Vault;

use super::settings::Settings;
use crate::output::Output;
use crate::progress::{Progress, Style};

/// Which vault a command works with when none is configured.
#[derive(Debug, Clone)]
pub(crate) enum DefaultVault {
    /// None at all.
    None,
    /// This one, if it is there.
    Existing(PathBuf),
    /// This one, created if it is not there; so is the configured one.
    Created(PathBuf),
}

/// Everything that a command on one run works with.
#[derive(Debug)]
pub(crate) struct Tiers {
    /// The run and its rules.
    pub(crate) run: RunSettings,
    /// Who writes steps here.
    pub(crate) writer: Writer,
    /// The local tier, when there is one.
    pub(crate) vault: Option<Vault>,
    /// The run on its remotes.
    pub(crate) remotes: Vec<RunRemote>,
    /// Memory for bytes under way.
    pub(crate) budget: MemoryBudget,
    /// Limits of the local tier.
    pub(crate) limits: LocalLimits,
    /// How files are taken into the vault.
    pub(crate) links: LinkPolicy,
    /// Listens to the engine.
    pub(crate) progress: Progress,
}

impl Tiers {
    /// Opens the run's vault and remotes. Nothing is sent to a remote yet.
    pub(crate) async fn open(settings: &Settings, default: DefaultVault, output: &Output) -> Result<Self> {
        let run = settings.run()?;
        let configured = settings.remotes(&run);
        let mut tiers = vec![Tier::Local];
        tiers.extend(configured.iter().map(|remote| Tier::Remote(remote.name.clone())));
        let progress = Progress::start(tiers, Style::of(output), output);
        let observer = progress.observer();
        let remotes = open_remotes(configured, &run.name, &observer).await?;
        Ok(Self {
            writer: Writer {
                shared: run.shared,
                ..settings.writer()?
            },
            vault: open_vault(settings.local_directory(), default).await?,
            remotes,
            budget: MemoryBudget::new(settings.config.upload.memory_budget_bytes),
            limits: settings.config.local.limits,
            links: settings.links(),
            progress,
            run,
        })
    }

    /// The run's name.
    pub(crate) fn run_name(&self) -> &RunName {
        &self.run.name
    }

    /// Every remote that the run's steps go to, also those that were left out by naming others.
    pub(crate) async fn all_remotes(&self, settings: &Settings) -> Result<Vec<RunRemote>> {
        let others = open_remotes(
            settings.other_remotes(&self.run),
            self.run_name(),
            &self.observer(),
        )
        .await?;
        Ok(self.remotes.iter().cloned().chain(others).collect())
    }

    /// Who listens to the engine.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        self.progress.observer()
    }

    /// # Errors
    /// When there is no tier to look at.
    pub(crate) fn require_any(&self) -> Result<()> {
        if self.vault.is_some() || !self.remotes.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, "there is no tier to look at")
            .because("no remote is given or configured, and there is no local vault")
            .hint("give --remote URL or --local DIR, or a configuration with --config FILE"))
    }

    /// # Errors
    /// When there is no remote to send to.
    pub(crate) fn require_remote(&self) -> Result<()> {
        if !self.remotes.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, "there is no remote to work with")
            .because("none is given or configured")
            .hint(
                "give --remote URL, as in --remote s3://bucket/prefix, or a configuration with --config FILE",
            ))
    }

    /// The steps that are pinned on the local tier.
    pub(crate) async fn pinned_locally(&self) -> Result<BTreeSet<StepId>> {
        let Some(vault) = self.vault.clone() else {
            return Ok(BTreeSet::new());
        };
        let run = self.run.name.clone();
        let pins = blocking(move || vault.pins(&run)).await?;
        Ok(pins.into_iter().map(|pin| pin.id).collect())
    }
}

async fn open_remotes(
    configured: Vec<RemoteSettings>,
    run: &RunName,
    observer: &Arc<dyn Observer>,
) -> Result<Vec<RunRemote>> {
    let mut remotes = Vec::with_capacity(configured.len());
    for remote in configured {
        let store = stepvault_remote::open::open(&remote, Arc::clone(observer)).await?;
        remotes.push(RunRemote::new(store, Arc::new(remote), run.clone()));
    }
    Ok(remotes)
}

async fn open_vault(configured: Option<PathBuf>, default: DefaultVault) -> Result<Option<Vault>> {
    blocking(move || match (configured, default) {
        (Some(directory), DefaultVault::Created(_)) | (None, DefaultVault::Created(directory)) => {
            Vault::open_or_create(&directory).map(Some)
        }
        (Some(directory), _) | (None, DefaultVault::Existing(directory)) => Vault::open(&directory),
        (None, DefaultVault::None) => Ok(None),
    })
    .await
}

/// The vault beside the directory that holds the steps: out of the trainer's sight, on the same file system.
/// `step` is where one of them stands or is to stand.
pub(crate) fn vault_beside(step: &Path) -> Result<PathBuf> {
    let fault = || Error::new(ErrorKind::Usage, "not a path").on(step.display());
    let step = std::path::absolute(step).map_err(|error| fault().caused_by(error))?;
    let place = step.parent().and_then(Path::parent);
    place.map(|place| place.join(".stepvault")).ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            "there is no place for the vault beside the checkpoints",
        )
        .on(step.display())
        .because("the directory that holds the steps has none above it")
        .hint("give the vault's directory with --local DIR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vault_stands_outside_what_the_trainer_scans() {
        assert_eq!(
            vault_beside(Path::new("/data/run/step_1")).unwrap(),
            Path::new("/data/.stepvault")
        );
        assert_eq!(
            vault_beside(Path::new("/data/step_1/")).unwrap(),
            Path::new("/.stepvault")
        );
        let error = vault_beside(Path::new("/step_1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(
            error.hint_text(),
            Some("give the vault's directory with --local DIR")
        );
    }
}
