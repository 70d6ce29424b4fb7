//! Routes of the control API, and the requests that wait: to drain the service, and for a step to reach its goal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, post};
use futures::future::join_all;
use stepvault_core::document::ErrorInfo;
use stepvault_core::{Error, ErrorKind, RemoteName, Result, Timestamp};
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::tree::scan;
use tokio::time::Instant;

use super::{ControlState, Read, Refusal, document};
use crate::announcements::Added;
use crate::messages::{
    AgentProcess, AnnounceAnswer, AnnounceRequest, AnnouncementState, AttachAnswer, AttachRequest,
    DetachRequest, DrainAnswer, DrainRequest, RemoteRate, RunStatus, SeenOfRun, Skipped, StatusAnswer,
    TriedRemote, WaitAnswer, WaitRequest,
};
use crate::remotes::ServedRun;
use crate::report::AgentReport;
use crate::status_file::{MAX_ENTRIES, remote_uploads};
use crate::step_progress::{Outcome, StepProgress, StepQuery, progress_elsewhere, progress_in_vault};
use crate::stop::StopReason;

/// How long an announcement is awaited before the answer says that it is queued.
const SEALED_WITHIN: Duration = Duration::from_secs(5);
/// How long a query about an announcement waits for progress.
const NEWS_WITHIN: Duration = Duration::from_secs(10);

type Answered = std::result::Result<Response, Refusal>;
type Served = State<Arc<ControlState>>;

/// Returns the routes of the control socket.
pub(super) fn control(state: Arc<ControlState>) -> Router {
    let only = |allowed| move |path: Uri| async move { method_not_allowed(&path, &allowed) };
    Router::new()
        .route("/v1/status", get(status).fallback(only(Method::GET)))
        .route("/v1/announce", post(announce).fallback(only(Method::POST)))
        .route("/v1/announcements/{id}", get(announcement).fallback(only(Method::GET)))
        .route("/v1/wait", post(wait_for_step).fallback(only(Method::POST)))
        .route("/v1/drain", post(drain).fallback(only(Method::POST)))
        .route("/v1/attach", post(attach).fallback(only(Method::POST)))
        .route("/v1/detach", post(detach).fallback(only(Method::POST)))
        .fallback(unknown_path)
        .with_state(state)
}

async fn unknown_path(path: Uri) -> Refusal {
    let error = Error::new(ErrorKind::NotFound, "unknown path").on(path.path());
    error.hint("see docs/reference/control.md for the requests").into()
}

fn method_not_allowed(path: &Uri, allowed: &Method) -> Refusal {
    let error = Error::new(ErrorKind::Usage, "method not allowed");
    let error = error.on(path.path()).hint(format!("use {allowed}"));
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, &error)
}

fn entries(of: Vec<(PathBuf, String)>) -> Vec<Skipped> {
    of.into_iter().map(|(path, reason)| Skipped { path, reason }).collect()
}

async fn status(State(state): Served) -> Response {
    document(StatusCode::OK, status_of(&state))
}

