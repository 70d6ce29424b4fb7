//! Where a trainer's steps are, and what is configured for them.

use std::path::{Path, PathBuf};

use stepvault_core::config::Config;
use stepvault_core::{Error, ErrorKind, Result};

use crate::commands::Session;
use crate::commands::agent::served;
use crate::context::{DefaultVault, Settings, Tiers, absolute, vault_beside};

/// The trainer's directory, and the configuration in force for it.
pub(super) struct Place {
    pub(super) settings: Settings,
    /// Where the trainer writes its steps and looks for them.
    pub(super) directory: PathBuf,
    /// What the agent is to serve.
    pub(super) served: Config,
    /// Why the vault cannot be used, if it cannot.
    pub(super) vault_fault: Option<Error>,
}

impl Place {
    /// From the command line and the configuration.
    pub(super) fn find(session: &Session, into: Option<&Path>) -> Result<Self> {
        let mut settings = Settings::load(session)?;
        let run = settings.run()?;
        let directory = into.map(Path::to_path_buf).or_else(|| run.watch.clone());
        let directory = directory.ok_or_else(|| {
            Error::new(ErrorKind::Usage, "which directory does the trainer write to?")
                .on(format!("run '{}'", run.name))
                .because("no directory is given, and the run has no 'watch' configured")
                .hint("give it with --into DIR")
        })?;
        let directory = PathBuf::from(absolute(&directory)?);
        if settings.config.local.directory.is_none() {
            settings.config.local.directory = Some(vault_beside(&directory.join("step"))?);
        }
        let mut served = served(&settings)?;
        if let Some(run) = served.runs.iter_mut().find(|other| other.name == run.name) {
            let watched = run.watch.get_or_insert_with(|| directory.clone());
            if std::path::absolute(&*watched).ok().as_deref() != Some(&*directory) {
                session.output.warn(&format!(
                    "the step is restored into {}, and checkpoints are looked for in {}",
                    directory.display(),
                    watched.display()
                ));
            }
        }
        Ok(Self {
            settings,
            directory,
            served,
            vault_fault: None,
        })
    }

    /// Opens the tiers; without the vault when that cannot be had.
    pub(super) async fn open(&mut self, session: &Session) -> Result<Tiers> {
        let vault = self.settings.local_directory().unwrap_or_default();
        let default = DefaultVault::Created(vault);
        let fault = match Tiers::open(&self.settings, default, &session.output).await {
            Ok(tiers) => return Ok(tiers),
            Err(fault) => fault,
        };
        let mut without = self.settings.clone();
        without.config.local.directory = None;
        let tiers = Tiers::open(&without, DefaultVault::None, &session.output).await;
        match tiers {
            Ok(tiers) => {
                session.output.warn(&format!("the vault cannot be used: {fault}"));
                self.vault_fault = Some(fault);
                Ok(tiers)
            }
            // It is not the vault.
            Err(_) => Err(fault),
        }
    }
}
