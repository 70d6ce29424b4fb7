//! The trainer's directory and its configuration.

use std::path::{Path, PathBuf};

use stepvault_core::config::Config;
use stepvault_core::{Error, ErrorKind, Result};

use crate::commands::agent::served;
use crate::context::{DefaultVault, Settings, Tiers, absolute, vault_beside};
use crate::session::Session;

/// The trainer's directory, with its effective configuration.
pub(super) struct Place {
    pub(super) settings: Settings,
    /// The directory that the trainer writes steps to and resumes from.
    pub(super) directory: PathBuf,
    /// The configuration for the agent.
    pub(super) served: Config,
    /// Why the vault cannot be used, if so.
    pub(super) vault_fault: Option<Error>,
}

impl Place {
    /// Determines the directory from the command line and the configuration.
    pub(super) fn find(session: &Session, into: Option<&Path>) -> Result<Self> {
        let mut settings = Settings::load(session)?;
        let run = settings.run()?;
        let directory = into.map(Path::to_path_buf).or_else(|| run.watch.clone());
        let directory = directory.ok_or_else(|| {
            Error::new(ErrorKind::Usage, "no directory for the trainer's steps")
                .on(format!("run '{}'", run.name))
                .because("no directory is given, and the run has no 'watch'")
                .hint("give --into DIR")
        })?;
        let directory = PathBuf::from(absolute(&directory)?);
        if settings.config.local.directory.is_none() {
            let vault = vault_beside(&directory.join("step"))?;
            settings.record_path("local.directory", &vault);
            settings.config.local.directory = Some(vault);
        }
        let mut served = served(&settings)?;
        if let Some(run) = served.runs.iter_mut().find(|other| other.name == run.name) {
            if run.watch.is_none() {
                settings.record_path(&format!("run.\"{}\".watch", run.name), &directory);
            }
            let watched = run.watch.get_or_insert_with(|| directory.clone());
            if std::path::absolute(&*watched).ok().as_deref() != Some(&*directory) {
                session.output.warn(&format!(
                    "the step is restored into {}, but the agent watches {}",
                    directory.display(),
                    watched.display()
                ));
            }
        }
        Ok(Self { settings, directory, served, vault_fault: None })
    }

    /// Opens the tiers; without the vault if that cannot be used.
    pub(super) async fn open(&mut self, session: &Session) -> Result<Tiers> {
        let vault = self.settings.local_directory().unwrap_or_default();
        let default = DefaultVault::Created(vault);
        let fault = match Tiers::open(&self.settings, default, &session.output).await {
            Ok(tiers) => return Ok(tiers),
            // Another user's vault, or a directory that is not a vault: it must not be used, so the user has to decide.
            Err(fault) if fault.kind() == ErrorKind::Refused => return Err(fault),
            Err(fault) => fault,
        };
        let mut without = self.settings.clone();
        without.config.local.directory = None;
        let tiers = Tiers::open(&without, DefaultVault::None, &session.output).await;
        match tiers {
            Ok(tiers) => {
                session.output.warn(&format!("continuing without the vault: {fault}"));
                self.vault_fault = Some(fault);
                Ok(tiers)
            }
            // The vault is not the cause.
            Err(_) => Err(fault),
        }
    }
}
