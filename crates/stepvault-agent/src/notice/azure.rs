//! Azure: evictions and terminations, from the Scheduled Events of the instance metadata service.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout_at};

use super::metadata::{Metadata, Reply};
use super::service::{Notice, Service, refused, time_left};
use crate::report::AgentReport;
use crate::shared::Shared;

/// Time limit for a response: a service on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for the events until they were answered once: Azure then enables them, which may take two minutes.
const FIRST_PATIENCE: Duration = Duration::from_secs(130);
/// Pause after a failed query.
const PAUSE: Duration = Duration::from_secs(5);
/// The longest time before a termination that a scale set can be configured for.
const LONGEST_NOTICE: Duration = Duration::from_mins(15);

const MACHINE: &str = "/metadata/instance/compute?api-version=2021-02-01";
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const HEADERS: [(&str, &str); 1] = [("Metadata", "true")];

#[derive(Debug, Deserialize)]
struct Machine {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    events: Vec<ScheduledEvent>,
}

/// An event of the service.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ScheduledEvent {
    event_id: String,
    event_type: String,
    resources: Vec<String>,
    /// When it may begin; empty once it has begun.
    not_before: String,
}

impl ScheduledEvent {
    /// Returns the notice's text; `None` for an event that leaves the machine and its disks as they are, or another machine.
    fn notice_to(&self, machine: &str) -> Option<&'static str> {
        if !self.resources.iter().any(|name| name.eq_ignore_ascii_case(machine)) {
            return None;
        }
        match self.event_type.as_str() {
            "Preempt" => Some("an Azure preemption notice"),
            "Terminate" => Some("an Azure termination notice"),
            _ => None,
        }
    }
}

/// The event that ends this machine, once there is one, to be acknowledged when the drain is over.
pub(crate) type Announced = OnceLock<AnnouncedEvent>;

#[derive(Debug)]
pub(crate) struct AnnouncedEvent {
    metadata: Metadata,
    event_id: String,
}

fn read<'a, T: Deserialize<'a>>(path: &str, reply: &'a Reply) -> Result<T> {
    serde_json::from_str(&reply.body).map_err(|error| {
        Error::new(ErrorKind::Failed, "cannot read an answer of the Azure metadata service")
            .on(path)
            .because(error.to_string())
    })
}

#[derive(Debug)]
pub(super) struct Azure {
    metadata: Metadata,
    /// The machine's name, which events contain.
    machine: String,
    /// Time limit for the events.
    patience: Duration,
    announced: Arc<Announced>,
}

impl Azure {
    pub(super) fn new(metadata: Metadata, announced: Arc<Announced>) -> Self {
        Self { metadata, machine: String::new(), patience: FIRST_PATIENCE, announced }
    }

    async fn ask(&self, path: &str, patience: Duration) -> Result<Reply> {
        let reply = self.metadata.ask(Method::GET, path, &HEADERS, patience).await?;
        if reply.status == StatusCode::OK { Ok(reply) } else { Err(refused(Self::PROVIDER, path, &reply)) }
    }
}

impl Service for Azure {
    const PROVIDER: &'static str = "Azure";
    const NOTICES: &'static str = "Azure preemptions and terminations";
    const SUBJECT: &'static str = "notices azure";
    const SILENT: &'static str = "cannot detect Azure's events";
    // The interval that Microsoft recommends: an eviction is announced 30 s ahead.
    const INTERVAL: Duration = Duration::from_secs(1);
    const FAILURES: u32 = 12;

    /// Does not enable the events.
    async fn find(&mut self) -> Result<()> {
        let reply = self.ask(MACHINE, PATIENCE).await?;
        self.machine = read::<Machine>(MACHINE, &reply)?.name;
        Ok(())
    }

    async fn check(&mut self, _shared: &Shared) -> Result<Option<Notice>> {
        let reply = self.ask(EVENTS, self.patience).await?;
        let events = read::<Document>(EVENTS, &reply)?.events;
        self.patience = PATIENCE;
        let notices = events.into_iter().filter_map(|event| Some((event.notice_to(&self.machine)?, event)));
        // The one that begins first; one that has begun names no time.
        let Some((text, event)) = notices.min_by_key(|(_, event)| left(&reply, event)) else {
            return Ok(None);
        };
        let notice = Notice { text: text.to_owned(), left: left(&reply, &event) };
        // There is no other one: the watch ends with it.
        let event = AnnouncedEvent { metadata: self.metadata.clone(), event_id: event.event_id };
        let _ = self.announced.set(event);
        Ok(Some(notice))
    }

