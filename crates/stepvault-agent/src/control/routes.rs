//! What can be asked.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use stepvault_core::ids::RemoteName;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind, Result};

use super::http::{Answer, document, read, refusal, status_of, text};
use super::messages::{
    AnnounceAnswer, AnnounceRequest, AnnouncementState, RemotePace, RunStatus, Skipped, StatusAnswer,
};
use super::{Desk, drain, wait};

/// How long an announcement is waited for before it is answered that it waits.
const SEALED_WITHIN: Duration = Duration::from_secs(5);
/// Most entries that are not taken over yet.
const MOST_UNFINISHED: usize = 32;
/// How long a question about an announcement waits for news.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

const STATUS: &str = "/v1/status";
const ANNOUNCE: &str = "/v1/announce";
const ANNOUNCEMENTS: &str = "/v1/announcements/";
const WAIT: &str = "/v1/wait";
const DRAIN: &str = "/v1/drain";

/// Answers a request on the control socket.
pub(super) async fn control(desk: &Desk, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let answered = match (&head.method, path) {
        (&Method::GET, STATUS) => Ok(document(StatusCode::OK, status(desk))),
        (&Method::POST, ANNOUNCE) => match read(body).await {
            Ok(request) => announce(desk, request).await,
            Err(refused) => return refused,
        },
        (&Method::GET, path) if path.starts_with(ANNOUNCEMENTS) => {
            announcement(desk, path.trim_start_matches(ANNOUNCEMENTS)).await
        }
        (&Method::POST, WAIT) => match read(body).await {
            Ok(request) => wait::wait(desk, request)
                .await
                .map(|answer| document(StatusCode::OK, answer)),
            Err(refused) => return refused,
        },
        (&Method::POST, DRAIN) => match read(body).await {
            Ok(request) => drain::drain(desk, request).await,
            Err(refused) => return refused,
        },
        (_, STATUS) => return other_method(path, "GET"),
        (_, path) if path.starts_with(ANNOUNCEMENTS) => return other_method(path, "GET"),
        (_, ANNOUNCE | WAIT | DRAIN) => return other_method(path, "POST"),
        _ => Err(Error::new(ErrorKind::NotFound, "there is nothing at this path")
            .on(path)
            .hint("docs/reference/control.md lists what can be asked")),
    };
    answered.unwrap_or_else(|error| refusal(status_of(&error), &error))
}

/// Answers a request on the port for metrics.
pub(super) async fn metrics(desk: &Desk, request: Request<Incoming>) -> Answer {
    const PLAIN: &str = "text/plain; charset=utf-8";
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return other_method(request.uri().path(), "GET");
    }
    match request.uri().path() {
        "/metrics" => match desk.metrics.text(desk).await {
            Ok(body) => text(
                StatusCode::OK,
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
                body,
            ),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
        },
        "/healthz" => {
            let complaints = desk.metrics.complaints(desk);
            if complaints.is_empty() {
                text(StatusCode::OK, PLAIN, "well\n")
            } else {
                text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    PLAIN,
                    complaints.join("\n") + "\n",
                )
            }
        }
        _ => text(StatusCode::NOT_FOUND, PLAIN, "there is /metrics and /healthz\n"),
    }
}

fn other_method(path: &str, allowed: &'static str) -> Answer {
    let error = Error::new(ErrorKind::Usage, "this path is asked in another way")
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

fn status(desk: &Desk) -> StatusAnswer {
    let notes = desk.notes.current(&desk.shared.board);
    let complaints = desk.metrics.complaints(desk);
    let requested = desk.shared.stopping.requested();
    let runs = notes.iter().map(|(run, note)| RunStatus {
        run: run.clone(),
        remotes: note.remotes.clone(),
        skipped: entries(note.skipped.clone()),
        unfinished: entries(desk.shared.board.unfinished_of(run, MOST_UNFINISHED)),
    });
    let remotes: BTreeSet<&RemoteName> = notes
        .iter()
        .flat_map(|(_, note)| note.remotes.iter().map(|on| &on.remote))
        .collect();
    let paces = remotes.into_iter().map(|remote| RemotePace {
        remote: remote.clone(),
        bytes_per_second: desk.shared.rates.bytes_per_second(remote),
        next_prune_at: desk.shared.board.next_prune(remote).map(Timestamp::to_rfc3339),
    });
    StatusAnswer {
        paces: paces.collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: desk.notes.node().to_string(),
        process_id: std::process::id(),
        started_at: desk.notes.started_at().to_rfc3339(),
        stopping: requested.map(|request| request.reason.to_string()),
        healthy: complaints.is_empty(),
        complaints,
        runs: runs.collect(),
    }
}

async fn announce(desk: &Desk, request: AnnounceRequest) -> Result<Answer> {
    let run = desk.run(request.run.as_ref())?.run.clone();
    let path = checked_path(request.path)?;
    if let Some(name) = &request.name {
        stepvault_core::keys::check_step_name(name)?;
    }
    let _leave = desk.leave_to_wait()?;
    let announcements = &desk.shared.announcements;
    let id = announcements.add(run, path, request.step, request.name)?;
    let _ = tokio::time::timeout(SEALED_WITHIN, announcements.settled(id)).await;
    known(desk, id)
}

async fn announcement(desk: &Desk, id: &str) -> Result<Answer> {
    let id = id.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, "not the number of an announcement")
            .on(id)
            .hint("the answer to an announcement has it")
    })?;
    let _leave = desk.leave_to_wait()?;
    let _ = tokio::time::timeout(NEWS_WITHIN, desk.shared.announcements.settled(id)).await;
    known(desk, id)
}

/// What is known of an announcement: done, under way, or refused for a reason of the step's.
fn known(desk: &Desk, id: u64) -> Result<Answer> {
    let answer: AnnounceAnswer = desk.shared.announcements.answer(id).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such announcement")
            .on(id)
            .because("it was never made to this agent, or so many came since that it was forgotten")
            .hint("announce the same path again: a step that is sealed already is no error")
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
        return Err(
            fault("the path is relative, and the agent runs in another directory")
                .hint("send the absolute path"),
        );
    }
    // With them the name of the step would not be that of its path.
    let plain = path.components().all(|component| {
        matches!(
            component,
            std::path::Component::RootDir | std::path::Component::Normal(_)
        )
    });
    if !plain || path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(fault("the path holds '..', or a byte 0").hint("send the plain path"));
    }
    Ok(path)
}
