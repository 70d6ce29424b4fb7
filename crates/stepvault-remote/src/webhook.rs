//! Sends documents to webhooks, by the HTTP client that remotes have.

use std::time::Duration;

use stepvault_core::config::WebhookUrl;
use stepvault_core::{Error, ErrorKind, Result};

/// Time limit of a request, from the connection to the answer's status.
const TIME_LIMIT: Duration = Duration::from_secs(10);

const WHAT: &str = "cannot send a notification";

fn fault(kind: ErrorKind, url: &WebhookUrl) -> Error {
    Error::new(kind, WHAT).on(url)
}

/// Posts a JSON document. No error contains more of the URL than its host.
///
/// # Errors
/// [`ErrorKind::Unreachable`] for a failure that may pass, with the wait that the server asks for; otherwise
/// [`ErrorKind::Denied`].
#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub async fn post(url: &WebhookUrl, body: String) -> Result<()> {
    use crate::http::client::{HttpOptions, Scheme};
    use crate::http::endpoint::is_loopback;
    use crate::http::refusal::lost;

    let options = HttpOptions {
        stall_timeout: TIME_LIMIT,
        is_local: is_loopback(url.secret()),
        scheme: Scheme::of(url.secret().scheme() == "http"),
        ..HttpOptions::default()
    };
    let client =
        options.client().map_err(|error| fault(ErrorKind::Failed, url).caused_by(error.without_url()))?;
    let request = client.post(url.secret().clone()).header("content-type", "application/json").body(body);
    let answer = match tokio::time::timeout(TIME_LIMIT, request.send()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let (is_connect, error) = (error.is_connect(), error.without_url());
            return Err(lost(WHAT, &url.to_string(), is_connect, &error));
        }
        Err(_) => {
            let why = format!("no answer within {} s", TIME_LIMIT.as_secs());
            return Err(fault(ErrorKind::Unreachable, url).because(why));
        }
    };
    let status = answer.status().as_u16();
    let why = format!("it answered with HTTP {status}");
    match status {
        200..300 => Ok(()),
        408 | 429 | 500..600 => {
            let asked_for = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let error = fault(ErrorKind::Unreachable, url).because(why);
            Err(match asked_for.and_then(|text| text.trim().parse::<f64>().ok()) {
                Some(seconds) => {
                    error.retry_after(Duration::try_from_secs_f64(seconds.ceil()).unwrap_or(Duration::MAX))
                }
                None => error,
            })
        }
        _ => Err(fault(ErrorKind::Denied, url)
            .because(why)
            .hint("check the target's url and format, and whether the webhook still exists")),
    }
}

/// Refuses, because this program speaks no HTTP.
///
/// # Errors
/// Always.
#[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
#[expect(clippy::unused_async, reason = "with a store that needs HTTP it waits")]
pub async fn post(url: &WebhookUrl, _body: String) -> Result<()> {
    Err(fault(ErrorKind::Usage, url)
        .because("this program was built without a store that needs HTTP")
        .hint("use a command as the target, or build with the feature s3, gcs or azure"))
}
