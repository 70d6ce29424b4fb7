//! The GCS store against the strict server: what it writes, what it refuses to believe, what a fault looks like.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use stepvault_core::ErrorKind;
use stepvault_core::digest::{Crc32c, DigestAlgorithm, PartDigest};
use stepvault_core::ids::{RemoteName, RunName};
use stepvault_core::keys::RunKeys;
use stepvault_core::remote_settings::{RemoteSettings, Transport};
use stepvault_remote::probe::probe;
use stepvault_remote::store::{Created, RemoteStore, StoredChecksum};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::{StrictGcs, StrictGcsOptions};

use crate::conformance;
use crate::support::{File, bytes, create, listed, read, send_part, written};

mod json;
mod large;

use self::large::{
    a_completed_upload_with_other_bytes_is_removed_and_reported, a_lost_answer_leaves_one_whole_object,
    a_wrong_part_list_completes_nothing, completion_leaves_an_object_that_is_there,
    large_files_go_in_parts_from_any_process,
};

const BUCKET: &str = "vault-bucket";

/// Makes each check a test on either transport.
macro_rules! on_both_transports {
    ($($name:ident),+ $(,)?) => {
        mod over_xml {
            use stepvault_core::remote_settings::Transport;

            $(#[tokio::test]
            async fn $name() {
                super::$name(Transport::Xml).await;
            })+
        }

        mod over_json {
            use stepvault_core::remote_settings::Transport;

            $(#[tokio::test]
            async fn $name() {
                super::$name(Transport::Json).await;
            })+
        }
    };
}

on_both_transports! {
    whole_objects_are_created_once_with_their_checksum,
    reads_come_in_small_pieces_and_notice_their_end,
    odd_keys_mean_the_same_bytes_on_every_path,
    listings_page_keep_to_the_prefix_and_show_foreign_names,
    bytes_damaged_on_their_way_are_refused,
    a_store_that_accepts_wrong_bytes_is_found_out,
    answers_without_checksums_prove_nothing,
    nothing_is_repeated_behind_the_callers_back,
    success_with_an_error_inside_is_no_success,
    silence_ends_after_the_stall_time,
    refusals_say_what_to_do,
    copies_go_to_free_keys_only,
    a_copy_whose_bytes_have_to_move_takes_as_many_requests_as_the_store_wants,
    class_and_key_are_given_to_every_new_object,
    it_conforms,
    it_is_trusted_as_far_as_it_goes,
    a_completed_upload_with_other_bytes_is_removed_and_reported,
    large_files_go_in_parts_from_any_process,
    completion_leaves_an_object_that_is_there,
    a_wrong_part_list_completes_nothing,
    a_lost_answer_leaves_one_whole_object,
}

fn settings(server: &StrictGcs, transport: Transport) -> RemoteSettings {
    let url = format!("gs://{BUCKET}/team/vault").parse().unwrap();
    let mut settings = RemoteSettings::new(RemoteName::new("gcs").unwrap(), url);
    settings.endpoint = Some(server.endpoint());
    settings.stall_timeout_seconds = 2;
    settings.transport = transport;
    settings
}

async fn start(transport: Transport) -> (StrictGcs, Arc<dyn RemoteStore>) {
    start_with(transport, StrictGcsOptions::default()).await
}

async fn start_with(transport: Transport, options: StrictGcsOptions) -> (StrictGcs, Arc<dyn RemoteStore>) {
    let server = StrictGcs::start_with(options);
    server.create_bucket(BUCKET);
    let store = open(&server, transport).await;
    (server, store)
}

async fn open(server: &StrictGcs, transport: Transport) -> Arc<dyn RemoteStore> {
    stepvault_remote::gcs::open(&settings(server, transport)).await.unwrap()
}

/// Returns the request that sends a part: method and what its path has.
fn part_request(transport: Transport) -> (&'static str, &'static str) {
    match transport {
        Transport::Xml => ("PUT", "partNumber"),
        Transport::Json => ("POST", "stepvault-uploads"),
    }
}

fn payload(length: usize) -> Bytes {
    bytes(length, 1)
}

/// A file of two parts.
fn large() -> File {
    File::new((8 << 20) + 1234, 1)
}

