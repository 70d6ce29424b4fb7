//! Routes of the control API.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use stepvault_core::ids::RemoteName;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};
use stepvault_engine::blocking::blocking;
use stepvault_local::tree::scan;

use super::http::{Answer, document, read, refusal, status_of, text};
use super::messages::{
    AnnounceAnswer, AnnounceRequest, AnnouncementState, RemoteRate, RunStatus, Skipped, StatusAnswer,
};
use super::{ControlState, drain, wait};

/// How long an announcement is awaited before the answer says that it is queued.
const SEALED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of listed entries that are not sealed yet.
const MAX_UNFINISHED: usize = 32;
/// How long a query about an announcement waits for progress.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

const STATUS: &str = "/v1/status";
const ANNOUNCE: &str = "/v1/announce";
const ANNOUNCEMENTS: &str = "/v1/announcements/";
const WAIT: &str = "/v1/wait";
const DRAIN: &str = "/v1/drain";

/// Answers a request on the control socket.
pub(super) async fn control(control_state: &ControlState, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let answered = match (&head.method, path) {
        (&Method::GET, STATUS) => Ok(document(StatusCode::OK, status(control_state))),
        (&Method::POST, ANNOUNCE) => match read(body).await {
            Ok(request) => announce(control_state, request).await,
            Err(refused) => return refused,
        },
        (&Method::GET, path) if path.starts_with(ANNOUNCEMENTS) => {
            announcement(control_state, path.trim_start_matches(ANNOUNCEMENTS)).await
        }
        (&Method::POST, WAIT) => match read(body).await {
            Ok(request) => wait::wait(control_state, request)
                .await
                .map(|answer| document(StatusCode::OK, answer)),
            Err(refused) => return refused,
        },
        (&Method::POST, DRAIN) => match read(body).await {
            Ok(request) => drain::drain(control_state, request).await,
            Err(refused) => return refused,
        },
        (_, STATUS) => return other_method(path, "GET"),
        (_, path) if path.starts_with(ANNOUNCEMENTS) => return other_method(path, "GET"),
        (_, ANNOUNCE | WAIT | DRAIN) => return other_method(path, "POST"),
        _ => Err(Error::new(ErrorKind::NotFound, "unknown path")
            .on(path)
            .hint("see docs/reference/control.md for the requests")),
    };
    answered.unwrap_or_else(|error| refusal(status_of(&error), &error))
}

/// Answers a request on the port for metrics.
pub(super) async fn metrics(control_state: &ControlState, request: Request<Incoming>) -> Answer {
    const PLAIN: &str = "text/plain; charset=utf-8";
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return other_method(request.uri().path(), "GET");
    }
    match request.uri().path() {
        "/metrics" => match control_state.metrics.text(control_state).await {
            Ok(body) => text(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                body,
            ),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
        },
        "/healthz" => {
            let problems = control_state.metrics.problems(control_state);
            if problems.is_empty() {
                text(StatusCode::OK, PLAIN, "well\n")
            } else {
                text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, problems.join("\n") + "\n")
            }
        }
        _ => text(StatusCode::NOT_FOUND, PLAIN, "use /metrics or /healthz\n"),
    }
}

fn other_method(path: &str, allowed: &'static str) -> Answer {
    let error = Error::new(ErrorKind::Usage, "method not allowed")
        .on(path)
        .hint(format!("use {allowed}"));
    let mut answer = refusal(StatusCode::METHOD_NOT_ALLOWED, &error);
    answer
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn entries(of: Vec<(PathBuf, String)>) -> Vec<Skipped> {
    of.into_iter()
        .map(|(path, reason)| Skipped { path, reason })
        .collect()
}

fn status(control_state: &ControlState) -> StatusAnswer {
    let notes = control_state.notes.current(&control_state.shared.status);
    let problems = control_state.metrics.problems(control_state);
    let requested = control_state.shared.stopping.requested();
    let runs = notes.iter().map(|(run, note)| RunStatus {
        run: run.clone(),
        remotes: note.remotes.clone(),
        skipped: entries(note.skipped.clone()),
        unfinished: entries(control_state.shared.status.unfinished_of(run, MAX_UNFINISHED)),
        other_writers: control_state.shared.status.other_writers(run),
        unsealed: entries(control_state.shared.status.unsealed_of(run, MAX_UNFINISHED)),
    });
    let remotes: BTreeSet<&RemoteName> = notes
        .iter()
        .flat_map(|(_, note)| note.remotes.iter().map(|on| &on.remote))
        .collect();
    let rates = remotes.into_iter().map(|remote| RemoteRate {
        remote: remote.clone(),
        bytes_per_second: control_state.shared.rates.bytes_per_second(remote),
        next_prune_at: control_state
            .shared
            .status
            .next_prune(remote)
            .map(Timestamp::to_rfc3339),
    });
    StatusAnswer {
        rates: rates.collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: control_state.notes.node().to_string(),
        process_id: std::process::id(),
        started_at: control_state.notes.started_at().to_rfc3339(),
        stopping: requested.map(|request| request.reason.to_string()),
        healthy: problems.is_empty(),
        problems,
        runs: runs.collect(),
    }
}

async fn announce(control_state: &ControlState, request: AnnounceRequest) -> Result<Answer> {
    let run = control_state.run(request.run.as_ref())?.run.clone();
    let path = checked_path(request.path)?;
    if let Some(name) = &request.name {
        stepvault_core::keys::check_step_name(name)?;
    }
    let _leave = control_state.leave_to_wait()?;
    let announced = match request.step {
        Some(_) => {
            let scanned = path.clone();
            // A path that cannot be listed now is reported when it is to be sealed.
            blocking(move || Ok(scan(&scanned).ok().map(|tree| tree.fingerprint()))).await?
        }
        None => None,
    };
    let announcements = &control_state.shared.announcements;
    let id = announcements.add(run, path, request.step, request.name, announced)?;
    let _ = tokio::time::timeout(SEALED_WITHIN, announcements.settled(id)).await;
    known(control_state, id)
}

async fn announcement(control_state: &ControlState, id: &str) -> Result<Answer> {
    let id = id.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, "invalid announcement number")
            .on(id)
            .hint("use the number from the answer to the announcement")
    })?;
    let _leave = control_state.leave_to_wait()?;
    let _ = tokio::time::timeout(NEWS_WITHIN, control_state.shared.announcements.settled(id)).await;
    known(control_state, id)
}

/// Returns the state of an announcement: sealed, queued, or refused with a cause.
fn known(control_state: &ControlState, id: u64) -> Result<Answer> {
    let answer: AnnounceAnswer = control_state.shared.announcements.answer(id).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such announcement")
            .on(id)
            .because("this agent never received it, or has discarded it after many later ones")
            .hint("announce the same path again: announcing a sealed step is not an error")
    })?;
    if let Some(info) = answer.error {
        return Err(info.into_error());
    }
    let status = match answer.state {
        AnnouncementState::Queued => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok(document(status, answer))
}

fn checked_path(path: PathBuf) -> Result<PathBuf> {
    let fault = |why: &str| {
        Error::new(ErrorKind::Usage, "cannot announce")
            .on(path.display())
            .because(why)
    };
    if !path.is_absolute() {
        return Err(fault("the path is relative").hint("send the absolute path"));
    }
    // With such components, the step's name would differ from its path's last component.
    let plain = path.components().all(|component| {
        matches!(
            component,
            std::path::Component::RootDir | std::path::Component::Normal(_)
        )
    });
    if !plain || path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(fault("the path contains '..' or a NUL byte").hint("send the path without them"));
    }
    Ok(path)
}
