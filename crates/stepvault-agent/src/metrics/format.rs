//! The two text formats of Prometheus. A scraper asks for one of them.

use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use stepvault_core::{Error, ErrorKind, Result};

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// The format 0.0.4 of Prometheus, which every scraper, `promtool` and the collector of text files read.
    Prometheus,
}

impl TextFormat {
    /// Returns the format that an `Accept` header asks for: `OpenMetrics` only where it is named, and not below the other
    /// one.
    pub(super) fn accepted(accept: &str) -> Self {
        let quality = |wanted: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parameters = range.split(';').map(str::trim);
                let is_wanted = parameters.next()?.eq_ignore_ascii_case(wanted);
                let quality = parameters.find_map(|parameter| parameter.strip_prefix("q=")?.parse().ok());
                is_wanted.then(|| quality.unwrap_or(1.0_f32))
            });
            ranges.fold(0.0, f32::max)
        };
        let (open, plain) = (quality("application/openmetrics-text"), quality("text/plain"));
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// Returns the type of an answer.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Writes all metrics of a registry.
    ///
    /// # Errors
    /// When a metric cannot be written.
    pub(super) fn write(self, registry: &Registry) -> Result<String> {
        let mut text = String::new();
        encode(&mut text, registry)
            .map_err(|error| Error::new(ErrorKind::Failed, "cannot write the metrics").caused_by(error))?;
        Ok(match self {
            Self::OpenMetrics => text,
            Self::Prometheus => plain(&text),
        })
    }
}

/// Rewrites the descriptions of `OpenMetrics` to those of the format 0.0.4: a family has the name of its samples, there is
/// no type `info`, and no line for the unit or the end. Samples are the same in both.
fn plain(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                let _ = writeln!(written, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(written, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            written.push_str(line);
            written.push('\n');
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        for (accept, format) in [
            ("", TextFormat::Prometheus),
            ("*/*", TextFormat::Prometheus),
            ("text/html,application/xhtml+xml,*/*;q=0.8", TextFormat::Prometheus),
            ("application/openmetrics-text", TextFormat::OpenMetrics),
            ("application/openmetrics-text;q=0", TextFormat::Prometheus),
            ("application/openmetrics-text;version=1.0.0;q=0.5, text/plain;q=0.7", TextFormat::Prometheus),
            // Prometheus 2.42 and later.
            (
                "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                TextFormat::OpenMetrics,
            ),
        ] {
            assert_eq!(TextFormat::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn the_plain_format_describes_families_by_the_names_of_their_samples() {
        let open = "# HELP a Help of a.\n# TYPE a counter\na_total{x=\"# TYPE\"} 1\n# HELP b Help.\n# TYPE b info\n\
                    # UNIT b seconds\nb_info{v=\"1\"} 1\n# HELP c C.\n# TYPE c histogram\nc_sum 0.0\n# EOF\n";
        let expected = "# HELP a_total Help of a.\n# TYPE a_total counter\na_total{x=\"# TYPE\"} 1\n\
                        # HELP b_info Help.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c C.\n\
                        # TYPE c histogram\nc_sum 0.0\n";
        assert_eq!(plain(open), expected);
    }
}
