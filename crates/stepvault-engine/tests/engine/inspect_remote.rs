//! What lies in a bucket is judged like the same files in a directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use stepvault_core::digest::PartDigest;
use stepvault_core::ids::RemoteName;
use stepvault_core::observe::SilentObserver;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Observer, Result};
use stepvault_engine::blocking::blocking;
use stepvault_engine::inspect::{
    InspectRequest, Inspection, RemoteDirectory, RemoteReads, Verdict, inspect, inspect_remote,
};
use stepvault_formats::find::FindOptions;
use stepvault_formats::profile::ProfileSet;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::RemoteStore;
use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::fixture::{Fixture, names};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::random::bytes;
use stepvault_testkit::s3::StrictS3;
use stepvault_testkit::tree::{files_below, write};

/// A bucket, as an inspection uses it.
struct Bucket {
    store: Arc<dyn RemoteStore>,
    scheme: &'static str,
}

impl Bucket {
    async fn on_s3(server: &StrictS3) -> Self {
        Self::on_s3_with(server, |_| ()).await
    }

    async fn on_s3_with(server: &StrictS3, set: fn(&mut RemoteSettings)) -> Self {
        server.create_bucket("bucket");
        let options = OpenOptions {
            s3_keys: Some(StaticKeys {
                access_key: server.access_key().to_owned(),
                secret_key: server.secret_key().to_owned(),
            }),
            ..OpenOptions::default()
        };
        let mut settings = settings("s3", server.endpoint());
        set(&mut settings);
        Self { store: opened(&settings, options).await, scheme: "s3" }
    }

    async fn on_gcs(server: &StrictGcs) -> Self {
        server.create_bucket("bucket");
        let settings = settings("gs", server.endpoint());
        Self { store: opened(&settings, OpenOptions::default()).await, scheme: "gs" }
    }

    async fn put(&self, key: &str, body: Vec<u8>) {
        let digest = PartDigest::of(&body);
        let written = self.store.create(key, bytes::Bytes::from(body).into(), &digest).await.unwrap();
        assert!(written.written().is_some(), "{key} exists");
    }

    /// Writes the files below `root` as `aws s3 sync` does: by name, so that the markers that a save writes last come
    /// before the data, and with the times of the upload.
    async fn sync(&self, root: &Path, prefix: &str) {
        for path in files_below(root) {
            let inside = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let key = format!("{prefix}/{inside}");
            self.put(&key, std::fs::read(&path).unwrap()).await;
        }
    }

    async fn inspected(&self, prefix: &str) -> Result<(Inspection, RemoteReads)> {
        self.inspected_by(prefix, None).await
    }

    async fn inspected_by(
        &self,
        prefix: &str,
        deep: Option<&'static dyn Observer>,
    ) -> Result<(Inspection, RemoteReads)> {
        let url = format!("{}://bucket/{prefix}", self.scheme).parse().unwrap();
        let store = Arc::clone(&self.store);
        let (directory, _guard) = RemoteDirectory::list(store, &url, deep.is_some()).await?;
        let listed = directory.clone();
        let inspection =
            blocking(move || with_request(deep, |request| inspect_remote(&listed, request, now())));
        Ok((inspection.await?, directory.reads()))
    }
}

fn settings(scheme: &str, endpoint: String) -> RemoteSettings {
    let url = format!("{scheme}://bucket").parse().unwrap();
    let mut settings = RemoteSettings::new(RemoteName::new("old").unwrap(), url);
    settings.endpoint = Some(endpoint);
    settings
}

async fn opened(settings: &RemoteSettings, options: OpenOptions) -> Arc<dyn RemoteStore> {
    open_with(settings, Arc::new(SilentObserver), options).await.unwrap()
}

fn with_request<T>(deep: Option<&dyn Observer>, act: impl FnOnce(&InspectRequest<'_>) -> T) -> T {
    let profiles = ProfileSet::default();
    let options = FindOptions { quiet_seconds: 30, ..FindOptions::default() };
    act(&InspectRequest { profiles: &profiles, profile: None, options, reads_best: false, deep })
}

/// Later than every file by more than the quiet time.
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Timestamp::from_seconds(i64::try_from(since.as_secs()).unwrap() + 3600)
}

fn locally(path: &Path, deep: Option<&dyn Observer>) -> Inspection {
    with_request(deep, |request| inspect(path, request, now())).unwrap()
}

