//! The JSON documents. The first member of each is its format version.

use serde::Serialize;
use stepvault_core::document::{Document, ErrorAnswer, ErrorInfo};
use stepvault_core::{Error, ErrorKind, Result};

/// Serializes a result.
pub(crate) fn document<Body: Serialize>(body: &Body) -> Result<String> {
    serde_json::to_string_pretty(&Document::new(body))
        .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the JSON document").caused_by(error))
}

/// Serializes an error.
pub(crate) fn error_document(error: &Error) -> String {
    // Only strings, so this cannot fail.
    document(&ErrorAnswer { error: ErrorInfo::from(error) }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_document_with_kind_message_and_hint() {
        let error = Error::new(ErrorKind::NoneValid, "no valid checkpoint").on("run 'a'").hint("verify");
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
