//! Opens the tiers of one run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::config::RunSettings;
use stepvault_core::{Error, ErrorKind, Observer, RemoteSettings, Result, RunName, StepId, Writer};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::outage::outage;
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::vault::Vault;
use stepvault_remote::open::open_with;

use super::settings::Settings;
use crate::output::Output;
use crate::progress::{Progress, Style};
use crate::session::Session;

/// Name of a vault that no configuration names.
const VAULT_NAME: &str = ".stepvault";

/// The vault that a command uses if none is configured.
#[derive(Debug, Clone)]
pub(crate) enum DefaultVault {
    /// No vault.
    None,
    /// This one, if it exists.
    Existing(PathBuf),
    /// This one, created if it does not exist. The configured one is created likewise.
    Created(PathBuf),
}

impl DefaultVault {
    /// The vault beside a directory of steps that is in the working directory, if it exists.
    pub(crate) fn here() -> Self {
        std::env::current_dir().map_or(Self::None, |place| Self::Existing(place.join(VAULT_NAME)))
    }

    /// The vault in the working directory, for a command that has no directory of steps.
    pub(crate) fn created_here() -> Result<Self> {
        let place = std::env::current_dir().map_err(|error| {
            Error::new(ErrorKind::Failed, "cannot use the working directory").caused_by(error)
        })?;
        Ok(Self::Created(place.join(VAULT_NAME)))
    }
}

/// The open tiers of one run, with their rules and limits.
#[derive(Debug)]
pub(crate) struct Tiers {
    /// The settings from which they were opened.
    pub(crate) settings: Settings,
    /// The run's settings.
    pub(crate) run: RunSettings,
    /// The identity under which this node writes steps.
    pub(crate) writer: Writer,
    /// The local tier, if any.
    pub(crate) vault: Option<Vault>,
    /// The run's remotes.
    pub(crate) remotes: Vec<RunRemote>,
    /// Memory budget for transfers.
    pub(crate) budget: MemoryBudget,
    /// Progress display, fed by the engine's events.
    pub(crate) progress: Progress,
    /// The output for warnings.
    pub(crate) output: Output,
}

impl Tiers {
    /// Opens the tiers that the session's arguments select: at least one.
    pub(crate) async fn load(session: &Session) -> Result<Self> {
        Self::load_with(session, DefaultVault::None).await
    }

    /// As [`load`](Self::load), for commands that only read: if no vault is configured, they use the one in the working
    /// directory, which 'push checkpoints/STEP' has created.
    pub(crate) async fn load_to_read(session: &Session) -> Result<Self> {
        Self::load_with(session, DefaultVault::here()).await
    }

    async fn load_with(session: &Session, default: DefaultVault) -> Result<Self> {
        let tiers = Self::open(&Settings::load(session)?, default, &session.output).await?;
        tiers.require_any()?;
        Ok(tiers)
    }

    /// Opens the run's vault and remotes. Sends nothing to a remote.
    pub(crate) async fn open(settings: &Settings, default: DefaultVault, output: &Output) -> Result<Self> {
        Self::open_with(settings, default, output, Style::of(output)).await
    }

    /// As [`open`](Self::open), for a command that runs for a long time and shows progress as a service does.
    pub(crate) async fn open_for_service(
        settings: &Settings,
        default: DefaultVault,
        output: &Output,
    ) -> Result<Self> {
        Self::open_with(settings, default, output, Style::of_service(output)).await
    }

    async fn open_with(
        settings: &Settings,
        default: DefaultVault,
        output: &Output,
        style: Style,
    ) -> Result<Self> {
        let run = settings.run()?;
        let configured = settings.remotes(&run);
        let progress = Progress::start(&configured, style, output);
        let vault = open_vault(settings, default).await?;
        let remotes = open_remotes(settings, configured, vault.as_ref(), &progress.observer()).await?;
        Ok(Self {
            writer: Writer { shared: run.shared, ..settings.writer()? },
            vault,
            remotes,
            budget: MemoryBudget::new(settings.config.upload.memory_budget_bytes),
            progress,
            output: output.clone(),
            run,
            settings: settings.clone(),
        })
    }

