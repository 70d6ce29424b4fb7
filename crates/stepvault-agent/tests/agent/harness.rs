//! A node with a trainer's directory and a vault, and the service as a process of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepvault_agent::control::Client;
use stepvault_agent::{
    AgentOptions, AgentRemote, AgentReport, Lifecycle, NoticeOptions, Stop, StopReason, run,
};
use stepvault_core::Result;
use stepvault_core::config::{
    AgentSettings, Completion, ControlSocket, LocalSettings, RestartSettings, RunSettings, UploadSettings,
};
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl};
use stepvault_core::retention::LocalLimits;
use stepvault_local::vault::Vault;
use stepvault_remote::open::OpenOptions;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::RequestRecord;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::recorder::Recorder;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::fast_directory;
use tokio_util::sync::CancellationToken;

use crate::support::write_files;

/// No test waits longer than this for anything.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub struct Node {
    pub place: tempfile::TempDir,
    pub recorder: Arc<Recorder>,
}

pub fn run_name() -> RunName {
    RunName::new("grpo/checkpoints").unwrap()
}

pub fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

impl Node {
    pub fn new() -> Self {
        let place = fast_directory();
        std::fs::create_dir(place.path().join("outputs")).unwrap();
        Self { place, recorder: Arc::default() }
    }

    pub fn outputs(&self) -> PathBuf {
        self.place.path().join("outputs")
    }

    pub fn vault_directory(&self) -> PathBuf {
        self.place.path().join("vault")
    }

    pub fn vault(&self) -> Vault {
        Vault::open(&self.vault_directory()).unwrap().expect("a vault")
    }

