//! Compute Engine: preemptions, by long polling of the metadata server.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::metadata::Metadata;
use super::request::request_stop;
use crate::pause::Pause;
use crate::shared::Shared;

/// The time between notice and preemption.
const NOTICE: Duration = Duration::from_secs(30);
/// How long the server may hold back its answer, in seconds.
const HOLD_SECONDS: u64 = 60;
/// Time limit for a response: a server on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Minimum interval between queries of a server that does not hold its answer back.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum pause between queries of a failing server, before jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Number of consecutive failures before a warning.
const FAILURES: u32 = 5;
/// Interval between tries of an expected server that does not answer.
const ASK_AGAIN: Duration = Duration::from_mins(1);

const PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";

/// The server's last answer.
#[derive(Debug)]
struct Answer {
    preempted: bool,
    etag: Option<String>,
}

/// Queries the server; given its last answer, the server waits until something has changed.
async fn ask(metadata: &Metadata, before: Option<&Answer>) -> Result<Answer> {
    let (path, patience) = match before {
        None => (PREEMPTED.to_owned(), PATIENCE),
        Some(answer) => {
            // With the last answer's tag, so that a change between two queries is answered at once.
            let tag = answer.etag.as_deref().filter(|tag| is_plain(tag)).unwrap_or("0");
            let path = format!("{PREEMPTED}?wait_for_change=true&timeout_sec={HOLD_SECONDS}&last_etag={tag}");
            (path, Duration::from_secs(HOLD_SECONDS) + PATIENCE)
        }
    };
    let headers = [("Metadata-Flavor", "Google")];
    let reply = metadata.ask(Method::GET, &path, &headers, patience).await?;
    let refused = |why: String| {
        Error::new(ErrorKind::Denied, "cannot watch for preemptions").on(PREEMPTED).because(why)
    };
    if reply.status != StatusCode::OK {
        return Err(refused(format!("the server answered {}", reply.status)));
    }
    if reply.header("Metadata-Flavor") != Some("Google") {
        return Err(refused("the server is not Google's metadata server".to_owned()));
    }
    let preempted = match reply.body.as_str() {
        "TRUE" => true,
        "FALSE" => false,
        _ => return Err(refused("it answered neither TRUE nor FALSE".to_owned())),
    };
    let etag = reply.header("ETag").map(str::to_owned);
    Ok(Answer { preempted, etag })
}

fn is_plain(tag: &str) -> bool {
    !tag.is_empty() && tag.len() <= 64 && tag.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Watches until the machine is preempted. On a machine that is not Google's it ends after one query, unless the server
/// is expected.
pub(super) async fn watch(shared: Arc<Shared>, endpoint: String) {
    let reporter = &shared.reporter;
    let metadata = match Metadata::at(&endpoint) {
        Ok(metadata) => metadata,
        Err(error) => return reporter.warn_once("notices gce", &error.text_with_hint()),
    };
    let mut answer = loop {
        match ask(&metadata, None).await {
            Ok(answer) => break answer,
            Err(error) if !shared.options.notices.expected => {
                tracing::debug!(%error, "not watching for Compute Engine notices");
                return;
            }
            Err(error) => {
                let text = format!(
                    "cannot detect preemptions: {error} (set the sources of notices with agent.notices)"
                );
                reporter.warn_once("notices gce", &text);
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    };
    tracing::info!("watching for Compute Engine preemptions");
    let mut pause = Pause::default();
    while !answer.preempted {
        let asked = Instant::now();
        match ask(&metadata, Some(&answer)).await {
            Ok(next) => {
                answer = next;
                pause.clear();
                reporter.resolved("notices gce");
                if !answer.preempted {
                    tokio::time::sleep_until(asked + INTERVAL).await;
                }
            }
            Err(error) => {
                pause.failed(LONGEST_PAUSE, None);
                if pause.failures >= FAILURES {
                    reporter.warn_once("notices gce", &format!("cannot detect preemptions: {error}"));
                }
                pause.wait().await;
                // The next answer comes at once, whatever changed meanwhile.
                answer.etag = None;
            }
        }
    }
    request_stop(&shared, "a Compute Engine preemption notice".to_owned(), Some(NOTICE));
}
