//! Handles requests to drain the service.

use std::time::Duration;

use hyper::StatusCode;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::ControlState;
use super::http::{Answer, document};
use crate::messages::{DetachRequest, DrainAnswer, DrainRequest};
use crate::report::AgentReport;
use crate::stop::StopReason;

/// Maximum number of listed steps.
const MAX_NAMED: usize = 100;
/// The latest deadline: a client that needs a later one should not request a stop.
const LATEST: Duration = Duration::from_hours(24 * 365);

/// No longer follows a process, and drains if it was the last one.
pub(super) async fn detach(state: &ControlState, request: &DetachRequest) -> Result<Answer> {
    let followed = state.followed.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::Refused, "cannot detach the process")
            .on(request.process_id)
            .because("this agent was not started for a process: it runs until it is told to end")
            .hint("to end it, send a request to /v1/drain")
    })?;
    state.shared.announcements.left(request.process_id);
    let deadline = deadline_after(request.deadline_seconds);
    let deadline = deadline.unwrap_or_else(|| Instant::now() + state.shared.drain.configured);
    let waiting = request.wait.then(|| followed.waiting_client());
    let was_last = followed.ended(request.process_id, StopReason::TrainerGone, Some(deadline));
    if was_last && waiting.is_some() {
        return ended(state).await;
    }
    let remaining = state.shared.drain.stop.requested().and_then(|request| request.deadline);
    Ok(document(StatusCode::OK, still_serving(remaining)))
}

/// Returns the answer of a service that has not ended.
fn still_serving(deadline: Option<Instant>) -> DrainAnswer {
    let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    DrainAnswer { remaining_seconds: remaining.unwrap_or_default().as_secs(), ..DrainAnswer::default() }
}

fn deadline_after(seconds: Option<u64>) -> Option<Instant> {
    seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds).min(LATEST))
}

pub(super) async fn drain(state: &ControlState, request: DrainRequest) -> Result<Answer> {
    let now = Instant::now();
    let (stop, configured) = (&state.shared.drain.stop, state.shared.drain.configured);
    let asked_for = deadline_after(request.deadline_seconds);
    // The configured deadline counts like an earlier request's: a request without a deadline shortens nothing.
    let deadline = match asked_for {
        None if !stop.is_requested() => Some(now + configured),
        asked_for => asked_for,
    };
    let reason = if request.trainer_ended { StopReason::TrainerGone } else { StopReason::Control };
    stop.request(reason, deadline);
    if !request.wait {
        let requested = stop.requested().and_then(|request| request.deadline);
        let end = requested.unwrap_or(now + configured);
        return Ok(document(StatusCode::ACCEPTED, still_serving(Some(end))));
    }
    ended(state).await
}

/// Waits for the end of the service, and returns its answer.
async fn ended(state: &ControlState) -> Result<Answer> {
    let mut ended = state.ended.clone();
    let answer = ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.clone());
    // A service that failed ends without an answer.
    let answer = answer.ok_or_else(|| {
        Error::new(ErrorKind::Failed, "the agent ended without a report")
            .hint("look for the cause in its output")
    })?;
    Ok(document(StatusCode::OK, &*answer))
}

/// Returns the final response of an ended service to clients that waited for the end.
pub(super) fn final_response(report: Option<&AgentReport>) -> Option<DrainAnswer> {
    let report = report?;
    let mut left = report.left.clone();
    // Those on required remotes first.
    left.not_durable.sort_by_key(|step| !step.required);
    left.not_durable.truncate(MAX_NAMED);
    left.unsealed.truncate(MAX_NAMED);
    left.unreadable.truncate(MAX_NAMED);
    left.unserved.truncate(MAX_NAMED);
    Some(DrainAnswer { ended: true, remaining_seconds: 0, durable: Some(report.is_durable()), left })
}
