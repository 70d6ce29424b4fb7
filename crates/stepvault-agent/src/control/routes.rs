//! Routes of the control API.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, StatusCode};
use stepvault_core::ids::RemoteName;
use stepvault_core::timestamp::Timestamp;
use stepvault_core::{Error, ErrorKind};
use stepvault_engine::blocking::blocking;
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_local::tree::scan;

use super::http::{Answer, Refusal, document, read, text};
use super::{ControlState, drain, wait};
use crate::announcements::Added;
use crate::messages::{
    AgentProcess, AnnounceAnswer, AnnounceRequest, AnnouncementState, AttachAnswer, AttachRequest,
    RemoteRate, RunStatus, SeenOfRun, Skipped, StatusAnswer,
};
use crate::metrics::Metrics;
use crate::status_file::{MAX_ENTRIES, remote_uploads};

/// How long an announcement is awaited before the answer says that it is queued.
const SEALED_WITHIN: Duration = Duration::from_secs(5);
/// How long a query about an announcement waits for progress.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

const STATUS: &str = "/v1/status";
const ANNOUNCE: &str = "/v1/announce";
const ANNOUNCEMENTS: &str = "/v1/announcements/";
const WAIT: &str = "/v1/wait";
const DRAIN: &str = "/v1/drain";
const ATTACH: &str = "/v1/attach";
const DETACH: &str = "/v1/detach";

/// Answers a request on the control socket.
pub(super) async fn control(state: &ControlState, request: Request<Incoming>) -> Answer {
    route(state, request).await.unwrap_or_else(|refusal| refusal.0)
}

async fn route(state: &ControlState, request: Request<Incoming>) -> Result<Answer, Refusal> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let announcement_id = path.strip_prefix(ANNOUNCEMENTS);
    let allowed = match path {
        ANNOUNCE | WAIT | DRAIN | ATTACH | DETACH => Method::POST,
        _ if path == STATUS || announcement_id.is_some() => Method::GET,
        _ => {
            let error = Error::new(ErrorKind::NotFound, "unknown path").on(path);
            return Err(error.hint("see docs/reference/control.md for the requests").into());
        }
    };
    if head.method != allowed {
        return Ok(method_not_allowed(path, &allowed));
    }
    match (path, announcement_id) {
        (ANNOUNCE, _) => announce(state, read(body).await?).await,
        (WAIT, _) => {
            let answer = wait::wait(state, read(body).await?).await?;
            Ok(document(StatusCode::OK, answer))
        }
        (DRAIN, _) => Ok(drain::drain(state, read(body).await?).await?),
        (ATTACH, _) => Ok(document(StatusCode::OK, attach(state, &read(body).await?)?)),
        (DETACH, _) => Ok(drain::detach(state, &read(body).await?).await?),
        (_, Some(id)) => announcement(state, id).await,
        _ => Ok(document(StatusCode::OK, status(state))),
    }
}

/// Answers a request on the port for metrics.
pub(super) async fn metrics(metrics: &Arc<Metrics>, request: Request<Incoming>) -> Answer {
    const PLAIN: &str = "text/plain; charset=utf-8";
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return method_not_allowed(request.uri().path(), &Method::GET);
    }
    match request.uri().path() {
        "/metrics" => match metrics.text().await {
            Ok(body) => {
                text(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", body)
            }
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
        },
        "/healthz" => {
            let problems = metrics.problems();
            if problems.is_empty() {
                text(StatusCode::OK, PLAIN, "well\n")
            } else {
                text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, problems.join("\n") + "\n")
            }
        }
        _ => text(StatusCode::NOT_FOUND, PLAIN, "use /metrics or /healthz\n"),
    }
}

fn method_not_allowed(path: &str, allowed: &Method) -> Answer {
    let error = Error::new(ErrorKind::Usage, "method not allowed").on(path).hint(format!("use {allowed}"));
    let Refusal(mut answer) = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, &error);
    let allowed = HeaderValue::from_str(allowed.as_str());
    answer.headers_mut().extend(allowed.ok().map(|allowed| (ALLOW, allowed)));
    answer
}

fn entries(of: Vec<(PathBuf, String)>) -> Vec<Skipped> {
    of.into_iter().map(|(path, reason)| Skipped { path, reason }).collect()
}

