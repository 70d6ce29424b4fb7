//! A run with checkpoints on disk, a vault, and remotes of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::config::RestoreSync;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::{Attempt, NodeName, RemoteName, RunName, Step, StepId};
use stepvault_core::nodes::Writer;
use stepvault_core::observe::Observer;
use stepvault_core::records::Tombstone;
use stepvault_core::remote_settings::{RemoteSettings, RemoteUrl, Transport};
use stepvault_core::retention::{KeepRules, LocalLimits};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, Result};
use stepvault_engine::gc::{GcReport, run_gc};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::placement::CurrentWriter;
use stepvault_engine::prune::{LocalPrune, PruneReport, RemotePrune, prune_local, prune_remote};
use stepvault_engine::push::{CheckpointToSeal, MetricsSource, PushReport, push};
use stepvault_engine::restore::{RestoreContext, RestoreReport, RestoreRequest, Target, restore};
use stepvault_engine::tier::catalog::committed_ids;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::upload::UploadSession;
use stepvault_local::seal_record::AttemptOrigin;
use stepvault_local::tree::Checkpoint;
use stepvault_local::vault::Vault;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::faults::Faults;
use stepvault_testkit::gcs::StrictGcs;
pub use stepvault_testkit::random::bytes;
use stepvault_testkit::recorder::Recorder;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::fast_directory;

pub struct Rig {
    pub directory: tempfile::TempDir,
    pub vault: Vault,
    pub remotes: Vec<RunRemote>,
    /// What is below them, and remembers nothing.
    pub stores: Vec<Arc<dyn RemoteStore>>,
    pub recorder: Arc<Recorder>,
    pub observer: Arc<dyn Observer>,
    pub budget: MemoryBudget,
    /// The algorithm of the digests of what is pushed.
    pub digest: DigestAlgorithm,
}

pub fn run_name() -> RunName {
    RunName::new("grpo/checkpoints").unwrap()
}

pub fn id(attempt: u32, step: u64) -> StepId {
    StepId::new(Attempt::new(attempt).unwrap(), Step::new(step).unwrap())
}

/// Returns the request for a checkpoint that is known to belong to its launch.
pub fn in_launch(mut request: CheckpointToSeal) -> CheckpointToSeal {
    request.origin.in_launch = true;
    request
}

/// Returns the request of a node that has been part of its launch since this time.
pub fn in_launch_since(since: Timestamp, request: CheckpointToSeal) -> CheckpointToSeal {
    let mut request = in_launch(request);
    request.current.launch_since = since;
    request
}

impl Rig {
    /// A run without remotes.
    pub fn new() -> Self {
        let directory = fast_directory();
        let vault = Vault::open_or_create(&directory.path().join("vault")).unwrap();
        let recorder = Arc::new(Recorder::default());
        let observer: Arc<dyn Observer> = recorder.clone();
        Self {
            directory,
            vault,
            remotes: Vec::new(),
            stores: Vec::new(),
            recorder,
            observer,
            budget: MemoryBudget::new(64 << 20),
            digest: DigestAlgorithm::Sha256,
        }
    }

    /// With one `file://` remote called `disk`.
    pub async fn with_directory() -> Self {
        let mut rig = Self::new();
        let url = format!("file://{}", rig.remote_root().display());
        std::fs::create_dir(rig.remote_root()).unwrap();
        rig.add("disk", &url, |_| {}, None).await;
        rig
    }

    /// With one remote on the server, called `aws`.
    pub async fn with_s3(server: &StrictS3) -> Self {
        Self::with_patient_s3(server, 2).await
    }

    /// With one remote on the server, called `aws`, that may be silent for longer.
    pub async fn with_patient_s3(server: &StrictS3, stall_timeout_seconds: u64) -> Self {
        let mut rig = Self::new();
        rig.add_patient_s3("aws", server, stall_timeout_seconds).await;
        rig
    }