    /// Returns the run's name.
    pub(crate) fn run_name(&self) -> &RunName {
        &self.run.name
    }

    /// Returns those of the run's remotes to which its steps are uploaded, and on which alone they can be durable.
    pub(crate) fn upload_remotes(&self) -> Vec<RunRemote> {
        self.remotes.iter().filter(|remote| !remote.settings.is_selective()).cloned().collect()
    }

    /// Returns every remote of the run, including those that the command line excludes by naming others: what may be
    /// deleted depends on them too.
    pub(crate) async fn all_remotes(&self) -> Result<Vec<RunRemote>> {
        // A remote named by its URL is added to the configuration, so it is among the selected ones.
        let is_other =
            |other: &&RemoteSettings| self.remotes.iter().all(|remote| *remote.name() != other.name);
        let configured = self.settings.config.remotes_of(&self.run).into_iter();
        let others = configured.filter(is_other).cloned().collect();
        let others = open_remotes(&self.settings, others, self.vault.as_ref(), &self.observer()).await?;
        Ok(self.remotes.iter().cloned().chain(others).collect())
    }

    /// Returns the observer for the engine's events.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        self.progress.observer()
    }

    /// # Errors
    /// If there is neither a vault nor a remote.
    pub(crate) fn require_any(&self) -> Result<()> {
        if self.vault.is_some() || !self.remotes.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, "no tier selected")
            .because("no remote is given or configured, and no local vault exists")
            .hint("give --remote URL or --local DIR, or a configuration with --config FILE"))
    }

    /// Returns the steps that are pinned on the local tier.
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
    settings: &Settings,
    configured: Vec<RemoteSettings>,
    vault: Option<&Vault>,
    observer: &Arc<dyn Observer>,
) -> Result<Vec<RunRemote>> {
    let run = settings.run()?.name;
    let mut remotes = Vec::with_capacity(configured.len());
    for remote in configured {
        let store = open_with(&remote, Arc::clone(observer), settings.open_options()).await?;
        let mut remote = RunRemote::new(store, Arc::new(remote), run.clone());
        if let Some(vault) = vault {
            remote = remote.remembered_by(vault);
        }
        remotes.push(remote);
    }
    Ok(remotes)
}

/// Opens the configured vault, else the default one; returns `None` if there is none.
pub(crate) async fn open_vault(settings: &Settings, default: DefaultVault) -> Result<Option<Vault>> {
    let (configured, parents) = (settings.local_directory(), settings.vault_parents());
    let opened = blocking(move || match (configured, default) {
        (Some(directory), DefaultVault::Created(_)) | (None, DefaultVault::Created(directory)) => {
            Vault::open_or_create_below(&directory, parents).map(Some)
        }
        (Some(directory), _) | (None, DefaultVault::Existing(directory)) => {
            Vault::open_below(&directory, parents)
        }
        (None, DefaultVault::None) => Ok(None),
    })
    .await;
    opened.map_err(outage)
}

/// Returns the path of the vault beside the directory that holds the steps: outside what the trainer scans, on the same
/// file system. `step` is the path of a present or future step.
pub(crate) fn vault_beside(step: &Path) -> Result<PathBuf> {
    let fault = || Error::new(ErrorKind::Usage, "invalid path").on(step.display());
    let step = std::path::absolute(step).map_err(|error| fault().caused_by(error))?;
    let place = step.parent().and_then(Path::parent);
    place.map(|place| place.join(VAULT_NAME)).ok_or_else(|| {
        Error::new(ErrorKind::Usage, "cannot place the vault beside the checkpoints")
            .on(step.display())
            .because("the directory that holds the steps has no parent directory")
            .hint("give the vault's directory with --local DIR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vault_stands_outside_what_the_trainer_scans() {
        assert_eq!(vault_beside(Path::new("/data/run/step_1")).unwrap(), Path::new("/data/.stepvault"));
        assert_eq!(vault_beside(Path::new("/data/step_1/")).unwrap(), Path::new("/.stepvault"));
        let error = vault_beside(Path::new("/step_1")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.hint_text(), Some("give the vault's directory with --local DIR"));
    }
}