    /// Everything a trainer would see in its directory.
    pub fn seen_by_the_trainer(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut left = vec![self.outputs()];
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                names.push(path.strip_prefix(self.outputs()).unwrap().display().to_string());
                if path.is_dir() {
                    left.push(path);
                }
            }
        }
        names.sort();
        names
    }

    /// Saves a step and renames it into place; `age_seconds` is how long ago it seems to have been written.
    pub fn save(&self, name: &str, files: &[(&str, usize)], age_seconds: u64) -> PathBuf {
        let unfinished = self.outputs().join(format!("tmp_{name}"));
        write_files(&unfinished, files, age_seconds);
        let path = self.outputs().join(name);
        std::fs::rename(&unfinished, &path).unwrap();
        path
    }

    /// One file of a few bytes.
    pub fn save_small(&self, step: u64, age_seconds: u64) -> PathBuf {
        self.save(
            &format!("step_{step}"),
            &[("model.safetensors", 1000), ("optimizer/state.pt", 300)],
            age_seconds,
        )
    }

    pub fn remote_root(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A path below the run on the remote that is a directory.
    pub fn on_disk(&self, path: &str) -> PathBuf {
        self.remote_root("disk").join(run_name().as_str()).join(path)
    }

    pub async fn directory_remote(&self, name: &str) -> AgentRemote {
        let url = format!("file://{}", self.remote_root(name).display());
        self.remote(name, &url, |_| {}, None).await
    }

    /// A service with one remote, a directory.
    pub async fn disk_options(&self) -> AgentOptions {
        self.options(vec![self.directory_remote("disk").await])
    }

    /// A directory and a bucket.
    pub async fn disk_and_s3(&self, server: &StrictS3, deadline_seconds: u64) -> Vec<AgentRemote> {
        let s3 = self.s3_remote("s3", server, deadline_seconds).await;
        vec![self.directory_remote("disk").await, s3]
    }

    pub async fn s3_remote(&self, name: &str, server: &StrictS3, deadline_seconds: u64) -> AgentRemote {
        self.s3_remote_with(name, server, deadline_seconds, |_| {}).await
    }

    /// The same with other settings.
    pub async fn s3_remote_with(
        &self,
        name: &str,
        server: &StrictS3,
        deadline_seconds: u64,
        further: impl FnOnce(&mut RemoteSettings),
    ) -> AgentRemote {
        server.create_bucket("bucket");
        let keys = StaticKeys {
            access_key: server.access_key().to_owned(),
            secret_key: server.secret_key().to_owned(),
        };
        let adjust = |settings: &mut RemoteSettings| {
            settings.endpoint = Some(server.endpoint());
            settings.retry_deadline_seconds = deadline_seconds;
            // A remote that may take long to fail may also be silent for long.
            settings.stall_timeout_seconds = if deadline_seconds < 60 { 1 } else { 60 };
            further(settings);
        };
        self.remote(name, "s3://bucket/prefix", adjust, Some(keys)).await
    }

    pub async fn gcs_remote(&self, name: &str, server: &StrictGcs) -> AgentRemote {
        server.create_bucket("bucket");
        let adjust = |settings: &mut RemoteSettings| settings.endpoint = Some(server.endpoint());
        self.remote(name, "gs://bucket/prefix", adjust, None).await
    }

    async fn remote(
        &self,
        name: &str,
        url: &str,
        adjust: impl FnOnce(&mut RemoteSettings),
        s3_keys: Option<StaticKeys>,
    ) -> AgentRemote {
        let (url, _) = RemoteUrl::parse(url).unwrap();
        let mut settings = RemoteSettings::new(RemoteName::new(name).unwrap(), url);
        settings.retry_deadline_seconds = 3;
        settings.stall_timeout_seconds = 1;
        adjust(&mut settings);
        let observer = Arc::clone(&self.recorder) as Arc<dyn Observer>;
        let options = OpenOptions { s3_keys, ..OpenOptions::default() };
        AgentRemote::open(settings, observer, options).await.unwrap()
    }

    /// A service over the trainer's directory: by rename, with short intervals and no keep rules.
    pub fn options(&self, remotes: Vec<AgentRemote>) -> AgentOptions {
        let names = remotes.iter().map(|remote| remote.settings.name.clone()).collect();
        let run = RunSettings {
            watch: Some(self.outputs()),
            remotes: Some(names),
            complete: Completion::Rename,
            ..RunSettings::new(run_name())
        };
        AgentOptions {
            vault_directory: self.vault_directory(),
            local: LocalSettings { limits: LocalLimits::default(), ..LocalSettings::default() },
            upload: UploadSettings { memory_budget_bytes: 64 << 20, ..UploadSettings::default() },
            agent: AgentSettings {
                poll_interval: Duration::from_millis(200),
                retention_interval: Duration::from_millis(300),
                drain_deadline: Duration::from_secs(20),
                nice: 0,
                control_socket: ControlSocket::Off,
                ..AgentSettings::default()
            },
            runs: vec![run],
            other_runs: Vec::new(),
            remotes,
            selective: Vec::new(),
            attempt: None,
            writer: Writer::single_node(NodeName::new("node-0").unwrap()),
            profiles: Arc::default(),
            notices: NoticeOptions::default(),
            notify: Vec::new(),
            traces: None,
            lifecycle: Lifecycle {
                restart_loop: Some(RestartSettings::default().restart_loop),
                ..Lifecycle::default()
            },
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.vault_directory().join("agent.sock")
    }

    /// A service that is controlled, once it listens.
    pub async fn start_controlled(&self, mut options: AgentOptions) -> (Service, Client) {
        options.agent.control_socket = ControlSocket::At(self.socket());
        let service = self.start(options);
        let client = Client::new(self.socket());
        let begun = Instant::now();
        while client.status(PATIENCE).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "it does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        (service, client)
    }

    pub fn start(&self, options: AgentOptions) -> Service {
        Service::start(options, Arc::clone(&self.recorder) as _)
    }

    pub fn once(&self, mut options: AgentOptions) -> AgentReport {
        options.lifecycle.once = true;
        self.start(options).ended().unwrap()
    }

    /// Waits until something is so.
    pub async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(
                begun.elapsed() < PATIENCE,
                "waited in vain: {what}; heard {:#?}",
                self.recorder.lines_with("")
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the first attempt of a step is durable on a remote.
    pub async fn until_durable(&self, remote: &str, step: u64) {
        self.until_heard(&format!("durable on {remote}: step {step} (attempt 1)")).await;
    }

    pub async fn until_requested(&self, server: &StrictS3, path: &str) {
        let is_it = |request: &RequestRecord| request.path.contains(path);
        self.until(path, || server.faults().requests().iter().any(is_it)).await;
    }

    pub async fn until_heard(&self, part: &str) {
        self.until(part, || !self.recorder.lines_with(part).is_empty()).await;
    }
}

/// The service in a thread with a runtime of its own, as if it were a process.
pub struct Service {
    stop: Stop,
    kill: CancellationToken,
    thread: std::thread::JoinHandle<(Option<Result<AgentReport>>, Instant)>,
}

impl Service {
    fn start(options: AgentOptions, observer: Arc<dyn Observer>) -> Self {
        let (stop, kill) = (Stop::new(), CancellationToken::new());
        let (told, killed) = (stop.clone(), kill.clone());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let ended = runtime.block_on(async {
                tokio::select! {
                    report = run(options, observer, told) => Some(report),
                    () = killed.cancelled() => None,
                }
            });
            let ended_at = Instant::now();
            runtime.shutdown_timeout(PATIENCE);
            (ended, ended_at)
        });
        Self { stop, kill, thread }
    }

    /// Waits for its own end.
    pub fn ended(self) -> Result<AgentReport> {
        self.ended_at().0
    }

    /// The same, and when it ended.
    pub fn ended_at(self) -> (Result<AgentReport>, Instant) {
        let (ended, at) = self.thread.join().unwrap();
        (ended.expect("it was not killed"), at)
    }

    /// Asks it to stop, and goes on.
    pub fn ask_to_stop(&self, reason: StopReason, deadline: Option<Instant>) {
        self.stop.request(reason, deadline.map(tokio::time::Instant::from_std));
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Tells it to stop, as SIGTERM does.
    pub fn stop(self) -> AgentReport {
        self.stop.request(StopReason::Signal, None);
        self.ended().unwrap()
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(self) {
        self.kill.cancel();
        assert!(self.thread.join().unwrap().0.is_none(), "it had ended before it was killed");
    }
}
