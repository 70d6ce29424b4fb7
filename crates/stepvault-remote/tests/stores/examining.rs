//! What a store is asked beyond objects: whose credentials, which rules.

use std::sync::Arc;

use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::types::{
    AbortIncompleteMultipartUpload, BucketLifecycleConfiguration, ExpirationStatus, LifecycleExpiration,
    LifecycleRule, LifecycleRuleAndOperator, LifecycleRuleFilter, NoncurrentVersionExpiration, Tag,
    Transition, TransitionStorageClass,
};
use stepvault_core::observe::SilentObserver;
use stepvault_core::store_facts::{CredentialSource, Obstacle, Versioning};
use stepvault_remote::examine::{Examined, ListingResult};
use stepvault_remote::open::{OpenOptions, open_to_examine};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3Options;

use crate::support::{BUCKET, Strict, settings};

async fn examined(strict: &Strict) -> Examined {
    let options = OpenOptions { s3_keys: Some(strict.keys()), ..OpenOptions::default() };
    open_to_examine(&strict.settings, Arc::new(SilentObserver), options).await.unwrap()
}

async fn set_rules(strict: &Strict, rules: Vec<LifecycleRule>) {
    let keys = strict.keys();
    let credentials = Credentials::new(keys.access_key, keys.secret_key, None, None, "test");
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(strict.server.endpoint())
        .force_path_style(true)
        .region(Region::new("us-east-1"))
        .credentials_provider(credentials)
        .build();
    let rules = BucketLifecycleConfiguration::builder().set_rules(Some(rules));
    aws_sdk_s3::Client::from_conf(config)
        .put_bucket_lifecycle_configuration()
        .bucket(BUCKET)
        .lifecycle_configuration(rules.build().unwrap())
        .send()
        .await
        .unwrap();
}

fn prefix(prefix: &str) -> LifecycleRuleFilter {
    LifecycleRuleFilter::builder().prefix(prefix).build()
}

#[tokio::test]
async fn rules_are_read_with_what_they_are_for() {
    let strict = Strict::start();
    let examined = examined(&strict).await;
    let facts = examined.bucket().await.unwrap();
    assert_eq!(facts.versioning.unwrap(), Versioning::Off);
    assert_eq!(facts.rules.unwrap(), vec![], "none at all is no error");

    let enabled = LifecycleRule::builder().status(ExpirationStatus::Enabled);
    let abort = AbortIncompleteMultipartUpload::builder().days_after_initiation(5);
    let narrow = LifecycleRuleAndOperator::builder()
        .prefix("vault/")
        .tags(Tag::builder().key("a").value("b").build().unwrap());
    let transition = Transition::builder().days(60).storage_class(TransitionStorageClass::DeepArchive);
    let rules = vec![
        enabled
            .clone()
            .filter(prefix("vault/"))
            .abort_incomplete_multipart_upload(abort.build())
            .build()
            .unwrap(),
        enabled
            .clone()
            .filter(LifecycleRuleFilter::builder().and(narrow.build()).build())
            .expiration(LifecycleExpiration::builder().days(30).build())
            .build()
            .unwrap(),
        enabled
            .filter(prefix(""))
            .noncurrent_version_expiration(NoncurrentVersionExpiration::builder().noncurrent_days(9).build())
            .transitions(transition.build())
            .build()
            .unwrap(),
        LifecycleRule::builder()
            .status(ExpirationStatus::Disabled)
            .filter(prefix("vault/"))
            .expiration(LifecycleExpiration::builder().days(1).build())
            .build()
            .unwrap(),
    ];
    set_rules(&strict, rules).await;
    strict.server.claim_versioning(BUCKET);
    let facts = examined.bucket().await.unwrap();
    assert_eq!(facts.versioning.unwrap(), Versioning::On);
    let rules = facts.rules.unwrap();
    assert_eq!(rules.len(), 3, "one is disabled: {rules:?}");
    assert_eq!(
        (rules[0].prefixes.clone(), rules[0].drops_uploads_after_days),
        (vec!["vault/".to_owned()], Some(5))
    );
    assert_eq!((rules[1].deletes_after_days, rules[1].narrowed), (Some(30), true));
    assert_eq!(rules[1].prefixes, ["vault/"]);
    assert_eq!(rules[2].drops_old_versions_after_days, Some(9));
    assert_eq!(rules[2].archives_after_days, Some(60));
}

#[tokio::test]
async fn a_look_tells_the_stores_clock_also_when_it_is_refused() {
    let strict =
        Strict::start_with(StrictS3Options { clock_ahead_seconds: 7_200, ..StrictS3Options::default() });
    let examined = examined(&strict).await;
    let ahead = |look: &ListingResult| look.store_time.unwrap().duration_since(now()).unwrap().as_secs();
    // Refused once, and signed again by the clock that the refusal told.
    let look = examined.list_one("").await;
    assert!((7_100..=7_200).contains(&ahead(&look)), "{look:?}");
    look.outcome.unwrap();
    strict.inject("GET", "list-type", 1, FaultAction::refuse(403, "RequestTimeTooSkewed"));
    let look = examined.list_one("").await;
    assert!((7_100..=7_200).contains(&ahead(&look)), "{look:?}");
    assert_eq!(look.outcome.unwrap_err().obstacle, Obstacle::Clock);
}

#[allow(clippy::disallowed_methods, reason = "compared with a server's clock, which goes by this one")]
fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

#[tokio::test]
async fn another_region_is_named_by_the_refusal() {
    let strict = Strict::start_with(StrictS3Options {
        only_region: Some("eu-central-1".to_owned()),
        ..StrictS3Options::default()
    });
    let hindered = examined(&strict).await.list_one("").await.outcome.unwrap_err();
    assert_eq!(hindered.obstacle, Obstacle::Region(Some("eu-central-1".to_owned())));
    assert_eq!(hindered.error.hint_text(), Some("set region = \"eu-central-1\" for this remote"));
}

#[tokio::test]
async fn stores_without_credentials_or_rules_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    for url in [url.as_str(), "memory://examined"] {
        let examined =
            open_to_examine(&settings(url), Arc::new(SilentObserver), OpenOptions::default()).await.unwrap();
        assert_eq!(examined.credentials().await.unwrap(), None);
        assert!(examined.bucket().await.is_none());
        let look = examined.list_one("").await;
        assert!(look.outcome.is_ok() && look.store_time.is_none(), "{look:?}");
    }
}

#[tokio::test]
async fn keys_that_were_given_are_named_so() {
    let strict = Strict::start();
    let found = examined(&strict).await.credentials().await.unwrap().unwrap();
    assert_eq!(found.source, CredentialSource::Given);
    assert_eq!((found.expires, found.temporary), (None, false));
}
