//! A step whose files are those of the step before: nothing of them is sent, and nothing is believed.

use std::path::PathBuf;
use std::time::Duration;

use stepvault_testkit::faults::{FaultAction, Faults};
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

use crate::harness::{Rig, asked, bytes, cut_when, id, snapshot};

const PART: usize = 8 << 20;
/// Of three parts, the last a short one.
const LARGE: usize = 2 * PART + 5;

/// Path, bytes.
type Files<'a> = &'a [(&'a str, Vec<u8>)];

/// Writes a checkpoint as a trainer would.
fn save(rig: &Rig, step: u64, files: Files<'_>) -> PathBuf {
    let root = rig.outputs().join(format!("step_{step}"));
    for (path, body) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, body).unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_secs(step * 10);
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
    }
    root
}

fn first() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("backbone.bin", bytes(1, LARGE)),
        ("tokenizer.json", bytes(2, 3_000)),
        ("trained.bin", bytes(3, LARGE)),
        ("state.json", bytes(4, 17)),
        ("empty", Vec::new()),
    ]
}

/// The same backbone, the same tokenizer under another name, and other bytes of the same sizes.
fn second() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("backbone.bin", bytes(1, LARGE)),
        ("global_step200/tokenizer.json", bytes(2, 3_000)),
        ("trained.bin", bytes(5, LARGE)),
        ("state.json", bytes(6, 17)),
        ("empty", Vec::new()),
    ]
}

const UNCHANGED: u64 = (LARGE + 3_000) as u64;
const CHANGED: u64 = (LARGE + 17) as u64;

fn moved(rig: &Rig) -> u64 {
    std::mem::take(&mut *rig.recorder.moved.lock().unwrap())
}

fn copied(rig: &Rig) -> u64 {
    std::mem::take(&mut *rig.recorder.copied.lock().unwrap())
}

fn warnings(rig: &Rig) -> Vec<String> {
    std::mem::take(&mut *rig.recorder.warnings.lock().unwrap())
}

/// Pushes a step; what was sent of it and what was copied.
async fn pushed(rig: &Rig, step: u64, files: Files<'_>) -> (u64, u64) {
    moved(rig);
    copied(rig);
    let report = rig.push_durably(&save(rig, step, files)).await;
    let counted = (moved(rig), copied(rig));
    assert_eq!(report.remotes.iter().map(|remote| remote.copied_bytes).sum::<u64>(), counted.1);
    counted
}

/// Restores on a new node and compares with what was saved.
async fn assert_restores(rig: &mut Rig, step: u64, files: Files<'_>) {
    let written = snapshot(&save(rig, step, files));
    rig.assert_restores(step, &written).await;
}

async fn over_s3(options: StrictS3Options) -> (StrictS3, Rig) {
    let server = StrictS3::start_with(options);
    let rig = Rig::with_s3(&server).await;
    (server, rig)
}

async fn over_gcs() -> (StrictGcs, Rig) {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    rig.add_gcs("google", &server).await;
    (server, rig)
}

/// Body bytes of the requests for objects of a step's data.
fn received(faults: &Faults, path: &str) -> u64 {
    let requests = faults.requests().into_iter();
    let data = requests.filter(|request| request.path.contains(path) && !request.path.contains("rewriteTo"));
    data.filter(|request| request.method == "PUT" || request.path.contains("uploadType"))
        .map(|request| request.body_bytes)
        .sum()
}

