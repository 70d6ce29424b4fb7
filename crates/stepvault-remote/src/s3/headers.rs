//! Headers of every request, as the store's owner or the store itself demands them.

use std::sync::{Arc, OnceLock};

use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use tokio::time::Instant;

/// Says in every request that its sender pays for it.
#[derive(Debug)]
pub(super) struct RequesterPays;

impl Intercept for RequesterPays {
    fn name(&self) -> &'static str {
        "RequesterPays"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        headers.insert("x-amz-request-payer", "requester");
        Ok(())
    }
}

/// Removes checksums from every request to a store that refuses them, as Backblaze B2 does.
#[derive(Debug)]
pub(super) struct UncheckedRequests(pub(super) Arc<OnceLock<Instant>>);

impl Intercept for UncheckedRequests {
    fn name(&self) -> &'static str {
        "UncheckedRequests"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if self.0.get().is_none() {
            return Ok(());
        }
        let headers = context.request_mut().headers_mut();
        let of_checksums: Vec<String> = headers
            .iter()
            .map(|(name, _)| name.to_owned())
            .filter(|name| name.starts_with("x-amz-checksum-") || name == "x-amz-sdk-checksum-algorithm")
            .collect();
        for name in of_checksums {
            headers.remove(name);
        }
        Ok(())
    }
}
