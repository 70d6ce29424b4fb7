//! EC2: spot interruptions and rebalance recommendations, from the instance metadata service, version 2.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use stepvault_core::{Error, ErrorKind, Result};
use tokio::time::Instant;

use super::metadata::{Metadata, Reply};
use super::request::{request_stop, time_left};
use crate::shared::Shared;

/// The interval that AWS recommends.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for a response: a service on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between tries of an expected service that does not answer.
const ASK_AGAIN: Duration = Duration::from_mins(1);
/// Number of consecutive failures before a warning: a minute's worth.
const SILENCES: u32 = 12;
/// How long a token lasts, in seconds, and when it is replaced.
const TOKEN_SECONDS: u64 = 21_600;
/// EC2 gives no notice earlier than this.
const LONGEST_NOTICE: Duration = Duration::from_mins(2);

const TOKEN: &str = "/latest/api/token";
const ACTION: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE: &str = "/latest/meta-data/events/recommendations/rebalance";

#[derive(Debug, Deserialize)]
struct InstanceAction {
    action: String,
    time: String,
}

#[derive(Debug, Deserialize)]
struct Rebalance {
    #[serde(rename = "noticeTime")]
    notice_time: String,
}

#[derive(Debug)]
struct Service {
    metadata: Metadata,
    token: Option<(String, Instant)>,
}

impl Service {
    /// Returns a token that is valid for long enough.
    async fn token(&mut self) -> Result<String> {
        if let Some((token, until)) = &self.token
            && *until > Instant::now()
        {
            return Ok(token.clone());
        }
        let seconds = TOKEN_SECONDS.to_string();
        let headers = [("x-aws-ec2-metadata-token-ttl-seconds", seconds.as_str())];
        let reply = self.metadata.ask(Method::PUT, TOKEN, &headers, PATIENCE).await?;
        if reply.status != StatusCode::OK || reply.body.is_empty() {
            return Err(refused(TOKEN, &reply));
        }
        let until = Instant::now() + Duration::from_secs(TOKEN_SECONDS / 2);
        self.token = Some((reply.body.clone(), until));
        Ok(reply.body)
    }

    /// Returns the value at the path; `None` when there is none.
    async fn get(&mut self, path: &str) -> Result<Option<Reply>> {
        // A token may be revoked early: retry once with a fresh one.
        for fresh in [false, true] {
            if fresh {
                self.token = None;
            }
            let token = self.token().await?;
            let headers = [("x-aws-ec2-metadata-token", token.as_str())];
            let reply = self.metadata.ask(Method::GET, path, &headers, PATIENCE).await?;
            match reply.status {
                StatusCode::OK => return Ok(Some(reply)),
                StatusCode::NOT_FOUND => return Ok(None),
                StatusCode::UNAUTHORIZED if !fresh => {}
                _ => return Err(refused(path, &reply)),
            }
        }
        Ok(None)
    }
}

fn refused(path: &str, reply: &Reply) -> Error {
    Error::new(ErrorKind::Denied, "the EC2 metadata service refused a request")
        .on(path)
        .because(format!("it answered {}", reply.status))
}