fn status_of(state: &ControlState) -> StatusAnswer {
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
async fn attach(State(state): Served, Read(request): Read<AttachRequest>) -> Answered {
    // The next agent may serve another run.
    let run = match state.run(request.run.as_ref()) {
        Err(error) if !state.shared.drain.stop.is_requested() => return Err(error.into()),
        run => run.ok(),
    };
    if let Some(followed) = &state.followed {
        followed.follow(request.process_id)?;
        state.shared.announcements.joined();
    }
    let remotes = match run {
        Some(run) => try_out(&state, run).await,
        None => Vec::new(),
    };
    let process_ids = state.followed.as_ref().map(|followed| followed.process_ids());
    let answer = AttachAnswer {
        followed: process_ids.is_some(),
        process_ids: process_ids.unwrap_or_default(),
        remotes,
    };
    Ok(document(StatusCode::OK, answer))
}

/// Tries every remote of a run out at once.
async fn try_out(state: &ControlState, run: &ServedRun) -> Vec<TriedRemote> {
    let vault = &state.shared.vault.vault;
    let tried = run.remotes.iter().map(|remote| async {
        let error = match remote.try_out(vault).await {
            Ok(false) => None,
            Ok(true) => {
                state.shared.reporter.warn(&remote.created_text());
                None
            }
            Err(error) => Some(error),
        };
        TriedRemote {
            remote: remote.name().clone(),
            needs_operator: error.as_ref().is_some_and(|error| !error.is_transient()),
            error: error.as_ref().map(ErrorInfo::from),
        }
    });
    join_all(tried).await
}

async fn announce(State(state): Served, Read(request): Read<AnnounceRequest>) -> Answered {
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
    Ok(known(&state, id)?)
}

async fn announcement(State(state): Served, UrlPath(id): UrlPath<String>) -> Answered {
    let id = id.parse().map_err(|_| {
        Error::new(ErrorKind::Usage, "invalid announcement number")
            .on(id)
            .hint("use the number from the answer to the announcement")
    })?;
    let _permit = state.wait_permit()?;
    let _ = tokio::time::timeout(NEWS_WITHIN, state.shared.announcements.settled(id)).await;
    Ok(known(&state, id)?)
}

/// Returns the state of an announcement: sealed, queued, or refused with a cause.
fn known(state: &ControlState, id: u64) -> Result<Response> {
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

fn check_path(path: &Path) -> Result<()> {
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

/// Maximum number of listed steps.
const MAX_NAMED: usize = 100;
/// The latest deadline: a client that needs a later one should not request a stop.
const LATEST: Duration = Duration::from_hours(24 * 365);

/// No longer follows a process, and drains if it was the last one.
async fn detach(State(state): Served, Read(request): Read<DetachRequest>) -> Answered {
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
        return Ok(ended(&state).await?);
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

async fn drain(State(state): Served, Read(request): Read<DrainRequest>) -> Answered {
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
    Ok(ended(&state).await?)
}

/// Waits for the end of the service, and returns its answer.
async fn ended(state: &ControlState) -> Result<Response> {
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

/// Maximum wait of one request.
pub const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// Interval of vault checks without a notification of a change: verifying a part is not an event.
const VAULT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of remote queries about a step that the vault does not hold.
const REMOTE_INTERVAL: Duration = Duration::from_secs(15);

async fn wait_for_step(State(state): Served, Read(request): Read<WaitRequest>) -> Answered {
    let answer = wait(&state, request).await?;
    Ok(document(StatusCode::OK, answer))
}

/// Waits until the step has reached the goal, fails, or time is up.
async fn wait(state: &ControlState, request: WaitRequest) -> Result<WaitAnswer> {
    let timeout = Duration::from_secs(request.timeout_seconds);
    if timeout > LONGEST_WAIT {
        return Err(Error::new(ErrorKind::Usage, "cannot wait so long")
            .on(format!("timeout_seconds {}", request.timeout_seconds))
            .because(format!("one request waits for at most {} s", LONGEST_WAIT.as_secs()))
            .hint("send another request after its answer"));
    }
    let served = state.run(request.run.as_ref())?;
    let _permit = state.wait_permit()?;
    let deadline = Instant::now() + timeout;
    let mut watch = StepWatch {
        state,
        served,
        query: StepQuery { run: served.name().clone(), step: request.step, attempt: request.attempt },
        elsewhere: None,
    };
    let mut changes = state.shared.reporter.status.changes();
    let mut ended = state.ended.clone();
    loop {
        changes.mark_unchanged();
        let progress = watch.progress().await?;
        let answer = WaitAnswer { goal: request.goal, outcome: progress.outcome(request.goal), progress };
        let over = matches!(answer.outcome, Outcome::Reached | Outcome::Failed);
        if over || Instant::now() >= deadline || ended.borrow().is_some() {
            return Ok(answer);
        }
        let next = (Instant::now() + VAULT_INTERVAL).min(deadline);
        tokio::select! {
            _ = changes.changed() => {}
            _ = ended.wait_for(Option::is_some) => {}
            () = tokio::time::sleep_until(next) => {}
        }
    }
}

/// Checks one step repeatedly, remotes rarely.
struct StepWatch<'a> {
    state: &'a ControlState,
    served: &'a ServedRun,
    query: StepQuery,
    elsewhere: Option<(Instant, StepProgress)>,
}

impl StepWatch<'_> {
    async fn progress(&mut self) -> Result<StepProgress> {
        let (vault, remotes) = (&self.state.shared.vault.vault, &self.served.remotes);
        let mut progress = match progress_in_vault(vault, remotes, &self.query).await? {
            Some(progress) => progress,
            None => match &self.elsewhere {
                Some((at, known)) if at.elapsed() < REMOTE_INTERVAL => known.clone(),
                _ => {
                    let found = progress_elsewhere(Some(vault), remotes, &self.query).await?;
                    self.elsewhere = Some((Instant::now(), found.clone()));
                    found
                }
            },
        };
        self.state.shared.reporter.status.explain(&mut progress);
        Ok(progress)
    }
}