    /// With steps 1 to `count` on a directory.
    pub async fn with_steps(count: u64) -> Self {
        let rig = Self::with_directory().await;
        rig.push_steps(count).await;
        rig
    }

    pub async fn add(
        &mut self,
        name: &str,
        url: &str,
        adjust: impl FnOnce(&mut RemoteSettings),
        s3_keys: Option<StaticKeys>,
    ) {
        let (url, _) = RemoteUrl::parse(url).unwrap();
        let mut settings = RemoteSettings::new(RemoteName::new(name).unwrap(), url);
        settings.retry_deadline_seconds = 5;
        settings.stall_timeout_seconds = 2;
        adjust(&mut settings);
        let store =
            open_with(&settings, self.observer.clone(), OpenOptions { s3_keys, ..OpenOptions::default() })
                .await
                .unwrap();
        self.stores.push(Arc::clone(&store));
        self.remotes.push(RunRemote::new(store, Arc::new(settings), run_name()));
    }

    pub async fn add_s3(&mut self, name: &str, server: &StrictS3) {
        self.add_patient_s3(name, server, 2).await;
    }

    /// With a remote that may be silent, and may fail, for longer.
    pub async fn add_patient_s3(&mut self, name: &str, server: &StrictS3, stall_timeout_seconds: u64) {
        server.create_bucket("bucket");
        let keys = StaticKeys {
            access_key: server.access_key().to_owned(),
            secret_key: server.secret_key().to_owned(),
        };
        let endpoint = server.endpoint();
        let adjust = |settings: &mut RemoteSettings| {
            settings.endpoint = Some(endpoint);
            settings.stall_timeout_seconds = stall_timeout_seconds;
            settings.retry_deadline_seconds = settings.retry_deadline_seconds.max(4 * stall_timeout_seconds);
        };
        self.add(name, "s3://bucket/pre fix", adjust, Some(keys)).await;
    }

    /// A remote that answers nobody.
    pub async fn add_one_that_is_away(&mut self, name: &str) {
        let keys = StaticKeys { access_key: "key".to_owned(), secret_key: "secret".to_owned() };
        let adjust = |settings: &mut RemoteSettings| {
            // Nobody listens there.
            settings.endpoint = Some("http://127.0.0.1:1".to_owned());
            settings.retry_deadline_seconds = 1;
        };
        self.add(name, "s3://bucket/prefix", adjust, Some(keys)).await;
    }

    pub async fn add_gcs(&mut self, name: &str, server: &StrictGcs) {
        self.add_gcs_over(Transport::Xml, name, server).await;
    }

    pub async fn add_gcs_over(&mut self, transport: Transport, name: &str, server: &StrictGcs) {
        server.create_bucket("bucket");
        let adjust = |settings: &mut RemoteSettings| {
            settings.endpoint = Some(server.endpoint());
            settings.transport = transport;
        };
        self.add(name, "gs://bucket/prefix", adjust, None).await;
    }

    pub fn remote_root(&self) -> PathBuf {
        self.directory.path().join("remote")
    }

    pub fn outputs(&self) -> PathBuf {
        self.directory.path().join("outputs")
    }

