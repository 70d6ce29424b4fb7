//! File parts are sent while a seal copies their step into the vault, and nothing of the step can be seen before it is sealed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stepvault_core::config::LinkPolicy;
use stepvault_core::ids::NodeName;
use stepvault_core::nodes::{NodePlace, NodeSet, Writer};
use stepvault_core::{ErrorKind, Result};
use stepvault_engine::push::{CheckpointToSeal, identify_and_seal};
use stepvault_engine::upload::{CopyInProgress, SharedDigests, UploadAhead, UploadSession, Uploaded};
use stepvault_local::seal::{CopiedFile, SealRequest, seal_reporting};
use stepvault_local::seal_record::{AttemptOrigin, SnapshotMethod};
use stepvault_local::sealed::SealedStep;
use stepvault_local::tree::Checkpoint;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::StrictS3;
use tokio::task::JoinHandle;

use crate::harness::{Rig, asked, bytes, id, run_name, snapshot};

const PART: usize = 8 << 20;
/// A file of five parts, one of two, and a small one.
const FILES: &[(&str, usize)] =
    &[("big.bin", 4 * PART + 5), ("small.json", 100), ("weights/two.bin", PART + 1)];
const PARTS: usize = 7;
/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_mins(5);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn parts_there(server: &StrictS3) -> usize {
    server.pending_uploads().iter().map(|upload| upload.part_numbers.len()).sum()
}

/// The keys of the step: its claim, its data, its part manifests and its commit.
fn keys_of_step(server: &StrictS3) -> Vec<String> {
    let mut keys = server.objects().keys();
    keys.retain(|key| key.contains("000000000100"));
    keys
}

fn seal_request(rig: &Rig, source: &Path) -> SealRequest {
    let checkpoint = Checkpoint { links: LinkPolicy::Copy, ..Checkpoint::of_path(source, "step_100") };
    SealRequest {
        run: run_name(),
        id: id(1, 100),
        attempt: AttemptOrigin::default(),
        writer: Writer::single_node(NodeName::new("node-0").unwrap()),
        expected: Some(Arc::new(checkpoint.scan().unwrap())),
        checkpoint,
        digest: rig.digest,
        completes: None,
    }
}

fn start() -> Arc<StrictS3> {
    Arc::new(StrictS3::start())
}

/// Counts the requests that sent a part of the step; the probe sends parts as well.
fn parts_sent(server: &StrictS3) -> usize {
    let requests = server.faults().requests().into_iter();
    let of_step = requests.filter(|request| request.method == "PUT" && request.path.contains("000000000100"));
    of_step.filter(|request| request.path.contains("partNumber")).count()
}

fn moved(rig: &Rig) -> u64 {
    *rig.recorder.moved.lock().unwrap()
}

/// Counts the parts of all files that are copied so far.
#[derive(Default)]
struct Copied {
    last: PathBuf,
    before: usize,
    of_last: usize,
}

impl Copied {
    fn parts(&mut self, copied: &CopiedFile) -> usize {
        if self.last != copied.place {
            self.before += std::mem::take(&mut self.of_last);
            self.last.clone_from(&copied.place);
        }
        let parts = if copied.copied_bytes == copied.file.size_bytes {
            copied.file.size_bytes.div_ceil(PART as u64)
        } else {
            copied.copied_bytes / PART as u64
        };
        self.of_last = usize::try_from(parts).unwrap();
        self.before + self.of_last
    }
}

/// Seals by copying, beside the test and as slowly as `on_copied` lets it, which also gets the number of parts so far.
fn seal_slowly(
    rig: &Rig,
    request: &SealRequest,
    copy: &CopyInProgress,
    mut on_copied: impl FnMut(&CopiedFile, usize) + Send + 'static,
) -> JoinHandle<Result<SealedStep>> {
    let (vault, request, copy) = (rig.vault.clone(), request.clone(), copy.clone());
    tokio::task::spawn_blocking(move || {
        let shown = copy.of_seal(&request, request.expected.as_ref().unwrap());
        let mut count = Copied::default();
        let sealed = seal_reporting(&vault, &request, &mut |copied| {
            shown.copied(copied);
            on_copied(copied, count.parts(copied));
        });
        Ok(sealed?.step)
    })
}

async fn sent_ahead(session: &UploadSession, copy: &CopyInProgress) -> UploadAhead {
    let step = copy.subscribe().wait_for(Option::is_some).await.unwrap().clone().unwrap();
    let mut ahead = session.send_ahead(step).await;
    ahead.send(std::future::pending(), || ()).await;
    ahead
}

