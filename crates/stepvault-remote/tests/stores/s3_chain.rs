//! AWS's usual chain of configuration. A process cannot change its own environment safely, so each test runs its
//! second half in a process of its own.

// Files of a home that lives as long as the test need not survive a crash.
#![allow(clippy::disallowed_methods)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::open;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::support::{BUCKET, bytes, create, read, settings};

/// Set for the second halves; without it they would use the environment, and the home, of whoever runs the tests.
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
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
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
    let store = open(&settings("s3://checkpoints/vault"), Arc::new(SilentObserver))
        .await
        .unwrap();
    create(&*store, "object", &bytes(10, 1)).await.unwrap();
    assert_eq!(read(&*store, "object", None).await.unwrap(), bytes(10, 1));
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
    let config = format!(
        "[profile training]\nregion = eu-central-1\nendpoint_url = {}\n",
        server.endpoint()
    );
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
    let expired = FaultAction::Refuse {
        status: 400,
        retry_after_seconds: None,
        code: "ExpiredToken".to_owned(),
    };
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
