//! The JSON documents: each carries the version of its format first.

use serde::Serialize;
use stepvault_core::{Error, ErrorKind, Result};

/// Version of the shape of all documents.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Document<'a, Body> {
    format: u32,
    #[serde(flatten)]
    body: &'a Body,
}

#[derive(Serialize)]
struct ErrorBody {
    error: ErrorInfo,
}

/// An error in a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ErrorInfo {
    /// For programs: the error's kind in kebab-case.
    pub(crate) kind: &'static str,
    /// For people: what, on what, why.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().name(),
            message: error.to_string(),
            hint: error
                .hint_text()
                .filter(|hint| !hint.is_empty())
                .map(str::to_owned),
        }
    }
}

/// The document of a result.
pub(crate) fn document<Body: Serialize>(body: &Body) -> Result<String> {
    serde_json::to_string_pretty(&Document { format: FORMAT, body })
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the JSON document").caused_by(error))
}

/// The document of an error.
pub(crate) fn error_document(error: &Error) -> String {
    // Texts alone: this cannot fail, and an error about an error would help nobody.
    document(&ErrorBody {
        error: ErrorInfo::from(error),
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_document_with_kind_message_and_hint() {
        let error = Error::new(ErrorKind::NoneValid, "no valid checkpoint")
            .on("run 'a'")
            .hint("verify");
        let document: serde_json::Value = serde_json::from_str(&error_document(&error)).unwrap();
        let expected = serde_json::json!({
            "format": 1,
            "error": { "kind": "none-valid", "message": "no valid checkpoint: run 'a'", "hint": "verify" },
        });
        assert_eq!(document, expected);
        let without_hint = error_document(&Error::new(ErrorKind::Failed, "x"));
        assert!(without_hint.contains("\"hint\": null"), "{without_hint}");
    }
}
