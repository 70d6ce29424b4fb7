//! Handles requests to drain the service.

use std::time::Duration;

use hyper::StatusCode;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::ControlState;
use super::http::{Answer, document};
use crate::messages::{DrainAnswer, DrainRequest};
use crate::report::AgentReport;
use crate::stop::StopReason;

/// Maximum number of listed steps.
const MAX_NAMED: usize = 100;
/// The latest deadline: a client that needs a later one should not request a stop.
const LATEST: Duration = Duration::from_hours(24 * 365);

pub(super) async fn drain(state: &ControlState, request: DrainRequest) -> Result<Answer> {
    let now = Instant::now();
    let (stop, configured) = (&state.drain.stop, state.drain.configured);
    let asked_for = request.deadline_seconds.map(Duration::from_secs);
    let asked_for = asked_for.map(|deadline| now + deadline.min(LATEST));
    // The configured deadline counts like an earlier request's: a request without a deadline shortens nothing.
    let deadline = match asked_for {
        None if !stop.is_requested() => Some(now + configured),
        asked_for => asked_for,
    };
    let reason = if request.trainer_ended {
        StopReason::TrainerGone
    } else {
        StopReason::Control
    };
    stop.request(reason, deadline);
    if !request.wait {
        let requested = stop.requested().and_then(|request| request.deadline);
        let end = requested.unwrap_or(now + configured);
        let answer = DrainAnswer {
            remaining_seconds: end.saturating_duration_since(now).as_secs(),
            ..DrainAnswer::default()
        };
        return Ok(document(StatusCode::ACCEPTED, answer));
    }
    let mut ended = state.ended.clone();
    let answer = ended
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|ended| ended.clone());
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
    let (required, optional): (Vec<_>, Vec<_>) = report.not_durable.iter().partition(|step| step.required);
    let required_first = required.into_iter().chain(optional);
    Some(DrainAnswer {
        ended: true,
        remaining_seconds: 0,
        durable: Some(report.is_durable()),
        not_durable: required_first.take(MAX_NAMED).cloned().collect(),
        unsealed: report.unsealed.iter().take(MAX_NAMED).cloned().collect(),
        unreadable: report.unreadable.iter().take(MAX_NAMED).cloned().collect(),
        unserved: report.unserved.iter().take(MAX_NAMED).cloned().collect(),
    })
}
