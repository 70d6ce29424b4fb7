//! The number of concurrent requests that a remote is worth: it grows while throughput does. What a remote that asks to
//! slow down gets is decided below it, where requests are repeated.
//!
//! A store at the other end of a network answers after tens of milliseconds and gives each connection a part of its
//! rate, so that throughput is the number of requests under way; a store on loopback is busy with a few.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::store::RequestLevel;

/// The level to start with.
const FIRST: usize = 32;
/// The level to start with at a store that is near, and the lowest one: there, a few requests keep every core busy, and
/// more of them only cost wake-ups.
const FIRST_NEAR: usize = 8;
/// A store that has answered a small request within this time is near: on this machine or in its network.
const NEAR: Duration = Duration::from_millis(3);
/// Throughput is measured over at least this time, and over as many answers as requests may be under way.
const WINDOW: Duration = Duration::from_millis(400);
/// The same until growth first stops: a step of many small files is sent within a few seconds.
const FIRST_WINDOW: Duration = Duration::from_millis(50);
/// A request counts as this many bytes beside its own: its answer takes time even if it moves nothing.
const BYTES_OF_A_REQUEST: u64 = 64 << 10;
/// Growth continues while throughput rises by this much.
const WORTHWHILE_PERCENT: u64 = 10;
/// After growth has stopped, this many windows pass until a little more is tried again.
const REST_WINDOWS: u32 = 20;

/// Grants requests their turn.
#[derive(Debug)]
pub(crate) struct Level {
    turns: Arc<Semaphore>,
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    level: usize,
    /// Turns to take back from requests that end, after the level was lowered.
    owed: usize,
    window: Window,
    /// Bytes per second of the last window at a lower level; `None` at the beginning.
    before: Option<u64>,
    /// The level before the last growth, to return to if it was not worthwhile.
    lower: usize,
    /// Windows until growth is tried again.
    rest: u32,
    /// Whether growth has never stopped.
    is_first_growth: bool,
    /// Whether the level was measured: a window passed in which it was used up.
    is_measured: bool,
    /// Whether it is clear where to start: the store was found near, or was measured earlier.
    is_started: bool,
}

#[derive(Debug)]
struct Window {
    begun: Instant,
    bytes: u64,
    answers: usize,
}

impl Window {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            bytes: 0,
            answers: 0,
        }
    }
}

/// The turn of one request.
#[derive(Debug)]
pub(crate) struct Turn {
    level: Arc<Level>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Level {
    /// Permits at most `most` concurrent requests, and at least one.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let level = FIRST.min(most);
        Arc::new(Self {
            turns: Arc::new(Semaphore::new(level)),
            most,
            state: Mutex::new(State {
                level,
                owed: 0,
                window: Window::new(),
                before: None,
                lower: level,
                rest: 0,
                is_first_growth: true,
                is_measured: false,
                is_started: false,
            }),
        })
    }

    /// Records how long the answer to a small request, or the beginning of a larger one, took.
    pub(crate) fn heard(&self, after: Duration) {
        if after > NEAR {
            return;
        }
        let mut state = self.state();
        if !state.is_started && !state.is_measured {
            self.start(&mut state, FIRST_NEAR);
        }
    }

    fn start(&self, state: &mut State, level: usize) {
        let level = level.clamp(FIRST_NEAR.min(self.most), self.most);
        self.set(state, level);
        state.lower = level;
        state.is_started = true;
    }

    /// Waits for a turn.
    pub(crate) async fn turn(self: &Arc<Self>) -> Result<Turn, AcquireError> {
        let permit = Arc::clone(&self.turns).acquire_owned().await?;
        Ok(Turn {
            level: Arc::clone(self),
            permit: Some(permit),
        })
    }

    /// Records a successful request that moved `bytes`, and adjusts the level at the end of a window.
    pub(crate) fn answered(&self, bytes: u64) {
        let mut state = self.state();
        let window = &mut state.window;
        window.bytes += bytes + BYTES_OF_A_REQUEST;
        window.answers += 1;
        let (elapsed, answers) = (window.begun.elapsed(), window.answers);
        if elapsed < state.shortest_window() || answers < state.level {
            return;
        }
        let window = std::mem::replace(&mut state.window, Window::new());
        // Throughput says nothing about a level that is not used up.
        if self.turns.available_permits() == 0 {
            let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            let rate = window.bytes.saturating_mul(1000) / milliseconds.max(1);
            state.is_measured = true;
            let level = state.next_level(rate, self.most);
            self.set(&mut state, level);
        }
    }

