//! The servers of the test kit, tried with the AWS SDK: every rule is enforced, every fault happens.

mod discard;
mod faults;
mod independence;
mod lenient;
mod listing;
mod multipart;
mod protocol;
mod reads;
mod second_opinion;
mod writes;

use std::fmt::Debug;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{
    BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use stepvault_testkit::s3::{StrictS3, StrictS3Options};

const BUCKET: &str = "vault";

/// A client that sends only the checksums it is told to and never tries twice.
fn client(endpoint: &str, access_key: &str, secret_key: &str) -> Client {
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .force_path_style(true)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(access_key, secret_key, None, None, "test"))
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .retry_config(RetryConfig::disabled())
        .build();
    Client::from_conf(config)
}

fn strict() -> (StrictS3, Client) {
    strict_with(StrictS3Options::default())
}

fn strict_with(options: StrictS3Options) -> (StrictS3, Client) {
    let server = StrictS3::start_with(options);
    server.create_bucket(BUCKET);
    let client = client(&server.endpoint(), server.access_key(), server.secret_key());
    (server, client)
}

fn sha256(data: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(data))
}

/// Base64 of SHA-256 over the raw digests of the parts, with their number.
fn composite_sha256(parts: &[&[u8]]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(Sha256::digest(part));
    }
    format!("{}-{}", STANDARD.encode(hasher.finalize()), parts.len())
}

/// Bytes that differ from place to place.
fn bytes(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        })
        .collect()
}

fn stream(data: &[u8]) -> ByteStream {
    ByteStream::from(data.to_vec())
}

/// Status and code of a refusal; anything else fails the test.
#[track_caller]
fn refusal<Output: Debug, Failure>(result: Result<Output, SdkError<Failure>>) -> (u16, String)
where
    Failure: ProvideErrorMetadata + Debug,
{
    match result {
        Ok(output) => panic!("accepted: {output:?}"),
        Err(error) => {
            let status = error.raw_response().map_or(0, |response| response.status().as_u16());
            (status, error.code().unwrap_or_default().to_owned())
        }
    }
}

#[track_caller]
fn assert_refused<Output: Debug, Failure>(result: Result<Output, SdkError<Failure>>, status: u16, code: &str)
where
    Failure: ProvideErrorMetadata + Debug,
{
    assert_eq!(refusal(result), (status, code.to_owned()));
}

async fn put(client: &Client, key: &str, data: &[u8]) {
    client.put_object().bucket(BUCKET).key(key).body(stream(data)).send().await.unwrap();
}

async fn get(client: &Client, key: &str) -> Vec<u8> {
    let object = client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
    object.body.collect().await.unwrap().to_vec()
}