fn stored(server: &StrictGcs, key: &str) -> Option<Bytes> {
    server.objects().body(&format!("{BUCKET}/team/vault/{key}"))
}

async fn whole_objects_are_created_once_with_their_checksum(transport: Transport) {
    let (server, store) = start(transport).await;
    let body = payload(300_000);
    let head = written(create(&*store, "run/a b", &body).await.unwrap());
    assert_eq!(head.info.size_bytes, 300_000);
    assert_eq!(head.checksum, StoredChecksum::Crc32c(Crc32c::of(&body)));
    assert_eq!(stored(&server, "run/a b"), Some(body.clone()));
    assert_eq!(create(&*store, "run/a b", &payload(5)).await.unwrap(), Created::Exists);
    assert_eq!(stored(&server, "run/a b"), Some(body.clone()));

    let looked_up = store.head("run/a b").await.unwrap().expect("a head");
    assert_eq!((&looked_up.checksum, &looked_up.info.version), (&head.checksum, &head.info.version));
    assert_eq!(store.head("run/none").await.unwrap(), None);
    let listed: Vec<_> = store.list("run/").try_collect().await.unwrap();
    assert_eq!((listed.len(), &listed[0].version), (1, &head.info.version), "one version wherever one looks");

    store.replace("run/a b", payload(7), &PartDigest::of(&payload(7))).await.unwrap();
    assert_eq!(stored(&server, "run/a b"), Some(payload(7)));
    assert_ne!(store.head("run/a b").await.unwrap().expect("a head").info.version, head.info.version);
}

async fn reads_come_in_small_pieces_and_notice_their_end(transport: Transport) {
    let (server, store) = start(transport).await;
    let body = payload(1_000_000);
    create(&*store, "a", &body).await.unwrap();
    let pieces: Vec<Bytes> = store.read("a", None).await.unwrap().try_collect().await.unwrap();
    assert!(pieces.iter().all(|piece| piece.len() <= 256 << 10));
    {
        let past_end = 2_000_000..2_000_000;
        assert_eq!(read(&*store, "a", Some(past_end)).await.unwrap_err().kind(), ErrorKind::Damaged);
    }
    server.faults().inject("GET", "vault%2Fa", 1, FaultAction::CutBody { bytes: 5000 });
    let cut = read(&*store, "a", None).await.unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Unreachable, "{cut}");
}

async fn odd_keys_mean_the_same_bytes_on_every_path(transport: Transport) {
    let (server, store) = start(transport).await;
    let odd = [
        "50%",
        "a%2Fb",
        "x#y?z&w=1",
        "ü/☃.pt",
        "epoch=1-step=2.ckpt",
        "a+b c",
        "[x]{y}~^|`'\"<>",
        "..a",
        "a\\b",
    ];
    let mut expected: Vec<String> = odd.iter().map(|key| format!("k/{key}")).collect();
    expected.sort();
    for key in &expected {
        create(&*store, key, &payload(3)).await.unwrap();
        assert!(stored(&server, key).is_some(), "{key} stands there as it is");
        assert!(store.head(key).await.unwrap().is_some(), "{key}");
        assert_eq!(read(&*store, key, Some(1..3)).await.unwrap(), &payload(3)[1..], "{key}");
        let copied = store.copy(key, &format!("copy/{key}")).await.unwrap();
        assert!(matches!(copied, Created::Written(_)), "{key}");
        let upload = store.start_upload(&format!("m/{key}"), 3, DigestAlgorithm::Sha256).await.unwrap();
        send_part(&*store, &format!("m/{key}"), &upload, 0, &payload(3)).await.unwrap();
    }
    assert_eq!(listed(&*store, "k/").await.unwrap(), expected);
    let mut pending: Vec<String> =
        store.pending_uploads("m/").await.unwrap().into_iter().map(|one| one.key).collect();
    pending.sort();
    assert_eq!(pending, expected.iter().map(|key| format!("m/{key}")).collect::<Vec<_>>());
    store.delete(&expected).await.unwrap();
    store.delete(&expected).await.expect("missing ones are no error");
    assert_eq!(listed(&*store, "k/").await.unwrap(), Vec::<String>::new());
}

