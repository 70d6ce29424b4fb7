//! Lies of stores, found out.

use std::collections::BTreeMap;
use std::sync::Arc;

use stepvault_core::digest::DigestAlgorithm;
use stepvault_core::ids::RunName;
use stepvault_core::keys::RunKeys;
use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::probe::{StoreGuarantees, probe};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::{ArchivePlace, Created};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{EmbeddedS3Fs, StrictS3Options};

use crate::support::{File, Strict, bytes, create, listed, settings};

fn keys() -> RunKeys {
    RunKeys::new(RunName::new("run").unwrap())
}

const HONEST: StoreGuarantees = StoreGuarantees {
    algorithm: DigestAlgorithm::Sha256,
    checks_record_checksums: true,
    checks_object_checksums: true,
    checks_part_checksums: true,
    returns_checksums: true,
    honours_create_only: true,
    completes_create_only: true,
    ignored_attributes: Vec::new(),
    cleaned_up: true,
};

async fn probed(options: StrictS3Options) -> StoreGuarantees {
    let strict = Strict::start_with(options);
    let store = strict.open().await;
    let trust = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    let by_blake3 = probe(&*store, &keys(), DigestAlgorithm::Blake3).await.unwrap();
    assert_eq!(by_blake3, StoreGuarantees { algorithm: DigestAlgorithm::Blake3, ..trust.clone() });
    assert_eq!(strict.server.objects().keys(), Vec::<String>::new());
    assert_eq!(strict.server.pending_uploads(), vec![]);
    trust
}

#[tokio::test]
async fn an_honest_store_is_trusted() {
    assert_eq!(probed(StrictS3Options::default()).await, HONEST);
}

#[tokio::test]
async fn whatever_code_a_wrong_checksum_is_refused_with_it_is_refused() {
    for (status, code) in [(400, "InvalidDigest"), (400, "InvalidRequest"), (422, "Unprocessable")] {
        let strict = Strict::start();
        for key in ["-wrong", "-parts?partNumber"] {
            strict.inject("PUT", key, 1, FaultAction::refuse(status, code));
        }
        let trust = probe(&*strict.open().await, &keys(), DigestAlgorithm::Sha256).await.unwrap();
        assert_eq!(trust, HONEST, "{code}");
    }
}

#[tokio::test]
async fn a_store_that_takes_any_checksum_is_found_out() {
    let trust = probed(StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() }).await;
    assert_eq!(
        trust,
        StoreGuarantees {
            checks_object_checksums: false,
            checks_record_checksums: false,
            checks_part_checksums: false,
            ..HONEST
        }
    );
}

#[tokio::test]
async fn a_store_that_tells_no_checksum_is_found_out() {
    let trust = probed(StrictS3Options { no_checksum_answers: true, ..StrictS3Options::default() }).await;
    assert_eq!(trust, StoreGuarantees { returns_checksums: false, ..HONEST });
}

#[tokio::test]
async fn a_store_that_overwrites_is_found_out() {
    let trust = probed(StrictS3Options { ignore_create_only: true, ..StrictS3Options::default() }).await;
    assert_eq!(trust, StoreGuarantees { honours_create_only: false, completes_create_only: false, ..HONEST });
}

#[tokio::test]
async fn a_store_that_refuses_conditions_is_asked_for_the_key_before() {
    let options = StrictS3Options { refuse_create_only: true, ..StrictS3Options::default() };
    assert_eq!(
        probed(options.clone()).await,
        StoreGuarantees { honours_create_only: false, completes_create_only: false, ..HONEST }
    );
    let strict = Strict::start_with(options);
    let store = strict.open().await;
    let (first, second) = (File::new(100, 1), File::new((8 << 20) + 1, 2));
    for file in [&first, &second] {
        for key in ["whole", "parts"] {
            let _ = store.delete(&[key.to_owned()]).await;
        }
        assert!(matches!(create(&*store, "whole", &bytes(1, 100)).await.unwrap(), Created::Written(_)));
        assert_eq!(create(&*store, "whole", &bytes(2, 100)).await.unwrap(), Created::Exists);
        file.upload(&*store, "parts").await.unwrap();
    }
    // Only the first write is sent with the condition, and then without it.
    let requests = strict.server.faults().requests();
    let refused = requests.iter().filter(|one| one.method == "PUT" && one.path.contains("/whole?"));
    assert_eq!(refused.count(), 3, "{requests:?}");
}

