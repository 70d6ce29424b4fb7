//! Options of the service.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::{
    AgentSettings, Config, Finding, LocalSettings, NoticeSource, Notices, NotifyTarget, RunSettings, Source,
    UploadSettings, faults_error, nearest,
};
use stepvault_core::starts::RestartLoopRule;
use stepvault_core::{
    Attempt, Error, ErrorKind, NodeName, Observer, RemoteName, RemoteSettings, Result, Writer,
};
use stepvault_engine::blocking::blocking;
use stepvault_formats::find::Extent;
use stepvault_formats::profile::ProfileSet;
use stepvault_local::condition::refuse_read_only_mount;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::store::RemoteStore;
use tokio::time::timeout;

use crate::metrics::requests::RequestCounts;
use crate::traces::Traces;

/// Timeout for finding the mounts of the directories.
const MOUNT_DEADLINE: Duration = Duration::from_secs(5);

/// A remote and its opened store.
#[derive(Debug, Clone)]
pub struct AgentRemote {
    /// The configuration.
    pub settings: Arc<RemoteSettings>,
    /// The store, with its decorators.
    pub store: Arc<dyn RemoteStore>,
    /// The requests to it.
    pub(crate) requests: Arc<RequestCounts>,
}

impl AgentRemote {
    /// Opens a remote, and counts its requests for the metrics.
    ///
    /// # Errors
    /// As [`open_with`].
    pub async fn open(
        settings: RemoteSettings,
        observer: Arc<dyn Observer>,
        options: OpenOptions,
    ) -> Result<Self> {
        let requests = Arc::new(RequestCounts::of(observer));
        let observer = Arc::clone(&requests) as Arc<dyn Observer>;
        let store = open_with(&settings, observer, options).await?;
        Ok(Self { settings: Arc::new(settings), store, requests })
    }
}

/// How the service begins and ends.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
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

