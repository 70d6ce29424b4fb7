//! Spans as OpenTelemetry's protocol writes them in JSON.
//!
//! It is protobuf's mapping to JSON, but with ids in hexadecimal and enumerations as numbers. Numbers of 64 bits are texts.

use serde_json::{Value, json};
use stepvault_core::NodeName;

use super::spans::{Attribute, Span};

/// `SPAN_KIND_INTERNAL`
const INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`
const ERROR: u8 = 2;

/// Returns the request that exports these spans of a node.
pub(super) fn document(node: &NodeName, spans: &[Span]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        ("service.name", Attribute::Text("stepvault".to_owned())),
        ("service.version", Attribute::Text(version.to_owned())),
        ("stepvault.node", Attribute::Text(node.to_string())),
    ];
    let spans: Vec<Value> = spans.iter().map(of_span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": of_attributes(&resource) },
        "scopeSpans": [{ "scope": { "name": "stepvault", "version": version }, "spans": spans }],
    }] })
    .to_string()
}

fn of_span(span: &Span) -> Value {
    let status = match &span.error {
        Some(message) => json!({ "code": ERROR, "message": message }),
        None => json!({}),
    };
    json!({
        "traceId": span.trace_id,
        "spanId": span.id,
        "parentSpanId": span.parent_id.as_deref().unwrap_or_default(),
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": span.start_nanoseconds.to_string(),
        "endTimeUnixNano": span.end_nanoseconds.to_string(),
        "attributes": of_attributes(&span.attributes),
        "status": status,
    })
}

fn of_attributes(attributes: &[(&'static str, Attribute)]) -> Vec<Value> {
    let value = |attribute: &Attribute| match attribute {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
    };
    attributes.iter().map(|(key, attribute)| json!({ "key": key, "value": value(attribute) })).collect()
}