#[tokio::test]
async fn a_store_that_completes_over_objects_is_found_out() {
    let trust =
        probed(StrictS3Options { ignore_completion_conditions: true, ..StrictS3Options::default() }).await;
    assert_eq!(trust, StoreGuarantees { completes_create_only: false, ..HONEST });
}

#[tokio::test]
async fn credentials_that_may_not_delete_suffice() {
    let strict = Strict::start();
    let denied = FaultAction::refuse(403, "AccessDenied");
    strict.inject("DELETE", "", u64::MAX, denied.clone());
    strict.inject("POST", "?delete", u64::MAX, denied);
    let trust = probe(&*strict.open().await, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    assert_eq!(trust, StoreGuarantees { ignored_attributes: Vec::new(), cleaned_up: false, ..HONEST });
    let left = strict.server.objects().keys();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.iter().all(|key| key.starts_with("checkpoints/vault/run/.stepvault/probes/")), "{left:?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_asked_is_an_error_and_no_verdict() {
    let strict = Strict::start();
    let denied = FaultAction::refuse(403, "AccessDenied");
    strict.inject("PUT", "", u64::MAX, denied);
    probe(&*strict.open().await, &keys(), DigestAlgorithm::Sha256).await.unwrap_err();
}

#[tokio::test]
async fn other_kinds_of_store() {
    let directory = tempfile::tempdir().unwrap();
    let gcs = StrictGcs::start();
    gcs.create_bucket("checkpoints");
    let mut gcs_settings = settings("gs://checkpoints/vault");
    gcs_settings.endpoint = Some(gcs.endpoint());
    let fs = EmbeddedS3Fs::start();
    fs.create_bucket("checkpoints");
    let mut fs_settings = settings("s3://checkpoints/vault");
    fs_settings.endpoint = Some(fs.endpoint());
    let keys = StaticKeys { access_key: fs.access_key().to_owned(), secret_key: fs.secret_key().to_owned() };
    let unchecked = StoreGuarantees {
        checks_object_checksums: false,
        checks_record_checksums: false,
        checks_part_checksums: false,
        returns_checksums: false,
        ..HONEST
    };
    for (settings, wanted) in [
        (gcs_settings, HONEST),
        (fs_settings, unchecked.clone()),
        (settings("memory://probed/vault"), unchecked.clone()),
        (settings(&format!("file://{}/vault", directory.path().display())), unchecked),
    ] {
        let options = OpenOptions { s3_keys: Some(keys.clone()), ..OpenOptions::default() };
        let store = open_with(&settings, Arc::new(SilentObserver), options).await.unwrap();
        store.begin(ArchivePlace::Anywhere).await.unwrap();
        assert_eq!(
            probe(&*store, &self::keys(), DigestAlgorithm::Sha256).await.unwrap(),
            wanted,
            "{}",
            settings.url
        );
        assert_eq!(listed(&*store, "").await.unwrap(), Vec::<String>::new(), "{}", settings.url);
    }
}

#[tokio::test]
async fn a_store_that_knows_no_checksums_is_sent_none() {
    let options = StrictS3Options { refuse_checksums: true, ..StrictS3Options::default() };
    let strict = Strict::start_with(options);
    let store = strict.open().await;
    // Many at once: all are under way when the first refusal arrives.
    let file = |number: u64| File::new(20 << 20, number);
    let files: Vec<File> = (0..4).map(file).collect();
    let uploads = files.iter().zip(["a", "b", "c", "d"]);
    futures::future::try_join_all(uploads.map(|(file, key)| file.upload(&*store, key))).await.unwrap();
    assert!(!store.capabilities().checks_checksums);
    let trust = probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    let unchecked = StoreGuarantees {
        checks_object_checksums: false,
        checks_record_checksums: false,
        checks_part_checksums: false,
        returns_checksums: false,
        ..HONEST
    };
    assert_eq!(trust, unchecked);
    // Where a HEAD comes first, the refusal has no words.
    let reader = strict.open().await;
    assert!(reader.head("a").await.unwrap().is_some());
    assert!(!reader.capabilities().checks_checksums);
}

#[tokio::test]
async fn a_wrong_checksum_or_an_expired_token_is_no_reason_to_send_none() {
    let strict = Strict::start();
    let store = strict.open().await;
    strict.inject("HEAD", "a", 2, FaultAction::refuse(400, ""));
    store.head("a").await.unwrap_err();
    let wrong = FaultAction::refuse(400, "BadDigest");
    strict.inject("PUT", "a", 1, wrong);
    create(&*store, "a", &bytes(10, 1)).await.unwrap_err();
    assert!(store.capabilities().checks_checksums);
}

/// A server with all attributes requested that it says what they became.
async fn with_attributes(options: StrictS3Options) -> StoreGuarantees {
    let mut strict = Strict::start_with(options);
    strict.settings.storage_class = Some("GLACIER".to_owned());
    strict.settings.server_side_encryption = Some("aws:kms".to_owned());
    strict.settings.kms_key = Some("alias/checkpoints".to_owned());
    strict.settings.tags = BTreeMap::from([("team".to_owned(), "pre training&co".to_owned())]);
    strict.settings.expected_bucket_owner = Some("111122223333".to_owned());
    let guarantees = probe(&*strict.open().await, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    assert_eq!(strict.server.objects().keys(), Vec::<String>::new());
    guarantees
}

#[tokio::test]
async fn a_store_that_keeps_what_was_asked_for_is_trusted() {
    assert_eq!(with_attributes(StrictS3Options::default()).await, HONEST);
}

#[tokio::test]
async fn a_store_that_ignores_what_was_asked_for_is_found_out() {
    let options = StrictS3Options { ignores_attributes: true, ..StrictS3Options::default() };
    let ignored = with_attributes(options).await.ignored_attributes;
    let said: Vec<String> = ignored.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "server-side-encryption = \"aws:kms\" is ignored: the store reports \"AES256\"",
            "kms-key = \"alias/checkpoints\" is ignored: the store reports none",
            "storage-class = \"GLACIER\" is ignored: the store reports none",
            "tags = \"team=pre training&co\" is ignored: the store reports none",
            "expected-bucket-owner = \"111122223333\" is ignored: the store reports \"any account\"",
        ]
    );
}

