//! Lies of stores, found out.

use std::sync::Arc;

use stepvault_core::ids::RunName;
use stepvault_core::keys::RunKeys;
use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::{OpenOptions, open_with};
use stepvault_remote::probe::{StoreGuarantees, probe};
use stepvault_remote::s3::StaticKeys;
use stepvault_remote::store::Created;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::StrictGcs;
use stepvault_testkit::s3::{EmbeddedS3Fs, StrictS3Options};

use crate::support::{File, Strict, bytes, create, listed, settings};

fn keys() -> RunKeys {
    RunKeys::new(RunName::new("run").unwrap())
}

const HONEST: StoreGuarantees = StoreGuarantees {
    checks_object_checksums: true,
    checks_part_checksums: true,
    returns_checksums: true,
    honours_create_only: true,
    completes_create_only: true,
    cleaned_up: true,
};

async fn probed(options: StrictS3Options) -> StoreGuarantees {
    let strict = Strict::start_with(options);
    let trust = probe(&*strict.open().await, &keys()).await.unwrap();
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
    for (status, code) in [
        (400, "InvalidDigest"),
        (400, "InvalidRequest"),
        (422, "Unprocessable"),
    ] {
        let strict = Strict::start();
        for key in ["-wrong", "-parts?partNumber"] {
            strict.inject("PUT", key, 1, FaultAction::refuse(status, code));
        }
        let trust = probe(&*strict.open().await, &keys()).await.unwrap();
        assert_eq!(trust, HONEST, "{code}");
    }
}

#[tokio::test]
async fn a_store_that_takes_any_checksum_is_found_out() {
    let trust = probed(StrictS3Options {
        accept_wrong_checksums: true,
        ..StrictS3Options::default()
    })
    .await;
    assert_eq!(
        trust,
        StoreGuarantees {
            checks_object_checksums: false,
            checks_part_checksums: false,
            ..HONEST
        }
    );
}

#[tokio::test]
async fn a_store_that_tells_no_checksum_is_found_out() {
    let trust = probed(StrictS3Options {
        no_checksum_answers: true,
        ..StrictS3Options::default()
    })
    .await;
    assert_eq!(
        trust,
        StoreGuarantees {
            returns_checksums: false,
            ..HONEST
        }
    );
}

#[tokio::test]
async fn a_store_that_overwrites_is_found_out() {
    let trust = probed(StrictS3Options {
        ignore_create_only: true,
        ..StrictS3Options::default()
    })
    .await;
    assert_eq!(
        trust,
        StoreGuarantees {
            honours_create_only: false,
            completes_create_only: false,
            ..HONEST
        }
    );
}

#[tokio::test]
async fn a_store_that_refuses_conditions_is_asked_for_the_key_before() {
    let options = StrictS3Options {
        refuse_create_only: true,
        ..StrictS3Options::default()
    };
    assert_eq!(
        probed(options.clone()).await,
        StoreGuarantees {
            honours_create_only: false,
            completes_create_only: false,
            ..HONEST
        }
    );
    let strict = Strict::start_with(options);
    let store = strict.open().await;
    let (first, second) = (File::new(100, 1), File::new((8 << 20) + 1, 2));
    for file in [&first, &second] {
        for key in ["whole", "parts"] {
            let _ = store.delete(&[key.to_owned()]).await;
        }
        assert!(matches!(
            create(&*store, "whole", &bytes(1, 100)).await.unwrap(),
            Created::Written(_)
        ));
        assert_eq!(
            create(&*store, "whole", &bytes(2, 100)).await.unwrap(),
            Created::Exists
        );
        file.upload(&*store, "parts").await.unwrap();
    }
    // Only the first write is sent with the condition, and then without it.
    let requests = strict.server.faults().requests();
    let refused = requests
        .iter()
        .filter(|one| one.method == "PUT" && one.path.contains("/whole?"));
    assert_eq!(refused.count(), 3, "{requests:?}");
}

#[tokio::test]
async fn a_store_that_completes_over_objects_is_found_out() {
    let trust = probed(StrictS3Options {
        ignore_completion_conditions: true,
        ..StrictS3Options::default()
    })
    .await;
    assert_eq!(
        trust,
        StoreGuarantees {
            completes_create_only: false,
            ..HONEST
        }
    );
}

#[tokio::test]
async fn credentials_that_may_not_delete_suffice() {
    let strict = Strict::start();
    let denied = FaultAction::refuse(403, "AccessDenied");
    strict.inject("DELETE", "", u64::MAX, denied.clone());
    strict.inject("POST", "?delete", u64::MAX, denied);
    let trust = probe(&*strict.open().await, &keys()).await.unwrap();
    assert_eq!(
        trust,
        StoreGuarantees {
            cleaned_up: false,
            ..HONEST
        }
    );
    let left = strict.server.objects().keys();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left.iter()
            .all(|key| key.starts_with("checkpoints/vault/run/.stepvault/probes/")),
        "{left:?}"
    );
}

#[tokio::test]
async fn a_store_that_cannot_be_asked_is_an_error_and_no_verdict() {
    let strict = Strict::start();
    let denied = FaultAction::refuse(403, "AccessDenied");
    strict.inject("PUT", "", u64::MAX, denied);
    probe(&*strict.open().await, &keys()).await.unwrap_err();
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
    let keys = StaticKeys {
        access_key: fs.access_key().to_owned(),
        secret_key: fs.secret_key().to_owned(),
    };
    let unchecked = StoreGuarantees {
        checks_object_checksums: false,
        checks_part_checksums: false,
        returns_checksums: false,
        ..HONEST
    };
    for (settings, wanted) in [
        (gcs_settings, HONEST),
        (fs_settings, unchecked),
        (settings("memory://probed/vault"), unchecked),
        (
            settings(&format!("file://{}/vault", directory.path().display())),
            unchecked,
        ),
    ] {
        let options = OpenOptions {
            s3_keys: Some(keys.clone()),
        };
        let store = open_with(&settings, Arc::new(SilentObserver), options)
            .await
            .unwrap();
        store.begin().await.unwrap();
        assert_eq!(
            probe(&*store, &self::keys()).await.unwrap(),
            wanted,
            "{}",
            settings.url
        );
        assert_eq!(
            listed(&*store, "").await.unwrap(),
            Vec::<String>::new(),
            "{}",
            settings.url
        );
    }
}
