//! Options of the service.

mod notices;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::{Completion, Config, LinkPolicy, RunSettings, faults_error};
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{Attempt, RemoteName, RunName};
use stepvault_core::nodes::Writer;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::starts::RestartLoopRule;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::cpu_share::CpuShare;
use stepvault_engine::metrics::MetricsSource;
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::condition::refuse_read_only_mount;
use stepvault_local::ownership::Parents;
use stepvault_remote::store::RemoteStore;
use tokio::time::timeout;

use crate::profiles::profiles;

/// Timeout for finding the mounts of the directories.
const MOUNT_DEADLINE: Duration = Duration::from_secs(5);
pub use notices::NoticeOptions;

/// A remote and its opened store.
#[derive(Debug, Clone)]
pub struct AgentRemote {
    /// The configuration.
    pub settings: Arc<RemoteSettings>,
    /// The store, with its decorators.
    pub store: Arc<dyn RemoteStore>,
}

/// One run to serve.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct AgentRun {
    /// The run.
    pub run: RunName,
    /// The directory in which the trainer writes steps. `None` for a run whose steps are only pushed by hand: its
    /// sealed steps are still uploaded and retained.
    pub watch_directory: Option<PathBuf>,
    /// Glob for step names; `None` for every step of its profile, or for the default pattern without a profile.
    pub pattern: Option<String>,
    /// Globs for entries of the directory that are no checkpoints.
    pub ignore: Vec<String>,
    /// How a finished step is recognized.
    pub completion: Completion,
    /// The profile to use; `None` to detect it.
    pub profile: Option<String>,
    /// The profile's series to seal; `None` for all that a trainer can resume from.
    pub series: Option<Vec<String>>,
    /// Whether the trainer's own steps are removed once they are durable and the trainer no longer needs them.
    pub clean_source: bool,
    /// Whether all nodes see the directory and divide the files of its steps among them.
    pub shared: bool,
    /// Whether nothing is uploaded while another training job writes the run.
    pub exclusive: bool,
    /// Whether a step that is not announced is sealed after a quiet time only, even if it is known to be complete.
    pub announced: bool,
    /// The algorithm of the digests of its steps.
    pub digest: DigestAlgorithm,
    /// Where checkpoints contain metrics.
    pub metrics_source: MetricsSource,
    /// Retention rules of the local tier.
    pub keep_local: KeepRules,
    /// Retention rules of each remote.
    pub keep_remote: KeepRules,
    /// The remotes its steps go to, by name.
    pub remotes: Vec<RemoteName>,
}

impl AgentRun {
    /// Creates a run with all defaults that is served on `remotes`.
    pub fn new(run: RunName, watch_directory: Option<PathBuf>, remotes: Vec<RemoteName>) -> Self {
        let settings = RunSettings {
            watch: watch_directory,
            ..RunSettings::new(run)
        };
        Self::of(settings, remotes)
    }