/// Returns what an inspection says, but for the sizes of steps: files without a number beside them belong to one or another
/// by the times at which they were written, which a bucket does not have.
fn told(inspection: &Inspection) -> String {
    let steps = inspection.steps.iter().map(|entry| {
        let step = &entry.step;
        format!(
            "{} {:?} complete: {} sound: {:?} {:?} ranks resumable: {} {:?} {:?}\n",
            step.path,
            step.step,
            step.is_complete(),
            entry.check.is_sound(),
            step.ranks,
            step.resumable,
            entry.reasons(),
            entry.deep.as_ref().map(|deep| deep.checksummed_bytes)
        )
    });
    let below = inspection.below.iter().map(|run| (&run.directory, &run.profile));
    format!(
        "{} {:?}\n{}{:?} {:?} {:?} {:?} {:?}",
        inspection.framework,
        inspection.why,
        steps.collect::<String>(),
        inspection.verdict(),
        inspection.found.pointer().map(|pointer| (&pointer.path, &pointer.says, pointer.dangling)),
        inspection.found.temporary,
        inspection.warnings,
        below.collect::<Vec<_>>(),
    )
}

/// Copies a tree as a bucket holds it, but with the times of its files: links are files, there are no holes and no empty
/// directories.
fn copy_as_objects(from: &Path, to: &Path) {
    for path in files_below(from) {
        let body = std::fs::read(&path);
        let body = body.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let copy = to.join(path.strip_prefix(from).unwrap());
        write(&copy, body);
        let written_at = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::File::options().write(true).open(&copy).unwrap().set_modified(written_at).unwrap();
    }
}

/// The fixtures with links to what is not among their files, which no tool can copy by following them.
fn is_whole(root: &Path) -> bool {
    files_below(root).iter().all(|path| path.is_file())
}