/// The options of [`run`](crate::run).
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// The vault's directory; created when it does not exist.
    pub vault_directory: PathBuf,
    /// `[local]`. Its directory is the one above.
    pub local: LocalSettings,
    /// `[upload]`
    pub upload: UploadSettings,
    /// `[agent]`. Its sources of notices are those below.
    pub agent: AgentSettings,
    /// The runs.
    pub runs: Vec<RunSettings>,
    /// Configured runs that are not served now: their steps in the vault are compared with their own remotes.
    pub other_runs: Vec<RunSettings>,
    /// The remotes that steps are uploaded to, in the configured order.
    pub remotes: Vec<AgentRemote>,
    /// The selective remotes: steps are copied to them from the others.
    pub selective: Vec<AgentRemote>,
    /// The writer of the steps on this node. Each run says whether its directory is shared.
    pub writer: Writer,
    /// The attempt of all steps found from now on; `None` to determine it.
    pub attempt: Option<Attempt>,
    /// The profiles of frameworks.
    pub profiles: Arc<ProfileSet>,
    /// The sources of notices that the machine will be reclaimed.
    pub notices: NoticeOptions,
    /// The targets of notifications.
    pub notify: Vec<NotifyTarget>,
    /// The traces that the observer makes, whose dropped spans are a metric.
    pub traces: Option<Arc<Traces>>,
    /// How the service begins and ends.
    pub lifecycle: Lifecycle,
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
            Error::new(ErrorKind::Usage, "the agent has no vault").because("local.directory is not set").hint(
                "name a directory on the disk that the trainer writes to: local.directory = \"/data/vault\"",
            )
        })?;
        let (selective, remotes) = remotes.into_iter().partition(|remote| remote.settings.is_selective());
        let profiles =
            profiles(config).map_err(|faults| faults_error("the configuration is invalid", &faults))?;
        let options = Self {
            vault_directory,
            local: config.local.clone(),
            upload: config.upload.clone(),
            agent: config.agent.clone(),
            runs: config.runs.iter().map(|run| with_remotes(config, run)).collect(),
            other_runs: Vec::new(),
            remotes,
            selective,
            writer,
            attempt,
            profiles: Arc::new(profiles),
            notices: NoticeOptions::of(&config.agent, &|name| std::env::var(name).ok()),
            notify: config.notify.clone(),
            traces: None,
            lifecycle: Lifecycle {
                restart_loop: Some(config.restart.restart_loop),
                once,
                ..Lifecycle::default()
            },
        };
        options.check()?;
        Ok(options)
    }

    /// Adds the configured runs that are not served.
    #[must_use]
    pub fn with_other_runs_of(mut self, config: &Config) -> Self {
        let is_served = |settings: &&RunSettings| self.runs.iter().any(|run| run.name == settings.name);
        let others = config.runs.iter().filter(|settings| !is_served(settings));
        self.other_runs = others.map(|run| with_remotes(config, run)).collect();
        self
    }

    /// Returns the writer of a run's steps.
    pub(crate) fn writer_of(&self, run: &RunSettings) -> Writer {
        Writer { shared: run.shared, ..self.writer.clone() }
    }

    /// Returns how much of each step a run's directory holds.
    pub(crate) fn extent_of(&self, run: &RunSettings) -> Extent {
        Extent::of(&self.writer_of(run))
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
        directories.extend(cleaned.filter_map(|run| run.watch.clone()));
        let refuse = blocking(move || directories.iter().try_for_each(|path| refuse_read_only_mount(path)));
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
            let fault =
                |why: &str| Error::new(ErrorKind::Usage, "cannot serve the run").on(&run.name).because(why);
            if self.runs[..position].iter().any(|other| other.name == run.name) {
                return Err(fault("it is configured twice"));
            }
            let known = || self.remotes.iter().chain(&self.selective);
            let is_missing = |name: &&RemoteName| !known().any(|one| one.settings.name == **name);
            if let Some(name) = run.remotes.iter().flatten().find(is_missing) {
                return Err(fault(&format!("its remote '{name}' is not configured")));
            }
            if self.remotes_of(run).next().is_none() {
                return Err(fault("it has no remote").hint("add a table [remote.NAME] with its url"));
            }
        }
        Ok(())
    }

    /// Returns the Unix socket for controlling the service; `None` to disable it.
    pub(crate) fn control_socket(&self) -> Option<PathBuf> {
        self.agent.control_socket.path(Some(&self.vault_directory))
    }

    /// Returns this node.
    pub(crate) fn node(&self) -> &NodeName {
        self.writer.place.node()
    }

    /// Returns the selective remotes of a run, in the configured order.
    pub(crate) fn selective_of(&self, run: &RunSettings) -> impl Iterator<Item = &AgentRemote> {
        self.selective.iter().filter(|remote| run.has_remote(&remote.settings.name))
    }

    /// Returns the remotes that a run's steps are uploaded to, in the configured order.
    pub(crate) fn remotes_of(&self, run: &RunSettings) -> impl Iterator<Item = &AgentRemote> {
        let remotes = self.remotes.iter();
        remotes.filter(|remote| run.has_remote(&remote.settings.name))
    }

    /// Describes the work for a run, for the log: `run-1: watching /out, for the vault /ssd/vault and s3`.
    pub(crate) fn description_of(&self, run: &RunSettings) -> String {
        let what = match &run.watch {
            Some(directory) => format!("watching {}", directory.display()),
            None => "watching no directory: its steps are announced, or pushed by hand".to_owned(),
        };
        let remotes = self.remotes_of(run).map(|remote| remote.settings.name.as_str());
        let (vault, remotes) = (self.vault_directory.display(), remotes.collect::<Vec<_>>().join(", "));
        format!("{}: {what}, for the vault {vault} and {remotes}", run.name)
    }
}

/// Returns a run with its remotes by name: the service may have opened fewer than are configured.
fn with_remotes(config: &Config, run: &RunSettings) -> RunSettings {
    let remotes = config.remotes_of(run).into_iter();
    RunSettings { remotes: Some(remotes.map(|remote| remote.name.clone()).collect()), ..run.clone() }
}

// The sources of notices that the machine will be reclaimed.

const EC2_ENDPOINT: &str = "http://169.254.169.254";
const EC2_ENDPOINT_IPV6: &str = "http://[fd00:ec2::254]";
/// By address: where there is no such service, its name would be looked up in the network.
const GCE_HOST: &str = "169.254.169.254";
const AZURE_ENDPOINT: &str = "http://169.254.169.254";

/// The sources of notices; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NoticeOptions {
    /// The EC2 metadata service, if it is to be queried.
    pub ec2_endpoint: Option<String>,
    /// The Compute Engine metadata server, if it is to be queried.
    pub gce_endpoint: Option<String>,
    /// The Azure metadata service, if it is to be queried.
    pub azure_endpoint: Option<String>,
    /// Whether these are expected to answer: then silence causes a warning, and they are queried again.
    pub expected: bool,
    /// Whether Azure's event is acknowledged once the drain has left nothing.
    pub acknowledges: bool,
    /// Whether EC2's rebalance recommendation drains the service.
    pub drains_on_rebalance: bool,
    /// A file that drains the service when it appears.
    pub drain_file: Option<PathBuf>,
}