#[tokio::test]
async fn an_identity_that_may_not_read_tags_may_write() {
    let mut strict = Strict::start();
    strict.settings.tags = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    strict.inject("GET", "tagging", 1, FaultAction::refuse(403, "AccessDenied"));
    let trust = probe(&*strict.open().await, &keys(), DigestAlgorithm::Sha256).await.unwrap();
    assert_eq!(trust, HONEST);
}

#[tokio::test]
async fn googles_metadata_shows_what_was_ignored() {
    let server = StrictGcs::start();
    server.create_bucket("checkpoints");
    let mut settings = settings("gs://checkpoints/vault");
    settings.endpoint = Some(server.endpoint());
    settings.storage_class = Some("NEARLINE".to_owned());
    settings.kms_key = Some("projects/p/locations/eu/keyRings/r/cryptoKeys/k".to_owned());
    let store = open_with(&settings, Arc::new(SilentObserver), OpenOptions::default()).await.unwrap();
    assert_eq!(probe(&*store, &keys(), DigestAlgorithm::Sha256).await.unwrap(), HONEST);
    create(&*store, "a", &bytes(10, 1)).await.unwrap();
    assert_eq!(store.ignored_attributes("a").await.unwrap(), []);
    server.objects().with(|table| {
        let object = table.get_mut("checkpoints/vault/a").unwrap();
        object.attributes.retain(|name, _| !name.starts_with("x-goog-"));
    });
    let ignored = store.ignored_attributes("a").await.unwrap();
    let settings: Vec<&str> = ignored.iter().map(|ignored| ignored.setting).collect();
    assert_eq!(settings, ["storage-class", "kms-key"]);
}
