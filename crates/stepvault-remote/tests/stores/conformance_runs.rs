//! The conformance suite against each kind of store.

use std::sync::Arc;

use stepvault_core::observe::SilentObserver;
use stepvault_core::remote_settings::Transport;
use stepvault_remote::open::open;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::ArchivePlace;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{EmbeddedS3Fs, StrictS3Options};

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
    let strict =
        Strict::start_with(StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() });
    // Which bytes it copied shows when the object is read back.
    let skipped = ["copied_parts_are_what_was_asked_for"];
    conformance::run(strict.open().await, &skipped).await;
}

/// A second opinion on requests and preconditions from a server that is not ours.
#[tokio::test]
async fn s3_on_s3s_fs() {
    let server = EmbeddedS3Fs::start();
    server.create_bucket("checkpoints");
    let mut settings = settings("s3://checkpoints/vault");
    settings.endpoint = Some(server.endpoint());
    let keys =
        StaticKeys { access_key: server.access_key().to_owned(), secret_key: server.secret_key().to_owned() };
    let options = OpenOptions { s3_keys: Some(keys), ..OpenOptions::default() };
    let store = open_with(&settings, Arc::new(SilentObserver), options).await.unwrap();
    // It keeps an object that it refused, denies what it does not know, lets racing creates all through, and returns no
    // checksums of copied parts.
    let skipped = [
        "copied_parts_are_what_was_asked_for",
        "wrong_digests_are_refused",
        "an_aborted_upload_leaves_nothing",
        "of_racing_creates_one_wins",
    ];
    conformance::run(store, &skipped).await;
}

#[tokio::test]
async fn gcs_on_the_strict_server() {
    for transport in [Transport::Xml, Transport::Json] {
        let server = StrictGcs::start();
        server.create_bucket("checkpoints");
        let mut settings = settings("gs://checkpoints/vault");
        settings.endpoint = Some(server.endpoint());
        settings.transport = transport;
        let store = open(&settings, Arc::new(SilentObserver)).await.unwrap();
        conformance::run(store, &[]).await;
    }
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
    store.begin(ArchivePlace::Anywhere).await.unwrap();
    conformance::run(store, &[]).await;
}
