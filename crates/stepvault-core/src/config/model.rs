//! The resolved configuration, typed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::finding::{Explained, Finding, Source};
use super::http_url::ServiceUrl;
use super::key::KeyPath;
use super::notify::NotifyTarget;
use super::sources::FileText;
use crate::retention::{KeepRules, LocalLimits};
use crate::starts::{DemotionRule, RestartLoopRule};
use crate::{DigestAlgorithm, NodeName, NodeSet, RelativePath, RemoteName, RemoteSettings, RunName};

/// The complete configuration, after file, environment and flags have been merged and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This node's name; the host's name when not given.
    pub node: Option<NodeName>,
    /// The nodes that write each step together; if not given, the launcher's nodes, or this node alone.
    pub nodes: Option<NodeSet>,
    /// The targets of notifications.
    pub notify: Vec<NotifyTarget>,
    /// Where the traces of steps are sent to; if not given, where OpenTelemetry's variables say.
    pub traces: Option<ServiceUrl>,
    /// The local tier.
    pub local: LocalSettings,
    /// Uploads to all remotes.
    pub upload: UploadSettings,
    /// The background service.
    pub agent: AgentSettings,
    /// When restored files are on the disk: `sync` of `[restore]`.
    pub restore_sync: RestoreSync,
    /// How restarts are handled.
    pub restart: RestartSettings,
    /// Environment variables that must contain writable directories: `required-environment` of `[doctor]`.
    pub required_environment: Vec<String>,
    /// The remotes in the order of the file, then of the flags. Reads prefer earlier ones.
    pub remotes: Vec<RemoteSettings>,
    /// The runs in the order of the file.
    pub runs: Vec<RunSettings>,
    /// The settings of a run that is not configured: the defaults of every key, with `[keep.local]` and
    /// `[keep.remote]`.
    pub keep_local: KeepRules,
    /// The same for remotes.
    pub keep_remote: KeepRules,
    /// The file, if it contains `[[profile]]` tables: users' own profiles of frameworks, which another crate reads.
    pub profiles: Option<FileText>,
    /// Problems that do not prevent operation.
    pub warnings: Vec<Finding>,
    /// Every effective value and its source, in the order of the reference file. Secrets are masked.
    pub explained: Vec<Explained>,
}

impl Config {
    /// Returns the remote of this name.
    pub fn remote(&self, name: &RemoteName) -> Option<&RemoteSettings> {
        self.remotes.iter().find(|remote| remote.name == *name)
    }

    /// Returns the run of this name: as configured, or with the default of every key.
    pub fn run(&self, name: &RunName) -> RunSettings {
        self.runs.iter().find(|run| run.name == *name).cloned().unwrap_or_else(|| RunSettings {
            keep_local: self.keep_local.clone(),
            keep_remote: self.keep_remote.clone(),
            ..RunSettings::new(name.clone())
        })
    }

    /// Returns the remotes of a run, in order: all, unless the run names some. The selective ones come last.
    pub fn remotes_of(&self, run: &RunSettings) -> Vec<&RemoteSettings> {
        let mut remotes: Vec<&RemoteSettings> =
            self.remotes.iter().filter(|remote| run.has_remote(&remote.name)).collect();
        remotes.sort_by_key(|remote| remote.is_selective());
        remotes
    }

    /// Returns those of them that the run's steps are uploaded to, on which alone they can be durable.
    pub fn upload_remotes_of(&self, run: &RunSettings) -> Vec<&RemoteSettings> {
        self.remotes_of(run).into_iter().filter(|remote| !remote.is_selective()).collect()
    }

    /// Returns those on which a step must be durable before it may be removed elsewhere.
    pub fn required_remotes_of(&self, run: &RunSettings) -> Vec<RemoteName> {
        let required = self.upload_remotes_of(run).into_iter().filter(|remote| remote.required);
        required.map(|remote| remote.name.clone()).collect()
    }

    /// Returns a fault or warning about a key, with the source of its value, for checks that this crate cannot make.
    pub fn finding(&self, key: &[&str], why: impl Into<String>) -> Finding {
        let key = KeyPath::of(key).to_string();
        let given = self.explained.iter().find(|entry| entry.key == key);
        let source = given.map_or(Source::Default, |entry| entry.source.clone());
        Finding::new(key, source, why)
    }
}