    fn set(&self, state: &mut State, level: usize) {
        if level > state.level {
            let more = level - state.level;
            let kept = more.min(state.owed);
            state.owed -= kept;
            self.turns.add_permits(more - kept);
        } else {
            let fewer = state.level - level;
            state.owed += fewer - self.turns.forget_permits(fewer);
        }
        if level != state.level {
            tracing::debug!(from = state.level, to = level, "concurrent requests");
        }
        state.level = level;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestLevel for Level {
    fn now(&self) -> usize {
        self.state().level
    }

    fn measured(&self) -> Option<usize> {
        let state = self.state();
        state.is_measured.then_some(state.level)
    }

    fn start_at(&self, level: usize) {
        let mut state = self.state();
        if !state.is_measured {
            self.start(&mut state, level);
        }
    }
}

impl State {
    fn shortest_window(&self) -> Duration {
        if self.is_first_growth {
            FIRST_WINDOW
        } else {
            WINDOW
        }
    }

    /// Returns the level after a window with this rate.
    fn next_level(&mut self, rate: u64, most: usize) -> usize {
        if self.rest > 0 {
            self.rest -= 1;
            return self.level;
        }
        match self.before.replace(rate) {
            Some(before) if rate < before.saturating_mul(100 + WORTHWHILE_PERCENT) / 100 => {
                // The last step was too much, or changed nothing.
                self.before = None;
                self.rest = REST_WINDOWS;
                self.is_first_growth = false;
                self.lower
            }
            _ => {
                self.lower = self.level;
                (self.level * 2).min(most)
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.level.state();
        if state.owed > 0
            && let Some(permit) = self.permit.take()
        {
            state.owed -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests as fast as the level permits, each of `takes`, of which only `capacity` make progress at once.
    async fn run(level: &Arc<Level>, requests: usize, takes: Duration, capacity: usize) {
        let server = Arc::new(Semaphore::new(capacity));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..requests {
            let (level, server) = (Arc::clone(level), Arc::clone(&server));
            tasks.spawn(async move {
                let _turn = level.turn().await.unwrap();
                let _served = server.acquire().await.unwrap();
                tokio::time::sleep(takes).await;
                level.answered(1 << 20);
            });
        }
        tasks.join_all().await;
    }

    fn at(level: &Level) -> usize {
        level.state().level
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_is_far_gets_as_many_requests_as_it_can_use() {
        let level = Level::new(256);
        run(&level, 20_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&level), 256);
    }

    #[tokio::test(start_paused = true)]
    async fn a_remote_that_is_busy_with_a_few_gets_no_more() {
        let level = Level::new(256);
        run(&level, 20_000, Duration::from_millis(5), 32).await;
        assert!(at(&level) <= 64, "{}", at(&level));
    }

    #[tokio::test(start_paused = true)]
    async fn it_starts_where_it_was_last_and_only_once() {
        let level = Level::new(256);
        assert_eq!(level.measured(), None);
        run(&level, 20_000, Duration::from_millis(50), 10_000).await;
        let measured = level.measured().unwrap();
        assert_eq!(measured, 256);
        let later = Level::new(256);
        later.start_at(measured);
        assert_eq!((at(&later), later.measured()), (256, None));
        let begun = Instant::now();
        run(&later, 2_560, Duration::from_millis(50), 10_000).await;
        assert_eq!(
            begun.elapsed(),
            Duration::from_millis(500),
            "all turns from the start"
        );
        later.start_at(32);
        assert_eq!(at(&later), 256, "it was measured since");
        // The settings may have changed.
        let limited = Level::new(100);
        limited.start_at(measured);
        assert_eq!(at(&limited), 100);
        limited.start_at(1);
        assert_eq!(at(&limited), FIRST_NEAR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_near_gets_few_requests_at_first() {
        let level = Level::new(256);
        level.heard(Duration::from_millis(20));
        assert_eq!(at(&level), FIRST);
        level.heard(Duration::from_millis(1));
        assert_eq!(at(&level), FIRST_NEAR);
        // It was quick to answer, and is worth many requests all the same.
        run(&level, 20_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&level), 256);
        level.heard(Duration::from_millis(1));
        assert_eq!(at(&level), 256);
        // What was measured earlier counts more.
        let recalled = Level::new(256);
        recalled.start_at(128);
        recalled.heard(Duration::from_millis(1));
        assert_eq!(at(&recalled), 128);
    }

    #[tokio::test(start_paused = true)]
    async fn a_level_that_is_lowered_takes_its_turns_back_as_requests_end() {
        let level = Level::new(10);
        run(&level, 1_000, Duration::from_millis(50), 10_000).await;
        assert_eq!(at(&level), 10);
        let mut turns = Vec::new();
        for _ in 0..10 {
            turns.push(level.turn().await.unwrap());
        }
        level.set(&mut level.state(), 7);
        assert_eq!(level.turns.available_permits(), 0);
        drop(turns);
        assert_eq!(level.turns.available_permits(), 7);
    }
}