impl NoticeOptions {
    /// Builds the options from the configuration and the variables of the providers' own tools.
    pub fn of(settings: &AgentSettings, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let given = |name| variable(name).filter(|value| !value.is_empty());
        let is = |name, word: &str| given(name).is_some_and(|value| value.eq_ignore_ascii_case(word));
        let wanted = |source| match &settings.notices {
            Notices::Auto => true,
            Notices::From(sources) => sources.contains(&source),
        };
        let ec2 = given("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| {
            let ipv6 = is("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ipv6");
            if ipv6 { EC2_ENDPOINT_IPV6 } else { EC2_ENDPOINT }.to_owned()
        });
        let gce = given("GCE_METADATA_HOST").unwrap_or_else(|| GCE_HOST.to_owned());
        let azure = given("AZURE_POD_IDENTITY_AUTHORITY_HOST").unwrap_or_else(|| AZURE_ENDPOINT.to_owned());
        let asks_ec2 = wanted(NoticeSource::Ec2) && !is("AWS_EC2_METADATA_DISABLED", "true");
        Self {
            ec2_endpoint: asks_ec2.then_some(ec2),
            gce_endpoint: wanted(NoticeSource::Gce).then(|| format!("http://{gce}")),
            azure_endpoint: wanted(NoticeSource::Azure).then_some(azure),
            acknowledges: settings.acknowledges_notices,
            expected: settings.notices != Notices::Auto,
            drains_on_rebalance: settings.drains_on_rebalance,
            drain_file: settings.drain_file.clone(),
        }
    }
}

/// Returns the built-in and the configured profiles, after checking that the runs name existing profiles and series.
///
/// # Errors
/// All faults, each with its position.
pub fn profiles(config: &Config) -> std::result::Result<ProfileSet, Vec<Finding>> {
    let set = own(config)?;
    let faults: Vec<Finding> = config
        .runs
        .iter()
        .flat_map(|run| [unknown_profile(config, run, &set), unknown_series(config, run, &set)])
        .flatten()
        .collect();
    if faults.is_empty() { Ok(set) } else { Err(faults) }
}

fn own(config: &Config) -> std::result::Result<ProfileSet, Vec<Finding>> {
    let Some(file) = &config.profiles else {
        return Ok(ProfileSet::default());
    };
    ProfileSet::with_own(&file.text).map_err(|faults| {
        let finding = |fault: stepvault_formats::profile::OwnFault| {
            let source = Source::File { path: file.path.clone(), line: fault.line };
            Finding::new("profile", source, fault.why)
                .hint("the reference file config/stepvault.toml has an example of each key")
        };
        faults.into_iter().map(finding).collect()
    })
}

fn unknown_profile(config: &Config, run: &RunSettings, set: &ProfileSet) -> Option<Finding> {
    let name = run.profile.as_deref()?;
    if set.get(name).is_some() {
        return None;
    }
    let key = ["run", run.name.as_str(), "profile"];
    let finding = config.finding(&key, format!("there is no profile '{name}'"));
    let names: Vec<&str> = set.iter().map(|profile| profile.name.as_str()).collect();
    Some(finding.hint(meant(name, &names, "the profiles are")))
}

/// Without a profile, a series of any profile is accepted: the right one shows once steps exist.
fn unknown_series(config: &Config, run: &RunSettings, set: &ProfileSet) -> Option<Finding> {
    let chosen = run.profile.as_deref();
    // This fault is reported separately.
    if chosen.is_some_and(|name| set.get(name).is_none()) {
        return None;
    }
    let known: Vec<&str> = set
        .iter()
        .filter(|profile| chosen.is_none_or(|name| profile.name == name))
        .flat_map(|profile| profile.series.iter().map(|series| series.name.as_str()))
        .collect();
    let unknown = run.series.iter().flatten().find(|name| !known.contains(&name.as_str()))?;
    let key = ["run", run.name.as_str(), "series"];
    let (why, list) = match chosen {
        Some(profile) => (format!("the profile '{profile}' has no series '{unknown}'"), "its series are"),
        None => (format!("no profile has a series '{unknown}'"), "the series are"),
    };
    Some(config.finding(&key, why).hint(meant(unknown, &known, list)))
}

