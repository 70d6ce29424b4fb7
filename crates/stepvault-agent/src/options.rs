//! What the service is told to do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::{Completion, Config, Links, RunSettings, faults_error};
use stepvault_core::ids::{Attempt, RemoteName, RunName};
use stepvault_core::nodes::Writer;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::starts::RestartLoopRule;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::metrics::MetricsSource;
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::seal::LinkPolicy;
use stepvault_remote::store::RemoteStore;

use crate::notice::NoticeOptions;
use crate::profiles::profiles;

/// A remote and its opened store.
#[derive(Debug, Clone)]
pub struct AgentRemote {
    /// What is configured.
    pub settings: Arc<RemoteSettings>,
    /// The store, with its decorators.
    pub store: Arc<dyn RemoteStore>,
}

/// One run to serve.
#[derive(Debug, Clone)]
pub struct AgentRun {
    /// The run.
    pub run: RunName,
    /// The directory that the trainer writes steps into. `None` for a run whose steps are only pushed by hand: what is
    /// sealed of it is uploaded and retained all the same.
    pub watch_directory: Option<PathBuf>,
    /// Glob on the names of steps; `None` for every step by its profile, or by the default pattern without one.
    pub pattern: Option<String>,
    /// How a finished step is known.
    pub completion: Completion,
    /// The profile to go by; `None` to tell from what is there.
    pub profile: Option<String>,
    /// The profile's series to take; `None` for all that a trainer can go on from.
    pub series: Option<Vec<String>>,
    /// Whether the trainer's own steps are removed once they are safe and the trainer can do without them.
    pub clean_source: bool,
    /// Whether all nodes see the directory, and share the files of its steps out among them.
    pub shared: bool,
    /// Where metrics stand in a checkpoint.
    pub metrics_source: MetricsSource,
    /// What stays on the local tier.
    pub keep_local: KeepRules,
    /// What stays on each remote.
    pub keep_remote: KeepRules,
    /// The remotes its steps go to, by name.
    pub remotes: Vec<RemoteName>,
}

impl AgentRun {
    /// A run with every key's default that is served on `remotes`.
    pub fn new(run: RunName, watch_directory: Option<PathBuf>, remotes: Vec<RemoteName>) -> Self {
        let settings = RunSettings {
            watch: watch_directory,
            ..RunSettings::new(run)
        };
        Self::of(settings, remotes)
    }

    /// What is going to be done for it, for the log: `run-1: watching /out, for the vault /ssd/vault and s3`.
    pub(crate) fn beginning(&self, vault: &Path) -> String {
        let what = match &self.watch_directory {
            Some(directory) => format!("watching {}", directory.display()),
            None => "watching nothing: steps of it are announced, or pushed by hand".to_owned(),
        };
        let places: Vec<&str> = self.remotes.iter().map(RemoteName::as_str).collect();
        let remotes = match &places[..] {
            [] => "and no remote".to_owned(),
            places => format!("and {}", places.join(", ")),
        };
        format!(
            "{}: {what}, for the vault {} {remotes}",
            self.run,
            vault.display()
        )
    }

    fn of(settings: RunSettings, remotes: Vec<RemoteName>) -> Self {
        Self {
            run: settings.name,
            watch_directory: settings.watch,
            pattern: settings.pattern,
            completion: settings.complete,
            profile: settings.profile,
            series: settings.series,
            clean_source: settings.clean_source,
            shared: settings.shared,
            metrics_source: MetricsSource {
                file: settings.metrics_file,
                pointers: settings.metrics,
            },
            keep_local: settings.keep_local,
            keep_remote: settings.keep_remote,
            remotes,
        }
    }
}

