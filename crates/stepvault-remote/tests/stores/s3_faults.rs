//! What becomes of requests while the network or the server fails.

use std::time::{Duration, Instant};

use stepvault_core::ErrorKind;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_remote::store::Created;
use stepvault_testkit::faults::{FaultAction, FaultRule};

use crate::support::{File, Strict, bytes, create, listed, read, shown};

fn slow_down(retry_after_seconds: Option<u64>) -> FaultAction {
    FaultAction::Refuse { status: 503, retry_after_seconds, code: "SlowDown".to_owned() }
}

#[tokio::test]
async fn a_storm_passes_and_its_wish_to_be_left_alone_is_granted() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("PUT", "", 1, slow_down(Some(2)));
    let began = Instant::now();
    create(&*store, "a", &bytes(10, 1)).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(
        strict.listener.retries(),
        [
            "archive: cannot write the object: s3://checkpoints/vault/a: the store asks to slow down (SlowDown: On \
          request)"
        ]
    );
}

#[tokio::test]
async fn a_storm_that_stays_is_told_with_its_cause() {
    let mut strict = Strict::start();
    strict.settings.retry_deadline_seconds = 1;
    let store = strict.open().await;
    strict.inject("PUT", "", u64::MAX, slow_down(None));
    let error = create(&*store, "a", &bytes(10, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = shown(&error);
    assert!(
        text.starts_with("the remote does not serve requests: archive (s3://checkpoints/vault): tried "),
        "{text}"
    );
    assert!(
        text.ends_with(
            " seconds; the last error: cannot write the object: s3://checkpoints/vault/a: the store asks to slow \
             down (SlowDown: On request)\nhint: lower max-concurrent-requests"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn resets_and_server_faults_are_survived() {
    let strict = Strict::start();
    let store = strict.open().await;
    let faults = strict.server.faults();
    let file = File::new((16 << 20) + 1, 1);
    faults.inject("PUT", "partNumber=1", 1, FaultAction::Reset);
    faults.inject("PUT", "partNumber=2", 1, FaultAction::ApplyThenReset);
    let internal = FaultAction::refuse(500, "InternalError");
    faults.inject("PUT", "partNumber=3", 1, internal);
    faults.inject("POST", "uploads", 1, FaultAction::Reset);
    faults.inject("HEAD", "", 1, FaultAction::Reset);
    faults.inject("GET", "list-type", 1, FaultAction::Reset);
    file.upload(&*store, "file").await.unwrap();
    assert_eq!(listed(&*store, "").await.unwrap(), ["file"]);
    let head = store.head("file").await.unwrap().unwrap();
    assert_eq!(head.checksum.proves(&file.digest, &file.part_digests()), Some(true));
    assert_eq!(strict.listener.retries().len(), 6, "{:?}", strict.listener.retries());
}

#[tokio::test]
async fn a_create_whose_answer_is_lost_reads_as_taken() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("PUT", "", 1, FaultAction::ApplyThenReset);
    assert_eq!(create(&*store, "commit", &bytes(10, 1)).await.unwrap(), Created::Exists);
    assert_eq!(read(&*store, "commit", None).await.unwrap(), bytes(10, 1));
}

#[tokio::test]
async fn a_completion_whose_answer_is_lost_is_recognised() {
    let strict = Strict::start();
    let store = strict.open().await;
    let file = File::new((8 << 20) + 1, 1);
    strict.inject("POST", "uploadId", 1, FaultAction::ApplyThenReset);
    let created = file.upload(&*store, "file").await.unwrap();
    let Created::Written(head) = created else { panic!("{created:?}") };
    assert_eq!(head.checksum.proves(&file.digest, &file.part_digests()), Some(true));
}

#[tokio::test]
async fn a_lost_answer_does_not_claim_another_writers_object() {
    let strict = Strict::start();
    let store = strict.open().await;
    let (ours, theirs) = (File::new((8 << 20) + 1, 1), File::new((8 << 20) + 1, 2));
    let upload = store.start_upload("file", ours.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap();
    let receipts = ours.send(&*store, "file", &upload).await.unwrap();
    theirs.upload(&*store, "file").await.unwrap();
    strict.inject("POST", "uploadId", 1, FaultAction::Reset);
    let created = store.complete_upload("file", &upload, &receipts, &ours.digest).await.unwrap();
    assert_eq!(created, Created::Exists);
    store.abort_upload("file", &upload).await.unwrap();
    let gone = store.complete_upload("other", &upload, &receipts, &ours.digest).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
}

#[tokio::test]
async fn an_error_inside_a_good_status_is_an_error() {
    let strict = Strict::start();
    let store = strict.open_bare().await;
    let faults = strict.server.faults();
    let file = File::new((8 << 20) + 1, 1);
    let hidden = || FaultAction::OkWithError { code: "InternalError".to_owned() };
    faults.inject("POST", "uploadId", 1, hidden());
    let error = file.upload(&*store, "file").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(store.head("file").await.unwrap(), None);
    create(&*store, "from", &bytes(10, 1)).await.unwrap();
    faults.inject("PUT", "vault/to", 1, hidden());
    let error = store.copy("from", "to").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // With retries both go through.
    let store = strict.open().await;
    faults.inject("POST", "uploadId", 1, hidden());
    faults.inject("PUT", "vault/to", 1, hidden());
    file.upload(&*store, "file").await.unwrap();
    store.copy("from", "to").await.unwrap();
}

#[tokio::test]
async fn silence_ends_after_the_stall_time() {
    let mut strict = Strict::start();
    strict.settings.stall_timeout_seconds = 1;
    let store = strict.open_bare().await;
    create(&*store, "object", &bytes(10, 1)).await.unwrap();
    strict.server.faults().add(FaultRule {
        method: None,
        path_contains: String::new(),
        skip: 0,
        times: u64::MAX,
        action: FaultAction::Hang,
    });
    let began = Instant::now();
    let large = bytes(8 << 20, 1);
    let (small, part, head, reading, listing, delete) = tokio::join!(
        async { create(&*store, "a", &bytes(10, 1)).await.map(drop).unwrap_err() },
        async { create(&*store, "b", &large).await.map(drop).unwrap_err() },
        async { store.head("object").await.map(drop).unwrap_err() },
        async { read(&*store, "object", None).await.map(drop).unwrap_err() },
        async { listed(&*store, "").await.map(drop).unwrap_err() },
        async { store.delete(&["object".to_owned()]).await.unwrap_err() },
    );
    assert!(
        began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    for error in [small, part, head, reading, listing, delete] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().ends_with(": no byte moved for 1 seconds"), "{error}");
    }
}

#[tokio::test]
async fn slowness_is_no_silence() {
    let mut strict = Strict::start();
    strict.settings.stall_timeout_seconds = 2;
    let store = strict.open().await;
    strict.inject("PUT", "", 1, FaultAction::Delay(Duration::from_millis(1_500)));
    create(&*store, "a", &bytes(10, 1)).await.unwrap();
    assert_eq!(strict.listener.retries(), Vec::<String>::new());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_that_may_pass() {
    let strict = Strict::start();
    let store = strict.open().await;
    let body = bytes(3_000_000, 1);
    create(&*store, "object", &body).await.unwrap();
    for range in [None, Some(0..3_000_000)] {
        strict.inject("GET", "object", 1, FaultAction::CutBody { bytes: 1_000_000 });
        let error = read(&*store, "object", range.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(
            error.to_string().starts_with("cannot read the object: s3://checkpoints/vault/object: "),
            "{error}"
        );
        strict.server.faults().clear();
        assert_eq!(read(&*store, "object", range).await.unwrap(), body);
    }
}

#[tokio::test]
async fn a_listing_goes_on_after_a_failed_page() {
    let mut strict = Strict::start_with(stepvault_testkit::s3::StrictS3Options {
        max_keys: 5,
        ..stepvault_testkit::s3::StrictS3Options::default()
    });
    strict.settings.retry_deadline_seconds = 2;
    let store = strict.open().await;
    let keys: Vec<String> = (10..42).map(|number| format!("k/{number}")).collect();
    for key in &keys {
        create(&*store, key, &bytes(1, 1)).await.unwrap();
    }
    let fail_third_page = |times| FaultRule {
        method: Some("GET".to_owned()),
        path_contains: "continuation-token".to_owned(),
        skip: 2,
        times,
        action: FaultAction::Reset,
    };
    strict.server.faults().add(fail_third_page(1));
    assert_eq!(listed(&*store, "k/").await.unwrap(), keys);
    strict.server.faults().clear();
    strict.server.faults().add(fail_third_page(u64::MAX));
    let error = listed(&*store, "k/").await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::Unreachable,
        "a listing that cannot be finished must not look finished"
    );
}

#[tokio::test]
async fn a_port_where_nobody_listens() {
    let mut strict = Strict::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    strict.settings.endpoint = Some(format!("http://{address}"));
    strict.settings.retry_deadline_seconds = 1;
    let store = strict.open_bare().await;
    let error = store.head("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = shown(&error);
    assert!(text.starts_with("cannot read the object's metadata: s3://checkpoints/vault/a: "), "{text}");
    assert!(text.contains("onnection refused"), "{text}");
    assert!(text.ends_with("\nhint: check the endpoint, the network and any proxy between"), "{text}");
}