async fn every_fixture_is_judged_alike(bucket: &Bucket) {
    let place = tempfile::tempdir().unwrap();
    let mut judged = 0;
    for name in names() {
        let fixture = Fixture::unpack(&name);
        // A bucket has no links, and these lead to a directory or to nothing.
        if !is_whole(&fixture.root) {
            continue;
        }
        let copy = place.path().join(&name);
        copy_as_objects(&fixture.root, &copy);
        let prefix = format!("old/{name}");
        bucket.sync(&copy, &prefix).await;
        let (remotely, reads) = bucket.inspected(&prefix).await.unwrap();
        assert_eq!(told(&remotely), told(&locally(&copy, None)), "{name}");
        assert_eq!(reads.unread, BTreeMap::new(), "{name}");
        assert!(reads.read_bytes <= 2 * reads.object_bytes, "{name}: {reads:?}");
        let (deeply, _) = bucket.inspected_by(&prefix, Some(&SilentObserver)).await.unwrap();
        assert_eq!(told(&deeply), told(&locally(&copy, Some(&SilentObserver))), "{name}");
        // One step, and what is in it, by their own URLs.
        for step in &fixture.steps {
            let (inside, at) = (copy.join(&step.path), format!("{prefix}/{}", step.path));
            if inside.exists() {
                let (remotely, _) = bucket.inspected(&at).await.unwrap();
                assert_eq!(told(&remotely), told(&locally(&inside, None)), "{at}");
            }
        }
        judged += 1;
    }
    assert!(judged >= 25, "only {judged} fixtures were judged");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fixture_is_judged_alike_in_a_directory_and_on_s3() {
    let server = StrictS3::start();
    every_fixture_is_judged_alike(&Bucket::on_s3(&server).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fixture_is_judged_alike_in_a_directory_and_on_gcs() {
    let server = StrictGcs::start();
    every_fixture_is_judged_alike(&Bucket::on_gcs(&server).await).await;
}

/// A large file whose header names its tensors: `tensors` of `size` bytes each.
fn safetensors(tensors: usize, size: usize) -> Vec<u8> {
    let entry = |index: usize| {
        let (from, to) = (index * size, (index + 1) * size);
        format!("\"t{index}\":{{\"dtype\":\"U8\",\"shape\":[{size}],\"data_offsets\":[{from},{to}]}}")
    };
    let header = format!("{{{}}}", (0..tensors).map(entry).collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(bytes(7, tensors * size));
    file
}

fn counted(faults: &Faults) -> (u64, u64) {
    let requests = faults.requests();
    let lists = requests.iter().filter(|request| request.path.contains("list-type=2")).count() as u64;
    (lists, requests.len() as u64 - lists)
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_alone_are_read_and_every_request_is_counted() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3(&server).await;
    for step in [10, 20] {
        for rank in 0..4 {
            let key = format!("run/checkpoint-{step}/model-0000{}-of-00004.safetensors", rank + 1);
            bucket.put(&key, safetensors(4, 1 << 20)).await;
        }
    }
    server.faults().clear_requests();
    let (inspection, reads) = bucket.inspected("run").await.unwrap();
    assert_eq!(inspection.steps.len(), 2, "{inspection:?}");
    assert!(inspection.steps.iter().all(|entry| entry.check.is_sound() == Some(true)), "{inspection:?}");
    assert_eq!((reads.list_requests, reads.read_requests), counted(server.faults()));
    assert_eq!((reads.objects, reads.list_requests), (8, 1));
    assert!(reads.object_bytes > 32 << 20);
    assert!(reads.read_bytes <= 8 * (64 << 10), "{reads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_several_pages_is_whole_and_counted() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3(&server).await;
    let one = Fixture::unpack("torch-formats");
    let file = std::fs::read(one.root.join("zip_crc.pt")).unwrap();
    for step in 0..1001 {
        bucket.put(&format!("run/ckpt_{step}.pt"), file.clone()).await;
    }
    server.faults().clear_requests();
    let (inspection, reads) = bucket.inspected("run").await.unwrap();
    assert_eq!((inspection.steps.len(), reads.objects, reads.list_requests), (1001, 1001, 2));
    assert_eq!((reads.list_requests, reads.read_requests), counted(server.faults()));
    // One for each small file, and none twice.
    assert!(reads.read_requests <= 1001 + 16, "{reads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_prefix_an_empty_bucket_and_odd_names_are_told() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3(&server).await;
    let (empty, reads) = bucket.inspected("").await.unwrap();
    assert_eq!((empty.verdict(), reads.list_requests, reads.read_requests), (Verdict::NoStep, 1, 0));
    let error = bucket.inspected("old").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Usage, "cannot inspect: s3://bucket/old: no object lies there")
    );
    let fixture = Fixture::unpack("torch-formats");
    bucket.put("old/ckpt_1.pt", std::fs::read(fixture.root.join("zip_crc.pt")).unwrap()).await;
    bucket.put("old/sub/x", b"x".to_vec()).await;
    // What consoles write for a directory, names that no file has, and an object with the name of a directory.
    server.objects().with(|objects| {
        let any = objects["bucket/old/sub/x"].clone();
        for key in ["old/", "old/empty/", "old/a//b", "old/../c", "old/sub"] {
            objects.insert(format!("bucket/{key}"), any.clone());
        }
    });
    let (inspection, reads) = bucket.inspected("old").await.unwrap();
    assert_eq!(inspection.steps.len(), 1, "{inspection:?}");
    assert_eq!(reads.ignored, 3, "{reads:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_named_and_what_does_not_answer_is_an_outage() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3_with(&server, |settings| settings.retry_deadline_seconds = 2).await;
    for step in [1, 2] {
        bucket.put(&format!("run/step_{step}/model.safetensors"), safetensors(2, 1 << 20)).await;
    }
    let (whole, _) = bucket.inspected("run").await.unwrap();
    assert_eq!(whole.verdict(), Verdict::Newest);
    assert_eq!(whole.steps[1].check.is_sound(), Some(true));

    // Archived: its headers are out of reach, so that nothing is known of it.
    server.faults().inject("GET", "step_2", u64::MAX, FaultAction::refuse(403, "InvalidObjectState"));
    let (archived, reads) = bucket.inspected("run").await.unwrap();
    assert_eq!(archived.steps[1].check.is_sound(), None, "{archived:?}");
    assert_eq!(archived.steps[0].check.is_sound(), Some(true));
    let unread: Vec<_> = reads.unread.keys().map(String::as_str).collect();
    assert_eq!(unread, ["step_2/model.safetensors"]);
    assert!(reads.unread.values().all(|why| why.contains("the object is archived")), "{reads:?}");
    server.faults().clear();

    server.faults().inject("GET", "model.safetensors", u64::MAX, FaultAction::refuse(403, "AccessDenied"));
    let denied = bucket.inspected("run").await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    server.faults().clear();

    server.faults().inject("GET", "model.safetensors", u64::MAX, FaultAction::Reset);
    let away = bucket.inspected("run").await.unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Unreachable, "{away}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_end_when_nobody_waits_for_them() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3(&server).await;
    bucket.put("run/step_1/model.safetensors", safetensors(2, 1 << 20)).await;
    server.faults().inject("GET", "model.safetensors", u64::MAX, FaultAction::Hang);
    let url = "s3://bucket/run".parse().unwrap();
    let (directory, guard) = RemoteDirectory::list(Arc::clone(&bucket.store), &url, false).await.unwrap();
    let judged = tokio::task::spawn_blocking(move || {
        with_request(None, |request| inspect_remote(&directory, request, now()).map(drop))
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    drop(guard);
    let error: Error =
        tokio::time::timeout(Duration::from_secs(1), judged).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_stepvault_is_recognised() {
    let server = StrictS3::start();
    let bucket = Bucket::on_s3(&server).await;
    bucket.put("prefix/team/run/.stepvault/vault.json", b"{}".to_vec()).await;
    bucket.put("prefix/team/run/a1-s10/step_10/model.safetensors", safetensors(1, 1 << 10)).await;
    let runs = async |prefix: &str| bucket.inspected(prefix).await.unwrap().0.runs;
    assert_eq!(runs("prefix").await, ["team/run"]);
    assert_eq!(runs("prefix/team").await, ["run"]);
    assert_eq!(runs("prefix/team/run").await, [""]);
    let place = tempfile::tempdir().unwrap();
    write(&place.path().join("run/.stepvault/vault.json"), "{}");
    assert_eq!(locally(&PathBuf::from(place.path()), None).runs, ["run"]);
}