    /// Describes the work for this run, for the log: `run-1: watching /out, for the vault /ssd/vault and s3`.
    pub(crate) fn beginning(&self, vault: &Path) -> String {
        let what = match &self.watch_directory {
            Some(directory) => format!("watching {}", directory.display()),
            None => "watching no directory: its steps are announced, or pushed by hand".to_owned(),
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

    fn from_config(config: &Config, settings: &RunSettings) -> Self {
        let remotes = config.remotes_of(settings).into_iter();
        Self::of(
            settings.clone(),
            remotes.map(|remote| remote.name.clone()).collect(),
        )
    }

    fn of(settings: RunSettings, remotes: Vec<RemoteName>) -> Self {
        Self {
            run: settings.name,
            watch_directory: settings.watch,
            pattern: settings.pattern,
            ignore: settings.ignore,
            completion: settings.complete,
            profile: settings.profile,
            series: settings.series,
            clean_source: settings.clean_source,
            shared: settings.shared,
            exclusive: settings.exclusive,
            announced: settings.announced,
            digest: settings.digest,
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

/// The options of [`run`](crate::run).
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The vault's directory; created when it does not exist.
    pub vault_directory: PathBuf,
    /// Whether the directories above it may be open to other users.
    pub vault_parents: Parents,
    /// The runs.
    pub runs: Vec<AgentRun>,
    /// Configured runs that are not served now: their steps in the vault are compared with their own remotes.
    pub other_runs: Vec<AgentRun>,
    /// The remotes, in the configured order.
    pub remotes: Vec<AgentRemote>,
    /// The writer of the steps on this node. Each run says whether its directory is shared.
    pub writer: Writer,
    /// The attempt of all steps found from now on; `None` to determine it.
    pub attempt: Option<Attempt>,
    /// The profiles of frameworks.
    pub profiles: Arc<ProfileSet>,
    /// How files are linked or copied into the vault, unless a profile is stricter.
    pub links: LinkPolicy,
    /// Limits on the local tier's space, over all runs.
    pub local_limits: LocalLimits,
    /// The interval between scans of watched directories.
    pub poll_interval: Duration,
    /// The interval of retention.
    pub retention_interval: Duration,
    /// How long the service may take to end after a request without a deadline.
    pub drain_deadline: Duration,
    /// The nice value of all threads of the process until a stop is requested, 1 to 19; 0 leaves them as they are.
    pub nice: u8,
    /// The share of the processors that uploads may take until a stop is requested.
    pub cpu_share: CpuShare,
    /// The sources of notices that the machine will be reclaimed.
    pub notices: NoticeOptions,
    /// The Unix socket for controlling the service; `None` to disable it.
    pub control_socket: Option<PathBuf>,
    /// The loopback address for metrics and health; `None` to disable them.
    pub metrics_listen: Option<SocketAddr>,
    /// Maximum number of steps waiting for one remote; beyond that, steps that retention would remove anyway are
    /// deferred.
    pub maximum_backlog_steps: usize,
    /// How long after this node's part a step may lack other parts before it is marked incomplete.
    pub incomplete_after: Duration,
    /// Maximum number of bytes in buffers.
    pub memory_budget_bytes: u64,
    /// The rule by which starts of the service are a restart loop; `None` if its caller records the starts.
    pub restart_loop: Option<RestartLoopRule>,
    /// Whether to seal and upload what exists, apply retention, and end.
    pub once: bool,
    /// Whether the trainer has ended with all of its processes: no quiet time is waited for then.
    pub trainer_ended: bool,
    /// The process that the service runs for: it drains when this one, and every other that attached on the control
    /// socket, has ended. `None` to run until a stop is requested.
    pub followed_process: Option<u32>,
    /// How this service was started, in the caller's own encoding: recorded in the vault for a later round.
    pub invocation: Option<Vec<u8>>,
}

impl AgentOptions {
    /// Creates options from a configuration. `remotes` are the configured ones, opened by the caller; runs that name
    /// others are refused.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] when the configuration names no vault, a run names a remote that is not given, or the
    /// profiles are invalid.
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
        let profiles =
            profiles(config).map_err(|faults| faults_error("the configuration is invalid", &faults))?;
        let control_socket = config.agent.control_socket.path(Some(&vault_directory));
        let options = Self {
            vault_directory,
            vault_parents: Parents::allowed_if(config.local.allow_shared_parents),
            runs: config
                .runs
                .iter()
                .map(|run| AgentRun::from_config(config, run))
                .collect(),
            other_runs: Vec::new(),
            remotes,
            writer,
            attempt,
            profiles: Arc::new(profiles),
            links: config.local.links,
            local_limits: config.local.limits,
            poll_interval: config.agent.poll_interval,
            retention_interval: config.agent.retention_interval,
            drain_deadline: config.agent.drain_deadline,
            nice: config.agent.nice,
            cpu_share: config
                .agent
                .cpu_share_percent
                .map_or_else(CpuShare::unlimited, CpuShare::new),
            notices: NoticeOptions::of(&config.agent, &|name| std::env::var(name).ok()),
            control_socket,
            metrics_listen: config.agent.metrics_listen,
            maximum_backlog_steps: config.upload.maximum_backlog_steps as usize,
            incomplete_after: config.upload.incomplete_after,
            memory_budget_bytes: config.upload.memory_budget_bytes,
            restart_loop: Some(config.restart.restart_loop),
            once,
            trainer_ended: false,
            followed_process: None,
            invocation: None,
        };
        options.check()?;
        Ok(options)
    }

    /// Adds the configured runs that are not served.
    #[must_use]
    pub fn with_other_runs_of(mut self, config: &Config) -> Self {
        let is_served = |settings: &&RunSettings| self.runs.iter().any(|run| run.run == settings.name);
        let others = config.runs.iter().filter(|settings| !is_served(settings));
        self.other_runs = others.map(|run| AgentRun::from_config(config, run)).collect();
        self
    }

    /// Returns how much of each step a run's directory holds.
    pub(crate) fn extent_of(&self, run: &AgentRun) -> Extent {
        Extent::of(&Writer {
            shared: run.shared,
            ..self.writer.clone()
        })
    }

    /// Refuses directories that the service writes to and that its unit or container makes read-only: the vault,
    /// directories that are remotes, and those in which it removes steps. Without an answer of a filesystem in time,
    /// nothing is refused.
    pub async fn refuse_read_only_mounts(&self) -> Result<()> {
        let mut directories = vec![self.vault_directory.clone()];
        let remotes = self.remotes.iter().map(|remote| &remote.settings);
        directories.extend(
            remotes
                .filter(|settings| settings.url.scheme.is_directory())
                .map(|settings| PathBuf::from(&settings.url.prefix)),
        );
        let cleaned = self.runs.iter().filter(|run| run.clean_source);
        directories.extend(cleaned.filter_map(|run| run.watch_directory.clone()));
        let refuse = blocking(move || {
            directories
                .iter()
                .try_for_each(|path| refuse_read_only_mount(path))
        });
        timeout(MOUNT_DEADLINE, refuse).await.unwrap_or(Ok(()))
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
