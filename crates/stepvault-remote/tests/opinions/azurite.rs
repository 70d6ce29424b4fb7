//! Azurite, for `az://`. A process cannot change its own environment safely, so the suite runs in one of its own.

use std::process::Command;
use std::sync::Arc;

use stepvault_core::observe::SilentObserver;
use stepvault_remote::open::open;
use stepvault_testkit::peers::Azurite;

use crate::conformance;
use crate::opened::BUCKET;
use crate::support::settings;

/// Set for the second half.
const INSIDE: &str = "STEPVAULT_TEST_INSIDE";

#[test]
#[ignore = "needs the servers that scripts/test installs"]
fn it_does_all_that_is_needed() {
    let server = Azurite::start();
    server.create_container(BUCKET);
    let (account, key) = Azurite::ACCOUNT;
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "azurite::inside_its_environment", "--ignored", "--nocapture"])
        .env("AZURE_STORAGE_USE_EMULATOR", "true")
        .env("AZURITE_BLOB_STORAGE_URL", server.endpoint())
        .env("AZURE_STORAGE_ACCOUNT_NAME", account)
        .env("AZURE_STORAGE_ACCOUNT_KEY", key)
        .env(INSIDE, "yes")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.contains("1 passed"), "{printed}");
}

#[tokio::test]
#[ignore = "runs in an environment that another test makes"]
async fn inside_its_environment() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let settings = settings(&format!("az://{BUCKET}/vault"));
    let store = open(&settings, Arc::new(SilentObserver)).await.unwrap();
    // It stores `a\b` as `a/b`; and Azure has no request that aborts an upload: it deletes the blocks after a week.
    let skipped = ["odd_keys_mean_themselves", "an_aborted_upload_leaves_nothing"];
    conformance::run(store, &skipped).await;
}
