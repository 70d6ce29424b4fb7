//! What the headers of an answer say of the store: its clock, and its name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};

/// Stores the date of the answer that it is attached to: the answers to writes contain no other time.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerDate(Arc<Mutex<Option<SystemTime>>>);

impl AnswerDate {
    /// Returns the date, or the start of 1970 where the store sent none.
    pub(crate) fn get(&self) -> SystemTime {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Stores what the server calls itself in the answer that this is attached to.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerServer(Arc<Mutex<Option<String>>>);

impl AnswerServer {
    /// Returns the name; `None` where the store sent none.
    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Intercept for AnswerServer {
    fn name(&self) -> &'static str {
        "AnswerServer"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let server = context.response().headers().get("server");
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = server.map(str::to_owned);
        Ok(())
    }
}

/// Parses a `Date` header.
pub(super) fn dated(text: &str) -> Option<SystemTime> {
    let date = DateTime::from_str(text, DateTimeFormat::HttpDate).ok()?;
    SystemTime::try_from(date).ok()
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date").and_then(dated);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = date;
        Ok(())
    }
}
