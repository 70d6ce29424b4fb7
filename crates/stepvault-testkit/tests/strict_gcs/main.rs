//! The strict GCS server's own tests: each rule and each fault, through both clients and by hand.

mod faults;
mod json;
mod multipart;
mod raw;
mod resumable;
mod rewrite;
mod rules;
mod sdk;
mod store;

use std::sync::Arc;
use std::time::Duration;

use google_cloud_auth::credentials::anonymous;
use google_cloud_gax::exponential_backoff::ExponentialBackoffBuilder;
use google_cloud_gax::retry_policy::RetryPolicyExt as _;
use google_cloud_storage::client::Storage;
use google_cloud_storage::retry_policy::RetryableErrors;
use object_store::gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::{BackoffConfig, ClientOptions, RetryConfig, StaticCredentialProvider};
use stepvault_testkit::gcs::{StrictGcs, StrictGcsOptions};

/// The bucket of every test, and its name for the SDK.
const BUCKET: &str = "vault-bucket";
const SDK_BUCKET: &str = "projects/_/buckets/vault-bucket";
const QUANTUM_BYTES: usize = 256 * 1024;
const MINIMUM_PART_BYTES: usize = 5 * 1024 * 1024;

fn server() -> StrictGcs {
    server_with(StrictGcsOptions::default())
}

fn server_with(options: StrictGcsOptions) -> StrictGcs {
    let server = StrictGcs::start_with(options);
    server.create_bucket(BUCKET);
    server
}

/// A client with few and fast retries.
async fn sdk(server: &StrictGcs) -> Storage {
    let backoff = ExponentialBackoffBuilder::new()
        .with_initial_delay(Duration::from_millis(1))
        .with_maximum_delay(Duration::from_millis(5))
        .build()
        .expect("a valid backoff");
    Storage::builder()
        .with_endpoint(server.endpoint())
        .with_credentials(anonymous::Builder::new().build())
        .with_retry_policy(RetryableErrors.with_attempt_limit(3))
        .with_backoff_policy(backoff)
        .build()
        .await
        .expect("a client")
}

fn store(server: &StrictGcs) -> GoogleCloudStorage {
    store_as(server, server.bearer(), BUCKET)
}

fn store_as(server: &StrictGcs, bearer: &str, bucket: &str) -> GoogleCloudStorage {
    GoogleCloudStorageBuilder::new()
        .with_base_url(&server.endpoint())
        .with_bucket_name(bucket)
        .with_credentials(Arc::new(StaticCredentialProvider::new(GcpCredential {
            bearer: bearer.to_owned(),
        })))
        .with_client_options(ClientOptions::new().with_allow_http(true))
        .with_retry(RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(1),
                max_backoff: Duration::from_millis(5),
                base: 2.0,
            },
            max_retries: 2,
            retry_timeout: Duration::from_secs(30),
        })
        .build()
        .expect("a store")
}

/// Bytes without a period that a chunk size could hide.
fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + at / 251) % 256).expect("below 256")).collect()
}

fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

fn crc32c_base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(crc32c(bytes).to_be_bytes())
}

fn stored(server: &StrictGcs, key: &str) -> Option<Vec<u8>> {
    server.objects().body(&format!("{BUCKET}/{key}")).map(|body| body.to_vec())
}
