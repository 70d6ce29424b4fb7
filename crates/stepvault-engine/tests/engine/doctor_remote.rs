//! Remotes examined before training: an honest store passes, and each fault has its own line and remedy.

use std::time::{Duration, Instant};

use stepvault_core::ids::RemoteName;
use stepvault_core::keys::RunKeys;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_diagnose::doctor::{Finding, Outcome};
use stepvault_engine::doctor::left_uploads::GcCommand;
use stepvault_engine::doctor::remote::{RemoteReport, RemoteToCheck, check_remote};
use stepvault_local::clock::SystemClock;
use stepvault_remote::open::OpenOptions;
use stepvault_remote::s3::StaticKeys;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::gcs::{StrictGcs, StrictGcsOptions};
use stepvault_testkit::peers::{FakeGcs, Moto};
use stepvault_testkit::s3::{EmbeddedS3Fs, StrictS3, StrictS3Options};
use stepvault_testkit::serve::ServerHandle;

use crate::harness::run_name;

fn settings(url: &str, endpoint: &str) -> RemoteSettings {
    let mut settings = RemoteSettings::new(RemoteName::new("main").unwrap(), url.parse().unwrap());
    settings.endpoint = (!endpoint.is_empty()).then(|| endpoint.to_owned());
    settings.stall_timeout_seconds = 2;
    settings.retry_deadline_seconds = 2;
    settings
}

async fn examine(settings: &RemoteSettings, access_key: &str, secret_key: &str) -> RemoteReport {
    let options = OpenOptions {
        s3_keys: Some(StaticKeys { access_key: access_key.to_owned(), secret_key: secret_key.to_owned() }),
        ..OpenOptions::default()
    };
    let keys = RunKeys::new(run_name());
    let run = GcCommand { keys: Some(keys.clone()), command: GC_COMMAND.to_owned() };
    let check = RemoteToCheck {
        settings,
        keys: &keys,
        digest: stepvault_core::digest::DigestAlgorithm::Sha256,
        runs: &[run],
    };
    check_remote(check, &SystemClock, options).await
}

const GC_COMMAND: &str = "stepvault gc --run grpo/checkpoints --remote main";

/// A strict server with a bucket.
fn strict(options: StrictS3Options) -> StrictS3 {
    let server = StrictS3::start_with(options);
    server.create_bucket("bucket");
    server
}

async fn examine_s3(server: &StrictS3) -> RemoteReport {
    let settings = settings("s3://bucket/pre fix", &server.endpoint());
    examine(&settings, server.access_key(), server.secret_key()).await
}

fn refuse(code: &str) -> FaultAction {
    FaultAction::refuse(403, code)
}

fn find<'a>(report: &'a RemoteReport, check: &str) -> &'a Finding {
    let mut found = report.findings.iter().filter(|finding| finding.check == check);
    let first = found.next().unwrap_or_else(|| panic!("no {check}: {report:#?}"));
    assert_eq!(found.next(), None, "{check} was said twice");
    assert_eq!(first.subject, "main");
    first
}

/// What did not pass.
fn troubles(report: &RemoteReport) -> Vec<(&str, Outcome)> {
    report
        .findings
        .iter()
        .filter(|finding| finding.outcome != Outcome::Pass)
        .map(|finding| (finding.check, finding.outcome))
        .collect()
}

fn assert_nothing_left(server: &StrictS3) {
    assert_eq!(server.objects().keys(), Vec::<String>::new());
    assert_eq!(server.pending_uploads(), vec![]);
}

