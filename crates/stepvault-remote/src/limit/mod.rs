//! Limits a remote's concurrent requests, bytes per second and stall times, as configured.

mod concurrency;

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{BoxStream, try_unfold, unfold};
use governor::clock::{Clock as _, MonotonicClock};
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use stepvault_core::bandwidth::{BandwidthLimit, BandwidthPeriod};
use stepvault_core::{Clock as _, Error, ErrorKind, Result};
use stepvault_local::clock::SystemClock;
use tokio::time::{Instant, timeout};

use self::concurrency::{AdaptiveLimit, ConcurrencyPermit};
use crate::decorator::{Answer, Call, Request, StoreDecorator};
use crate::store::{BodyStream, ConcurrencyLimit, ObjectInfo, RemoteStore};

type Limiter = RateLimiter<NotKeyed, InMemoryState, MonotonicClock>;

/// Limits the bytes sent and received per second, and fails reads that receive no byte for too long.
///
/// The innermost decorator: retransmitted bytes count again. A part is accounted before it is sent, so on the wire it
/// is one burst of at most its own length.
#[derive(Debug)]
pub struct FlowStore {
    inner: Arc<dyn RemoteStore>,
    limits: Arc<Limits>,
    stall_timeout: Duration,
}

impl FlowStore {
    /// Wraps `inner`. Without a limit only the stall timeout of reads applies.
    pub fn new(inner: Arc<dyn RemoteStore>, limit: &BandwidthLimit, stall_timeout: Duration) -> Self {
        Self { inner, limits: Arc::new(Limits::new(limit, local_seconds_of_day)), stall_timeout }
    }
}

/// The limits of a day.
#[derive(Debug)]
struct Limits {
    limit: BandwidthLimit,
    /// One for each period.
    limiters: Vec<Option<Limiter>>,
    seconds_of_day: fn() -> u32,
}

impl Limits {
    fn new(limit: &BandwidthLimit, seconds_of_day: fn() -> u32) -> Self {
        let limiter = |period: &BandwidthPeriod| {
            let limit = u32::try_from(period.bytes_per_second?).unwrap_or(u32::MAX);
            let quota = Quota::per_second(NonZeroU32::new(limit).unwrap_or(NonZeroU32::MIN));
            Some(RateLimiter::direct_with_clock(quota, MonotonicClock))
        };
        Self { limiters: limit.periods().iter().map(limiter).collect(), limit: limit.clone(), seconds_of_day }
    }

    /// Returns the limiter of this time of the day.
    fn now(&self) -> Option<&Limiter> {
        // A limit for all day needs no clock.
        let index = match self.limiters.len() {
            0 | 1 => 0,
            _ => self.limit.period_at((self.seconds_of_day)())?,
        };
        self.limiters.get(index)?.as_ref()
    }

    async fn pay(&self, bytes: u64) {
        if let Some(limiter) = self.now() {
            pay(limiter, bytes).await;
        }
    }
}

/// Returns the seconds since midnight by the clock and the time zone of this machine.
fn local_seconds_of_day() -> u32 {
    let now = SystemClock.now();
    let time = jiff::Timestamp::from_second(now.seconds).unwrap_or_default();
    let time = time.to_zoned(jiff::tz::TimeZone::system()).time();
    let part = |part: i8| u32::try_from(part).unwrap_or_default();
    part(time.hour()) * 3600 + part(time.minute()) * 60 + part(time.second())
}

/// Waits until `bytes` may pass, in amounts that the limiter's burst allows.
async fn pay(limiter: &Limiter, bytes: u64) {
    let mut rest = u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut piece = rest;
    while let Some(wanted) = NonZeroU32::new(piece.min(rest)) {
        match limiter.check_n(wanted) {
            Ok(Ok(())) => rest -= wanted.get(),
            Ok(Err(not_until)) => tokio::time::sleep(not_until.wait_time_from(limiter.clock().now())).await,
            Err(capacity) => piece = capacity.0,
        }
    }
}

fn stalled(subject: &str, stall_timeout: Duration) -> Error {
    Error::new(ErrorKind::Unreachable, "cannot read the object")
        .on(subject)
        .because(format!("no byte moved for {} seconds", stall_timeout.as_secs_f64()))
        .hint("check the endpoint, the network and any proxy between")
}

