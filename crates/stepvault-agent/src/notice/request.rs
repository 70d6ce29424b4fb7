//! Requests to stop, because a provider takes the machine away.

use std::time::Duration;

use stepvault_local::clock;
use tokio::time::Instant;

use super::metadata::Reply;
use crate::shared::Shared;
use crate::stop::StopReason;

/// Asks the service to stop for a provider's notice, which leaves this much time; with the configured deadline if it
/// names none.
pub(super) fn request_stop(shared: &Shared, notice: String, left: Option<Duration>) {
    let time = match left {
        Some(left) => format!("the machine goes away in {} s", left.as_secs()),
        None => "it names no time, and agent.drain-deadline applies".to_owned(),
    };
    shared.reporter.warn(&format!("received {notice}: {time}"));
    shared.drain.stop.request(StopReason::Notice(notice), left.map(|left| Instant::now() + left));
}

/// Returns the time until `time` by the service's clock, because this machine's may be wrong and a notice is short; `None`
/// if nothing is left.
pub(super) fn time_left(reply: &Reply, time: jiff::Timestamp) -> Option<Duration> {
    let now = reply.date().unwrap_or_else(clock::now).seconds;
    let seconds = u64::try_from(time.as_second().checked_sub(now)?).ok()?;
    // Both are truncated to whole seconds: almost one second may already have passed.
    Some(Duration::from_secs(seconds.saturating_sub(1))).filter(|left| !left.is_zero())
}