/// Everything that [`run`](crate::run) needs to know.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The vault's directory; made when it does not exist.
    pub vault_directory: PathBuf,
    /// The runs.
    pub runs: Vec<AgentRun>,
    /// The remotes, in the configured order.
    pub remotes: Vec<AgentRemote>,
    /// Who writes the steps here. Whether a run's directory is shared, the run says.
    pub writer: Writer,
    /// The attempt of every step that is found from now on; `None` to find it out.
    pub attempt: Option<Attempt>,
    /// The profiles of frameworks.
    pub profiles: Arc<ProfileSet>,
    /// How files are taken over into the vault, unless a profile asks for more.
    pub links: LinkPolicy,
    /// Limits on the local tier's space, over all runs.
    pub local_limits: LocalLimits,
    /// How often watched directories are looked at.
    pub poll_interval: Duration,
    /// How often retention runs.
    pub retention_interval: Duration,
    /// How long the service may take to end once it is told to, where nobody names a time.
    pub drain_deadline: Duration,
    /// Where notices that the machine will be taken away come from.
    pub notices: NoticeOptions,
    /// The Unix socket on which the service is controlled; `None` for none.
    pub control_socket: Option<PathBuf>,
    /// Where metrics and health are served, on this machine alone; `None` for nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Most steps that wait for one remote before those that retention would drop anyway have to stand back.
    pub maximum_backlog_steps: usize,
    /// A step whose other parts are not there so long after this node's is marked incomplete.
    pub incomplete_after: Duration,
    /// Most bytes held in buffers at once.
    pub memory_budget_bytes: u64,
    /// When starts of the service are a restart loop.
    pub restart_loop: RestartLoopRule,
    /// Take over and upload what is there, apply retention, and end.
    pub once: bool,
}

impl AgentOptions {
    /// Options from a configuration. `remotes` are the configured ones, opened by the caller; runs that name others
    /// are refused.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the configuration names no vault, a run names a remote that is not given, or something is
    /// wrong with profiles.
    pub fn from_config(
        config: &Config,
        writer: Writer,
        attempt: Option<Attempt>,
        remotes: Vec<AgentRemote>,
        once: bool,
    ) -> Result<Self> {
        let vault_directory = config.local.directory.clone().ok_or_else(|| {
            Error::new(ErrorKind::Usage, "the agent has no vault")
                .because("local.directory is not set")
                .hint("name a directory on the disk that the trainer writes to: local.directory = \"/data/vault\"")
        })?;
        let run = |settings: &RunSettings| {
            let names = config
                .remotes_of(settings)
                .into_iter()
                .map(|remote| remote.name.clone())
                .collect();
            AgentRun::of(settings.clone(), names)
        };
        let profiles =
            profiles(config).map_err(|faults| faults_error("the configuration is wrong", &faults))?;
        let control_socket = config.agent.control_socket.path(Some(&vault_directory));
        let options = Self {
            vault_directory,
            runs: config.runs.iter().map(run).collect(),
            remotes,
            writer,
            attempt,
            profiles: Arc::new(profiles),
            links: match config.local.links {
                Links::Auto => LinkPolicy::Auto,
                Links::ReflinkOrCopy => LinkPolicy::ReflinkOrCopy,
                Links::Copy => LinkPolicy::Copy,
            },
            local_limits: config.local.limits,
            poll_interval: config.agent.poll_interval,
            retention_interval: config.agent.retention_interval,
            drain_deadline: config.agent.drain_deadline,
            notices: NoticeOptions::of(&config.agent, &|name| std::env::var(name).ok()),
            control_socket,
            metrics_listen: config.agent.metrics_listen,
            maximum_backlog_steps: config.upload.maximum_backlog_steps as usize,
            incomplete_after: config.upload.incomplete_after,
            memory_budget_bytes: config.upload.memory_budget_bytes,
            restart_loop: config.restart.restart_loop,
            once,
        };
        options.check()?;
        Ok(options)
    }

    /// How much of each step a run's directory holds.
    pub(crate) fn extent_of(&self, run: &AgentRun) -> Extent {
        Extent::of(&Writer {
            shared: run.shared,
            ..self.writer.clone()
        })
    }

    /// Refuses options that contradict themselves.
    pub(crate) fn check(&self) -> Result<()> {
        if self.runs.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "the agent has nothing to do")
                .because("no run is configured")
                .hint("add a table [run.\"NAME\"] with the directory to watch"));
        }
        for (position, run) in self.runs.iter().enumerate() {
            let fault = |what: &str, why: String| {
                Error::new(ErrorKind::Usage, what.to_owned())
                    .on(&run.run)
                    .because(why)
            };
            if self.runs[..position].iter().any(|other| other.run == run.run) {
                return Err(fault("cannot serve the run", "it is configured twice".to_owned()));
            }
            if run.remotes.is_empty() {
                return Err(fault("cannot serve the run", "it has no remote".to_owned())
                    .hint("add a table [remote.NAME] with its url"));
            }
            if let Some(name) = run
                .remotes
                .iter()
                .find(|name| !self.remotes.iter().any(|one| one.settings.name == **name))
            {
                return Err(fault(
                    "cannot serve the run",
                    format!("its remote '{name}' is not configured"),
                ));
            }
        }
        Ok(())
    }
}