async fn only_what_changed_is_sent(mut rig: Rig, faults: Option<&Faults>) {
    assert_eq!(pushed(&rig, 100, &first()).await, (UNCHANGED + CHANGED, 0));
    if let Some(faults) = faults {
        faults.clear_requests();
    }
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    if let Some(faults) = faults {
        assert_eq!(received(faults, "backbone.bin"), 0);
        assert_eq!(received(faults, "tokenizer.json"), 0);
        assert!(received(faults, "trained.bin") >= LARGE as u64);
    }
    // The copies are objects of their own.
    assert_eq!(rig.prune(1).await.unwrap().removed, [id(1, 100)]);
    assert_restores(&mut rig, 200, &second()).await;
    assert_eq!(warnings(&rig), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_revision_only_what_was_added_is_sent() {
    let (_server, mut rig) = over_s3(StrictS3Options::default()).await;
    pushed(&rig, 100, &first()).await;
    pushed(&rig, 200, &[("other.bin", bytes(9, LARGE))]).await;
    let note = ("README.md", b"# a card".to_vec());
    let with_note = [first(), vec![note]].concat();
    assert_eq!(pushed(&rig, 100, &with_note).await, (8, UNCHANGED + CHANGED));
    // Without the vault, by what the remote lists.
    rig.lose_node();
    let more = [with_note, vec![("eval.json", b"{}".to_vec())]].concat();
    assert_eq!(pushed(&rig, 100, &more).await, (2, UNCHANGED + CHANGED + 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_s3_only_what_changed_is_sent() {
    let (server, rig) = over_s3(StrictS3Options::default()).await;
    only_what_changed_is_sent(rig, Some(server.faults())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_gcs_only_what_changed_is_sent() {
    let (server, rig) = over_gcs().await;
    only_what_changed_is_sent(rig, Some(server.faults())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_directory_only_what_changed_is_written() {
    only_what_changed_is_sent(Rig::with_directory().await, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory_only_what_changed_is_sent() {
    let mut rig = Rig::new();
    rig.add("ram", "memory://only-what-changed", |_| {}, None).await;
    only_what_changed_is_sent(rig, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_file_that_changed_in_the_middle_that_part_alone_is_sent() {
    let (server, mut rig) = over_s3(StrictS3Options::default()).await;
    let disk = format!("file://{}", rig.remote_root().display());
    rig.add("disk", &disk, |_| {}, None).await;
    let mut body = bytes(1, 3 * PART + 5);
    pushed(&rig, 100, &[("model.bin", body.clone())]).await;
    server.faults().clear_requests();
    body[PART + 7] ^= 1;
    let files = [("model.bin", body)];
    let each = ((PART) as u64, (2 * PART + 5) as u64);
    assert_eq!(pushed(&rig, 200, &files).await, (2 * each.0, 2 * each.1));
    assert_eq!(received(server.faults(), "model.bin"), each.0);
    assert_restores(&mut rig, 200, &files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_node_copies_from_what_the_one_before_it_left() {
    let (_server, mut rig) = over_s3(StrictS3Options::default()).await;
    pushed(&rig, 100, &first()).await;
    rig.lose_node();
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_without_copies_gets_none() {
    let server = StrictS3::start();
    let mut rig = Rig::with_s3(&server).await;
    let mut settings = (*rig.remotes[0].settings).clone();
    settings.copy_unchanged = false;
    rig.remotes[0].settings = std::sync::Arc::new(settings);
    pushed(&rig, 100, &first()).await;
    assert_eq!(pushed(&rig, 200, &second()).await, (UNCHANGED + CHANGED, 0));
}

async fn a_source_that_is_gone_is_sent(mut rig: Rig) {
    pushed(&rig, 100, &first()).await;
    // The vault still believes that it is there.
    let gone: Vec<String> = rig.remotes[0]
        .list("grpo/checkpoints/000000000100.a1/")
        .await
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect();
    assert_eq!(gone.len(), 5);
    rig.remotes[0].store.delete(&gone).await.unwrap();
    assert_eq!(pushed(&rig, 200, &second()).await, (UNCHANGED + CHANGED, 0));
    assert_eq!(warnings(&rig), Vec::<String>::new());
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_from_s3_is_sent() {
    let (_server, rig) = over_s3(StrictS3Options::default()).await;
    a_source_that_is_gone_is_sent(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_from_gcs_is_sent() {
    let (_server, rig) = over_gcs().await;
    a_source_that_is_gone_is_sent(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_gone_from_a_directory_is_sent() {
    a_source_that_is_gone_is_sent(Rig::with_directory().await).await;
}

/// `rot` damages an object by its key; the checksum that the store keeps stays what it was.
async fn rot_is_not_copied(mut rig: Rig, rot: impl Fn(&Rig, &str)) {
    pushed(&rig, 100, &first()).await;
    for path in ["backbone.bin", "tokenizer.json"] {
        rot(&rig, &format!("grpo/checkpoints/000000000100.a1/step_100/{path}"));
    }
    let (sent, from_there) = pushed(&rig, 200, &second()).await;
    assert_eq!(sent + from_there, UNCHANGED + CHANGED);
    assert!(sent >= CHANGED + 3_000 + PART as u64, "{sent} bytes were sent");
    let said = warnings(&rig);
    for path in ["backbone.bin", "tokenizer.json"] {
        let about: Vec<&String> = said.iter().filter(|text| text.contains(path)).collect();
        assert_eq!(about.len(), 1, "{said:?}");
        assert!(about[0].contains("no longer holds what was uploaded"), "{said:?}");
        assert!(about[0].contains("stepvault verify --deep"), "{said:?}");
    }
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rot_on_s3_is_not_copied() {
    let (server, rig) = over_s3(StrictS3Options::default()).await;
    let objects = server.objects().clone();
    rot_is_not_copied(rig, |_, key| {
        assert!(objects.flip_bit(&format!("bucket/pre fix/{key}"), 5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rot_on_gcs_is_not_copied() {
    let (server, rig) = over_gcs().await;
    let objects = server.objects().clone();
    rot_is_not_copied(rig, |_, key| {
        assert!(objects.flip_bit(&format!("bucket/prefix/{key}"), 5));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rot_in_a_directory_is_not_copied() {
    rot_is_not_copied(Rig::with_directory().await, |rig, key| {
        let path = rig.remote_root().join(key);
        let mut body = std::fs::read(&path).unwrap();
        body[5] ^= 1;
        std::fs::write(&path, body).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_copies_that_are_lost_cost_no_byte_on_s3() {
    let (server, mut rig) = over_s3(StrictS3Options::default()).await;
    pushed(&rig, 100, &first()).await;
    for path in ["backbone.bin?", "tokenizer.json"] {
        server.faults().inject("PUT", path, 1, FaultAction::ApplyThenReset);
    }
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_copies_that_are_lost_cost_no_byte_on_gcs() {
    let (server, mut rig) = over_gcs().await;
    pushed(&rig, 100, &first()).await;
    let lost = FaultAction::ApplyThenReset;
    server.faults().inject("POST", "rewriteTo", 2, lost);
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_200_with_an_error_inside_is_no_copy() {
    let (server, mut rig) = over_s3(StrictS3Options::default()).await;
    pushed(&rig, 100, &first()).await;
    let error = FaultAction::OkWithError { code: "InternalError".to_owned() };
    server.faults().inject("PUT", "tokenizer.json", 2, error.clone());
    server.faults().inject("PUT", "backbone.bin?", 2, error);
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_copies_is_sent_everything() {
    let (server, mut rig) = over_s3(StrictS3Options { no_copies: true, ..StrictS3Options::default() }).await;
    pushed(&rig, 100, &first()).await;
    assert_eq!(pushed(&rig, 200, &second()).await, (UNCHANGED + CHANGED, 0));
    server.faults().clear_requests();
    // And is not asked again.
    assert_eq!(pushed(&rig, 300, &second()).await, (UNCHANGED + CHANGED, 0));
    let empty_bodied = server.faults().requests().into_iter().filter(|request| {
        request.method == "PUT" && request.body_bytes == 0 && !request.path.contains("empty")
    });
    assert_eq!(empty_bodied.count(), 0);
    assert_eq!(warnings(&rig), Vec::<String>::new());
    assert_restores(&mut rig, 300, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_parts_cannot_be_copied_whole_files_still_are() {
    let (server, mut rig) = over_s3(StrictS3Options::default()).await;
    pushed(&rig, 100, &first()).await;
    let refusal = FaultAction::refuse(411, "MissingContentLength");
    server.faults().inject("PUT", "x-id=UploadPartCopy", u64::MAX, refusal);
    assert_eq!(pushed(&rig, 200, &second()).await.1, 3_000);
    let before = asked(server.faults(), "PUT", "x-id=UploadPartCopy");
    assert!(before >= 1);
    assert_eq!(pushed(&rig, 300, &second()).await.1, 3_017);
    assert_eq!(asked(server.faults(), "PUT", "x-id=UploadPartCopy"), before);
    assert_restores(&mut rig, 300, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gcs_server_without_rewrites_is_sent_everything() {
    let (server, mut rig) = over_gcs().await;
    pushed(&rig, 100, &first()).await;
    let refusal = FaultAction::refuse(501, "NotImplemented");
    server.faults().inject("POST", "rewriteTo", u64::MAX, refusal);
    assert_eq!(pushed(&rig, 200, &second()).await, (UNCHANGED + CHANGED, 0));
    let before = asked(server.faults(), "POST", "rewriteTo");
    assert!((1..=2).contains(&before), "{before}");
    assert_eq!(pushed(&rig, 300, &second()).await, (UNCHANGED + CHANGED, 0));
    assert_eq!(asked(server.faults(), "POST", "rewriteTo"), before);
    assert_restores(&mut rig, 300, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_do_not_suffice_for_a_copy_are_no_failure() {
    let (server, mut rig) = over_gcs().await;
    pushed(&rig, 100, &first()).await;
    let refusal = FaultAction::refuse(403, "AccessDenied");
    server.faults().inject("POST", "rewriteTo", u64::MAX, refusal);
    assert_eq!(pushed(&rig, 200, &second()).await, (UNCHANGED + CHANGED, 0));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_never_answer_hold_a_step_up_and_do_not_fail_it() {
    let (server, mut rig) = over_gcs().await;
    pushed(&rig, 100, &first()).await;
    server.faults().inject("POST", "rewriteTo", u64::MAX, FaultAction::Hang);
    let (sent, from_there) = pushed(&rig, 200, &second()).await;
    assert_eq!((sent, from_there), (UNCHANGED + CHANGED, 0));
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_say_what_it_copied_is_read_back() {
    let (server, mut rig) =
        over_s3(StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() }).await;
    pushed(&rig, 100, &first()).await;
    server.faults().clear_requests();
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    let copied = "000000000200.a1/step_200/backbone.bin";
    assert!(asked(server.faults(), "GET", copied) > 0, "it was believed");
    // Damage of what it copies from is found in the copy, which is then sent instead.
    let source = "000000000200.a1/step_200/backbone.bin";
    let key = server.objects().keys().into_iter().find(|key| key.ends_with(source)).unwrap();
    assert!(server.objects().flip_bit(&key, PART + 3));
    let (sent, _) = pushed(&rig, 300, &second()).await;
    assert!(sent >= LARGE as u64, "{sent} bytes were sent");
    assert_restores(&mut rig, 300, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_believes_every_checksum_is_read_back_after_a_copy() {
    let (server, mut rig) =
        over_s3(StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() }).await;
    pushed(&rig, 100, &first()).await;
    server.faults().clear_requests();
    assert_eq!(pushed(&rig, 200, &second()).await, (CHANGED, UNCHANGED));
    for path in
        ["000000000200.a1/step_200/backbone.bin", "000000000200.a1/step_200/global_step200/tokenizer.json"]
    {
        assert!(asked(server.faults(), "GET", path) > 0, "{path} was believed");
    }
    assert_restores(&mut rig, 200, &second()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_was_cut_off_among_copies_goes_on_with_them() {
    let server = StrictS3::start();
    let mut rig = Rig::with_patient_s3(&server, 30).await;
    let files = [("backbone.bin", bytes(1, 6 * PART)), ("tokenizer.json", bytes(2, 3_000))];
    pushed(&rig, 100, &files).await;
    // All parts but one are copied, and the file is never completed.
    server.faults().inject("PUT", "partNumber=4", u64::MAX, FaultAction::Hang);
    server.faults().clear_requests();
    let source = save(&rig, 200, &files);
    let copied_parts = || {
        let pending = server.pending_uploads();
        pending.iter().map(|upload| upload.part_numbers.len()).sum::<usize>()
    };
    cut_when(server.faults(), rig.push(&source), || copied_parts() == 5).await;
    server.faults().clear();
    server.faults().clear_requests();
    let (sent, from_there) = pushed(&rig, 200, &files).await;
    assert_eq!((sent, from_there), (0, PART as u64), "what was done is in the journal");
    assert_eq!(received(server.faults(), "step_200"), 0);
    assert!(server.pending_uploads().is_empty());
    assert_restores(&mut rig, 200, &files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_that_was_cut_off_in_a_copy_makes_it_anew() {
    let server = StrictGcs::start();
    let mut rig = Rig::new();
    server.create_bucket("bucket");
    let endpoint = server.endpoint();
    rig.add(
        "google",
        "gs://bucket/prefix",
        |settings| {
            settings.endpoint = Some(endpoint);
            settings.stall_timeout_seconds = 30;
            settings.retry_deadline_seconds = 120;
        },
        None,
    )
    .await;
    pushed(&rig, 100, &first()).await;
    // They are carried out, and nobody learns of it.
    server.faults().inject("POST", "rewriteTo", 2, FaultAction::ApplyThenDelay(Duration::from_hours(1)));
    let source = save(&rig, 200, &second());
    let made = || {
        let keys = server.objects().keys();
        keys.iter().filter(|key| key.contains("000000000200.a1/step_200/backbone")).count()
    };
    cut_when(server.faults(), rig.push(&source), || made() == 1).await;
    server.faults().clear();
    let (sent, from_there) = pushed(&rig, 200, &second()).await;
    assert_eq!(sent + from_there, UNCHANGED + CHANGED);
    assert_eq!(from_there, UNCHANGED);
    assert_restores(&mut rig, 200, &second()).await;
}
