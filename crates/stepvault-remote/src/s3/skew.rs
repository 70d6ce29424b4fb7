//! Retries once a request that was refused because this machine's clock is off.
//!
//! Requests are signed with the time. The SDK reads from every answer how far the store's clock is away, and signs
//! later requests by the store's clock. But the request from which it learned this has failed by then, and the SDK's
//! own retries are disabled here: our retries would go on for minutes where only a corrected clock helps. So exactly
//! this request is sent a second time, immediately, and no other one; a second refusal is final.

use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextRef, InterceptorContext,
};
use aws_sdk_s3::config::retry::{ClassifyRetry, RetryAction, RetryConfig};
use aws_sdk_s3::config::{Builder, ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_smithy_types::config_bag::{Storable, StoreReplace};

use super::answer_headers::dated;

/// A refusal whose clock is this far from the signature may be caused by that. Stores accept 15 minutes; the SDK uses
/// 4.
const SUSPICIOUS: Duration = Duration::from_mins(4);
/// The refused request and its retry.
const TRIES: u32 = 2;
/// There is nothing to wait for.
const PAUSE: Duration = Duration::from_millis(10);

/// Configures the client to retry only this, once.
pub(super) fn only_skew(builder: Builder) -> Builder {
    builder
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(TRIES)
                .with_initial_backoff(PAUSE)
                .with_max_backoff(PAUSE),
        )
        .interceptor(Notice)
        .retry_classifier(OnlySkew)
}

/// The time for which a request was signed, as its header has it.
#[derive(Debug, Clone)]
struct SignedFor(String);

impl Storable for SignedFor {
    type Storer = StoreReplace<Self>;
}

/// Marks a refusal whose date is far from the request's.
#[derive(Debug, Clone, Copy)]
struct RefusedFarAway;

/// Compares the signed time with the date of a refusal. Once the SDK knows the clock difference, they are close.
#[derive(Debug)]
struct Notice;

impl Intercept for Notice {
    fn name(&self) -> &'static str {
        "SkewNotice"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(time) = context.request().headers().get("x-amz-date") {
            config.interceptor_state().store_put(SignedFor(time.to_owned()));
        }
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        // By the status alone, because the answer to a HEAD has no code.
        if response.status().as_u16() != 403 {
            return Ok(());
        }
        let signed = config.load::<SignedFor>().and_then(|time| signed_for(&time.0));
        let date = response.headers().get("date").and_then(dated);
        let is_far = |(signed, date)| apart(signed, date) > SUSPICIOUS;
        if signed.zip(date).is_some_and(is_far) {
            response.add_extension(RefusedFarAway);
        }
        Ok(())
    }
}

/// The retry decorator, which has the deadline, handles every other failure.
#[derive(Debug)]
struct OnlySkew;

impl ClassifyRetry for OnlySkew {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let response = context.response();
        match response.and_then(|response| response.extension::<RefusedFarAway>()) {
            Some(RefusedFarAway) => RetryAction::client_error(),
            None => RetryAction::RetryForbidden,
        }
    }

    fn name(&self) -> &'static str {
        "OnlySkew"
    }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

/// `20261121T101600Z`
fn signed_for(text: &str) -> Option<SystemTime> {
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_and_a_date_are_compared_either_way() {
        let signed = signed_for("20270115T080000Z").unwrap();
        let date = dated("Fri, 15 Jan 2027 09:00:00 GMT").unwrap();
        assert_eq!(apart(signed, date), Duration::from_hours(1));
        assert_eq!(apart(date, signed), Duration::from_hours(1));
        assert_eq!(apart(date, date), Duration::ZERO);
        for bad in ["", "2027", "20271315T080000Z", "2027-01-15T08:00:00Z"] {
            assert_eq!(signed_for(bad), None, "{bad}");
            assert_eq!(dated(bad), None, "{bad}");
        }
    }
}