/// Watches until there is a notice. On a machine that is not EC2's it ends after one query, unless the service is
/// expected.
pub(super) async fn watch(shared: Arc<Shared>, endpoint: String) {
    let reporter = &shared.reporter;
    let metadata = match Metadata::at(&endpoint) {
        Ok(metadata) => metadata,
        Err(error) => return reporter.warn_once("notices ec2", &error.text_with_hint()),
    };
    let mut service = Service { metadata, token: None };
    while let Err(error) = service.token().await {
        if !shared.options.notices.expected {
            tracing::debug!(%error, "not watching for EC2 notices");
            return;
        }
        let hint = "in a container, set the instance's metadata hop limit to 2 or more; set the sources of notices \
                    with agent.notices";
        reporter.warn_once("notices ec2", &format!("cannot detect spot notices: {error} ({hint})"));
        tokio::time::sleep(ASK_AGAIN).await;
    }
    reporter.resolved("notices ec2");
    tracing::info!("watching for EC2 spot notices");
    let mut silences = 0_u32;
    let mut recommended = false;
    loop {
        match check(&mut service, &shared, &mut recommended).await {
            Ok(true) => return,
            Ok(false) => {
                silences = 0;
                reporter.resolved("notices ec2");
            }
            Err(error) => {
                silences = silences.saturating_add(1);
                if silences >= SILENCES {
                    // The error text differs each time.
                    let text = format!("cannot detect spot notices: {error}");
                    reporter.warn_of_cause("notices ec2", "silent", &text);
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// One check; returns true once there is nothing more to learn.
async fn check(service: &mut Service, shared: &Shared, recommended: &mut bool) -> Result<bool> {
    if let Some(reply) = service.get(ACTION).await? {
        let (text, left) = notice(&reply);
        request_stop(shared, text, left);
        return Ok(true);
    }
    if *recommended {
        return Ok(false);
    }
    if let Some(reply) = service.get(REBALANCE).await? {
        *recommended = true;
        let since = serde_json::from_str::<Rebalance>(&reply.body)
            .map(|told| format!(" ({})", told.notice_time))
            .unwrap_or_default();
        let text = format!("an EC2 rebalance recommendation{since}");
        if shared.options.notices.drains_on_rebalance {
            request_stop(shared, text, None);
        } else {
            shared.drain.reclaim_expected.cancel();
            let text = format!(
                "{text}: this machine may be reclaimed at any time; from now on, steps closest to durable are \
                 uploaded first"
            );
            shared.reporter.warn(&text);
        }
    }
    Ok(false)
}

/// Returns the notice's text and the remaining time; `None` if it names no credible time.
fn notice(reply: &Reply) -> (String, Option<Duration>) {
    let Ok(told) = serde_json::from_str::<InstanceAction>(&reply.body) else {
        return ("an EC2 spot notice".to_owned(), None);
    };
    let time = told.time.parse::<jiff::Timestamp>().ok();
    let left = time.and_then(|time| time_left(reply, time)).map(|left| left.min(LONGEST_NOTICE));
    let action: String = told.action.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    (format!("an EC2 spot notice ({action})"), left)
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::DATE;

    use super::*;

    fn left(body: &str) -> (String, Option<u64>) {
        let mut headers = HeaderMap::new();
        headers.insert(DATE, "Mon, 18 Sep 2017 08:20:00 GMT".parse().unwrap());
        let reply = Reply { status: StatusCode::OK, headers, body: body.to_owned() };
        let (text, left) = notice(&reply);
        (text, left.map(|left| left.as_secs()))
    }

    #[test]
    fn the_time_left_is_the_services_own() {
        let of = |time: &str| left(&format!("{{\"action\": \"terminate\", \"time\": \"{time}\"}}")).1;
        assert_eq!(of("2017-09-18T08:21:30Z"), Some(89));
        // More than EC2 gives, or none: then the configured deadline applies.
        assert_eq!(of("2017-09-18T09:21:30Z"), Some(120));
        assert_eq!(of("2017-09-18T08:20:00Z"), None);
        assert_eq!(of("2016-09-18T08:20:00Z"), None);
        assert_eq!(of("soon"), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_stands_in_a_notice_it_is_one_that_can_be_told(
            body in proptest::prop_oneof![
                ".*",
                "\\{\"action\": \".*\", \"time\": \"[0-9TZ:.+-]{0,40}\"\\}",
            ],
        ) {
            let (text, left) = left(&body);
            proptest::prop_assert!(text.len() <= 60 && !text.chars().any(char::is_control), "{text:?}");
            proptest::prop_assert!(left.is_none_or(|left| left <= LONGEST_NOTICE.as_secs()));
        }
    }

    #[test]
    fn a_notice_that_cannot_be_read_is_a_notice() {
        assert_eq!(left("{}"), ("an EC2 spot notice".to_owned(), None));
        assert_eq!(left("\u{0}\u{1}"), ("an EC2 spot notice".to_owned(), None));
        let (text, _) = left("{\"action\": \"stop\\u001b[2J\", \"time\": \"\"}");
        assert_eq!(text, "an EC2 spot notice (stop2J)");
    }
}
