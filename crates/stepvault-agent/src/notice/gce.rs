//! Compute Engine: preemptions, by long polling of the metadata server.

use std::time::Duration;

use http::{Method, StatusCode};
use stepvault_core::{Error, ErrorKind, Result};

use super::metadata::Metadata;
use super::service::{Notice, Service};
use crate::pause::Pause;
use crate::shared::Shared;

/// The time between notice and preemption.
const NOTICE: Duration = Duration::from_secs(30);
/// How long the server may hold back its answer, in seconds.
const HOLD_SECONDS: u64 = 60;
/// Time limit for a response: a server on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum pause between queries of a failing server, before jitter.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

const PREEMPTED: &str = "/computeMetadata/v1/instance/preempted";

#[derive(Debug)]
pub(super) struct Gce {
    metadata: Metadata,
    /// The server's last answer.
    preempted: bool,
    /// The tag of that answer.
    etag: Option<String>,
    pause: Pause,
}

impl Gce {
    pub(super) fn new(metadata: Metadata) -> Self {
        Self { metadata, preempted: false, etag: None, pause: Pause::default() }
    }

    /// Queries the server, which holds its answer back for `patience` at most.
    async fn ask(&mut self, path: &str, patience: Duration) -> Result<()> {
        let headers = [("Metadata-Flavor", "Google")];
        let reply = self.metadata.ask(Method::GET, path, &headers, patience).await?;
        let refused = |why: String| {
            Error::new(ErrorKind::Denied, "cannot watch for preemptions").on(PREEMPTED).because(why)
        };
        if reply.status != StatusCode::OK {
            return Err(refused(format!("the server answered {}", reply.status)));
        }
        if reply.header("Metadata-Flavor") != Some("Google") {
            return Err(refused("the server is not Google's metadata server".to_owned()));
        }
        self.preempted = match reply.body.as_str() {
            "TRUE" => true,
            "FALSE" => false,
            _ => return Err(refused("it answered neither TRUE nor FALSE".to_owned())),
        };
        self.etag = reply.header("ETag").map(str::to_owned);
        Ok(())
    }
}

fn is_plain(tag: &str) -> bool {
    !tag.is_empty() && tag.len() <= 64 && tag.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

impl Service for Gce {
    const PROVIDER: &'static str = "Compute Engine";
    const NOTICES: &'static str = "Compute Engine preemptions";
    const SUBJECT: &'static str = "notices gce";
    const SILENT: &'static str = "cannot detect preemptions";
    // Minimum interval between queries of a server that does not hold its answer back.
    const INTERVAL: Duration = Duration::from_secs(1);
    const FAILURES: u32 = 5;

    async fn find(&mut self) -> Result<()> {
        self.ask(PREEMPTED, PATIENCE).await
    }

    async fn check(&mut self, _shared: &Shared) -> Result<Option<Notice>> {
        if !self.preempted {
            // With the last answer's tag, so that a change between two queries is answered at once.
            let tag = self.etag.as_deref().filter(|tag| is_plain(tag)).unwrap_or("0");
            let path = format!("{PREEMPTED}?wait_for_change=true&timeout_sec={HOLD_SECONDS}&last_etag={tag}");
            self.ask(&path, Duration::from_secs(HOLD_SECONDS) + PATIENCE).await?;
            self.pause.clear();
        }
        let text = "a Compute Engine preemption notice".to_owned();
        Ok(self.preempted.then_some(Notice { text, left: Some(NOTICE) }))
    }

    async fn wait_after_failure(&mut self) {
        self.pause.failed(LONGEST_PAUSE, None);
        self.pause.wait().await;
        // The next answer does not wait for a change.
        self.etag = None;
    }
}
