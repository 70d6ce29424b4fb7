//! Headers of every request, as the store's owner or the store itself demands them.

use std::sync::{Arc, OnceLock};

use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use tokio::time::Instant;

const OWNER: &str = "x-amz-expected-bucket-owner";
const SOURCE_OWNER: &str = "x-amz-source-expected-bucket-owner";

/// Adds to every request what the settings demand, and removes what the store refuses.
#[derive(Debug)]
pub(super) struct CommonHeaders {
    /// The account that must own the bucket.
    pub(super) owner: Option<String>,
    /// The sender pays for its requests.
    pub(super) requester_pays: bool,
    /// Set for a store that refuses checksums, as Backblaze B2 does.
    pub(super) unchecked: Arc<OnceLock<Instant>>,
}

impl Intercept for CommonHeaders {
    fn name(&self) -> &'static str {
        "CommonHeaders"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        if let Some(owner) = &self.owner {
            // A request that tests the owner names another one.
            if !headers.contains_key(OWNER) {
                headers.try_insert(OWNER, owner.clone())?;
            }
            if headers.contains_key("x-amz-copy-source") {
                headers.try_insert(SOURCE_OWNER, owner.clone())?;
            }
        }
        if self.requester_pays {
            headers.insert("x-amz-request-payer", "requester");
        }
        if self.unchecked.get().is_some() {
            let names = headers.iter().map(|(name, _)| name.to_owned());
            let of_checksums: Vec<String> = names
                .filter(|name| name.starts_with("x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm")
                .collect();
            for name in of_checksums {
                headers.remove(name);
            }
        }
        Ok(())
    }
}
