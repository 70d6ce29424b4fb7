//! The effective configuration, and what the command line selects from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_agent::control::Client;
use stepvault_core::codec::encode;
use stepvault_core::config::{Config, FlagOverride, LinkPolicy, RunSettings, Sources, faults_error, load};
use stepvault_core::ids::{Attempt, RemoteName, RunName};
use stepvault_core::nodes::Writer;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::ProfileSet;
use stepvault_local::ownership::Parents;
use stepvault_local::vault::Vault;

use super::invocation::Invocation;
use super::sources::{Gathered, absolute, gather};
use super::writer;
use crate::session::Session;

/// The configuration, with the selected run and remotes.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The effective configuration.
    pub(crate) config: Config,
    sources: Sources,
    remotes: Option<Vec<RemoteName>>,
    /// The writer and the attempt of the vault's last agent, if they count instead of the job's launcher.
    pub(super) last: Option<(Writer, Option<Attempt>)>,
}

impl Settings {
    /// Loads the configuration that the session's arguments select, and prints its warnings.
    pub(crate) fn load(session: &Session) -> Result<Self> {
        let Gathered { sources, remotes } = gather(&session.global)?;
        Self::loaded(sources, remotes).map(|settings| settings.introduced(session))
    }

    /// Loads the configuration with which the last agent of the vault was started that `--local` names, with its node,
    /// launch and attempt, and prints the warnings.
    ///
    /// # Errors
    /// As for [`Invocation::read`].
    pub(crate) fn of_last_agent(session: &Session) -> Result<Self> {
        let last = Invocation::read(&session.global)?;
        let writer = (last.writer()?, last.attempt);
        let sources = Sources {
            run: last.run,
            ..last.sources
        };
        let settings = Self {
            last: Some(writer),
            ..Self::loaded(sources, last.remotes)?
        };
        Ok(settings.introduced(session))
    }

    /// Loads the configuration that the session's arguments select, with the run that the vault's last agent served beside
    /// those of the file, such as one of `stepvault run --run NAME --into DIR`, and with that agent's values of variables
    /// that are not set here. Blocks.
    ///
    /// # Errors
    /// When the configuration is invalid, the vault cannot be opened, or its record cannot be used.
    pub(crate) fn load_with_last_agent(session: &Session) -> Result<Self> {
        let Gathered { mut sources, remotes } = gather(&session.global)?;
        if sources.run.is_some() {
            return Self::loaded(sources, remotes).map(|settings| settings.introduced(session));
        }
        let mut unset = sources.variables_of_names();
        unset.retain(|name| sources.environment.iter().all(|(set, _)| set != name));
        // No name of a run says where the vault is.
        let mut nameless = sources.clone();
        let placeholders = unset.iter().map(|name| (name.clone(), "0".to_owned()));
        nameless.environment.extend(placeholders);
        let local = load(&nameless)?.local;
        let parents = Parents::allowed_if(local.allow_shared_parents);
        let vault = local
            .directory
            .map(|directory| Vault::open_below(&directory, parents))
            .transpose()?
            .flatten();
        if let Some(last) = vault.as_ref().map(Invocation::of_vault).transpose()?.flatten() {
            let is_of_run = |flag: &FlagOverride| flag.key.starts_with("run.");
            sources
                .flags
                .extend(last.sources.flags.into_iter().filter(is_of_run));
            if !unset.is_empty() {
                sources.run = last.run;
            }
            let variables = last.sources.environment.into_iter();
            sources
                .environment
                .extend(variables.filter(|(name, _)| unset.contains(name)));
        }
        Self::loaded(sources, remotes).map(|settings| settings.introduced(session))
    }

    fn loaded(sources: Sources, remotes: Option<Vec<RemoteName>>) -> Result<Self> {
        Ok(Self {
            config: load(&sources)?,
            sources,
            remotes,
            last: None,
        })
    }

    /// Prints the node and the warnings.
    fn introduced(self, session: &Session) -> Self {
        // A node that cannot be determined is an error of the commands that need it.
        if let Ok(writer) = self.writer() {
            session.output.name_node(&writer.place);
        }
        for warning in &self.config.warnings {
            session.output.warn(&match &warning.hint {
                Some(hint) if !hint.is_empty() => format!("{warning} ({hint})"),
                _ => warning.to_string(),
            });
        }
        self
    }

    /// Returns the record of how an agent with these settings was started. `None`, with a warning in the log, if there can
    /// be none: that is no reason not to save checkpoints.
    pub(crate) fn invocation(&self) -> Option<Vec<u8>> {
        let (sources, remotes) = (self.sources.clone(), self.remotes.clone());
        let record = || {
            encode(&Invocation::new(
                sources,
                remotes,
                &self.writer()?,
                self.attempt()?,
            ))
        };
        let warn =
            |error: &Error| tracing::warn!(%error, "how the agent was started is not recorded in the vault");
        record().inspect_err(warn).ok()
    }