/// Returns a hint with the name that was probably meant, or all names.
fn meant(name: &str, known: &[&str], list: &str) -> String {
    if let Some(near) = nearest(name, known.iter().copied()) {
        return format!("did you mean '{near}'?");
    }
    let mut known = known.to_vec();
    known.sort_unstable();
    known.dedup();
    format!("{list} {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stepvault_core::config::{FileText, Sources, load};

    use super::*;

    fn of(notices: Notices, variables: &[(&str, &str)]) -> NoticeOptions {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let settings = AgentSettings { notices, ..AgentSettings::default() };
        NoticeOptions::of(&settings, &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_providers_own_variables_count() {
        let options = of(Notices::Auto, &[]);
        assert_eq!(options.ec2_endpoint.as_deref(), Some("http://169.254.169.254"));
        assert_eq!(options.gce_endpoint.as_deref(), Some("http://169.254.169.254"));
        assert_eq!(options.azure_endpoint.as_deref(), Some("http://169.254.169.254"));
        assert!(!options.expected);
        let elsewhere = [
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1338/"),
            ("GCE_METADATA_HOST", "127.0.0.1:1339"),
            ("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://127.0.0.1:1340"),
        ];
        let all = vec![NoticeSource::Ec2, NoticeSource::Gce, NoticeSource::Azure];
        let options = of(Notices::From(all), &elsewhere);
        assert_eq!(options.ec2_endpoint.as_deref(), Some("http://127.0.0.1:1338/"));
        assert_eq!(options.gce_endpoint.as_deref(), Some("http://127.0.0.1:1339"));
        assert_eq!(options.azure_endpoint.as_deref(), Some("http://127.0.0.1:1340"));
        assert!(options.expected && !options.acknowledges);
        let ipv6 = of(Notices::Auto, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "IPv6")]);
        assert_eq!(ipv6.ec2_endpoint.as_deref(), Some("http://[fd00:ec2::254]"));
        let disabled = of(Notices::Auto, &[("AWS_EC2_METADATA_DISABLED", "true")]);
        assert_eq!(disabled.ec2_endpoint, None);
    }

    #[test]
    fn only_what_is_named_is_asked() {
        let options = of(Notices::From(vec![]), &[]);
        assert_eq!((options.ec2_endpoint, options.gce_endpoint, options.azure_endpoint), (None, None, None));
        let options = of(Notices::From(vec![NoticeSource::Gce]), &[]);
        assert!(options.ec2_endpoint.is_none() && options.gce_endpoint.is_some());
    }

    fn findings(text: &str) -> Vec<String> {
        let file = FileText { path: "/etc/stepvault.toml".into(), text: text.to_owned() };
        let config = load(&Sources { file: Some(file), ..Sources::default() }).unwrap();
        let found = profiles(&config).err().unwrap_or_default();
        let text = |finding: Finding| format!("{finding} | {}", finding.hint.as_deref().unwrap_or_default());
        found.into_iter().map(text).collect()
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest_known_one() {
        assert_eq!(
            findings("[run.r]\nprofile = \"hf-trianer\""),
            [
                "/etc/stepvault.toml:2: run.r.profile: there is no profile 'hf-trianer' | did you mean 'hf-trainer'?"
            ]
        );
        assert_eq!(
            findings("[run.r]\nprofile = \"prime-rl\"\nseries = [\"wieghts\"]"),
            [
                "/etc/stepvault.toml:3: run.r.series: the profile 'prime-rl' has no series 'wieghts' | did you mean \
                 'weights'?"
            ]
        );
        assert_eq!(
            findings("[run.r]\nprofile = \"prime-rl\"\nseries = [\"everything\"]"),
            [
                "/etc/stepvault.toml:3: run.r.series: the profile 'prime-rl' has no series 'everything' | its series \
                 are checkpoints, weights"
            ]
        );
        let anywhere = findings("[run.r]\nseries = [\"chekpoints\"]");
        assert!(
            anywhere[0].ends_with("no profile has a series 'chekpoints' | did you mean 'checkpoints'?"),
            "{anywhere:?}"
        );
        assert_eq!(findings("[run.r]\nseries = [\"checkpoints\"]"), Vec::<String>::new());
    }

    #[test]
    fn a_fault_in_a_profile_is_told_with_its_line() {
        let found = findings("[run.r]\n[[profile]]\nname = \"mine\"\nlinks = \"soft\"");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("/etc/stepvault.toml:4: profile: unknown variant `soft`"), "{found:?}");
    }

    /// The reference file's example with every key set.
    #[test]
    fn the_profile_in_the_reference_file_is_a_right_one() {
        let reference = include_str!("../../../config/stepvault.toml");
        let (_, example) = reference.split_once("#[[profile]]").unwrap();
        let in_use = |line: &str| line.strip_prefix('#').unwrap_or(line).to_owned() + "\n";
        let is_key = |line: &&str| !line.starts_with("# ");
        let example: String = example.lines().filter(is_key).map(in_use).collect();
        assert_eq!(findings(&format!("[[profile]]\n{example}")), Vec::<String>::new());
    }
}
