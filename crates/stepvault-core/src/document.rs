//! The frame of JSON documents, on standard output and on the control socket: the version of the format, then the body.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantNames as _;

use crate::{Attempt, Error, ErrorKind, Revision, Step, StepId};

/// Version of the shape of all documents. Within a version members may be added.
pub const FORMAT: u32 = 1;

/// A document.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Document<Body> {
    /// Version of the format of the document.
    pub format: u32,
    /// What it holds.
    #[serde(flatten)]
    pub body: Body,
}

impl<Body> Document<Body> {
    /// Frames a body.
    pub const fn new(body: Body) -> Self {
        Self { format: FORMAT, body }
    }
}

/// The members by which a document names a [`StepId`], in their order.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(remote = "StepId")]
pub struct StepIdMembers {
    /// The step's number.
    step: Step,
    /// The attempt.
    attempt: Attempt,
    /// The revision. Omitted when it is the first.
    #[serde(skip_serializing_if = "Revision::is_first")]
    revision: Revision,
}

/// The body of a document about an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorInfo,
}

/// An error in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorInfo {
    /// For programs: the error's kind in kebab-case.
    #[schemars(extend("enum" = ErrorKind::VARIANTS))]
    pub kind: String,
    /// For people: what failed, on what, and why.
    pub message: String,
    /// What to do about it; null if there is no hint.
    pub hint: Option<String>,
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().name().to_owned(),
            message: error.to_string(),
            hint: error.hint_text().map(str::to_owned),
        }
    }
}

impl ErrorInfo {
    /// Returns the error that it describes.
    pub fn into_error(self) -> Error {
        Error::new(ErrorKind::from_name(&self.kind), self.message).hint(self.hint.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_back_from_its_document() {
        let error = Error::new(ErrorKind::NoneValid, "no valid checkpoint").hint("verify");
        let text =
            serde_json::to_string(&Document::new(ErrorAnswer { error: ErrorInfo::from(&error) })).unwrap();
        let read: Document<ErrorAnswer> = serde_json::from_str(&text).unwrap();
        assert_eq!(read.format, FORMAT);
        let back = read.body.error.into_error();
        assert_eq!((back.kind(), back.to_string()), (error.kind(), error.to_string()));
        assert_eq!(back.hint_text(), Some("verify"));
    }
}