    fn is_new(&self) -> bool {
        self.patience == FIRST_PATIENCE
    }

    async fn wait_after_failure(&mut self) {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns the time until the event may begin; `None` if it names no credible time.
fn left(reply: &Reply, event: &ScheduledEvent) -> Option<Duration> {
    let time = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(&event.not_before).ok()?;
    Some(time_left(reply, time)?.min(LONGEST_NOTICE))
}

/// Allows Azure to begin the event that was announced, if the configuration wants it and nothing in the vault is still
/// needed. Azure then need not wait for the announced time.
pub(crate) async fn acknowledge(
    shared: &Shared,
    announced: &Announced,
    report: &AgentReport,
    deadline: Instant,
) {
    let Some(event) = announced.get().filter(|_| shared.options.notices.acknowledges) else {
        return;
    };
    if !report.is_safe_here() {
        let text = "the Azure event is not acknowledged: not every step is durable, and the vault exists until the \
                    event begins";
        return shared.reporter.warn(text);
    }
    let body = serde_json::json!({ "StartRequests": [{ "EventId": event.event_id }] }).to_string();
    let sent = event.metadata.send(Method::POST, EVENTS, &HEADERS, body, PATIENCE);
    let answer = match timeout_at(deadline, sent).await {
        Ok(Ok(reply)) if reply.status.is_success() => {
            return shared.reporter.info("acknowledged the Azure event: the machine may be taken away now");
        }
        Ok(Ok(reply)) => refused(Azure::PROVIDER, EVENTS, &reply).to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no time was left".to_owned(),
    };
    shared.reporter.warn(&format!("cannot acknowledge the Azure event, which begins at its time: {answer}"));
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::DATE;

    use super::*;

    fn reply(body: &str) -> Reply {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Mon, 19 Sep 2016 18:29:00 GMT".parse().unwrap());
        Reply { status: StatusCode::OK, headers, body: body.to_owned() }
    }

    fn event(event_type: &str, resource: &str, not_before: &str) -> ScheduledEvent {
        ScheduledEvent {
            event_id: "602d9444".to_owned(),
            event_type: event_type.to_owned(),
            resources: vec!["other".to_owned(), resource.to_owned()],
            not_before: not_before.to_owned(),
        }
    }

    #[test]
    fn only_the_loss_of_this_machine_is_a_notice() {
        let notice = |event_type, resource| event(event_type, resource, "").notice_to("gpu_0");
        assert_eq!(notice("Preempt", "gpu_0"), Some("an Azure preemption notice"));
        assert_eq!(notice("Terminate", "GPU_0"), Some("an Azure termination notice"));
        assert_eq!(notice("Preempt", "gpu_1"), None);
        for harmless in ["Freeze", "Reboot", "Redeploy", ""] {
            assert_eq!(notice(harmless, "gpu_0"), None, "{harmless}");
        }
    }

    #[test]
    fn the_time_left_is_the_services_own() {
        let left = |time| left(&reply(""), &event("Preempt", "gpu_0", time)).map(|left| left.as_secs());
        assert_eq!(left("Mon, 19 Sep 2016 18:29:47 GMT"), Some(46));
        // More than Azure gives, or none: then the configured deadline applies.
        assert_eq!(left("Mon, 26 Sep 2016 18:29:47 GMT"), Some(900));
        for none in ["", "Mon, 19 Sep 2016 18:28:00 GMT", "soon"] {
            assert_eq!(left(none), None, "{none}");
        }
    }

    #[test]
    fn members_that_are_not_known_or_missing_change_nothing() {
        let body = r#"{"DocumentIncarnation": 2, "Events": [{"EventId": "a", "EventType": "Preempt",
            "EventSource": "Platform", "DurationInSeconds": -1}]}"#;
        let events = read::<Document>(EVENTS, &reply(body)).unwrap().events;
        assert_eq!((events.len(), events[0].event_id.as_str(), events[0].not_before.as_str()), (1, "a", ""));
        read::<Document>(EVENTS, &reply("<html>")).unwrap_err();
    }
}
