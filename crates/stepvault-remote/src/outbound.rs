//! Sends documents to services: webhooks, Pushgateways and collectors of traces, by the HTTP client that remotes have.

use std::fmt;
use std::time::Duration;

use stepvault_core::config::ServiceUrl;
use stepvault_core::{Error, ErrorKind, Result};

/// Time limit of a request, from the connection to the answer's status.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What is done with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The service takes it.
    Post,
    /// It replaces what the service has there.
    Put,
}

/// Where and how documents are sent. No error contains more of the URL than its host.
#[derive(Clone)]
pub struct Outbound {
    /// What fails if it fails: `cannot send a notification`.
    pub what: &'static str,
    /// The service.
    pub url: ServiceUrl,
    /// What is done with the document.
    pub method: Method,
    /// The type of the document.
    pub content_type: &'static str,
    /// Further headers, which may contain a token.
    pub headers: Vec<(String, String)>,
    /// What to do if the service refuses it.
    pub hint: &'static str,
}

impl fmt::Debug for Outbound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Outbound({:?}, {} headers)", self.url, self.headers.len())
    }
}

impl Outbound {
    /// Posts JSON to a service.
    pub fn to(url: ServiceUrl) -> Self {
        Self {
            what: "cannot send a document",
            url,
            method: Method::Post,
            content_type: "application/json",
            headers: Vec::new(),
            hint: "",
        }
    }

    fn fault(&self, kind: ErrorKind) -> Error {
        Error::new(kind, self.what).on(&self.url)
    }

    /// Sends a document.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] for a failure that may pass, with the wait that the server asks for; otherwise
    /// [`ErrorKind::Denied`].
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    pub async fn send(&self, document: String) -> Result<()> {
        use crate::http::client::{HttpOptions, Scheme};
        use crate::http::endpoint::is_loopback;
        use crate::http::refusal::lost;

        let url = self.url.secret();
        let options = HttpOptions {
            stall_timeout: TIME_LIMIT,
            is_local: is_loopback(url),
            scheme: Scheme::of(url.scheme() == "http"),
            ..HttpOptions::default()
        };
        let client =
            options.client().map_err(|error| self.fault(ErrorKind::Failed).caused_by(error.without_url()))?;
        let mut request = match self.method {
            Method::Post => client.post(url.clone()),
            Method::Put => client.put(url.clone()),
        };
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.header("content-type", self.content_type).body(document);
        let answer = match tokio::time::timeout(TIME_LIMIT, request.send()).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                let (is_connect, error) = (error.is_connect(), error.without_url());
                return Err(lost(self.what, &self.url.to_string(), is_connect, &error));
            }
            Err(_) => {
                let why = format!("no answer within {} s", TIME_LIMIT.as_secs());
                return Err(self.fault(ErrorKind::Unreachable).because(why));
            }
        };
        let status = answer.status().as_u16();
        let why = format!("it answered with HTTP {status}");
        match status {
            200..300 => Ok(()),
            408 | 429 | 500..600 => {
                let asked_for = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
                let error = self.fault(ErrorKind::Unreachable).because(why);
                Err(match asked_for.and_then(|text| text.trim().parse::<f64>().ok()) {
                    Some(seconds) => {
                        let wait = Duration::try_from_secs_f64(seconds.ceil()).unwrap_or(Duration::MAX);
                        error.retry_after(wait)
                    }
                    None => error,
                })
            }
            _ => Err(self.fault(ErrorKind::Denied).because(why).hint(self.hint)),
        }
    }

    /// Refuses, because this program speaks no HTTP.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
    #[expect(clippy::unused_async, reason = "with a store that needs HTTP it waits")]
    pub async fn send(&self, _document: String) -> Result<()> {
        Err(self
            .fault(ErrorKind::Usage)
            .because("this program was built without a store that needs HTTP")
            .hint("build it with the feature s3, gcs or azure"))
    }
}
