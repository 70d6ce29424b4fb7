//! Notices that the machine will be reclaimed: the providers' metadata services, and a file.
//!
//! Each source is watched by its own task. A task without a source ends; one that finds a notice asks the service to
//! stop, with the notice's deadline.

mod azure;
mod ec2;
mod gce;
mod metadata;
mod service;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stepvault_core::{Result, Timestamp};
use stepvault_engine::blocking;
use stepvault_local::clock;
use stepvault_local::durable::read_bounded;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::shared::Shared;
use crate::stop::StopReason;

pub(crate) use self::azure::{Announced, acknowledge};

/// Starts the tasks that watch for notices. `announced` is set with an event that can be acknowledged.
pub(crate) fn watch(shared: &Arc<Shared>, announced: &Arc<Announced>, tasks: &mut JoinSet<()>) {
    let options = &shared.options.notices;
    if let Some(endpoint) = options.ec2_endpoint.clone() {
        tasks.spawn_local(service::watch(Arc::clone(shared), endpoint, ec2::Ec2::new));
    }
    if let Some(endpoint) = options.gce_endpoint.clone() {
        tasks.spawn_local(service::watch(Arc::clone(shared), endpoint, gce::Gce::new));
    }
    if let Some(endpoint) = options.azure_endpoint.clone() {
        let announced = Arc::clone(announced);
        let azure = move |metadata| azure::Azure::new(metadata, announced);
        tasks.spawn_local(service::watch(Arc::clone(shared), endpoint, azure));
    }
    if let Some(path) = options.drain_file.clone() {
        tasks.spawn_local(watch_file(Arc::clone(shared), path));
    }
}

const INTERVAL: Duration = Duration::from_secs(1);
/// More than any valid time needs.
const MAX_BYTES: u64 = 256;

/// The state of the file: its modification time and its content.
type Seen = Option<(Option<SystemTime>, String)>;

/// Watches until the file appears or is rewritten. A file that existed before counts as a leftover.
async fn watch_file(shared: Arc<Shared>, path: PathBuf) {
    let reporter = &shared.reporter;
    let before = read(path.clone()).await.unwrap_or_default();
    if before.is_some() {
        let text = format!(
            "the drain file {} existed before this start and takes effect only when it is rewritten (remove it, and \
             create it again when the machine is reclaimed)",
            path.display()
        );
        reporter.warn_once("notices file", &text);
    }
    let mut last = before.clone();
    loop {
        tokio::time::sleep(INTERVAL).await;
        // An unreadable file exists.
        let seen = read(path.clone()).await.unwrap_or_else(|_| Some((None, String::new())));
        let is_new = seen.is_some() && seen != before;
        // A file that is created first and filled afterwards is seen empty in between: it has until the next check.
        let is_whole = seen == last || seen.as_ref().is_some_and(|(_, text)| !text.is_empty());
        if is_new && is_whole {
            let text = seen.map(|(_, text)| text).unwrap_or_default();
            let deadline = left(&text, clock::now()).map(|left| Instant::now() + left);
            shared.drain.stop.request(StopReason::File(path.clone()), deadline);
            if !text.is_empty() && deadline.is_none() {
                let text = format!(
                    "the drain file {} holds neither a future time nor a number of seconds: agent.drain-deadline \
                     applies",
                    path.display()
                );
                reporter.warn_once("notices file", &text);
            }
            return;
        }
        last = seen;
    }
}

async fn read(path: PathBuf) -> Result<Seen> {
    blocking(move || {
        let written = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
        let bytes = match written {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            // Longer than any valid time: malformed, but it exists.
            _ => read_bounded(&path, MAX_BYTES).unwrap_or_else(|_| Some(b"?".to_vec())),
        };
        Ok(bytes.map(|bytes| (written.ok(), String::from_utf8_lossy(&bytes).trim().to_owned())))
    })
    .await
}

/// Returns the time that the text leaves; `None` if it names no credible time.
fn left(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(u64::from(seconds)));
    }
    let time: jiff::Timestamp = text.parse().ok()?;
    let seconds = u64::try_from(time.as_second().checked_sub(now.seconds)?).ok()?;
    (seconds > 0).then_some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_times_are_read_and_nothing_else() {
        let now = Timestamp::from_seconds(1000);
        let left = |text| left(text, now).map(|left| left.as_secs());
        assert_eq!(left("30"), Some(30));
        assert_eq!(left("0"), Some(0));
        assert_eq!(left("1970-01-01T00:18:00Z"), Some(80));
        assert_eq!(left("1970-01-01T01:18:00+01:00"), Some(80));
        for text in ["", "soon", "-5", "1.5", "1970-01-01T00:01:00Z", "99999999999999999999", "1970-01-01"] {
            assert_eq!(left(text), None, "{text}");
        }
    }
}