    /// Adds a path that the command has determined by itself to [`invocation`](Self::invocation), unless it is not UTF-8.
    pub(crate) fn record_path(&mut self, key: &str, path: &Path) {
        let flag = absolute(path).map(|path| FlagOverride::text(key, path, "--into"));
        self.sources.flags.extend(flag);
    }

    /// Returns the attempt that the last agent was given, if it counts, else that of `STEPVAULT_ATTEMPT`.
    pub(crate) fn attempt(&self) -> Result<Option<Attempt>> {
        match &self.last {
            Some((_, attempt)) => Ok(*attempt),
            None => writer::attempt(None),
        }
    }

    /// Builds settings from sources that the command itself provides, for one run.
    pub(crate) fn of(sources: &Sources, run: RunName) -> Result<Self> {
        let sources = Sources {
            run: Some(run),
            ..sources.clone()
        };
        Self::loaded(sources, None)
    }

    /// Returns the built-in and the configured profiles.
    pub(crate) fn profiles(&self) -> Result<Arc<ProfileSet>> {
        stepvault_agent::profiles(&self.config)
            .map(Arc::new)
            .map_err(|faults| faults_error("the configuration is invalid", &faults))
    }

    /// Returns the named run, or the only configured one.
    pub(crate) fn run(&self) -> Result<RunSettings> {
        if let Some(name) = &self.sources.run {
            return Ok(self.config.run(name));
        }
        let fault = |why: &str, hint: String| {
            Err(Error::new(ErrorKind::Usage, "no run selected")
                .because(why)
                .hint(hint))
        };
        match self.config.runs.as_slice() {
            [only] => Ok(only.clone()),
            [] => fault("none is given or configured", "give --run NAME".to_owned()),
            several => {
                let names: Vec<&str> = several.iter().map(|run| run.name.as_str()).collect();
                fault(
                    "several are configured",
                    format!("select one with --run: {}", names.join(", ")),
                )
            }
        }
    }

    /// Returns the settings with this run selected.
    pub(crate) fn with_run(mut self, run: RunName) -> Self {
        self.sources.run = Some(run);
        self
    }

    /// Returns the run that the command line names. Without one the agent serves all configured runs.
    pub(crate) fn named_run(&self) -> Option<&RunName> {
        self.sources.run.as_ref()
    }

    /// Returns the remotes that the command line names.
    pub(crate) fn named_remotes(&self) -> Option<&[RemoteName]> {
        self.remotes.as_deref()
    }

    /// Returns the remotes in the order of preference: the named ones, else the run's.
    pub(crate) fn remotes(&self, run: &RunSettings) -> Vec<RemoteSettings> {
        match &self.remotes {
            Some(names) => names
                .iter()
                .filter_map(|name| self.config.remote(name).cloned())
                .collect(),
            None => self.config.remotes_of(run).into_iter().cloned().collect(),
        }
    }

    /// Returns the run's configured remotes that the command line excludes by naming others. What may be deleted
    /// depends on them too.
    pub(crate) fn other_remotes(&self, run: &RunSettings) -> Vec<RemoteSettings> {
        let chosen = self.remotes(run);
        let configured = self.config.remotes_of(run).into_iter();
        // A remote named by its URL is added to the configuration, so it is among the selected ones.
        configured
            .filter(|remote| !chosen.iter().any(|other| other.name == remote.name))
            .cloned()
            .collect()
    }

    /// Returns the vault's directory, if one is configured.
    pub(crate) fn local_directory(&self) -> Option<PathBuf> {
        self.config.local.directory.clone()
    }

    /// Returns whether the directories above the vault may be writable by other users.
    pub(crate) fn vault_parents(&self) -> Parents {
        Parents::allowed_if(self.config.local.allow_shared_parents)
    }

    /// Returns a client for the control socket of an agent with this configuration; `None` if it has no socket.
    pub(crate) fn control(&self) -> Option<Client> {
        let vault = self.local_directory();
        let path = self.config.agent.control_socket.path(vault.as_deref());
        path.map(Client::new)
    }

    /// Returns how files get into the vault.
    pub(crate) fn links(&self) -> LinkPolicy {
        self.config.local.links
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_run_the_error_says_how_to_name_one() {
        let settings = Settings::loaded(Sources::default(), None).unwrap();
        let error = settings.run().unwrap_err();
        assert_eq!(
            crate::output::human::error(&error),
            "error: no run selected: none is given or configured\n  hint: give --run NAME"
        );
    }
}
