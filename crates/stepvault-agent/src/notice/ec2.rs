//! EC2: spot interruptions and rebalance recommendations, from the instance metadata service, version 2.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use stepvault_core::Result;
use tokio::time::Instant;

use super::metadata::{Metadata, Reply};
use super::service::{Notice, Service, refused, request_stop, time_left};
use crate::shared::Shared;

/// Time limit for a response: a service on the machine itself answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
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
pub(super) struct Ec2 {
    metadata: Metadata,
    token: Option<(String, Instant)>,
    /// Whether a rebalance was recommended.
    recommended: bool,
}

impl Ec2 {
    pub(super) fn new(metadata: Metadata) -> Self {
        Self { metadata, token: None, recommended: false }
    }

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
            return Err(refused(Self::PROVIDER, TOKEN, &reply));
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
                _ => return Err(refused(Self::PROVIDER, path, &reply)),
            }
        }
        Ok(None)
    }
}

impl Service for Ec2 {
    const PROVIDER: &'static str = "EC2";
    const NOTICES: &'static str = "EC2 spot notices";
    const SUBJECT: &'static str = "notices ec2";
    const SILENT: &'static str = "cannot detect spot notices";
    const HINT: &'static str = "in a container, set the instance's metadata hop limit to 2 or more; set the sources of notices \
                                with agent.notices";
    // The interval that AWS recommends.
    const INTERVAL: Duration = Duration::from_secs(5);
    const FAILURES: u32 = 12;

    async fn find(&mut self) -> Result<()> {
        self.token().await.map(drop)
    }

    async fn check(&mut self, shared: &Shared) -> Result<Option<Notice>> {
        if let Some(reply) = self.get(ACTION).await? {
            return Ok(Some(notice(&reply)));
        }
        if self.recommended {
            return Ok(None);
        }
        if let Some(reply) = self.get(REBALANCE).await? {
            self.recommended = true;
            let since = serde_json::from_str::<Rebalance>(&reply.body)
                .map(|told| format!(" ({})", told.notice_time))
                .unwrap_or_default();
            let text = format!("an EC2 rebalance recommendation{since}");
            if shared.options.notices.drains_on_rebalance {
                request_stop(shared, Notice { text, left: None });
            } else {
                shared.drain.reclaim_expected.cancel();
                let text = format!(
                    "{text}: this machine may be reclaimed at any time; from now on, steps closest to durable are \
                     uploaded first"
                );
                shared.reporter.warn(&text);
            }
        }
        Ok(None)
    }
}

fn notice(reply: &Reply) -> Notice {
    let Ok(told) = serde_json::from_str::<InstanceAction>(&reply.body) else {
        return Notice { text: "an EC2 spot notice".to_owned(), left: None };
    };
    let time = told.time.parse::<jiff::Timestamp>().ok();
    let left = time.and_then(|time| time_left(reply, time)).map(|left| left.min(LONGEST_NOTICE));
    let action: String = told.action.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    Notice { text: format!("an EC2 spot notice ({action})"), left }
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
        let Notice { text, left } = notice(&reply);
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
