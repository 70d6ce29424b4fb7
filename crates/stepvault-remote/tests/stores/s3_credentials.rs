//! What a person reads when keys, bucket, clock or endpoint are wrong.

use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::{OpenOptions, open, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::FaultAction;

use crate::support::{Strict, bytes, create, listed, settings, shown};

#[tokio::test]
async fn wrong_keys() {
    let strict = Strict::start();
    for (keys, kind, wanted) in [
        (
            StaticKeys { secret_key: "wrong".to_owned(), ..strict.keys() },
            ErrorKind::Denied,
            "cannot write the object: s3://checkpoints/vault/a: the secret key does not match the access key \
             (SignatureDoesNotMatch)\n\
             hint: check AWS_SECRET_ACCESS_KEY or the profile for a wrong or truncated secret",
        ),
        (
            StaticKeys { access_key: "AKIAUNKNOWN".to_owned(), ..strict.keys() },
            ErrorKind::Denied,
            "cannot write the object: s3://checkpoints/vault/a: the store does not know this access key \
             (InvalidAccessKeyId: The AWS Access Key Id you provided does not exist in our records)\n\
             hint: check AWS_ACCESS_KEY_ID or the profile, and that they belong to this endpoint",
        ),
    ] {
        let options = OpenOptions { s3_keys: Some(keys), ..OpenOptions::default() };
        let store = open_with(&strict.settings, Arc::new(SilentObserver), options).await.unwrap();
        let error = create(&*store, "a", &bytes(1, 1)).await.unwrap_err();
        assert_eq!(shown(&error), wanted);
        assert_eq!(error.kind(), kind);
    }
    assert_eq!(strict.server.faults().requests().len(), 2, "wrong keys are not retried");
}

#[tokio::test]
async fn a_missing_bucket_is_a_matter_of_configuration() {
    let mut strict = Strict::start();
    strict.settings.url = "s3://elsewhere/vault".parse().unwrap();
    let store = strict.open().await;
    let wanted = "the bucket does not exist (NoSuchBucket: The specified bucket does not exist)\n\
                  hint: create it, or correct the remote's URL";
    let error = create(&*store, "a", &bytes(1, 1)).await.unwrap_err();
    assert_eq!(shown(&error), format!("cannot write the object: s3://elsewhere/vault/a: {wanted}"));
    assert_eq!(error.kind(), ErrorKind::Usage);
    let error = listed(&*store, "").await.unwrap_err();
    assert_eq!(shown(&error), format!("cannot list objects: s3://elsewhere/vault/: {wanted}"));
}

#[tokio::test]
async fn a_wrong_clock_is_said_once() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("PUT", "", u64::MAX, FaultAction::refuse(403, "RequestTimeTooSkewed"));
    let error = create(&*store, "a", &bytes(1, 1)).await.unwrap_err();
    assert_eq!(
        shown(&error),
        "cannot write the object: s3://checkpoints/vault/a: this machine's clock is too far from the store's \
         (RequestTimeTooSkewed: On request)\nhint: set the clock, by NTP if possible"
    );
    assert_eq!(strict.server.faults().requests().len(), 1);
}

#[tokio::test]
async fn expired_credentials_are_read_again() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("PUT", "", 2, FaultAction::refuse(400, "ExpiredToken"));
    create(&*store, "a", &bytes(1, 1)).await.unwrap();
    let retries = strict.listener.retries();
    assert_eq!(retries.len(), 2, "{retries:?}");
    assert_eq!(
        retries[0],
        "archive: cannot write the object: s3://checkpoints/vault/a: the credentials have expired \
         (ExpiredToken: On request)"
    );
}

#[tokio::test]
async fn credentials_that_stay_expired_are_named_at_the_end() {
    let mut strict = Strict::start();
    strict.settings.retry_deadline_seconds = 1;
    let store = strict.open().await;
    strict.inject("PUT", "", u64::MAX, FaultAction::refuse(400, "ExpiredToken"));
    let error = create(&*store, "a", &bytes(1, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let text = shown(&error);
    assert!(
        text.starts_with("the remote does not serve requests: archive (s3://checkpoints/vault): tried "),
        "{text}"
    );
    assert!(
        text.ends_with(
            "hint: renew them (for a profile: `aws sso login`); the next attempt reads them again"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn another_region_is_named() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("GET", "", u64::MAX, FaultAction::refuse(301, "PermanentRedirect"));
    let error = listed(&*store, "").await.unwrap_err();
    assert_eq!(
        shown(&error),
        "cannot list objects: s3://checkpoints/vault/: the bucket is in another region (PermanentRedirect: On \
         request)\nhint: set region for this remote"
    );
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[tokio::test]
async fn plain_http_is_refused_off_this_machine() {
    let mut settings = settings("s3://bucket/prefix");
    settings.endpoint = Some("http://192.0.2.1:9000".to_owned());
    let error = open(&settings, Arc::new(SilentObserver)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(shown(&error).contains("plain HTTP would send the data unencrypted"), "{error}");
    settings.allow_http = true;
    open(&settings, Arc::new(SilentObserver)).await.unwrap();
}
