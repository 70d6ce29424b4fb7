//! The checks that S3 performs first: the time and the region for which a request was signed.

use http::{HeaderValue, Request, Response, StatusCode};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use s3s::Body;

use super::faults_layer::document;

/// Requests signed for a time further than this from the server's clock are refused.
const TOLERATED: SignedDuration = SignedDuration::from_mins(15);

/// The server's own clock, and the only region of its buckets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manners {
    /// How far the clock is ahead of this machine's, negative if it is behind; 0 for this machine's clock.
    pub(crate) clock_ahead_seconds: i64,
    /// `None` accepts requests signed for any region.
    pub(crate) only_region: Option<String>,
}

impl Manners {
    fn now(&self) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(self.clock_ahead_seconds)
    }

    /// Returns the refusal of the request, if any.
    pub(crate) fn refusal<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
        if self.clock_ahead_seconds != 0
            && let Some(signed) = header("x-amz-date").and_then(signed_at)
            && signed.duration_since(self.now()).abs() > TOLERATED
        {
            let text = "The difference between the request time and the current time is too large.";
            return Some(document(StatusCode::FORBIDDEN, "RequestTimeTooSkewed", text));
        }
        let wanted = self.only_region.as_deref()?;
        // Credential=KEY/DATE/REGION/s3/aws4_request
        let (_, scope) = header("authorization")?.split_once("Credential=")?;
        let given = scope.split('/').nth(2)?;
        if given == wanted {
            return None;
        }
        let text = format!(
            "The authorization header is malformed; the region '{given}' is wrong; expecting '{wanted}'"
        );
        Some(document(StatusCode::BAD_REQUEST, "AuthorizationHeaderMalformed", &text))
    }

    /// Dates an answer by the server's clock.
    pub(crate) fn date(&self, response: &mut Response<Body>) {
        if self.clock_ahead_seconds == 0 {
            return;
        }
        let text = self.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers_mut().insert(http::header::DATE, value);
        }
    }
}

/// `20261121T101600Z`
fn signed_at(text: &str) -> Option<Timestamp> {
    let time = DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_signature_is_read_to_the_second() {
        assert_eq!(signed_at("20270115T080000Z").unwrap().as_second(), 1_800_000_000);
        for bad in ["", "2027", "20271315T080000Z", "2027-01-15T08:00:00Z"] {
            assert_eq!(signed_at(bad), None, "{bad}");
        }
    }
}
