//! The resolved configuration, typed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::explain::Explained;
use super::finding::{Finding, Source};
use super::key::KeyPath;
use super::load::FileText;
use crate::ids::{NodeName, RemoteName, RunName};
use crate::nodes::NodeSet;
use crate::path::RelativePath;
use crate::remote_settings::RemoteSettings;
use crate::retention::{KeepRules, LocalLimits};
use crate::starts::{DemotionRule, RestartLoopRule};

/// Everything that is configured, after file, environment and flags have been merged and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// This node's name; the host's name when not given.
    pub node: Option<NodeName>,
    /// The nodes that write each step together; as the launcher says, or this one alone, when not given.
    pub nodes: Option<NodeSet>,
    /// The local tier.
    pub local: LocalSettings,
    /// Uploads, over all remotes.
    pub upload: UploadSettings,
    /// The background service.
    pub agent: AgentSettings,
    /// What follows from starts.
    pub restart: RestartSettings,
    /// What is looked at before training.
    pub doctor: DoctorSettings,
    /// The remotes in the order of the file, then of the flags. Reading prefers earlier ones.
    pub remotes: Vec<RemoteSettings>,
    /// The runs in the order of the file.
    pub runs: Vec<RunSettings>,
    /// What a run that is not configured has: the defaults of every key, and `[keep.local]`, `[keep.remote]`.
    pub keep_local: KeepRules,
    /// The same for remotes.
    pub keep_remote: KeepRules,
    /// The file, when it holds `[[profile]]` tables: users' own profiles of frameworks, which whoever knows profiles
    /// reads from it.
    pub profiles: Option<FileText>,
    /// What stopped nothing and yet should be looked at.
    pub warnings: Vec<Finding>,
    pub(super) explained: Vec<Explained>,
}

impl Config {
    /// The remote of this name.
    pub fn remote(&self, name: &RemoteName) -> Option<&RemoteSettings> {
        self.remotes.iter().find(|remote| remote.name == *name)
    }

    /// The run of this name: as configured, or with every key's default.
    pub fn run(&self, name: &RunName) -> RunSettings {
        self.runs
            .iter()
            .find(|run| run.name == *name)
            .cloned()
            .unwrap_or_else(|| RunSettings {
                keep_local: self.keep_local.clone(),
                keep_remote: self.keep_remote.clone(),
                ..RunSettings::new(name.clone())
            })
    }

    /// The remotes that a run's steps go to, in order: all unless the run names some.
    pub fn remotes_of(&self, run: &RunSettings) -> Vec<&RemoteSettings> {
        let wanted = |remote: &&RemoteSettings| {
            run.remotes
                .as_ref()
                .is_none_or(|names| names.contains(&remote.name))
        };
        self.remotes.iter().filter(wanted).collect()
    }

    /// Those of them on which a step must be durable to be safe.
    pub fn required_remotes_of(&self, run: &RunSettings) -> Vec<RemoteName> {
        let required = self.remotes_of(run).into_iter().filter(|remote| remote.required);
        required.map(|remote| remote.name.clone()).collect()
    }

    /// A fault or warning about a key, with the place that its value came from: for what this crate cannot judge itself.
    pub fn finding(&self, key: &[&str], why: impl Into<String>) -> Finding {
        let key = KeyPath::of(key).to_string();
        let given = self.explained.iter().find(|entry| entry.key == key);
        let source = given.map_or(Source::Default, |entry| entry.source.clone());
        Finding::new(key, source, why)
    }

    /// Every value in force, in the order of the reference file, and where each came from. Secrets are masked.
    pub fn explain(&self) -> &[Explained] {
        &self.explained
    }
}

/// How a step gets into the vault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Links {
    /// The cheapest that the file system has: reflink, hard link, copy.
    #[default]
    Auto,
    /// Never hard links: for trainers that change files after they have finished them.
    ReflinkOrCopy,
    /// Always a copy.
    Copy,
}

/// `[local]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalSettings {
    /// The vault. Must be given, here or by a flag, to whatever seals.
    pub directory: Option<PathBuf>,
    /// Byte budget and free-space marks.
    pub limits: LocalLimits,
    /// How a step gets into the vault.
    pub links: Links,
}

/// `[upload]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadSettings {
    /// Most bytes held in buffers at once.
    pub memory_budget_bytes: u64,
    /// Most steps that wait for one remote before the ones that retention would drop anyway are skipped.
    pub maximum_backlog_steps: u32,
    /// A step whose other parts are not there so long after this node's is marked incomplete.
    pub incomplete_after: Duration,
}

/// `[agent]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// How often watched directories are looked at.
    pub poll_interval: Duration,
    /// How often retention runs.
    pub retention_interval: Duration,
    /// How long the service may go on once it is told to stop, where whoever tells it names no deadline.
    pub drain_deadline: Duration,
    /// Where providers' notices are looked for.
    pub notices: Notices,
    /// Whether EC2's recommendation to rebalance drains the service, or is only warned of.
    pub drains_on_rebalance: bool,
    /// A file that drains the service when it appears.
    pub drain_file: Option<PathBuf>,
    /// Where commands talk to the agent.
    pub control_socket: ControlSocket,
    /// Where metrics and health are served; an address of this machine alone. `None` for nowhere.
    pub metrics_listen: Option<SocketAddr>,
}

