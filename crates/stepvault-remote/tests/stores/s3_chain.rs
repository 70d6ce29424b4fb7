//! AWS's usual chain of configuration. A process cannot change its own environment safely, so each test runs its
//! second half in a process of its own.

// Files of a home that lives as long as the test need not survive a crash.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::observe::SilentObserver;
use stepvault_core::remote_settings::RemoteSettings;
use stepvault_core::store_facts::{CredentialSource, Credentials};
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{ErrorKind, Result};
use stepvault_remote::open::{OpenOptions, open, open_to_examine};
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::support::{BUCKET, bytes, create, read, settings};

/// Set for the second halves; without it they would use the environment, and the home, of the user who runs the tests.
const INSIDE: &str = "STEPVAULT_TEST_INSIDE";

/// Runs an ignored test of this binary with nothing of AWS's in its environment but `variables`.
fn run_in_environment(test: &str, home: &Path, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            command.env_remove(name);
        }
    }
    command
        .env("HOME", home)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(INSIDE, "yes")
        .envs(variables.iter().copied());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[test]
fn keys_and_endpoint_come_from_the_environment() {
    let home = tempfile::tempdir().unwrap();
    let server = StrictS3::start();
    server.create_bucket(BUCKET);
    let variables = [
        ("AWS_ACCESS_KEY_ID", server.access_key()),
        ("AWS_SECRET_ACCESS_KEY", server.secret_key()),
        ("AWS_ENDPOINT_URL", &server.endpoint()),
    ];
    run_in_environment("s3_chain::inside_a_plain_environment", home.path(), &variables);
    assert_eq!(server.objects().keys(), ["checkpoints/vault/object"]);
}

#[tokio::test]
#[ignore = "runs in an environment that another test makes"]
async fn inside_a_plain_environment() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let store = open(&settings("s3://checkpoints/vault"), Arc::new(SilentObserver)).await.unwrap();
    create(&*store, "object", &bytes(10, 1)).await.unwrap();
    assert_eq!(read(&*store, "object", None).await.unwrap(), bytes(10, 1));
    let found = found(&settings("s3://checkpoints/vault")).await.unwrap();
    assert_eq!(found.source, CredentialSource::Environment);
    assert!(!found.temporary);
}

/// The credentials that would be used, or why there are none.
async fn found(settings: &RemoteSettings) -> Result<Credentials> {
    let opened = open_to_examine(settings, Arc::new(SilentObserver), OpenOptions::default()).await;
    let found = opened.unwrap().credentials().await?;
    Ok(found.unwrap())
}

#[test]
fn each_source_of_credentials_is_told_by_its_name() {
    let home = tempfile::tempdir().unwrap();
    let variables = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
    run_in_environment("s3_chain::inside_a_home_with_every_source", home.path(), &variables);
}

#[tokio::test]
#[ignore = "runs in an environment that another test makes"]
async fn inside_a_home_with_every_source() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let mut settings = settings("s3://checkpoints/vault");
    let error = found(&settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(
        error
            .to_string()
            .starts_with("cannot get credentials: s3://checkpoints/vault: no credentials were found ("),
        "{error}"
    );
    assert!(error.hint_text().unwrap().starts_with("set AWS_ACCESS_KEY_ID"), "{error:?}");
    let directory = Path::new(&std::env::var_os("HOME").unwrap()).join(".aws");
    std::fs::create_dir(&directory).unwrap();
    let process = r#"{"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "s", "SessionToken": "t",
        "Expiration": "2027-01-15T08:00:00Z"}"#;
    let answer = directory.join("answer.json");
    std::fs::write(&answer, process).unwrap();
    let config = format!(
        "[profile asked]\ncredential_process = cat {}\n[profile kept]\nregion = us-east-1\n",
        answer.display()
    );
    std::fs::write(directory.join("config"), config).unwrap();
    let keys = "[kept]\naws_access_key_id = AKIA\naws_secret_access_key = s\naws_session_token = t\n";
    std::fs::write(directory.join("credentials"), keys).unwrap();
    settings.profile = Some("kept".to_owned());
    let kept = found(&settings).await.unwrap();
    assert_eq!(kept.source, CredentialSource::Profile("kept".to_owned()));
    assert_eq!((kept.expires, kept.temporary), (None, true));
    settings.profile = Some("asked".to_owned());
    let asked = found(&settings).await.unwrap();
    assert_eq!(asked.source, CredentialSource::Process);
    assert_eq!(asked.expires, Some(Timestamp::from_seconds(1_800_000_000)));
}

#[test]
fn a_profile_gives_all_and_is_read_again_when_its_keys_expire() {
    let home = tempfile::tempdir().unwrap();
    run_in_environment("s3_chain::inside_an_environment_with_a_home", home.path(), &[]);
}

#[tokio::test]
#[ignore = "runs in an environment that another test makes"]
async fn inside_an_environment_with_a_home() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let directory = Path::new(&std::env::var_os("HOME").unwrap()).join(".aws");
    std::fs::create_dir(&directory).unwrap();
    let server = StrictS3::start();
    server.create_bucket(BUCKET);
    let config = format!("[profile training]\nregion = eu-central-1\nendpoint_url = {}\n", server.endpoint());
    std::fs::write(directory.join("config"), config).unwrap();
    let write_keys = |secret: &str| {
        let text = format!(
            "[training]\naws_access_key_id = {}\naws_secret_access_key = {secret}\n",
            server.access_key()
        );
        std::fs::write(directory.join("credentials"), text).unwrap();
    };
    write_keys("of yesterday");
    let mut settings = settings("s3://checkpoints/vault");
    settings.profile = Some("training".to_owned());
    let store = open(&settings, Arc::new(SilentObserver)).await.unwrap();
    let expired = FaultAction::refuse(400, "ExpiredToken");
    server.faults().inject("PUT", "", 1, expired);
    // The keys are not read again right after they were read.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let writing = async { create(&*store, "object", &bytes(10, 1)).await.unwrap() };
    let renewing = async {
        while server.faults().requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        write_keys(server.secret_key());
    };
    tokio::join!(writing, renewing);
    assert_eq!(server.objects().keys(), ["checkpoints/vault/object"]);
}
