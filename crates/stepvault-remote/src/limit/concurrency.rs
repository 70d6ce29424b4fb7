//! Adapts the number of concurrent requests to a remote: it grows while throughput does. A remote that asks to slow down is
//! handled below it, where requests are retried.
//!
//! A store at the other end of a network answers after tens of milliseconds and gives each connection a part of its
//! rate, so that throughput is the number of requests under way; a store on loopback is busy with a few.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::store::ConcurrencyLimit;

/// The limit to start with at a store with low latency, and the lowest one: there, a few requests keep every core busy, and
/// more of them only cost wake-ups.
const INITIAL_AT_LOW_LATENCY: usize = 8;
/// A store that has answered a small request within this time is on this machine or in its network.
const LOW_LATENCY: Duration = Duration::from_millis(3);
/// Throughput is measured over at least this time, and over as many successes as requests may be under way.
const WINDOW: Duration = Duration::from_millis(400);
/// The same until the limit is found: a step of many small files is sent within a few seconds.
const GROWTH_WINDOW: Duration = Duration::from_millis(50);
/// A request counts as this many bytes beside its own: its answer takes time even if it moves nothing.
const REQUEST_COST_BYTES: u64 = 64 << 10;
/// Growth continues while throughput rises by this much.
const MIN_GAIN_PERCENT: u64 = 10;
/// After growth has stopped, this many windows pass until a little more is tried again.
const COOLDOWN_WINDOWS: u32 = 20;

/// Permits requests, as many at once as have proved worthwhile.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    permits: Arc<Semaphore>,
    maximum: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits to take back from requests that end, after the limit was lowered.
    permits_to_reclaim: usize,
    window: Window,
    /// Bytes per second of the last window at a lower limit; `None` at the beginning.
    before: Option<u64>,
    /// The limit before the last growth, to return to if it was not worthwhile.
    lower: usize,
    search: Search,
    /// Whether the limit was measured: a window passed in which it was used up.
    is_measured: bool,
    /// Whether it is clear where to start: the store was found near, or was measured earlier.
    is_started: bool,
}

/// What the next window tries.
#[derive(Debug, Clone, Copy)]
enum Search {
    /// More requests than ever; `is_higher` once that has raised the throughput.
    Growth { is_higher: bool },
    /// Fewer, because more than the first limit gained nothing: `rate` is that of twice as many.
    Shrinking { rate: u64 },
    /// Nothing for so many windows, and then a little more.
    Rest { windows: u32 },
}

#[derive(Debug)]
struct Window {
    /// Number of answers before it begins: the first one of all, which comes later than any other, or those of requests that
    /// were sent under a higher limit.
    earlier: usize,
    begun: Instant,
    bytes: u64,
    successes: usize,
}

impl Window {
    fn after(earlier: usize) -> Self {
        Self { earlier, begun: Instant::now(), bytes: 0, successes: 0 }
    }
}

/// The permit of one request.
#[derive(Debug)]
pub(crate) struct ConcurrencyPermit {
    limit: Arc<AdaptiveLimit>,
    permit: Option<OwnedSemaphorePermit>,
}

