//! Answers, and errors in the form of either API.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;
use quick_xml::escape::escape;
use serde_json::json;

/// An answer with its whole body.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    pub(super) fn new(status: u16) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    pub(super) fn xml(status: u16, root: &str) -> Self {
        let text = format!("<?xml version='1.0' encoding='UTF-8'?>{root}");
        Self::new(status).header("content-type", "application/xml; charset=UTF-8").body(Bytes::from(text))
    }

    pub(super) fn json(status: u16, value: &serde_json::Value) -> Self {
        let text = value.to_string();
        Self::new(status).header("content-type", "application/json; charset=UTF-8").body(Bytes::from(text))
    }

    /// Adds a header; omits a value that a header cannot contain.
    pub(super) fn header(mut self, name: &str, value: impl AsRef<str>) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(value.as_ref());
        if let (Ok(name), Ok(value)) = (name, value) {
            self.headers.insert(name, value);
        }
        self
    }

    pub(super) fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }
}

/// A refusal, before it is converted to the form of the API.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    status: u16,
    code: String,
    message: String,
    retry_after_seconds: Option<u64>,
}

impl Failure {
    pub(super) fn new(status: u16, code: &str, message: &str) -> Self {
        Self { status, code: code.to_owned(), message: message.to_owned(), retry_after_seconds: None }
    }

    pub(super) fn no_such_key() -> Self {
        Self::new(404, "NoSuchKey", "The specified key does not exist.")
    }

    pub(super) fn precondition() -> Self {
        let message = "At least one of the pre-conditions you specified did not hold.";
        Self::new(412, "PreconditionFailed", message)
    }

    /// Names the unsupported request, so that the author of the test sees the reason.
    pub(super) fn not_implemented(what: &str) -> Self {
        Self::new(501, "NotImplemented", &format!("The test server does not implement {what}."))
    }

    pub(super) fn retry_after(mut self, seconds: Option<u64>) -> Self {
        self.retry_after_seconds = seconds;
        self
    }

    /// Returns the answer in the form of the API.
    pub(super) fn reply(&self, json: bool) -> Reply {
        self.reply_as(self.status, json)
    }

    /// Returns the same error document with another status.
    pub(super) fn reply_as(&self, status: u16, json: bool) -> Reply {
        let reply = if status == 304 {
            Reply::new(status)
        } else if json {
            let reason = self.reason();
            let errors = json!([{ "message": self.message, "domain": "global", "reason": reason }]);
            let error = json!({ "code": self.status, "message": self.message, "errors": errors });
            Reply::json(status, &json!({ "error": error }))
        } else {
            let (code, message) = (escape(&self.code), escape(&self.message));
            Reply::xml(status, &format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
        };
        match self.retry_after_seconds {
            Some(seconds) => reply.header("retry-after", seconds.to_string()),
            None => reply,
        }
    }

    /// Returns the JSON API's reason; a code without one is returned unchanged.
    fn reason(&self) -> &str {
        match self.code.as_str() {
            "BadDigest" | "InvalidDigest" | "InvalidArgument" => "invalid",
            "AuthenticationRequired" => "authError",
            "NoSuchKey" | "NoSuchBucket" => "notFound",
            "PreconditionFailed" => "conditionNotMet",
            "InvalidRange" => "requestedRangeNotSatisfiable",
            code => code,
        }
    }
}

/// Formats a time as in `Last-Modified`.
pub(super) fn http_date(time: SystemTime) -> String {
    timestamp(time).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Formats a time as in JSON resources and XML listings: milliseconds, UTC.
pub(super) fn rfc3339(time: SystemTime) -> String {
    timestamp(time).strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)
}
