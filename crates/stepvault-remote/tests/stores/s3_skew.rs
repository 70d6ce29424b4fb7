//! A clock that is off: the first request is sent once more by the store's time, and no refusal is repeated for ever.

use stepvault_core::ErrorKind;
use stepvault_core::digest::DigestAlgorithm;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3Options;

use crate::support::{File, Strict, bytes, create, listed, read, shown};

fn off_by(clock_ahead_seconds: i64) -> Strict {
    Strict::start_with(StrictS3Options { clock_ahead_seconds, ..StrictS3Options::default() })
}

/// How many requests of this method have come.
fn came(strict: &Strict, method: &str) -> usize {
    let requests = strict.server.faults().requests();
    requests.iter().filter(|request| request.method == method).count()
}

#[tokio::test]
async fn with_a_clock_that_is_off_only_the_first_request_is_sent_twice() {
    for gap in [3_600, -3_600] {
        let strict = off_by(gap);
        let store = strict.open_bare().await;
        // The answer to a HEAD has no code that would tell why it is refused.
        assert_eq!(store.head("a").await.unwrap(), None, "{gap}");
        assert_eq!(came(&strict, "HEAD"), 2, "{gap}");
        let body = bytes(300 << 10, 1);
        create(&*store, "a", &body).await.unwrap();
        assert_eq!(came(&strict, "PUT"), 1, "the clock is known by now: {gap}");
        assert_eq!(read(&*store, "a", None).await.unwrap(), body);
        assert_eq!(listed(&*store, "").await.unwrap(), ["a"]);
        assert_eq!(came(&strict, "GET"), 2, "{gap}");
    }
}

#[tokio::test]
async fn a_body_is_sent_again_whole() {
    for length in [1, (8 << 20) + 1] {
        let strict = off_by(3_600);
        let store = strict.open_bare().await;
        let file = File::new(length, 2);
        if length == 1 {
            create(&*store, "a", &file.bytes).await.unwrap();
            assert_eq!(came(&strict, "PUT"), 2);
        } else {
            // Begun by another process: a part is the first request of this one.
            let upload = {
                let other = strict.open_bare().await;
                other.start_upload("a", file.digest.size_bytes, DigestAlgorithm::Sha256).await.unwrap()
            };
            let receipts = file.send(&*store, "a", &upload).await.unwrap();
            assert_eq!(came(&strict, "PUT"), file.parts.len() + 1);
            store.complete_upload("a", &upload, &receipts, &file.digest).await.unwrap();
        }
        assert_eq!(read(&*store, "a", None).await.unwrap(), file.bytes);
    }
}

#[tokio::test]
async fn a_skew_that_no_signature_heals_is_one_clear_error() {
    let strict = off_by(3_600);
    let refusal = FaultAction::refuse(403, "RequestTimeTooSkewed");
    strict.inject("PUT", "", u64::MAX, refusal);
    // With the retries of every remote above it.
    let store = strict.open().await;
    for (tries, when) in [(2, "first"), (3, "once the clock is known")] {
        let error = create(&*store, "a", &bytes(1, 1)).await.unwrap_err();
        assert_eq!(
            shown(&error),
            "cannot write the object: s3://checkpoints/vault/a: this machine's clock is too far from the store's \
             (RequestTimeTooSkewed: On request)\nhint: set the clock, by NTP if possible"
        );
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!error.is_transient());
        assert_eq!(strict.server.faults().requests().len(), tries, "{when}");
    }
    assert_eq!(strict.listener.retries(), Vec::<String>::new());
}

#[tokio::test]
async fn nothing_else_is_sent_a_second_time() {
    for (status, code) in
        [(403, "AccessDenied"), (500, "InternalError"), (503, "SlowDown"), (400, "ExpiredToken")]
    {
        let strict = Strict::start();
        let store = strict.open_bare().await;
        strict.inject("GET", "", u64::MAX, FaultAction::refuse(status, code));
        listed(&*store, "").await.unwrap_err();
        assert_eq!(strict.server.faults().requests().len(), 1, "{code}");
        strict.server.faults().clear();
        strict.inject("GET", "", u64::MAX, FaultAction::Reset);
        listed(&*store, "").await.unwrap_err();
        assert_eq!(strict.server.faults().requests().len(), 2, "{code}");
    }
}