impl AdaptiveLimit {
    /// Permits at most `maximum` concurrent requests, and at least one. It begins there: a store that is far away gives each
    /// request a part of its rate, and is asked for all it has from the first round trip on.
    pub(crate) fn new(maximum: usize) -> Arc<Self> {
        let maximum = maximum.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(maximum)),
            maximum,
            state: Mutex::new(State {
                limit: maximum,
                permits_to_reclaim: 0,
                window: Window::after(1),
                before: None,
                lower: maximum,
                search: Search::Growth { is_higher: false },
                is_measured: false,
                is_started: false,
            }),
        })
    }

    /// Records how long the answer to a small request, or the beginning of a larger one, took.
    pub(crate) fn record_latency(&self, after: Duration) {
        if after > LOW_LATENCY {
            return;
        }
        let mut state = self.state.lock();
        if !state.is_started && !state.is_measured {
            self.start(&mut state, INITIAL_AT_LOW_LATENCY);
        }
    }

    fn start(&self, state: &mut State, limit: usize) {
        let limit = limit.clamp(INITIAL_AT_LOW_LATENCY.min(self.maximum), self.maximum);
        self.set(state, limit);
        state.lower = limit;
        // Fewer are not worth a try.
        state.search = Search::Growth { is_higher: true };
        state.is_started = true;
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Result<ConcurrencyPermit, AcquireError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await?;
        Ok(ConcurrencyPermit { limit: Arc::clone(self), permit: Some(permit) })
    }

    /// Records a successful request that moved `bytes`, and adjusts the limit at the end of a window.
    pub(crate) fn record_success(&self, bytes: u64) {
        let mut state = self.state.lock();
        let window = &mut state.window;
        if window.earlier > 0 {
            *window = Window::after(window.earlier - 1);
            return;
        }
        window.bytes += bytes + REQUEST_COST_BYTES;
        window.successes += 1;
        let (elapsed, successes) = (window.begun.elapsed(), window.successes);
        let shortest = if matches!(state.search, Search::Rest { .. }) { WINDOW } else { GROWTH_WINDOW };
        if elapsed < shortest || successes < state.limit {
            return;
        }
        let window = std::mem::replace(&mut state.window, Window::after(0));
        // Throughput says nothing about a limit that is not used up.
        if self.permits.available_permits() == 0 {
            let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            let rate = window.bytes.saturating_mul(1000) / milliseconds.max(1);
            state.is_measured = true;
            let (before, limit) = (state.limit, state.next_limit(rate, self.maximum));
            if limit < before {
                state.window.earlier = before;
            }
            self.set(&mut state, limit);
        }
    }

    fn set(&self, state: &mut State, limit: usize) {
        if limit > state.limit {
            let more = limit - state.limit;
            let kept = more.min(state.permits_to_reclaim);
            state.permits_to_reclaim -= kept;
            self.permits.add_permits(more - kept);
        } else {
            let fewer = state.limit - limit;
            state.permits_to_reclaim += fewer - self.permits.forget_permits(fewer);
        }
        if limit != state.limit {
            tracing::debug!(from = state.limit, to = limit, "concurrent requests");
        }
        state.limit = limit;
    }
}

impl ConcurrencyLimit for AdaptiveLimit {
    fn current(&self) -> usize {
        self.state.lock().limit
    }

    fn measured(&self) -> Option<usize> {
        let state = self.state.lock();
        state.is_measured.then_some(state.limit)
    }

    fn start_at(&self, limit: usize) {
        let mut state = self.state.lock();
        if !state.is_measured {
            self.start(&mut state, limit);
        }
    }
}

impl State {
    /// Returns the limit after a window with this rate.
    fn next_limit(&mut self, rate: u64, maximum: usize) -> usize {
        let is_first = match &mut self.search {
            Search::Rest { windows: windows @ 1.. } => {
                *windows -= 1;
                return self.limit;
            }
            Search::Shrinking { rate: before } => {
                let before = *before;
                let is_enough = rate >= before.saturating_mul(100 - MIN_GAIN_PERCENT / 2) / 100;
                let least = INITIAL_AT_LOW_LATENCY.min(maximum);
                if is_enough && self.limit > least {
                    self.search = Search::Shrinking { rate: before.max(rate) };
                    return (self.limit / 2).max(least);
                }
                self.rest();
                return if is_enough { self.limit } else { (self.limit * 2).min(maximum) };
            }
            Search::Growth { is_higher } => !*is_higher,
            Search::Rest { .. } => false,
        };
        match self.before.replace(rate) {
            Some(before) if rate < before.saturating_mul(100 + MIN_GAIN_PERCENT) / 100 => {
                // The last step was too much, or changed nothing.
                self.rest();
                if is_first {
                    self.search = Search::Shrinking { rate: before };
                    return (self.lower / 2).max(INITIAL_AT_LOW_LATENCY.min(maximum));
                }
                self.lower
            }
            before => {
                if before.is_some() && is_first && self.limit > self.lower {
                    self.search = Search::Growth { is_higher: true };
                }
                self.lower = self.limit;
                (self.limit * 2).min(maximum)
            }
        }
    }

