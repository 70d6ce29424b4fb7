//! Compute Engine: preemptions, by a question that the metadata server answers when there is something to say.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::metadata::Metadata;
use crate::shared::Shared;
use crate::stop::StopReason;

/// A preempted machine has this long.
const NOTICE: Duration = Duration::from_secs(30);
/// How long the server may hold back its answer, in seconds.
const HOLD_SECONDS: u64 = 60;
/// A server on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two questions to a server that fails, growing to the latter.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Between two tries at a server that is expected and does not answer.
const ASK_AGAIN: Duration = Duration::from_mins(1);

const PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";

/// What the server last said.
#[derive(Debug)]
struct Said {
    preempted: bool,
    etag: Option<String>,
}

/// Asks; with what it said before, the server waits until something has changed.
async fn ask(metadata: &Metadata, before: Option<&Said>) -> Result<Said> {
    let (path, patience) = match before {
        None => (PREEMPTED.to_owned(), PATIENCE),
        Some(said) => {
            // By the last answer's tag, so that what changed between two questions is answered at once.
            let tag = said.etag.as_deref().filter(|tag| is_plain(tag)).unwrap_or("0");
            let path = format!("{PREEMPTED}?wait_for_change=true&timeout_sec={HOLD_SECONDS}&last_etag={tag}");
            (path, Duration::from_secs(HOLD_SECONDS) + PATIENCE)
        }
    };
    let headers = [("Metadata-Flavor", "Google")];
    let reply = metadata.ask(Method::GET, &path, &headers, patience).await?;
    let refused = |why: String| {
        Error::new(ErrorKind::Denied, "cannot learn of preemptions")
            .on(PREEMPTED)
            .because(why)
    };
    if reply.status != StatusCode::OK {
        return Err(refused(format!("the server says {}", reply.status)));
    }
    if reply.header("Metadata-Flavor") != Some("Google") {
        return Err(refused("what answers is not Google's metadata server".to_owned()));
    }
    let preempted = match reply.body.as_str() {
        "TRUE" => true,
        "FALSE" => false,
        _ => return Err(refused("it says neither TRUE nor FALSE".to_owned())),
    };
    let etag = reply.header("ETag").map(str::to_owned);
    Ok(Said { preempted, etag })
}

fn is_plain(tag: &str) -> bool {
    !tag.is_empty() && tag.len() <= 64 && tag.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Watches until the machine is preempted; no longer than one question on a machine that is not Google's, unless it was
/// said to be.
pub(super) async fn watch(shared: Arc<Shared>, endpoint: String, expected: bool) {
    let metadata = match Metadata::at(&endpoint) {
        Ok(metadata) => metadata,
        Err(error) => {
            let hint = error.hint_text().unwrap_or_default();
            return shared.warn("notices gce", &format!("{error} ({hint})"));
        }
    };
    let mut said = loop {
        match ask(&metadata, None).await {
            Ok(said) => break said,
            Err(error) if !expected => {
                tracing::debug!(%error, "no notices of Compute Engine's are looked for");
                return;
            }
            Err(error) => {
                let text = format!("no preemption would be seen: {error} (agent.notices says where to look)");
                shared.warn("notices gce", &text);
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    };
    tracing::info!("looking for preemptions by Compute Engine");
    let mut pause = PAUSE;
    while !said.preempted {
        let asked = Instant::now();
        match ask(&metadata, Some(&said)).await {
            Ok(next) => {
                said = next;
                pause = PAUSE;
                shared.board.is_well("notices gce");
                if !said.preempted {
                    // A server that does not hold its answer back must not be asked without a break.
                    tokio::time::sleep_until(asked + PAUSE).await;
                }
            }
            Err(error) => {
                if pause >= LONGEST_PAUSE {
                    shared.warn("notices gce", &format!("no preemption would be seen: {error}"));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                // The next answer comes at once, whatever changed meanwhile.
                said.etag = None;
            }
        }
    }
    let reason = StopReason::Notice("a Compute Engine preemption notice".to_owned());
    shared.stopping.request(reason, Some(Instant::now() + NOTICE));
}
