//! The configuration in force, and what the command line chooses from it.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_agent::control::Client;
use stepvault_core::config::{Config, Links, RunSettings, Sources, faults_error, load};
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_formats::profile::ProfileSet;
use stepvault_local::seal::LinkPolicy;

use super::sources::{Gathered, gather};
use crate::commands::Session;

/// The configuration and the choices.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// What is configured.
    pub(crate) config: Config,
    run: Option<RunName>,
    remotes: Option<Vec<RemoteName>>,
}

impl Settings {
    /// Loads the configuration as the session's arguments say, and prints its warnings.
    pub(crate) fn load(session: &Session) -> Result<Self> {
        let Gathered {
            sources,
            run,
            remotes,
        } = gather(&session.global)?;
        let settings = Self {
            config: load(&sources)?,
            run,
            remotes,
        };
        for warning in &settings.config.warnings {
            session.output.warn(&match &warning.hint {
                Some(hint) if !hint.is_empty() => format!("{warning} ({hint})"),
                _ => warning.to_string(),
            });
        }
        Ok(settings)
    }

    /// A configuration that a command makes up by itself, for one run.
    pub(crate) fn of(sources: &Sources, run: RunName) -> Result<Self> {
        Ok(Self {
            config: load(sources)?,
            run: Some(run),
            remotes: None,
        })
    }

    /// The built-in profiles and the configured ones.
    pub(crate) fn profiles(&self) -> Result<Arc<ProfileSet>> {
        stepvault_agent::profiles(&self.config)
            .map(Arc::new)
            .map_err(|faults| faults_error("the configuration is wrong", &faults))
    }

    /// The run: the one that was named, or the only one there is.
    pub(crate) fn run(&self) -> Result<RunSettings> {
        if let Some(name) = &self.run {
            return Ok(self.config.run(name));
        }
        let fault =
            |why: &str, hint: String| Err(Error::new(ErrorKind::Usage, "which run?").because(why).hint(hint));
        match self.config.runs.as_slice() {
            [only] => Ok(only.clone()),
            [] => fault(
                "none is given and none is configured",
                "give it with --run NAME".to_owned(),
            ),
            several => {
                let names: Vec<&str> = several.iter().map(|run| run.name.as_str()).collect();
                fault(
                    "several are configured",
                    format!("choose one with --run: {}", names.join(", ")),
                )
            }
        }
    }

    /// The same, for this run.
    pub(crate) fn with_run(self, run: RunName) -> Self {
        Self {
            run: Some(run),
            ..self
        }
    }

    /// The run that was named, if one was: for the agent, which serves all that are configured otherwise.
    pub(crate) fn named_run(&self) -> Option<&RunName> {
        self.run.as_ref()
    }

    /// The remotes that were named, if some were.
    pub(crate) fn named_remotes(&self) -> Option<&[RemoteName]> {
        self.remotes.as_deref()
    }

    /// The remotes in the order in which they are asked: those that were named, or else the run's.
    pub(crate) fn remotes(&self, run: &RunSettings) -> Vec<RemoteSettings> {
        match &self.remotes {
            Some(names) => names
                .iter()
                .filter_map(|name| self.config.remote(name).cloned())
                .collect(),
            None => self.config.remotes_of(run).into_iter().cloned().collect(),
        }
    }

    /// The run's configured remotes that were left out by naming others. What is safe to delete depends on them too.
    pub(crate) fn other_remotes(&self, run: &RunSettings) -> Vec<RemoteSettings> {
        let chosen = self.remotes(run);
        let configured = self.config.remotes_of(run).into_iter();
        // Naming a remote by its URL adds it to the configuration: it is among the chosen ones.
        configured
            .filter(|remote| !chosen.iter().any(|other| other.name == remote.name))
            .cloned()
            .collect()
    }

    /// The vault's directory, where one is configured.
    pub(crate) fn local_directory(&self) -> Option<PathBuf> {
        self.config.local.directory.clone()
    }

    /// The control socket of an agent with this configuration, where there may be one.
    pub(crate) fn control(&self) -> Option<Client> {
        let vault = self.local_directory();
        let path = self.config.agent.control_socket.path(vault.as_deref());
        path.map(Client::new)
    }

    /// How files are taken into the vault.
    pub(crate) fn links(&self) -> LinkPolicy {
        match self.config.local.links {
            Links::Auto => LinkPolicy::Auto,
            Links::ReflinkOrCopy => LinkPolicy::ReflinkOrCopy,
            Links::Copy => LinkPolicy::Copy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_run_the_error_says_how_to_name_one() {
        let error = Settings {
            config: load(&Sources::default()).unwrap(),
            run: None,
            remotes: None,
        }
        .run()
        .unwrap_err();
        assert_eq!(
            crate::output::human::error(&error),
            "error: which run?: none is given and none is configured\n  hint: give it with --run NAME"
        );
    }
}