    fn rest(&mut self) {
        self.before = None;
        self.search = Search::Rest { windows: COOLDOWN_WINDOWS };
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        let mut state = self.limit.state.lock();
        if state.permits_to_reclaim > 0
            && let Some(permit) = self.permit.take()
        {
            state.permits_to_reclaim -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests as fast as the limit permits, each of `takes`, of which only `capacity` make progress at once.
    async fn run(limit: &Arc<AdaptiveLimit>, requests: usize, takes: Duration, capacity: usize) {
        let server = Arc::new(Semaphore::new(capacity));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..requests {
            let (limit, server) = (Arc::clone(limit), Arc::clone(&server));
            tasks.spawn(async move {
                let _turn = limit.acquire().await.unwrap();
                let _served = server.acquire().await.unwrap();
                tokio::time::sleep(takes).await;
                limit.record_success(1 << 20);
            });
        }
        tasks.join_all().await;
    }

    fn at(limit: &AdaptiveLimit) -> usize {
        limit.state.lock().limit
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_is_far_gets_as_many_requests_as_it_can_use() {
        let limit = AdaptiveLimit::new(256);
        run(&limit, 20_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&limit), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_is_busy_with_a_few_gets_no_more() {
        let limit = AdaptiveLimit::new(256);
        run(&limit, 20_000, Duration::from_millis(5), 32).await;
        assert!(at(&limit) <= 64, "{}", at(&limit));
    }

    #[tokio::test(start_paused = true)]
    async fn it_starts_where_it_was_last_and_only_once() {
        let limit = AdaptiveLimit::new(256);
        assert_eq!(limit.measured(), None);
        run(&limit, 20_000, Duration::from_millis(50), 10_000).await;
        let measured = limit.measured().unwrap();
        assert_eq!(measured, 256);
        let later = AdaptiveLimit::new(256);
        later.start_at(measured);
        assert_eq!((at(&later), later.measured()), (256, None));
        let begun = Instant::now();
        run(&later, 2_560, Duration::from_millis(50), 10_000).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(500), "all permits from the start");
        later.start_at(32);
        assert_eq!(at(&later), 256, "it was measured since");
        // The settings may have changed.
        let limited = AdaptiveLimit::new(100);
        limited.start_at(measured);
        assert_eq!(at(&limited), 100);
        limited.start_at(1);
        assert_eq!(at(&limited), INITIAL_AT_LOW_LATENCY);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_near_gets_few_requests_at_first() {
        let limit = AdaptiveLimit::new(256);
        limit.record_latency(Duration::from_millis(20));
        assert_eq!(at(&limit), 256);
        limit.record_latency(Duration::from_millis(1));
        assert_eq!(at(&limit), INITIAL_AT_LOW_LATENCY);
        // It answered fast, and more requests still raise its throughput.
        run(&limit, 20_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&limit), 256);
        limit.record_latency(Duration::from_millis(1));
        assert_eq!(at(&limit), 256);
        // What was measured earlier counts more.
        let recalled = AdaptiveLimit::new(256);
        recalled.start_at(128);
        recalled.record_latency(Duration::from_millis(1));
        assert_eq!(at(&recalled), 128);
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_that_is_lowered_takes_its_turns_back_as_requests_end() {
        let limit = AdaptiveLimit::new(10);
        run(&limit, 1_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&limit), 10);
        let mut permits = Vec::new();
        for _ in 0..10 {
            permits.push(limit.acquire().await.unwrap());
        }
        limit.set(&mut limit.state.lock(), 7);
        assert_eq!(limit.permits.available_permits(), 0);
        drop(permits);
        assert_eq!(limit.permits.available_permits(), 7);
    }
}