/// How files get into the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LinkPolicy {
    /// The cheapest method that the filesystem supports: reflink, hard link or copy.
    #[default]
    Auto,
    /// Never hard links: for trainers that change files after they finished them.
    ReflinkOrCopy,
    /// Always copy.
    Copy,
}

/// `[local]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSettings {
    /// The vault directory. Required, here or as a flag, for every command that seals.
    pub directory: Option<PathBuf>,
    /// Byte budget and free-space marks.
    pub limits: LocalLimits,
    /// How files get into the vault.
    pub links: LinkPolicy,
    /// Whether other users may be able to write to the directories above the vault, and so to replace it.
    pub allow_shared_parents: bool,
}

/// When a restore's files are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RestoreSync {
    /// When the restore ends.
    #[default]
    Full,
    /// When the kernel writes them: a power cut may leave files without their bytes. For a disk that dies with its
    /// machine.
    None,
}

/// `[upload]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadSettings {
    /// Maximum number of bytes in buffers at once.
    pub memory_budget_bytes: u64,
    /// Maximum number of steps that wait for one remote; beyond it, steps that retention would delete anyway are
    /// uploaded last.
    pub maximum_backlog_steps: u32,
    /// A step is marked incomplete when its other parts are still missing this long after this node's part.
    pub incomplete_after: Duration,
}

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// How often watched directories are scanned.
    pub poll_interval: Duration,
    /// How often retention runs.
    pub retention_interval: Duration,
    /// How long the service may continue after it is told to stop, if no deadline is given with the request.
    pub drain_deadline: Duration,
    /// The nice value of the service's threads while the trainer may run: 0 to 19, 0 for the one that it was started
    /// with.
    pub nice: u8,
    /// The most of the processors' time that the service's uploads may take while the trainer may run, in percent; `None`
    /// for no limit.
    pub cpu_share_percent: Option<u8>,
    /// Which providers' notices are polled.
    pub notices: Notices,
    /// Whether Azure's event that ends the machine is acknowledged once the drain has left nothing.
    pub acknowledges_notices: bool,
    /// Whether EC2's rebalance recommendation drains the service or only causes a warning.
    pub drains_on_rebalance: bool,
    /// A file whose appearance drains the service.
    pub drain_file: Option<PathBuf>,
    /// The socket on which commands reach the agent.
    pub control_socket: ControlSocket,
    /// Where its metrics are found.
    pub metrics: MetricsSettings,
    /// How services write their logs.
    pub log_format: LogFormat,
}

/// How a service writes its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object on each line.
    Json,
}

/// Where the agent's metrics are found: keys of `[agent]` that begin with `metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsSettings {
    /// The address that serves metrics and health; `None` to disable.
    pub listen: Option<SocketAddr>,
    /// A file with the token that clients must send.
    pub token_file: Option<PathBuf>,
    /// The file that the agent writes its metrics to, for the node exporter's collector of text files.
    pub file: Option<PathBuf>,
    /// The Pushgateway that gets the agent's last metrics.
    pub push: Option<ServiceUrl>,
}

/// The Unix socket that controls the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ControlSocket {
    /// In the vault, as `agent.sock`.
    #[default]
    InVault,
    /// At this path.
    At(PathBuf),
    /// No socket.
    Off,
}

impl ControlSocket {
    /// Returns the socket's path for an agent with this vault.
    pub fn path(&self, vault: Option<&Path>) -> Option<PathBuf> {
        match self {
            Self::InVault => vault.map(|vault| vault.join("agent.sock")),
            Self::At(path) => Some(path.clone()),
            Self::Off => None,
        }
    }
}

/// Which providers' notices of reclaimed machines are polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notices {
    /// Those of the provider on which this machine runs.
    Auto,
    /// Only these.
    From(Vec<NoticeSource>),
}

/// A provider's notice service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum NoticeSource {
    /// EC2's instance metadata: spot interruptions and recommendations to rebalance.
    Ec2,
    /// Compute Engine's metadata server: preemptions.
    Gce,
    /// Azure's Scheduled Events: preemptions and terminations.
    Azure,
}

