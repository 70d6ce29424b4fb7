//! The conformance suite against each kind of store.

use std::sync::Arc;

use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::open;
use stepvault_testkit::s3::StrictS3Options;

use crate::conformance;
use crate::support::{Strict, settings};

#[tokio::test]
async fn s3_on_the_strict_server() {
    let strict = Strict::start();
    conformance::run(strict.open().await, &[]).await;
    assert_eq!(strict.listener.retries(), Vec::<String>::new());
}

#[tokio::test]
async fn s3_without_decorators_and_with_small_pages() {
    let strict = Strict::start_with(StrictS3Options { max_keys: 7, ..StrictS3Options::default() });
    conformance::run(strict.open_bare().await, &[]).await;
}

#[tokio::test]
async fn s3_on_a_server_that_tells_no_checksums() {
    let strict = Strict::start_with(StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() });
    conformance::run(strict.open().await, &[]).await;
}

#[tokio::test]
async fn memory() {
    let store = open(&settings("memory://conformance/vault"), Arc::new(SilentObserver)).await.unwrap();
    conformance::run(store, &[]).await;
}

#[tokio::test]
async fn file() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/vault", directory.path().display());
    let store = open(&settings(&url), Arc::new(SilentObserver)).await.unwrap();
    conformance::run(store, &[]).await;
}