    /// Writes a checkpoint as a trainer would; `seed` makes its bytes.
    pub fn write_step(&self, step: u64, files: &[(&str, usize)], seed: u64, written_seconds: i64) -> PathBuf {
        let root = self.outputs().join(format!("step_{step}"));
        let _ = std::fs::remove_dir_all(&root);
        for (path, size) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes(seed ^ *size as u64, *size)).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_millis(written_seconds as u64 * 1000 + 123);
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        root
    }

    pub fn request(&self, source: &Path) -> CheckpointToSeal {
        CheckpointToSeal {
            run: run_name(),
            checkpoint: Checkpoint::of_path(source, source.file_name().unwrap_or_default().to_str().unwrap()),
            tree: None,
            step: None,
            attempt: None,
            origin: AttemptOrigin::default(),
            current: CurrentWriter {
                writer: Writer::single_node(NodeName::new("node-0").unwrap()),
                launch_since: Timestamp::default(),
            },
            links_for_later: None,
            is_overwritten: false,
            metrics_source: MetricsSource::default(),
            digest: Some(self.digest),
            shown_in: None,
        }
    }

    /// Returns the request to seal a checkpoint that this writer has saved.
    pub fn request_of(&self, writer: Writer, source: &Path) -> CheckpointToSeal {
        let mut request = self.request(source);
        request.current.writer = writer;
        request
    }

    /// Opens the first remote for uploads.
    pub async fn upload_session(&self) -> UploadSession {
        let remote = self.remotes[0].clone();
        UploadSession::open(
            remote,
            self.vault.clone(),
            self.budget.clone(),
            self.observer.clone(),
            self.digest,
        )
        .await
        .unwrap()
    }

    pub async fn push(&self, source: &Path) -> Result<PushReport> {
        self.push_as(self.request(source)).await
    }

    pub async fn push_as(&self, request: CheckpointToSeal) -> Result<PushReport> {
        push(&self.vault, &self.remotes, request, &self.budget, Duration::ZERO, &self.observer).await
    }

    /// Pushes and fails unless it became durable everywhere.
    pub async fn push_durably(&self, source: &Path) -> PushReport {
        let report = self.push(source).await.unwrap();
        for outcome in &report.remotes {
            outcome.result.as_ref().unwrap_or_else(|error| panic!("{}: {error}", outcome.remote));
        }
        report
    }

    /// Pushes steps 1 to `count`, of the files `x` with 100 bytes and `y` with 7.
    pub async fn push_steps(&self, count: u64) {
        for step in 1..=count {
            self.push_durably(&self.write_step(step, &[("x", 100), ("y", 7)], step, step as i64 * 1_000))
                .await;
        }
    }

    /// The steps with a commit on the first remote.
    pub async fn committed(&self) -> Vec<StepId> {
        let committed = committed_ids(&self.remotes[0]).await.unwrap();
        committed.into_keys().collect()
    }

    pub async fn tombstone(&self, step: u64) {
        let tombstone = Tombstone {
            format: 1,
            run: run_name(),
            id: id(1, step),
            name: format!("step_{step}"),
            by_gc: false,
        };
        let remote = &self.remotes[0];
        let key = remote.keys.tombstone(id(1, step));
        remote.create_record(&key, &tombstone).await.unwrap();
    }

    pub fn remote_prune(&self, last: u32) -> RemotePrune {
        RemotePrune {
            remote: self.remotes[0].clone(),
            rules: KeepRules { last: Some(last), ..KeepRules::default() },
            manages_imported: false,
            maximum_deletions: None,
            selective: Vec::new(),
            pinned_elsewhere: BTreeSet::new(),
            observer: self.observer.clone(),
        }
    }

    /// Prunes the first remote to its last steps.
    pub async fn prune(&self, last: u32) -> Result<PruneReport> {
        prune_remote(&self.remote_prune(last)).await
    }

    pub fn local_prune(&self, last: u32) -> LocalPrune {
        LocalPrune {
            vault: self.vault.clone(),
            run: run_name(),
            remotes: self.remotes.clone(),
            rules: self.remote_prune(last).rules,
            limits: LocalLimits::default(),
            maximum_deletions: None,
            uploading: BTreeSet::new(),
            observer: self.observer.clone(),
        }
    }

    /// Evicts all but the last steps from the vault.
    pub async fn evict(&self, last: u32) -> PruneReport {
        prune_local(&self.local_prune(last)).await.unwrap()
    }

    /// Runs gc on the first remote.
    pub async fn gc(&self, grace: Duration) -> Result<GcReport> {
        run_gc(&self.remotes[0], grace, false, &self.observer).await
    }

    /// Runs gc without a grace period.
    pub async fn gc_now(&self) -> GcReport {
        self.gc(Duration::ZERO).await.unwrap()
    }

    /// Writes an object of the remote in the directory.
    pub fn write_object(&self, key: &str, bytes: &[u8]) {
        let path = self.remote_root().join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Where the remote in the directory has the data of a step of the first attempt.
    pub fn data_of(&self, step: u64) -> PathBuf {
        self.remote_root().join(format!("grpo/checkpoints/{step:012}.a1"))
    }

    /// The node is gone: vault and outputs with it.
    pub fn lose_node(&mut self) {
        std::fs::remove_dir_all(self.vault.root()).unwrap();
        let _ = std::fs::remove_dir_all(self.outputs());
        self.vault = Vault::open_or_create(&self.directory.path().join("vault")).unwrap();
        let anew = |(store, remote): (&Arc<dyn RemoteStore>, &RunRemote)| {
            RunRemote::new(Arc::clone(store), Arc::clone(&remote.settings), run_name())
        };
        self.remotes = self.stores.iter().zip(&self.remotes).map(anew).collect();
    }

    pub fn context(&self) -> RestoreContext {
        RestoreContext {
            vault: Some(self.vault.clone()),
            remotes: self.remotes.clone(),
            sync: RestoreSync::Full,
            budget: self.budget.clone(),
            observer: self.observer.clone(),
        }
    }

    pub fn restore_request(&self) -> RestoreRequest {
        RestoreRequest::newest(run_name(), Target::Into(self.directory.path().join("restored")))
    }

    /// Restores on a new node, and compares with a [`snapshot`] of what was saved.
    pub async fn assert_restores(&mut self, step: u64, written: &Snapshot) {
        self.lose_node();
        let _ = std::fs::remove_dir_all(self.directory.path().join("restored"));
        let restored = self.restore().await.unwrap();
        assert_eq!(restored.plan.id, id(1, step));
        assert_eq!(&snapshot(&restored.plan.path), written);
    }

    pub async fn restore(&self) -> Result<RestoreReport> {
        restore(&self.context(), &self.restore_request()).await
    }
}

