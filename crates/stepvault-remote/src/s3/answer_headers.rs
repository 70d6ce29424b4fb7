//! What the headers of an answer say of the store: its clock, and its name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};

/// Keeps headers of the answer to the request that it is attached to; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerHeaders(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    date: Option<SystemTime>,
    server: Option<String>,
}

impl AnswerHeaders {
    /// Returns the date, the only time in an answer to a write; `None` where the store sent none.
    pub(super) fn date(&self) -> Option<SystemTime> {
        self.kept().date
    }

    /// Returns what the server calls itself; `None` where it sent no name.
    pub(super) fn server(&self) -> Option<String> {
        self.kept().server.clone()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intercept for AnswerHeaders {
    fn name(&self) -> &'static str {
        "AnswerHeaders"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.response().headers();
        *self.kept() = Kept {
            date: headers.get("date").and_then(dated),
            server: headers.get("server").map(str::to_owned),
        };
        Ok(())
    }
}

/// Parses a `Date` header.
pub(super) fn dated(text: &str) -> Option<SystemTime> {
    let date = DateTime::from_str(text, DateTimeFormat::HttpDate).ok()?;
    SystemTime::try_from(date).ok()
}
