//! State shared by all requests to one remote: whether it answers, how many requests may be in progress, and how many
//! retries are left.
//!
//! While a remote fails, one request at a time probes whether it is back, at increasing intervals, and the others wait
//! for it. When it answers again, the number of concurrent requests grows with each success.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use parking_lot::Mutex;
use stepvault_core::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Consecutive failures after which the remote counts as failing altogether.
const FAILURES_THAT_CLOSE: u32 = 3;
/// Wait before the first probe of a failing remote; up to twice that with jitter, like all waits.
const FIRST_PROBE_WAIT: Duration = Duration::from_millis(100);
/// Longest wait between probes, before jitter: a recovered remote is noticed within half a minute.
const LONGEST_PROBE_WAIT: Duration = Duration::from_secs(12);
/// Maximum number of retries in one burst.
const MAX_TOKENS: f64 = 20.0;
/// Tokens added per success: in the long run at most one retry per two successes.
const TOKENS_FOR_A_SUCCESS: f64 = 0.5;
/// Time that adds one token: occasional retries are sent even when nothing succeeds.
const TIME_FOR_A_TOKEN: Duration = Duration::from_secs(10);

/// Shared by all requests to one remote.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Notify,
    patience: Duration,
}

#[derive(Debug)]
struct State {
    /// Number of requests that may be in progress.
    allowed: usize,
    under_way: usize,
    /// Grows whenever `allowed` shrinks. A later failure of a request that began before that says nothing new.
    epoch: u64,
    failures_in_row: u32,
    /// No request is sent before this time.
    not_before: Option<Instant>,
    probe_waits: ExponentialBackoff,
    tokens: f64,
    tokens_at: Instant,
    last_success: Instant,
    last_error: Option<Error>,
}

/// A permit to send one request. Dropping it unused only releases it.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    epoch: u64,
}

impl Gate {
    /// Creates a gate. `patience` is how long a request waits for a remote that answers no request.
    pub(super) fn new(patience: Duration) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            state: Mutex::new(State {
                allowed: usize::MAX,
                under_way: 0,
                epoch: 0,
                failures_in_row: 0,
                not_before: None,
                probe_waits: probe_waits(patience),
                tokens: MAX_TOKENS,
                tokens_at: now,
                last_success: now,
                last_error: None,
            }),
            changed: Notify::new(),
            patience,
        })
    }

    /// Waits until a request may be sent. Fails with the last error when the remote has answered no request for as long as
    /// `patience`. `is_given_up` is whether that was found before: then it fails with the next request that fails.
    pub(super) async fn enter(
        self: &Arc<Self>,
        is_retry: bool,
        is_given_up: bool,
        patience: Duration,
    ) -> Result<Pass, Option<Error>> {
        let began = Instant::now();
        let failures_before = self.state.lock().failures_in_row;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (until, give_up) = {
                let mut state = self.state.lock();
                let until = match state.ask(is_retry) {
                    Ask::Go => {
                        return Ok(Pass { gate: Arc::clone(self), epoch: state.epoch });
                    }
                    Ask::Wait(until) => until,
                };
                let give_up = began.max(state.last_success) + patience;
                let has_failed_again = is_given_up && state.failures_in_row > failures_before;
                if has_failed_again || give_up <= Instant::now() {
                    return Err(state.last_error.clone());
                }
                (until, give_up)
            };
            let until = until.map_or(give_up, |until| until.min(give_up));
            tokio::select! {
                // Either way the state is checked again. The fixed order lets a simulation be repeated.
                biased;
                () = changed => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

enum Ask {
    Go,
    /// Wait until this time, or until the state changes.
    Wait(Option<Instant>),
}

impl State {
    fn ask(&mut self, is_retry: bool) -> Ask {
        let now = Instant::now();
        if let Some(not_before) = self.not_before.filter(|not_before| now < *not_before) {
            return Ask::Wait(Some(not_before));
        }
        if self.under_way >= self.allowed {
            return Ask::Wait(None);
        }
        if is_retry {
            let gained = now.duration_since(self.tokens_at).as_secs_f64() / TIME_FOR_A_TOKEN.as_secs_f64();
            self.tokens = (self.tokens + gained).min(MAX_TOKENS);
            self.tokens_at = now;
            if self.tokens < 1.0 {
                return Ask::Wait(Some(
                    now + TIME_FOR_A_TOKEN.mul_f64(1.0 - self.tokens) + Duration::from_millis(1),
                ));
            }
            self.tokens -= 1.0;
        }
        self.under_way += 1;
        Ask::Go
    }
}

impl Pass {
    /// The remote answered, either with a result or with a refusal that shows that it works.
    pub(super) fn succeeded(self) {
        let mut state = self.gate.state.lock();
        state.failures_in_row = 0;
        state.allowed = state.allowed.saturating_add(1);
        state.not_before = None;
        state.probe_waits = probe_waits(self.gate.patience);
        state.tokens = (state.tokens + TOKENS_FOR_A_SUCCESS).min(MAX_TOKENS);
        state.last_success = Instant::now();
        state.last_error = None;
    }

    /// The remote did not answer, or could not serve the request.
    pub(super) fn failed(self, error: &Error) {
        let mut state = self.gate.state.lock();
        let now = Instant::now();
        state.failures_in_row = state.failures_in_row.saturating_add(1);
        state.last_error = Some(error.clone());
        if let Some(wait) = error.retry_after_wait() {
            let asked = now + wait.min(self.gate.patience);
            state.not_before = Some(state.not_before.map_or(asked, |earlier| earlier.max(asked)));
        }
        let closed = state.allowed == 1;
        if !closed && state.failures_in_row >= FAILURES_THAT_CLOSE {
            state.allowed = 1;
        } else if self.epoch < state.epoch {
            return;
        } else {
            state.allowed = (state.allowed.min(state.under_way) / 2).max(1);
        }
        state.epoch += 1;
        if state.failures_in_row >= FAILURES_THAT_CLOSE {
            // They never end.
            let wait = state.probe_waits.next().unwrap_or(LONGEST_PROBE_WAIT);
            let probe = now + wait;
            state.not_before = Some(state.not_before.map_or(probe, |earlier| earlier.max(probe)));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.state.lock().under_way -= 1;
        self.gate.changed.notify_waiters();
    }
}

/// Returns the waits between probes: with a short `patience` they stay short, so that several fit into it.
fn probe_waits(patience: Duration) -> ExponentialBackoff {
    let longest = LONGEST_PROBE_WAIT.min(patience / 8);
    backoff(FIRST_PROBE_WAIT.min(longest), longest)
}

/// Returns waits that double from `first` to `longest`, each randomly up to twice as long.
pub(super) fn backoff(first: Duration, longest: Duration) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(first)
        .with_max_delay(longest)
        .with_factor(2.0)
        .without_max_times()
        .with_jitter()
        // Without its own seed every process would draw the same waits.
        .with_jitter_seed(crate::random::seed())
        .build()
}
