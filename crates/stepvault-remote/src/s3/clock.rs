//! The time for which requests are signed: this machine's, or the store's where the two are far apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::interceptors::{
    BeforeDeserializationInterceptorContextMut, BeforeTransmitInterceptorContextRef, InterceptorContext,
};
use aws_sdk_s3::config::retry::{ClassifyRetry, RetryAction, RetryConfig};
use aws_sdk_s3::config::{Builder, ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_smithy_runtime_api::http::Response;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use aws_types::sdk_config::{SharedTimeSource, TimeSource};

use super::checksums::date_of;

/// A refusal whose clock is this far from the signature may be caused by that. Stores accept 15 minutes; the SDK uses
/// 4.
const SUSPICIOUS: Duration = Duration::from_mins(4);
/// The refused request and its retry.
pub(super) const TRIES: u32 = 2;
/// There is nothing to wait for.
const PAUSE: Duration = Duration::from_millis(10);

/// This machine's clock, set by the store's when a request was refused for the time of its signature; clones share it.
#[derive(Debug, Clone)]
pub(super) struct StoreClock {
    machine: SharedTimeSource,
    /// Whether AWS's configuration lets it be set.
    is_corrected: bool,
    /// How far the store's clock is ahead.
    ahead_seconds: Arc<AtomicI64>,
}

impl StoreClock {
    pub(super) fn new(is_corrected: bool) -> Self {
        Self { machine: SharedTimeSource::default(), is_corrected, ahead_seconds: Arc::default() }
    }

    /// Returns whether an answer refuses a request because of the time for which it was signed, or may do so. The clock is
    /// the store's from then on.
    pub(super) fn is_set_by<B>(&self, signed: SystemTime, answer: &Response<B>) -> bool {
        // By the status alone, because the answer to a HEAD has no code.
        let may_be = self.is_corrected && answer.status().as_u16() == 403;
        let date = date_of(answer.headers()).filter(|_| may_be);
        let Some(date) = date.filter(|date| ahead(signed, *date).unsigned_abs() > SUSPICIOUS.as_secs())
        else {
            return false;
        };
        self.ahead_seconds.store(ahead(self.machine.now(), date), Ordering::Relaxed);
        true
    }
}

impl TimeSource for StoreClock {
    fn now(&self) -> SystemTime {
        let (machine, seconds) = (self.machine.now(), self.ahead_seconds.load(Ordering::Relaxed));
        let by = Duration::from_secs(seconds.unsigned_abs());
        let store = if seconds < 0 { machine.checked_sub(by) } else { machine.checked_add(by) };
        store.unwrap_or(machine)
    }
}

/// Returns by how many seconds the second time is after the first.
fn ahead(from: SystemTime, to: SystemTime) -> i64 {
    let seconds = |apart: Duration| i64::try_from(apart.as_secs()).unwrap_or(i64::MAX);
    to.duration_since(from).map_or_else(|error| -seconds(error.duration()), seconds)
}

/// Configures the SDK to sign by `clock`, and to retry only what the clock was set by, once.
///
/// The request that shows how far the clocks are apart has failed by then, and the SDK's own retries are disabled here:
/// our retries would go on for minutes where only a corrected clock helps. So exactly this request is sent a second time,
/// immediately, and no other one; a second refusal is final.
pub(super) fn only_skew(builder: Builder, clock: &StoreClock) -> Builder {
    builder
        .retry_config(
            RetryConfig::standard()
                .with_max_attempts(TRIES)
                .with_initial_backoff(PAUSE)
                .with_max_backoff(PAUSE),
        )
        .disable_clock_skew_correction(true)
        .time_source(clock.clone())
        .interceptor(Notice(clock.clone()))
        .retry_classifier(OnlySkew)
}

/// The time at which a request was signed.
#[derive(Debug, Clone, Copy)]
struct SignedAt(SystemTime);

impl Storable for SignedAt {
    type Storer = StoreReplace<Self>;
}

/// Marks a refusal that has set the clock.
#[derive(Debug, Clone, Copy)]
struct ClockSet;

/// Sets the clock by the answers that the SDK gets.
#[derive(Debug)]
struct Notice(StoreClock);

impl Intercept for Notice {
    fn name(&self) -> &'static str {
        "SkewNotice"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(SignedAt(self.0.now()));
        Ok(())
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        let signed = config.load::<SignedAt>();
        if signed.is_some_and(|signed| self.0.is_set_by(signed.0, response)) {
            response.add_extension(ClockSet);
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
        match response.and_then(|response| response.extension::<ClockSet>()) {
            Some(ClockSet) => RetryAction::client_error(),
            None => RetryAction::RetryForbidden,
        }
    }

    fn name(&self) -> &'static str {
        "OnlySkew"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, date: &'static str) -> Response<()> {
        let mut answer = Response::new(status.try_into().unwrap(), ());
        answer.headers_mut().insert("date", date);
        answer
    }

    #[test]
    fn a_refusal_with_a_far_date_sets_the_clock_either_way() {
        let date = "Fri, 15 Jan 2027 08:00:00 GMT";
        let time = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
        let hour = Duration::from_hours(1);
        for signed in [time - hour, time + hour] {
            let clock = StoreClock::new(true);
            assert!(!clock.is_set_by(signed, &answer(503, date)));
            assert!(!clock.is_set_by(signed, &answer(403, "yesterday")));
            assert!(ahead(clock.now(), clock.machine.now()).unsigned_abs() <= 1, "{signed:?}");
            assert!(clock.is_set_by(signed, &answer(403, date)));
            assert!(ahead(time, clock.now()).unsigned_abs() <= 1, "{signed:?}");
            assert!(!StoreClock::new(false).is_set_by(signed, &answer(403, date)));
            assert!(!clock.is_set_by(clock.now(), &answer(403, date)), "the second refusal is final");
        }
    }
}
