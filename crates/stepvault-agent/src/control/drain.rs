//! Asking the service to end.

use std::time::Duration;

use hyper::StatusCode;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::Desk;
use super::http::{Answer, document};
use super::messages::{DrainAnswer, DrainRequest};
use crate::report::AgentReport;
use crate::stop::StopReason;

/// Most steps that are named.
const MOST_NAMED: usize = 100;
/// The latest deadline: whoever means never should not ask to stop.
const LATEST: Duration = Duration::from_hours(24 * 365);

pub(super) async fn drain(desk: &Desk, request: DrainRequest) -> Result<Answer> {
    let now = Instant::now();
    let asked_for = request.deadline_seconds.map(Duration::from_secs);
    let asked_for = asked_for.map(|deadline| now + deadline.min(LATEST));
    let before = desk.shared.stopping.requested();
    // The configured deadline is as good as an earlier request's: whoever names none puts nothing forward.
    let deadline = match (&before, asked_for) {
        (Some(_), None) => None,
        (_, Some(deadline)) => Some(deadline),
        (None, None) => Some(now + desk.drain_deadline),
    };
    desk.shared.stopping.request(StopReason::Control, deadline);
    let requested = desk
        .shared
        .stopping
        .requested()
        .and_then(|request| request.deadline);
    if !request.wait {
        let end = requested.unwrap_or(now + desk.drain_deadline);
        let answer = DrainAnswer {
            ended: false,
            remaining_seconds: end.saturating_duration_since(now).as_secs(),
            safe: None,
            not_durable: Vec::new(),
        };
        return Ok(document(StatusCode::ACCEPTED, answer));
    }
    let mut ended = desk.ended.clone();
    let answer = ended
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|ended| ended.clone());
    // A service that broke down ends without a word.
    let answer = answer.ok_or_else(|| {
        Error::new(ErrorKind::Failed, "the agent ended without a report").hint("its own output says why")
    })?;
    Ok(document(StatusCode::OK, &*answer))
}

/// What a service that has ended says to whoever waited for that.
pub(super) fn farewell(report: Option<&AgentReport>) -> Option<DrainAnswer> {
    let report = report?;
    let required_first = |required| {
        report
            .not_durable
            .iter()
            .filter(move |step| step.required == required)
    };
    Some(DrainAnswer {
        ended: true,
        remaining_seconds: 0,
        safe: Some(report.is_safe()),
        not_durable: required_first(true)
            .chain(required_first(false))
            .take(MOST_NAMED)
            .cloned()
            .collect(),
    })
}
