//! Pushes metrics to a Prometheus Pushgateway, for jobs that are gone before they are scraped.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE as BASE64;
use stepvault_core::Result;
use stepvault_core::config::ServiceUrl;
use stepvault_remote::outbound::{Method, Outbound};

use super::TextFormat;

const JOB: [&str; 3] = ["metrics", "job", "stepvault"];

/// Replaces the metrics of a group by this text in the format 0.0.4. The Pushgateway adds the group's labels to each sample.
///
/// # Errors
/// When it does not accept them.
pub(super) async fn push<'a>(
    gateway: &ServiceUrl,
    group: impl Iterator<Item = (&'static str, &'a str)>,
    text: String,
) -> Result<()> {
    let segments: Vec<String> = group.flat_map(|(label, value)| segments(label, value)).collect();
    let segments = JOB.into_iter().chain(segments.iter().map(String::as_str));
    let outbound = Outbound {
        what: "cannot push the metrics",
        method: Method::Put,
        content_type: TextFormat::Prometheus.content_type(),
        hint: "check the URL of the Pushgateway: it ends where /metrics/job begins",
        ..Outbound::to(gateway.below(segments))
    };
    outbound.send(text).await
}

/// Returns a label as a part of the path, which cannot hold a value such as `team/run`.
fn segments(label: &str, value: &str) -> [String; 2] {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if value.chars().all(is_plain) {
        return [label.to_owned(), value.to_owned()];
    }
    [format!("{label}@base64"), BASE64.encode(value)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_path_cannot_hold_are_encoded() {
        let of = |value| segments("run", value).join("/");
        assert_eq!(of("my-run_1"), "run/my-run_1");
        assert_eq!(of("grpo/checkpoints"), "run@base64/Z3Jwby9jaGVja3BvaW50cw==");
        assert_eq!(of("größe"), "run@base64/Z3LDtsOfZQ==");
        assert_eq!(of(".."), "run@base64/Li4=");
    }
}
