//! The machine's clock. It decides whether files have been unchanged for long enough, but nothing that deletes on a
//! remote.

use stepvault_core::{Clock, Timestamp};

/// Returns the machine's time.
pub fn now() -> Timestamp {
    SystemClock.now()
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the clock that everything else takes the time from"
    )]
    fn now(&self) -> Timestamp {
        Timestamp::from(std::time::SystemTime::now())
    }
}