#[async_trait]
impl StoreDecorator for FlowStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    async fn around<'a, T: Answer + 'a, C: Call<'a, T>>(&'a self, request: Request, call: C) -> Result<T> {
        self.limits.pay(request.sent_bytes).await;
        call().await
    }

    async fn read_decorated(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        let (limits, stall_timeout) = (Arc::clone(&self.limits), self.stall_timeout);
        let subject = format!("{}/{key}", self.url());
        let body = timeout(stall_timeout, self.inner.read(key, range)).await;
        let body = body.map_err(|_| stalled(&subject, stall_timeout))?;
        let watched = try_unfold(body?, move |mut body| {
            let (limits, subject) = (Arc::clone(&limits), subject.clone());
            async move {
                let next = timeout(stall_timeout, body.next()).await;
                let bytes = next.map_err(|_| stalled(&subject, stall_timeout))?.transpose()?;
                if let Some(bytes) = &bytes {
                    limits.pay(bytes.len() as u64).await;
                }
                Ok(bytes.map(|bytes| (bytes, body)))
            }
        });
        Ok(watched.boxed())
    }
}

/// The answer to a request that sends no more than this takes as long as the way to the store and back, and so does the
/// beginning of any read.
const SMALL_BYTES: u64 = 16 << 10;

/// Limits concurrent requests. The outermost decorator: a request that waits for its retry keeps its permit, so that no
/// other request replaces it at a failing remote.
///
/// A read counts until its stream is dropped. A caller that holds one must not wait for another request to the same
/// remote.
#[derive(Debug)]
pub struct RequestLimitStore {
    inner: Arc<dyn RemoteStore>,
    limit: Arc<AdaptiveLimit>,
}

impl RequestLimitStore {
    /// Permits at most `maximum` concurrent requests, and at least one.
    pub fn new(inner: Arc<dyn RemoteStore>, maximum: usize) -> Self {
        Self { inner, limit: AdaptiveLimit::new(maximum) }
    }

    async fn permit(&self) -> Result<ConcurrencyPermit> {
        // The semaphore is never closed.
        self.limit.acquire().await.map_err(|error| {
            Error::new(ErrorKind::Failed, "cannot send a request").on(self.url()).caused_by(error)
        })
    }
}

#[async_trait]
impl StoreDecorator for RequestLimitStore {
    fn inner(&self) -> &dyn RemoteStore {
        &*self.inner
    }

    fn concurrency_limit_decorated(&self) -> Option<&dyn ConcurrencyLimit> {
        Some(&*self.limit)
    }

    async fn around<'a, T: Answer + 'a, C: Call<'a, T>>(&'a self, request: Request, call: C) -> Result<T> {
        let _permit = self.permit().await?;
        let begun = Instant::now();
        let answer = call().await;
        if answer.is_ok() {
            // What sends nothing may be no request: not every store has something to begin or to sync.
            if (1..=SMALL_BYTES).contains(&request.sent_bytes) {
                self.limit.record_latency(begun.elapsed());
            }
            self.limit.record_success(request.sent_bytes);
        }
        answer
    }

    async fn read_decorated(&self, key: &str, range: Option<Range<u64>>) -> Result<BodyStream> {
        let permit = self.permit().await?;
        let begun = Instant::now();
        let body = self.inner.read(key, range).await?;
        self.limit.record_latency(begun.elapsed());
        let limit = Arc::clone(&self.limit);
        let held = unfold((body, permit, 0), move |(mut body, permit, bytes)| {
            let limit = Arc::clone(&limit);
            async move {
                let Some(next) = body.next().await else {
                    limit.record_success(bytes);
                    return None;
                };
                let bytes = bytes + next.as_ref().map_or(0, |piece| piece.len() as u64);
                Some((next, (body, permit, bytes)))
            }
        });
        Ok(held.boxed())
    }

    /// Counts only while an entry is awaited: callers send requests between two entries.
    fn list_decorated<'a>(&'a self, prefix: &str) -> BoxStream<'a, Result<ObjectInfo>> {
        let entries = self.inner.list(prefix);
        unfold(entries, move |mut entries| async move {
            let next = match self.permit().await {
                Ok(_permit) => entries.next().await?,
                Err(error) => Err(error),
            };
            Some((next, entries))
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_of_the_day_has_the_limit_of_its_period() {
        let period =
            |hour: u32, bytes_per_second| BandwidthPeriod { from_seconds: hour * 3600, bytes_per_second };
        let limit = BandwidthLimit::of(vec![period(8, Some(1)), period(20, None)]).unwrap();
        assert!(Limits::new(&limit, || 9 * 3600).now().is_some());
        assert!(Limits::new(&limit, || 7 * 3600).now().is_none());
        assert!(Limits::new(&BandwidthLimit::default(), || 0).now().is_none());
        assert!(local_seconds_of_day() < 24 * 3600);
    }
}