/// The Unix socket on which the agent is controlled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ControlSocket {
    /// In the vault, as `agent.sock`.
    #[default]
    InVault,
    /// Here.
    At(PathBuf),
    /// There is none.
    Off,
}

impl ControlSocket {
    /// Its path for an agent with this vault.
    pub fn path(&self, vault: Option<&Path>) -> Option<PathBuf> {
        match self {
            Self::InVault => vault.map(|vault| vault.join("agent.sock")),
            Self::At(path) => Some(path.clone()),
            Self::Off => None,
        }
    }
}

/// Where providers' notices that a machine will be taken away are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notices {
    /// Wherever this machine turns out to be.
    Auto,
    /// There and nowhere else.
    From(Vec<NoticeSource>),
}

/// A provider's way of giving notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeSource {
    /// EC2's instance metadata: spot interruptions and recommendations to rebalance.
    Ec2,
    /// Compute Engine's metadata server: preemptions.
    Gce,
}

impl NoticeSource {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ec2, Self::Gce];

    /// Its word in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Gce => "gce",
        }
    }
}

/// `[restart]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestartSettings {
    /// When starts are a restart loop.
    pub restart_loop: RestartLoopRule,
    /// When a step is passed over because the trainer does not survive it.
    pub demotion: DemotionRule,
}

/// `[doctor]`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DoctorSettings {
    /// Environment variables that have to hold directories which can be written.
    pub required_environment: Vec<String>,
}

/// How the agent knows that a step is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// The profile of the framework that wrote it says so; where only silence can prove it, nothing in it has changed
    /// for this long.
    Auto(Duration),
    /// It appears under its name by rename, finished.
    Rename,
    /// It holds this file.
    Marker(RelativePath),
    /// Nothing in it has changed for this long.
    Quiet(Duration),
}

/// `[run."NAME"]`
#[derive(Debug, Clone, PartialEq)]
pub struct RunSettings {
    /// The run.
    pub name: RunName,
    /// The directory that the trainer writes steps into; `None` for a run that is pushed by hand.
    pub watch: Option<PathBuf>,
    /// Glob on the names of its steps; `None` for all that the profile takes for steps, or
    /// [`DEFAULT_PATTERN`](Self::DEFAULT_PATTERN) where no profile is asked.
    pub pattern: Option<String>,
    /// How a finished step is known.
    pub complete: Completion,
    /// The profile to go by; `None` to tell from what is there.
    pub profile: Option<String>,
    /// The profile's series whose steps are taken; `None` for all that a trainer can go on from.
    pub series: Option<Vec<String>>,
    /// Whether the trainer's own steps are removed once they are safe and the trainer can do without them.
    pub clean_source: bool,
    /// Whether all nodes see the watched directory, and share the files of its steps out among them.
    pub shared: bool,
    /// JSON file inside the checkpoint that holds metrics.
    pub metrics_file: Option<RelativePath>,
    /// Metrics by name, each a JSON pointer into that file.
    pub metrics: BTreeMap<String, String>,
    /// The remotes its steps go to; `None` for all.
    pub remotes: Option<Vec<RemoteName>>,
    /// What stays on the local tier.
    pub keep_local: KeepRules,
    /// What stays on each remote.
    pub keep_remote: KeepRules,
}

impl RunSettings {
    /// Which names are steps, where neither a pattern nor a profile says so.
    pub const DEFAULT_PATTERN: &str = "{step,global_step,checkpoint,iter,epoch}*";

    /// A run with every key's default and no keep rules.
    pub fn new(name: RunName) -> Self {
        Self {
            name,
            watch: None,
            pattern: None,
            complete: Completion::Auto(Duration::from_mins(1)),
            profile: None,
            series: None,
            clean_source: false,
            shared: false,
            metrics_file: None,
            metrics: BTreeMap::new(),
            remotes: None,
            keep_local: KeepRules::default(),
            keep_remote: KeepRules::default(),
        }
    }
}

impl Default for LocalSettings {
    fn default() -> Self {
        Self {
            directory: None,
            limits: LocalLimits::default(),
            links: Links::Auto,
        }
    }
}

impl Default for UploadSettings {
    fn default() -> Self {
        Self {
            memory_budget_bytes: 128 << 20,
            maximum_backlog_steps: 16,
            incomplete_after: Duration::from_mins(30),
        }
    }
}

impl Default for AgentSettings {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            retention_interval: Duration::from_mins(10),
            drain_deadline: Duration::from_secs(90),
            notices: Notices::Auto,
            drains_on_rebalance: false,
            drain_file: None,
            control_socket: ControlSocket::InVault,
            metrics_listen: None,
        }
    }
}