/// Seals a step whose parts are all sent, each before the next is copied.
async fn seal_and_send(
    rig: &Rig,
    session: &UploadSession,
    request: &SealRequest,
    server: &Arc<StrictS3>,
) -> (Result<SealedStep>, UploadAhead) {
    seal_and_send_then(rig, session, request, server, |_| {}).await
}

async fn seal_and_send_then(
    rig: &Rig,
    session: &UploadSession,
    request: &SealRequest,
    server: &Arc<StrictS3>,
    mut on_sent: impl FnMut(usize) + Send + 'static,
) -> (Result<SealedStep>, UploadAhead) {
    let copy = CopyInProgress::default();
    let (vault, server) = (rig.vault.clone(), Arc::clone(server));
    let sealing = seal_slowly(rig, request, &copy, move |_, parts| {
        wait_until("the part on the store", || parts_there(&server) == parts);
        assert!(vault.step(&run_name(), id(1, 100)).unwrap().is_none(), "it is not sealed yet");
        assert_eq!(keys_of_step(&server), Vec::<String>::new());
        on_sent(parts);
    });
    let ahead = tokio::time::timeout(PATIENCE, sent_ahead(session, &copy)).await.unwrap();
    (sealing.await.unwrap(), ahead)
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_are_on_the_store_before_the_seal_and_are_sent_once() {
    let server = start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    let session = rig.upload_session().await;
    let (sealed, ahead) = seal_and_send(&rig, &session, &seal_request(&rig, &source), &server).await;
    let sealed = sealed.unwrap();
    assert!(!ahead.has_failed());
    assert_eq!(parts_there(&server), PARTS);
    ahead.hand_over().await.unwrap();
    assert_eq!(keys_of_step(&server), Vec::<String>::new(), "the upload makes it visible");
    assert_eq!(session.upload(&sealed).await.unwrap(), Uploaded::Durable);
    assert_eq!(parts_sent(&server), PARTS);
    assert_eq!(asked(server.faults(), "POST", "bin?uploads"), 2);
    assert_eq!(asked(server.faults(), "PUT", "small.json"), 1);
    let data: u64 = FILES.iter().map(|(_, size)| *size as u64).sum();
    assert_eq!(moved(&rig), data);
    rig.assert_restores(100, &written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_file_ends_in_no_commit_and_the_next_seal_sends_the_right_bytes() {
    let server = start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let session = rig.upload_session().await;
    let file = source.join("big.bin");
    let change = move |parts| {
        // After its last part was sent. Its time stays, as a trainer that sets it might leave it.
        if parts == PARTS {
            let time = std::fs::metadata(&file).unwrap().modified().unwrap();
            std::fs::write(&file, bytes(77, 3 * PART)).unwrap();
            std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        }
    };
    let request = seal_request(&rig, &source);
    let (sealed, ahead) = seal_and_send_then(&rig, &session, &request, &server, change).await;
    assert_eq!(sealed.unwrap_err().kind(), ErrorKind::SourceChanged);
    ahead.hand_over().await.unwrap();
    assert_eq!(server.pending_uploads(), [], "what was sent is aborted");
    assert_eq!(keys_of_step(&server), Vec::<String>::new());
    // The same length and time as at first, with other bytes: a digest of the first try would not be theirs.
    let other = rig.write_step(100, FILES, 2, 1_000);
    assert_eq!(other, source);
    let written = snapshot(&source);
    let (sealed, ahead) = seal_and_send(&rig, &session, &seal_request(&rig, &source), &server).await;
    ahead.hand_over().await.unwrap();
    assert_eq!(session.upload(&sealed.unwrap()).await.unwrap(), Uploaded::Durable);
    rig.assert_restores(100, &written).await;
}

/// The seal fails in its last act, after everything was synced.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_seal_record_there_is_no_commit() {
    let server = start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let session = rig.upload_session().await;
    let other = rig.write_step(99, &[("small", 9)], 1, 900);
    identify_and_seal(&rig.vault, &[], rig.request(&other), &rig.observer).await.unwrap();
    let other = rig.vault.step(&run_name(), id(1, 99)).unwrap().unwrap();
    let in_the_way = other.directory().with_file_name(id(1, 100).label());
    let block = move |parts| {
        if parts == PARTS {
            std::fs::create_dir_all(in_the_way.join("x")).unwrap();
        }
    };
    let request = seal_request(&rig, &source);
    let (sealed, ahead) = seal_and_send_then(&rig, &session, &request, &server, block).await;
    assert_eq!(sealed.unwrap_err().kind(), ErrorKind::Conflict);
    // Whatever else is at its place is not what was sent.
    let _ = ahead.hand_over().await;
    assert_eq!(server.pending_uploads(), []);
    assert_eq!(keys_of_step(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_before_the_seal_leaves_only_what_gc_aborts() {
    let server = start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    let session = rig.upload_session().await;
    let copy = CopyInProgress::default();
    let request = seal_request(&rig, &source);
    // Cut off in the middle of the copy.
    let there = Arc::clone(&server);
    let cut = seal_slowly(&rig, &request, &copy, move |_, parts| {
        wait_until("the part on the store", || parts_there(&there) == parts);
        assert!(parts < 3, "killed");
    });
    let ahead = sent_ahead(&session, &copy).await;
    assert!(cut.await.is_err());
    drop((ahead, session));
    assert_eq!(parts_there(&server), 3);

    let session = rig.upload_session().await;
    let placed = identify_and_seal(&rig.vault, &rig.remotes, rig.request(&source), &rig.observer).await;
    assert_eq!(placed.unwrap().summary().id, id(1, 100));
    let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    assert_eq!(session.upload(&sealed).await.unwrap(), Uploaded::Durable);
    server.age_multipart_uploads(Duration::from_secs(7_200));
    assert_eq!(rig.gc(Duration::from_secs(3_600)).await.unwrap().aborted_uploads, 1);
    assert_eq!(server.pending_uploads(), []);
    rig.assert_restores(100, &written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_after_the_seal_resumes_from_what_its_journal_has() {
    for is_handed_over in [false, true] {
        let server = start();
        let mut rig = Rig::with_patient_s3(&server, 30).await;
        let source = rig.write_step(100, FILES, 1, 1_000);
        let written = snapshot(&source);
        let session = rig.upload_session().await;
        let (sealed, ahead) = seal_and_send(&rig, &session, &seal_request(&rig, &source), &server).await;
        let sealed = sealed.unwrap();
        if is_handed_over {
            ahead.hand_over().await.unwrap();
        } else {
            drop(ahead);
        }
        drop(session);
        server.faults().clear_requests();
        let session = rig.upload_session().await;
        assert_eq!(session.upload(&sealed).await.unwrap(), Uploaded::Durable);
        let again = if is_handed_over { 0 } else { PARTS };
        assert_eq!(parts_sent(&server), again);
        rig.assert_restores(100, &written).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_holds_up_no_seal() {
    let server = start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let session = rig.upload_session().await;
    server.faults().inject("PUT", "partNumber", u64::MAX, FaultAction::Hang);
    let copy = CopyInProgress::default();
    let request = seal_request(&rig, &source);
    let sealing = seal_slowly(&rig, &request, &copy, move |_, _| {
        wait_until("a part that hangs", || asked(server.faults(), "PUT", "partNumber") > 0);
    });
    let sending = tokio::spawn(async move { sent_ahead(&session, &copy).await });
    let sealed = tokio::time::timeout(PATIENCE, sealing).await.unwrap().unwrap().unwrap();
    assert!(!sending.is_finished(), "the part hangs");
    sending.abort();
    assert_eq!(sealed.id(), id(1, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_remotes_get_each_part_once_and_only_what_was_sealed() {
    let (first, second) = (start(), start());
    let mut rig = Rig::with_patient_s3(&first, 30).await;
    second.create_bucket("bucket");
    let keys =
        StaticKeys { access_key: second.access_key().to_owned(), secret_key: second.secret_key().to_owned() };
    let endpoint = second.endpoint();
    rig.add("second", "s3://bucket/second", |settings| settings.endpoint = Some(endpoint), Some(keys)).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let digests = SharedDigests::default();
    let mut sessions = Vec::new();
    for remote in &rig.remotes {
        let (vault, budget, observer) = (rig.vault.clone(), rig.budget.clone(), rig.observer.clone());
        let session = UploadSession::open(remote.clone(), vault, budget, observer, rig.digest).await.unwrap();
        sessions.push(session.with_digests(&digests));
    }
    let copy = CopyInProgress::default();
    let request = seal_request(&rig, &source);
    let servers = [Arc::clone(&first), Arc::clone(&second)];
    let sealing = seal_slowly(&rig, &request, &copy, move |_, parts| {
        wait_until("the part", || servers.iter().all(|server| parts_there(server) == parts));
    });
    let (one, other) = tokio::join!(sent_ahead(&sessions[0], &copy), sent_ahead(&sessions[1], &copy));
    let sealed = sealing.await.unwrap().unwrap();
    for (session, ahead) in sessions.iter().zip([one, other]) {
        ahead.hand_over().await.unwrap();
        assert_eq!(session.upload(&sealed).await.unwrap(), Uploaded::Durable);
    }
    for server in [&first, &second] {
        assert_eq!(parts_sent(server), PARTS);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_has_is_copied_there_before_the_seal_too() {
    let server = start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    rig.push_durably(&rig.write_step(50, FILES, 1, 500)).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let written = snapshot(&source);
    let session = rig.upload_session().await;
    let (sealed, ahead) = seal_and_send(&rig, &session, &seal_request(&rig, &source), &server).await;
    let sent = moved(&rig);
    ahead.hand_over().await.unwrap();
    assert_eq!(session.upload(&sealed.unwrap()).await.unwrap(), Uploaded::Durable);
    assert_eq!(moved(&rig), sent, "everything was copied inside the store");
    rig.assert_restores(100, &written).await;
}

/// A store that copies whole objects only gets the parts of files that have changed.
#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_file_is_left_to_a_store_that_copies_whole_objects() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs("gcs", &server).await;
    rig.push_durably(&rig.write_step(50, FILES, 1, 500)).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    std::fs::write(source.join("weights/two.bin"), bytes(9, PART + 1)).unwrap();
    let written = snapshot(&source);
    let sent_before = moved(&rig);
    let session = rig.upload_session().await;
    let copy = CopyInProgress::default();
    let request = seal_request(&rig, &source);
    let asked_for = |name: &str| asked(server.faults(), "PUT", &format!("{name}?"));
    let (big, two) = (asked_for("big.bin"), asked_for("two.bin"));
    let faults = server.faults().clone();
    let sealing = seal_slowly(&rig, &request, &copy, move |_, parts| {
        if parts == PARTS {
            wait_until("the changed parts", || asked(&faults, "PUT", "two.bin?") == two + 2);
        }
    });
    let ahead = sent_ahead(&session, &copy).await;
    let sealed = sealing.await.unwrap().unwrap();
    ahead.hand_over().await.unwrap();
    assert_eq!(session.upload(&sealed).await.unwrap(), Uploaded::Durable);
    assert_eq!(asked_for("big.bin"), big, "no part of it was sent");
    assert_eq!(moved(&rig) - sent_before, PART as u64 + 1);
    rig.assert_restores(100, &written).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_share_a_directory_send_their_own_files_ahead() {
    let server = start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let names = ["node-0", "node-1"].map(|name| NodeName::new(name).unwrap());
    let nodes = NodeSet::new(names.clone()).unwrap();
    let place = NodePlace::new(names[1].clone(), nodes).unwrap();
    let mut request = seal_request(&rig, &source);
    request.writer = Writer { place, launch: None, shared: true };
    let session = rig.upload_session().await;
    let copy = CopyInProgress::default();
    let there = Arc::clone(&server);
    let sealing = seal_slowly(&rig, &request, &copy, move |copied, _| {
        if copied.file.path.as_str() == "weights/two.bin" {
            wait_until("its first part", || parts_there(&there) > 0);
        }
    });
    let ahead = sent_ahead(&session, &copy).await;
    let sealed = sealing.await.unwrap().unwrap();
    ahead.hand_over().await.unwrap();
    // The larger file is the first node's.
    assert!(server.pending_uploads().iter().all(|upload| upload.key.ends_with("two.bin")));
    assert!(matches!(session.upload(&sealed).await.unwrap(), Uploaded::Incomplete { .. }));
    assert_eq!(parts_sent(&server), 2);
    assert_eq!(asked(server.faults(), "PUT", "big.bin"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_linked_is_sealed_before_anything_is_sent() {
    let server = start();
    let rig = Rig::with_patient_s3(&server, 30).await;
    let source = rig.write_step(100, FILES, 1, 1_000);
    let shown_in = CopyInProgress::default();
    let request = CheckpointToSeal { shown_in: Some(shown_in.clone()), ..rig.request(&source) };
    let shown = shown_in.subscribe();
    identify_and_seal(&rig.vault, &rig.remotes, request, &rig.observer).await.unwrap();
    let sealed = rig.vault.step(&run_name(), id(1, 100)).unwrap().unwrap();
    assert!(sealed.record().files.iter().all(|file| file.method != SnapshotMethod::Copy));
    assert!(!shown.has_changed().unwrap() && shown.borrow().is_none());
}
