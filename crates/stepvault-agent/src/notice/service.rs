//! The watch of a provider's metadata service, and the request to stop when the provider takes the machine away.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::clock;
use tokio::time::{Instant, sleep, sleep_until};

use super::metadata::{Metadata, Reply};
use crate::shared::Shared;
use crate::stop::StopReason;

/// Interval between tries of an expected service that does not answer.
const ASK_AGAIN: Duration = Duration::from_mins(1);

/// A notice that the provider takes the machine away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) text: String,
    /// The time that it leaves; `None` if it names no credible time.
    pub(super) left: Option<Duration>,
}

/// A provider's service of notices.
pub(super) trait Service {
    /// The provider's name, for people.
    const PROVIDER: &'static str;
    /// What is watched for.
    const NOTICES: &'static str;
    /// The subject of warnings.
    const SUBJECT: &'static str;
    /// The warning that the service does not answer.
    const SILENT: &'static str;
    /// What to do if an expected service does not answer at all.
    const HINT: &'static str = "set the sources of notices with agent.notices";
    /// Minimum interval between two checks.
    const INTERVAL: Duration;
    /// Number of consecutive failures before a warning.
    const FAILURES: u32;

    /// Asks whether the service is there. It is not where the provider is another one.
    async fn find(&mut self) -> Result<()>;

    /// Asks once for a notice.
    async fn check(&mut self, shared: &Shared) -> Result<Option<Notice>>;

    /// Returns whether no check has succeeded yet, and a failure is worth a warning at once.
    fn is_new(&self) -> bool {
        false
    }

    /// Waits before the check after a failed one.
    async fn wait_after_failure(&mut self) {
        sleep(Self::INTERVAL).await;
    }
}

/// Watches until there is a notice. On a machine of another provider it ends after one query, unless the service is
/// expected.
pub(super) async fn watch<S: Service>(
    shared: Arc<Shared>,
    endpoint: String,
    service: impl FnOnce(Metadata) -> S,
) {
    let reporter = &shared.reporter;
    let mut service = match Metadata::at(&endpoint) {
        Ok(metadata) => service(metadata),
        Err(error) => return reporter.warn_once(S::SUBJECT, &error.text_with_hint()),
    };
    while let Err(error) = service.find().await {
        if !shared.options.notices.expected {
            tracing::debug!(%error, "not watching for {} notices", S::PROVIDER);
            return;
        }
        reporter.warn_once(S::SUBJECT, &format!("{}: {error} ({})", S::SILENT, S::HINT));
        sleep(ASK_AGAIN).await;
    }
    reporter.resolved(S::SUBJECT);
    tracing::info!("watching for {}", S::NOTICES);
    let mut failures = 0_u32;
    loop {
        let asked = Instant::now();
        match service.check(&shared).await {
            Ok(Some(notice)) => return request_stop(&shared, notice),
            Ok(None) => {
                failures = 0;
                reporter.resolved(S::SUBJECT);
                sleep_until(asked + S::INTERVAL).await;
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures >= S::FAILURES || service.is_new() {
                    // The error text differs each time.
                    reporter.warn_of_cause(S::SUBJECT, "silent", &format!("{}: {error}", S::SILENT));
                }
                service.wait_after_failure().await;
            }
        }
    }
}

/// Returns the error for an answer with another status than the one wanted.
pub(super) fn refused(provider: &str, path: &str, reply: &Reply) -> Error {
    Error::new(ErrorKind::Denied, format!("the {provider} metadata service refused a request"))
        .on(path)
        .because(format!("it answered {}", reply.status))
}

/// Asks the service to stop for a provider's notice, which leaves this much time; with the configured deadline if it
/// names none.
pub(super) fn request_stop(shared: &Shared, Notice { text, left }: Notice) {
    let time = match left {
        Some(left) => format!("the machine goes away in {} s", left.as_secs()),
        None => "it names no time, and agent.drain-deadline applies".to_owned(),
    };
    shared.reporter.warn(&format!("received {text}: {time}"));
    shared.drain.stop.request(StopReason::Notice(text), left.map(|left| Instant::now() + left));
}

/// Returns the time until `time` by the service's clock, because this machine's may be wrong and a notice is short; `None`
/// if nothing is left.
pub(super) fn time_left(reply: &Reply, time: jiff::Timestamp) -> Option<Duration> {
    let now = reply.date().unwrap_or_else(clock::now).seconds;
    let seconds = u64::try_from(time.as_second().checked_sub(now)?).ok()?;
    // Both are truncated to whole seconds: almost one second may already have passed.
    Some(Duration::from_secs(seconds.saturating_sub(1))).filter(|left| !left.is_zero())
}