const EVERY_CHECK: [&str; 19] = [
    "credentials",
    "clock",
    "bucket",
    "leftovers",
    "put",
    "conditional create",
    "get",
    "list",
    "names",
    "checksum rejection",
    "multipart upload",
    "unfinished uploads",
    "multipart abort",
    "delete",
    "batch delete",
    "versioning",
    "abandoned uploads",
    "latency",
    "upload rate",
];
/// The one thing that a bucket without rules is warned of.
const NO_RULE: (&str, Outcome) = ("abandoned uploads", Outcome::Warn);

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_store_passes_every_check_and_nothing_is_left() {
    let server = strict(StrictS3Options::default());
    let report = examine_s3(&server).await;
    let checks: Vec<&str> = report.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(checks[..19], EVERY_CHECK);
    assert_eq!(checks[19..], ["download rate"]);
    // How fast this machine is at the moment is not what is tested.
    let troubles: Vec<_> = troubles(&report)
        .into_iter()
        .filter(|(check, _)| !["latency", "upload rate", "download rate"].contains(check))
        .collect();
    assert_eq!(troubles, [NO_RULE]);
    assert!(report.rates.up_bytes_per_second.unwrap() > 0);
    assert!(report.rates.down_bytes_per_second.unwrap() > 0);
    assert!(report.rates.latency_milliseconds.is_some());
    assert_eq!(find(&report, "credentials").measured, "given directly");
    assert_eq!(find(&report, "bucket").measured, "s3://bucket/pre fix was listed");
    assert!(find(&report, "upload rate").measured.contains("10 GiB take"));
    assert_nothing_left(&server);
    // What was written stood under the probe's own keys, and nowhere else.
    for request in server.faults().requests() {
        let writes = request.method == "PUT" || request.method == "POST" && request.path.contains("?uploads");
        assert!(!writes || request.path.contains("/.stepvault/probes/"), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_said_once_and_not_repeated() {
    let server = strict(StrictS3Options::default());
    let settings = settings("s3://bucket/prefix", &server.endpoint());
    let report = examine(&settings, server.access_key(), "another-secret").await;
    assert_eq!(troubles(&report), [("credentials", Outcome::Fail)]);
    let finding = find(&report, "credentials");
    assert_eq!(
        finding.measured,
        "given directly; cannot list objects: s3://bucket/prefix/grpo/checkpoints/: the secret key does \
         not match the access key (SignatureDoesNotMatch)"
    );
    assert_eq!(
        finding.remedy.as_deref(),
        Some("check AWS_SECRET_ACCESS_KEY or the profile for a wrong or truncated secret")
    );
    assert_eq!(server.faults().requests().len(), 1);
    let report = examine(&settings, "AKIAUNKNOWN", server.secret_key()).await;
    let finding = find(&report, "credentials");
    assert!(finding.measured.contains("the store does not know this access key"), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_a_missing_right_and_another_region_are_told_apart() {
    let server = strict(StrictS3Options::default());
    let elsewhere = settings("s3://elsewhere/prefix", &server.endpoint());
    let report = examine(&elsewhere, server.access_key(), server.secret_key()).await;
    let finding = find(&report, "bucket");
    assert!(finding.measured.contains("the bucket does not exist (NoSuchBucket"), "{finding:?}");
    assert_eq!(finding.remedy.as_deref(), Some("create it, or correct the remote's URL"));
    assert_eq!(troubles(&report), [("bucket", Outcome::Fail)]);

    server.faults().inject("GET", "list-type", u64::MAX, refuse("AccessDenied"));
    let report = examine_s3(&server).await;
    assert_eq!(troubles(&report), [("rights", Outcome::Fail)]);
    let remedy = find(&report, "rights").remedy.as_deref().unwrap();
    assert!(remedy.starts_with("allow s3:ListBucket on arn:aws:s3:::bucket"), "{remedy}");

    let server = strict(StrictS3Options {
        only_region: Some("eu-central-1".to_owned()),
        ..StrictS3Options::default()
    });
    let report = examine_s3(&server).await;
    assert_eq!(troubles(&report), [("region", Outcome::Fail)]);
    assert_eq!(
        find(&report, "region").remedy.as_deref(),
        Some("set it: [remote.main] region = \"eu-central-1\"")
    );
    let mut right = settings("s3://bucket/prefix", &server.endpoint());
    right.region = Some("eu-central-1".to_owned());
    let report = examine(&right, server.access_key(), server.secret_key()).await;
    assert_eq!(find(&report, "bucket").outcome, Outcome::Pass);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_used_are_named() {
    let plain = settings("s3://bucket/prefix", "http://192.0.2.1:9000");
    let report = examine(&plain, "AKIA", "secret").await;
    assert_eq!(report.findings.len(), 1, "{report:#?}");
    let finding = find(&report, "settings");
    assert_eq!(finding.outcome, Outcome::Fail);
    assert!(finding.measured.contains("plain HTTP would send the data unencrypted"), "{finding:?}");
    assert!(finding.remedy.as_ref().unwrap().contains("https://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_never_answers_is_given_up_within_its_time() {
    let silent = ServerHandle::start(|listener| async move {
        let mut connections = Vec::new();
        while let Ok(connection) = listener.accept().await {
            connections.push(connection);
        }
    })
    .unwrap();
    let began = Instant::now();
    for url in ["s3://bucket/prefix", "gs://bucket/prefix"] {
        let report = examine(&settings(url, &silent.endpoint()), "AKIA", "secret").await;
        assert_eq!(troubles(&report), [("network", Outcome::Fail)], "{url}");
        let finding = find(&report, "network");
        assert!(finding.measured.contains(" seconds (tried for "), "{finding:?}");
        assert!(finding.remedy.as_ref().unwrap().contains("network"), "{finding:?}");
    }
    // The deadline is the promise: 2 seconds of silence each, with room for a machine under load.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_where_nobody_listens_is_a_fault_of_the_network() {
    let endpoint = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let report = examine(&settings("s3://bucket/prefix", &endpoint), "AKIA", "secret").await;
    assert_eq!(troubles(&report), [("network", Outcome::Fail)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_off_by_an_hour_fails_with_the_gap_and_one_off_by_minutes_warns() {
    let server = strict(StrictS3Options { clock_ahead_seconds: 3_600, ..StrictS3Options::default() });
    let report = examine_s3(&server).await;
    let finding = find(&report, "clock");
    assert_eq!(finding.outcome, Outcome::Fail);
    // The hour, less what passed while it was asked.
    let gap = finding.measured.strip_prefix("the store's clock is ").unwrap();
    assert!(gap.starts_with("1h ") || gap.starts_with("59m "), "{finding:?}");
    assert!(
        gap.ends_with(
            "ahead of this machine's: the store refuses requests when they differ by 15 minutes or more; stepvault \
             signs again by the store's clock, but other programs may not"
        ),
        "{finding:?}"
    );
    assert_eq!(finding.remedy.as_deref(), Some("set this machine's clock, by NTP if possible"));
    for check in ["bucket", "put", "multipart upload", "delete"] {
        assert_eq!(find(&report, check).outcome, Outcome::Pass, "{check}: all the rest is tried");
    }
    assert_nothing_left(&server);

    // A store that refuses the other signature too: one line, and no third request.
    server.faults().inject("GET", "list-type", u64::MAX, refuse("RequestTimeTooSkewed"));
    server.faults().clear_requests();
    let report = examine_s3(&server).await;
    assert_eq!(troubles(&report), [("clock", Outcome::Fail)]);
    let finding = find(&report, "clock");
    let (gap, refusal) = finding.measured.split_once("; cannot list objects").unwrap();
    assert!(gap.contains("ahead of this machine's: the store refuses requests"), "{gap}");
    assert!(refusal.contains("(RequestTimeTooSkewed: "), "{refusal}");
    assert_eq!(finding.remedy.as_deref(), Some("set the clock, by NTP if possible"));
    assert_eq!(server.faults().requests().len(), 2);

    let server = strict(StrictS3Options { clock_ahead_seconds: -300, ..StrictS3Options::default() });
    let report = examine_s3(&server).await;
    let finding = find(&report, "clock");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(finding.measured.contains("behind this machine's"), "{finding:?}");
    assert_eq!(find(&report, "delete").outcome, Outcome::Pass, "all the rest is tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_do_not_keep_their_word_are_warned_of() {
    let server = strict(StrictS3Options { accept_wrong_checksums: true, ..StrictS3Options::default() });
    let report = examine_s3(&server).await;
    let finding = find(&report, "checksum rejection");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(
        finding
            .measured
            .starts_with("the store accepted bytes that do not match the checksum sent with them"),
        "{finding:?}"
    );
    assert_nothing_left(&server);

    let server = strict(StrictS3Options { ignore_create_only: true, ..StrictS3Options::default() });
    let report = examine_s3(&server).await;
    assert_eq!(find(&report, "conditional create").outcome, Outcome::Warn);
    assert_eq!(find(&report, "get").outcome, Outcome::Pass, "either of the two bodies is right");
    assert_nothing_left(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_renames_objects_is_found_out() {
    let server = strict(StrictS3Options::default());
    assert_eq!(find(&examine_s3(&server).await, "names").outcome, Outcome::Pass);
    assert_nothing_left(&server);
    let server = strict(StrictS3Options { backslashes_are_slashes: true, ..StrictS3Options::default() });
    let report = examine_s3(&server).await;
    let finding = find(&report, "names");
    assert_eq!(finding.outcome, Outcome::Warn, "{finding:?}");
    assert_nothing_left(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_what_stays_behind_is_said() {
    let server = strict(StrictS3Options::default());
    server.faults().inject("DELETE", "uploadId", u64::MAX, refuse("AccessDenied"));
    let report = examine_s3(&server).await;
    let finding = find(&report, "multipart abort");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert_eq!(
        finding.remedy.as_deref(),
        Some("allow s3:AbortMultipartUpload and s3:ListBucketMultipartUploads")
    );
    assert_eq!(find(&report, "clean-up").outcome, Outcome::Warn);
    let pending = server.pending_uploads();
    assert!(!pending.is_empty());
    assert!(pending.iter().all(|upload| upload.key.contains("/.stepvault/probes/")), "{pending:?}");

    let server = strict(StrictS3Options::default());
    server.faults().inject("DELETE", "/probes/", u64::MAX, refuse("AccessDenied"));
    server.faults().inject("POST", "?delete", u64::MAX, refuse("AccessDenied"));
    let report = examine_s3(&server).await;
    let finding = find(&report, "delete");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(finding.remedy.as_ref().unwrap().starts_with("allow s3:DeleteObject"), "{finding:?}");
    let left = find(&report, "clean-up");
    assert!(left.measured.contains("/.stepvault/probes/"), "{left:?}");
    let keys = RunKeys::new(run_name());
    let full = server.objects().keys();
    assert!(!full.is_empty());
    for key in full {
        let key = key.strip_prefix("bucket/pre fix/").unwrap();
        let kind = keys.classify(key);
        assert!(
            matches!(kind, Some(stepvault_core::keys::KeyKind::Probe(_))),
            "gc would leave {key}: {kind:?}"
        );
    }

    let server = strict(StrictS3Options::default());
    server.faults().inject("PUT", "", u64::MAX, refuse("AccessDenied"));
    let report = examine_s3(&server).await;
    let finding = find(&report, "put");
    assert_eq!(finding.outcome, Outcome::Fail);
    assert!(finding.remedy.as_ref().unwrap().starts_with("allow s3:PutObject"), "{finding:?}");
    assert!(
        !report.findings.iter().any(|finding| finding.check == "delete"),
        "nothing was there to delete: {report:#?}"
    );
    assert_nothing_left(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_may_not_be_read_are_said_to_be_unread() {
    let server = strict(StrictS3Options::default());
    server.faults().inject("GET", "lifecycle", u64::MAX, refuse("AccessDenied"));
    server.claim_versioning("bucket");
    let report = examine_s3(&server).await;
    let finding = find(&report, "abandoned uploads");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(finding.measured.starts_with("cannot read it: "), "{finding:?}");
    let finding = find(&report, "versioning");
    assert!(finding.measured.starts_with("on, and no rule deletes old versions"), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_cannot_be_measured_ends_nothing_else() {
    let server = strict(StrictS3Options::default());
    server.faults().inject("PUT", "-rate", u64::MAX, FaultAction::Hang);
    let report = examine_s3(&server).await;
    let finding = find(&report, "upload rate");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(finding.measured.starts_with("cannot measure it: "), "{finding:?}");
    assert_eq!(report.rates.up_bytes_per_second, None);
    assert_eq!(find(&report, "delete").outcome, Outcome::Pass);
    assert_nothing_left(&server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_google_is_tried_the_same_way() {
    let server = StrictGcs::start();
    server.create_bucket("bucket");
    server.describe_bucket("bucket", "versioning", serde_json::json!({"enabled": true}));
    let lifecycle = serde_json::json!({"rule": [
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 3}},
    ]});
    server.describe_bucket("bucket", "lifecycle", lifecycle);
    let policy = serde_json::json!({"retentionDurationSeconds": "604800"});
    server.describe_bucket("bucket", "softDeletePolicy", policy);
    let report = examine(&settings("gs://bucket/prefix", &server.endpoint()), "", "").await;
    assert_eq!(find(&report, "credentials").measured, "none needed: the store is on this machine");
    for check in
        ["bucket", "put", "conditional create", "get", "list", "checksum rejection", "multipart upload"]
    {
        assert_eq!(find(&report, check).outcome, Outcome::Pass, "{check}: {report:#?}");
    }
    for check in ["multipart abort", "delete", "clock", "abandoned uploads", "leftovers"] {
        assert_eq!(find(&report, check).outcome, Outcome::Pass, "{check}: {report:#?}");
    }
    assert!(find(&report, "abandoned uploads").measured.contains("after 3 days"));
    assert!(find(&report, "soft delete").measured.contains("for 7 more days"));
    assert_eq!(find(&report, "versioning").outcome, Outcome::Warn);
    assert!(report.rates.up_bytes_per_second.is_some() && report.rates.down_bytes_per_second.is_some());
    assert_eq!(server.objects().keys(), Vec::<String>::new());
    assert_eq!(server.pending_uploads(), vec![]);

    let missing = examine(&settings("gs://elsewhere/prefix", &server.endpoint()), "", "").await;
    assert_eq!(troubles(&missing), [("bucket", Outcome::Fail)]);
    let signed_in =
        StrictGcs::start_with(StrictGcsOptions { anonymous: false, ..StrictGcsOptions::default() });
    signed_in.create_bucket("bucket");
    let denied = examine(&settings("gs://bucket/prefix", &signed_in.endpoint()), "", "").await;
    assert_eq!(troubles(&denied), [("credentials", Outcome::Fail)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_tried_the_same_way_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}/remote", directory.path().display());
    std::fs::create_dir(directory.path().join("remote")).unwrap();
    let report = examine(&settings(&url, ""), "", "").await;
    let troubles: Vec<_> = troubles(&report)
        .into_iter()
        .filter(|(check, _)| !["upload rate", "download rate", "latency"].contains(check))
        .collect();
    assert_eq!(troubles, [], "{report:#?}");
    assert!(
        find(&report, "checksum rejection").measured.starts_with("this kind of store accepts no checksum"),
        "{report:#?}"
    );
    assert!(report.rates.up_bytes_per_second.is_some());
    let files = walk(directory.path());
    assert_eq!(files, Vec::<String>::new());

    let nowhere = format!("file://{}/missing/remote", directory.path().display());
    let report = examine(&settings(&nowhere, ""), "", "").await;
    let finding = find(&report, "network");
    assert_eq!(finding.outcome, Outcome::Fail);
    assert!(finding.measured.contains("missing"), "{finding:?}");
    assert!(!directory.path().join("missing").exists());
}

/// Files below a directory.
fn walk(directory: &std::path::Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path.display().to_string());
        }
    }
    files
}

#[tokio::test(flavor = "multi_thread")]
async fn another_servers_half_kept_checksums_are_found() {
    let server = EmbeddedS3Fs::start();
    server.create_bucket("bucket");
    let settings = settings("s3://bucket/prefix", &server.endpoint());
    let report = examine(&settings, server.access_key(), server.secret_key()).await;
    assert_eq!(find(&report, "checksum rejection").outcome, Outcome::Warn);
    assert_eq!(find(&report, "conditional create").outcome, Outcome::Pass);
    // It does not know these questions.
    let rules = &find(&report, "abandoned uploads").measured;
    assert!(rules.contains("the store knows no such rules"), "{rules}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn moto_is_found_to_take_any_checksum() {
    let server = Moto::start();
    server.create_bucket("bucket");
    let report = examine(&settings("s3://bucket/prefix", &server.endpoint()), "any-key", "any-secret").await;
    let finding = find(&report, "checksum rejection");
    assert_eq!(finding.outcome, Outcome::Warn);
    assert!(finding.remedy.as_ref().unwrap().contains("reads back and hashes"), "{finding:?}");
    for check in ["put", "conditional create", "get", "list", "multipart upload", "multipart abort", "delete"]
    {
        assert_eq!(find(&report, check).outcome, Outcome::Pass, "{check}: {report:#?}");
    }
    // Its document about versions is none that the SDK can read.
    let finding = find(&report, "versioning");
    assert!(
        finding.measured.starts_with("cannot read it: ")
            && finding.measured.contains("cannot be read (HTTP 200)"),
        "{finding:?}"
    );
    assert_eq!(find(&report, "abandoned uploads").outcome, Outcome::Warn);
    assert!(!report.findings.iter().any(|finding| finding.check == "clean-up"), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the Python servers that scripts/test installs"]
async fn fake_gcs_server_is_found_to_know_no_uploads_in_parts() {
    let server = FakeGcs::start();
    server.create_bucket("bucket");
    let report = examine(&settings("gs://bucket/prefix", &server.endpoint()), "", "").await;
    let finding = find(&report, "multipart upload");
    assert_eq!(finding.outcome, Outcome::Fail);
    assert!(finding.remedy.as_ref().unwrap().contains("supports multipart uploads"), "{finding:?}");
    assert!(
        !report.findings.iter().any(|finding| finding.check == "clean-up"),
        "there was no upload to give up: {report:#?}"
    );
    for check in ["put", "conditional create", "get", "list", "delete"] {
        assert_eq!(find(&report, check).outcome, Outcome::Pass, "{check}: {report:#?}");
    }
    assert!(find(&report, "versioning").measured.starts_with("off"));
}