async fn listings_page_keep_to_the_prefix_and_show_foreign_names(transport: Transport) {
    let (server, store) =
        start_with(transport, StrictGcsOptions { list_page_size: 2, ..StrictGcsOptions::default() }).await;
    for key in ["run/a", "run/b/c", "run/b/d", "run2/x", "ru"] {
        create(&*store, key, &payload(1)).await.unwrap();
    }
    // Somebody else's, in forms that stepvault never writes.
    server.objects().with(|table| {
        let object = table.values().next().expect("an object").clone();
        table.insert(format!("{BUCKET}/team/vault/run//odd/"), object.clone());
        table.insert(format!("{BUCKET}/team/vaults/run/other"), object);
    });
    assert_eq!(listed(&*store, "run/").await.unwrap(), ["run//odd/", "run/a", "run/b/c", "run/b/d"]);
    assert_eq!(listed(&*store, "run").await.unwrap().len(), 5);
    assert_eq!(listed(&*store, "run/b/").await.unwrap(), ["run/b/c", "run/b/d"]);
    assert_eq!(listed(&*store, "").await.unwrap().len(), 6);
}

async fn bytes_damaged_on_their_way_are_refused(transport: Transport) {
    let (server, store) = start(transport).await;
    server.faults().inject("POST", "uploadType", 1, FaultAction::FlipBit);
    let error = create(&*store, "a", &payload(1000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(
        error.to_string().starts_with(&format!("cannot write the object: gs://{BUCKET}/team/vault/a: ")),
        "{error}"
    );
    assert_eq!(stored(&server, "a"), None);

    let upload = store.start_upload("b", 1000, DigestAlgorithm::Sha256).await.unwrap();
    let (method, path) = part_request(transport);
    server.faults().inject(method, path, 1, FaultAction::FlipBit);
    let error = send_part(&*store, "b", &upload, 0, &payload(1000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    create(&*store, "a", &payload(1000)).await.expect("the next try");
}

async fn a_store_that_accepts_wrong_bytes_is_found_out(transport: Transport) {
    let (server, store) = start_with(
        transport,
        StrictGcsOptions { accept_wrong_checksums: true, ..StrictGcsOptions::default() },
    )
    .await;
    server.faults().inject("POST", "uploadType", 1, FaultAction::FlipBit);
    let error = create(&*store, "a", &payload(1000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    assert!(error.to_string().contains("the store holds 1000 bytes with CRC-32C"), "{error}");
    assert_eq!(stored(&server, "a"), None, "the damaged object does not keep the key");
    assert!(matches!(create(&*store, "a", &payload(1000)).await.unwrap(), Created::Written(_)));

    let upload = store.start_upload("b", 1000, DigestAlgorithm::Sha256).await.unwrap();
    let (method, path) = part_request(transport);
    server.faults().inject(method, path, 1, FaultAction::FlipBit);
    let error = send_part(&*store, "b", &upload, 0, &payload(1000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
}

async fn answers_without_checksums_prove_nothing(transport: Transport) {
    let (_server, store) =
        start_with(transport, StrictGcsOptions { no_checksum_answers: true, ..StrictGcsOptions::default() })
            .await;
    let head = written(create(&*store, "a", &payload(10)).await.unwrap());
    assert_eq!(head.checksum, StoredChecksum::None);
    assert_eq!(store.head("a").await.unwrap().expect("a head").checksum, StoredChecksum::None);
}

async fn nothing_is_repeated_behind_the_callers_back(transport: Transport) {
    let (server, store) = start(transport).await;
    let upload = store.start_upload("m", 10, DigestAlgorithm::Sha256).await.unwrap();
    let receipt = send_part(&*store, "m", &upload, 0, &payload(10)).await.unwrap();
    create(&*store, "there", &payload(10)).await.unwrap();
    let refuse =
        || FaultAction::Refuse { status: 503, retry_after_seconds: Some(7), code: "SlowDown".to_owned() };
    for method in ["GET", "HEAD", "PUT", "POST", "DELETE"] {
        server.faults().inject(method, "", u64::MAX, refuse());
    }
    server.faults().clear_requests();
    let errors = [
        create(&*store, "a", &payload(10)).await.unwrap_err(),
        send_part(&*store, "m", &upload, 0, &payload(10)).await.unwrap_err(),
        store.start_upload("n", 10, DigestAlgorithm::Sha256).await.unwrap_err(),
        store.complete_upload("m", &upload, &[receipt], &large().digest).await.unwrap_err(),
        store.abort_upload("m", &upload).await.unwrap_err(),
        store.head("there").await.unwrap_err(),
        read(&*store, "there", None).await.unwrap_err(),
        store.list("").try_collect::<Vec<_>>().await.unwrap_err(),
        store.pending_uploads("").await.unwrap_err(),
        store.delete(&["there".to_owned()]).await.unwrap_err(),
        store.copy("there", "b").await.unwrap_err(),
    ];
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(error.retry_after_wait(), Some(Duration::from_secs(7)), "{error}");
    }
    assert_eq!(
        server.faults().requests().len(),
        errors.len(),
        "one request each: {:?}",
        server.faults().requests()
    );
}

async fn success_with_an_error_inside_is_no_success(transport: Transport) {
    let (server, store) = start(transport).await;
    let large = large();
    let upload = store.start_upload("big", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = large.send(&*store, "big", &upload).await.unwrap();
    create(&*store, "there", &payload(3)).await.unwrap();
    for method in ["GET", "PUT", "POST"] {
        server.faults().inject(
            method,
            "",
            u64::MAX,
            FaultAction::OkWithError { code: "InternalError".to_owned() },
        );
    }
    let errors = [
        create(&*store, "a", &payload(10)).await.unwrap_err(),
        store.complete_upload("big", &upload, &receipts, &large.digest).await.unwrap_err(),
        store.copy("there", "b").await.unwrap_err(),
        store.list("").try_collect::<Vec<_>>().await.unwrap_err(),
        large.send_part(&*store, "big", &upload, 0).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_transient(), "{error}");
    }
}

async fn silence_ends_after_the_stall_time(transport: Transport) {
    let (server, store) = start(transport).await;
    create(&*store, "there", &payload(3)).await.unwrap();
    for method in ["GET", "HEAD", "POST"] {
        server.faults().inject(method, "", u64::MAX, FaultAction::Hang);
    }
    let began = std::time::Instant::now();
    let body = payload(3);
    let (head, list, write) =
        tokio::join!(store.head("there"), keys_of_silence(&store), create(&*store, "a", &body));
    assert!(began.elapsed() < Duration::from_secs(8));
    for error in [head.unwrap_err(), list, write.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("within"), "{error}");
    }
}

async fn keys_of_silence(store: &Arc<dyn RemoteStore>) -> stepvault_core::Error {
    store.list("").try_collect::<Vec<_>>().await.unwrap_err()
}

async fn refusals_say_what_to_do(transport: Transport) {
    let (_server, store) =
        start_with(transport, StrictGcsOptions { anonymous: false, ..StrictGcsOptions::default() }).await;
    let errors = [
        create(&*store, "a", &payload(3)).await.unwrap_err(),
        store.head("a").await.unwrap_err(),
        store.list("").try_collect::<Vec<_>>().await.unwrap_err(),
        store.start_upload("a", 3, DigestAlgorithm::Sha256).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.hint_text().expect("a hint").contains("credentials"), "{error}");
    }

    let server = StrictGcs::start();
    let store = open(&server, transport).await;
    let errors = [
        create(&*store, "a", &payload(3)).await.unwrap_err(),
        store.list("").try_collect::<Vec<_>>().await.unwrap_err(),
        store.start_upload("a", 3, DigestAlgorithm::Sha256).await.unwrap_err(),
        read(&*store, "a", None).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.hint_text().expect("a hint").starts_with("create the bucket"), "{error}");
    }
    drop(server);
    let error = store.head("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.hint_text().expect("a hint").contains("network"), "{error}");
}

async fn copies_go_to_free_keys_only(transport: Transport) {
    let (server, store) = start(transport).await;
    create(&*store, "a", &payload(10)).await.unwrap();
    let head = written(store.copy("a", "b").await.unwrap());
    assert_eq!(head.checksum, StoredChecksum::Crc32c(Crc32c::of(&payload(10))));
    store.replace("a", payload(4), &PartDigest::of(&payload(4))).await.unwrap();
    assert_eq!(store.copy("a", "b").await.unwrap(), Created::Exists);
    assert_eq!(stored(&server, "b"), Some(payload(10)));
    assert_eq!(store.copy("none", "c").await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn a_copy_whose_bytes_have_to_move_takes_as_many_requests_as_the_store_wants(transport: Transport) {
    let server =
        StrictGcs::start_with(StrictGcsOptions { rewrite_bytes: 5 << 20, ..StrictGcsOptions::default() });
    server.create_bucket(BUCKET);
    let mut settings = settings(&server, transport);
    let store = stepvault_remote::gcs::open(&settings).await.unwrap();
    create(&*store, "a", &payload(12 << 20)).await.unwrap();
    settings.storage_class = Some("NEARLINE".to_owned());
    let store = stepvault_remote::gcs::open(&settings).await.unwrap();
    assert!(matches!(store.copy("a", "b").await.unwrap(), Created::Written(_)));
    assert_eq!(stored(&server, "b"), Some(payload(12 << 20)));
    let requests = server.faults().requests();
    let rewrites = requests.iter().filter(|request| request.path.contains("rewriteTo"));
    assert_eq!(rewrites.count(), 3);
}

async fn class_and_key_are_given_to_every_new_object(transport: Transport) {
    let server = StrictGcs::start();
    server.create_bucket(BUCKET);
    let mut settings = settings(&server, transport);
    settings.storage_class = Some("NEARLINE".to_owned());
    let store = stepvault_remote::gcs::open(&settings).await.unwrap();
    create(&*store, "a", &payload(3)).await.unwrap();
    let large = large();
    let upload = store.start_upload("b", large.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = large.send(&*store, "b", &upload).await.unwrap();
    store.complete_upload("b", &upload, &receipts, &large.digest).await.unwrap();
    for key in ["a", "b"] {
        let attributes =
            server.objects().with(|table| table[&format!("{BUCKET}/team/vault/{key}")].attributes.clone());
        assert!(attributes.values().any(|value| value == "NEARLINE"), "{key}: {attributes:?}");
    }
    let copy = written(store.copy("b", "c").await.unwrap());
    assert_eq!(copy.checksum, StoredChecksum::Crc32c(large.digest.crc32c));
    let class = |key: &str| {
        let object = format!("{BUCKET}/team/vault/{key}");
        server.objects().with(|table| table[&object].attributes.get("x-goog-storage-class").cloned())
    };
    assert_eq!(class("c").as_deref(), Some("NEARLINE"));
    settings.tags.insert("a".to_owned(), "b".to_owned());
    let error = stepvault_remote::gcs::open(&settings).await.unwrap_err();
    assert!(error.to_string().ends_with("it does not support the option tags"), "{error}");
}

async fn it_conforms(transport: Transport) {
    let (_server, store) = start(transport).await;
    conformance::run(store, &[]).await;
    let options =
        StrictGcsOptions { list_page_size: 7, no_checksum_answers: true, ..StrictGcsOptions::default() };
    let (_server, store) = start_with(transport, options).await;
    conformance::run(store, &[]).await;
}

async fn it_is_trusted_as_far_as_it_goes(transport: Transport) {
    let keys = RunKeys::new(RunName::new("run").unwrap());
    let (server, store) = start(transport).await;
    let trust = probe(&*store, &keys, DigestAlgorithm::Sha256).await.unwrap();
    let proves_uploads =
        trust.checks_object_checksums && trust.checks_part_checksums && trust.returns_checksums;
    assert!(proves_uploads && trust.honours_create_only && trust.cleaned_up, "{trust:?}");
    assert_eq!((server.objects().keys(), server.pending_uploads()), (vec![], vec![]));
    let (_server, store) =
        start_with(transport, StrictGcsOptions { ignore_create_only: true, ..StrictGcsOptions::default() })
            .await;
    assert!(!probe(&*store, &keys, DigestAlgorithm::Sha256).await.unwrap().honours_create_only);
    let (_server, store) =
        start_with(transport, StrictGcsOptions { no_checksum_answers: true, ..StrictGcsOptions::default() })
            .await;
    assert!(!probe(&*store, &keys, DigestAlgorithm::Sha256).await.unwrap().returns_checksums);
}