/// Every path under a directory with its bytes, mode and modification time.
pub type Snapshot = BTreeMap<PathBuf, (Option<Vec<u8>>, u32, i64, i64)>;

/// Returns what is under a directory.
pub fn snapshot(root: &Path) -> Snapshot {
    use std::os::unix::fs::MetadataExt;
    fn walk(root: &Path, at: &Path, out: &mut Snapshot) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let body = metadata.is_file().then(|| std::fs::read(&path).unwrap());
            let relative = path.strip_prefix(root).unwrap().to_owned();
            out.insert(relative, (body, metadata.mode() & 0o777, metadata.mtime(), metadata.mtime_nsec()));
            if metadata.is_dir() {
                walk(root, &path, out);
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(root, root, &mut out);
    out
}

/// The text of an error that has to be there.
pub fn text<T: std::fmt::Debug>(result: Result<T>) -> (Error, String) {
    let error = result.expect_err("an error");
    let text = error.to_string();
    (error, text)
}

/// How often the server was asked to `method` a path that contains `path`.
pub fn asked(faults: &Faults, method: &str, path: &str) -> usize {
    let requests = faults.requests();
    let matching = requests.iter().filter(|request| request.method == method && request.path.contains(path));
    matching.count()
}

/// Gives `work` up once `reached` holds and the server has been asked nothing more for a while: what it acknowledged
/// has been noted by then, and is old enough for a store that tells times in whole seconds.
///
/// # Panics
/// When `work` ends before that.
pub async fn cut_when<T>(faults: &Faults, work: impl Future<Output = T>, reached: impl Fn() -> bool) {
    let watch = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut seen = usize::MAX;
        while seen != faults.requests().len() {
            seen = faults.requests().len();
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
    };
    tokio::select! {
        _ = work => panic!("it ended before it was cut off"),
        () = watch => {}
    }
}