/// `[restart]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartSettings {
    /// When repeated starts count as a restart loop.
    pub restart_loop: RestartLoopRule,
    /// When a step is skipped because the trainer crashes after resuming from it.
    pub demotion: DemotionRule,
    /// How long a start waits for a newer step that another node is uploading; `None` for as long as the trainer took
    /// from the last step but one to the last.
    pub wait_for_uploads: Option<Duration>,
}

/// How the agent detects that a step is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// The profile of the framework that wrote it decides. If it can only be proved by inactivity, nothing in the step
    /// has changed for this long.
    Auto(Duration),
    /// It is renamed to its final name when it is finished.
    Rename,
    /// It contains this file.
    Marker(RelativePath),
    /// Nothing in it has changed for this long.
    Quiet(Duration),
}

impl Completion {
    /// Returns how long a step must stay unchanged where inactivity proves that it is finished.
    pub fn quiet_time(&self) -> Option<Duration> {
        match self {
            Self::Auto(time) | Self::Quiet(time) => Some(*time),
            Self::Rename | Self::Marker(_) => None,
        }
    }
}

/// `[run."NAME"]`
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of its own")]
pub struct RunSettings {
    /// The run.
    pub name: RunName,
    /// The directory that the trainer writes steps into; `None` for a run that is pushed by hand.
    pub watch: Option<PathBuf>,
    /// Glob for the names of its steps; `None` for all names that the profile recognizes, or
    /// [`DEFAULT_PATTERN`](Self::DEFAULT_PATTERN) without a profile.
    pub pattern: Option<String>,
    /// Globs for entries of the directory that are no checkpoints, by name, or by path below it.
    pub ignore: Vec<String>,
    /// How a finished step is detected.
    pub complete: Completion,
    /// The profile to use; `None` to detect it from the files.
    pub profile: Option<String>,
    /// The profile's series whose steps are sealed; `None` for all that a trainer can resume from.
    pub series: Option<Vec<String>>,
    /// Whether the trainer's own steps are removed once they are durable and the trainer no longer needs them.
    pub clean_source: bool,
    /// Whether all nodes see the watched directory and divide the files of its steps among them.
    pub shared: bool,
    /// Whether uploads are refused while another training job writes the run.
    pub exclusive: bool,
    /// Whether the trainer announces its steps, so that one that is not announced is sealed after a quiet time only.
    pub announced: bool,
    /// Whether a prune deletes the objects of imported steps too, instead of their records alone.
    pub manage_imported: bool,
    /// The algorithm of the digests that prove the content of its steps; `None` for the one of its newest step, or the one
    /// that suits the processor.
    pub digest: Option<DigestAlgorithm>,
    /// JSON file inside the checkpoint that holds metrics.
    pub metrics_file: Option<RelativePath>,
    /// Metrics by name, each a JSON pointer into that file.
    pub metrics: BTreeMap<String, String>,
    /// The remotes that hold its steps; `None` for all.
    pub remotes: Option<Vec<RemoteName>>,
    /// What the local tier keeps.
    pub keep_local: KeepRules,
    /// What each remote keeps to which the steps are uploaded.
    pub keep_remote: KeepRules,
}

impl RunSettings {
    /// The names that are steps if neither a pattern nor a profile decides.
    pub const DEFAULT_PATTERN: &str = "{step,global_step,checkpoint,iter,epoch}*";
    /// How long a step must be unchanged if nothing else proves that its save is over.
    pub const DEFAULT_QUIET_TIME: Duration = Duration::from_mins(1);

    /// Returns the configured rules for what one of its remotes keeps. A selective remote keeps what was selected for it:
    /// rules for the remote that feeds it would remove that again.
    pub fn keep_on(&self, remote: &RemoteSettings) -> KeepRules {
        if remote.is_selective() { KeepRules::default() } else { self.keep_remote.clone() }
    }

    /// Whether a configured remote is one of the run's.
    pub fn has_remote(&self, remote: &RemoteName) -> bool {
        self.remotes.as_ref().is_none_or(|names| names.contains(remote))
    }
}