fn status(state: &ControlState) -> StatusAnswer {
    let shared = &state.shared;
    let (options, status) = (&shared.options, &shared.reporter.status);
    let problems = state.metrics.problems();
    let remotes: BTreeSet<&RemoteName> =
        state.runs.iter().flat_map(|run| run.remotes.iter().map(RunRemote::name)).collect();
    let rates = remotes.into_iter().map(|remote| RemoteRate {
        remote: remote.clone(),
        bytes_per_second: shared.throughput.bytes_per_second(remote),
        next_prune_at: status.next_prune(remote).map(Timestamp::to_rfc3339),
    });
    let runs = options.runs.iter().map(|run| RunStatus {
        run: run.name.clone(),
        remotes: remote_uploads(shared, run),
        seen: SeenOfRun {
            skipped: entries(status.skipped_of(&run.name, MAX_ENTRIES)),
            unfinished: entries(status.unfinished_of(&run.name, MAX_ENTRIES)),
            unsealed: entries(status.unsealed_of(&run.name, MAX_ENTRIES)),
            other_writers: status.other_writers(&run.name),
        },
    });
    let request = shared.drain.stop.requested();
    StatusAnswer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node: options.node().to_string(),
        process: AgentProcess {
            process_id: std::process::id(),
            started_at: shared.started_at.to_rfc3339(),
            stopping: request.map(|request| request.reason.to_string()),
            healthy: problems.is_empty(),
            problems,
        },
        runs: runs.collect(),
        rates: rates.collect(),
        uploads: state.metrics.uploads.all(),
    }
}

/// Follows a process, if the service runs for processes.
fn attach(state: &ControlState, request: &AttachRequest) -> Result<AttachAnswer, Error> {
    // The next agent may serve another run.
    if !state.shared.drain.stop.is_requested() {
        state.run(request.run.as_ref())?;
    }
    let Some(followed) = &state.followed else {
        return Ok(AttachAnswer { followed: false, process_ids: Vec::new() });
    };
    followed.follow(request.process_id)?;
    state.shared.announcements.joined();
    Ok(AttachAnswer { followed: true, process_ids: followed.process_ids() })
}

async fn announce(state: &ControlState, request: AnnounceRequest) -> Result<Answer, Refusal> {
    let run = state.run(request.run.as_ref())?.name().clone();
    check_path(&request.path)?;
    if let Some(name) = &request.name {
        stepvault_core::keys::check_step_name(name)?;
    }
    let _permit = state.wait_permit()?;
    let announced = match request.step {
        Some(_) => {
            let scanned = request.path.clone();
            // A path that cannot be listed now is reported when it is to be sealed.
            blocking(move || Ok(scan(&scanned).ok().map(|tree| tree.fingerprint()))).await?
        }
        None => None,
    };
    let announcements = &state.shared.announcements;
    let id = match announcements.add(run, request, announced)? {
        // No rank waits for another one.
        Added::Gathering(id) => id,
        Added::Waiting(id) => {
            let _ = tokio::time::timeout(SEALED_WITHIN, announcements.settled(id)).await;
            id
        }
    };
    Ok(known(state, id)?)
}

async fn announcement(state: &ControlState, id: &str) -> Result<Answer, Refusal> {
    let id = id.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, "invalid announcement number")
            .on(id)
            .hint("use the number from the answer to the announcement")
    })?;
    let _permit = state.wait_permit()?;
    let _ = tokio::time::timeout(NEWS_WITHIN, state.shared.announcements.settled(id)).await;
    Ok(known(state, id)?)
}

/// Returns the state of an announcement: sealed, queued, or refused with a cause.
fn known(state: &ControlState, id: u64) -> Result<Answer, Error> {
    let answer: AnnounceAnswer = state.shared.announcements.answer(id).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such announcement")
            .on(id)
            .because("this agent never received it, or has discarded it after many later ones")
            .hint("announce the same path again: announcing a sealed step is not an error")
    })?;
    if let Some(info) = answer.error {
        return Err(info.into_error());
    }
    let status = match answer.announced.state {
        AnnouncementState::Queued => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok(document(status, answer))
}

fn check_path(path: &Path) -> Result<(), Error> {
    let fault = |why: &str| Error::new(ErrorKind::Usage, "cannot announce").on(path.display()).because(why);
    if !path.is_absolute() {
        return Err(fault("the path is relative").hint("send the absolute path"));
    }
    // With such components, the step's name would differ from its path's last component.
    let plain = path.components().all(|component| {
        matches!(component, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    if !plain || path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(fault("the path contains '..' or a NUL byte").hint("send the path without them"));
    }
    Ok(())
}
