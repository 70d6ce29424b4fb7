//! Progress bars on a terminal.

use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::counters::TierCounters;
use crate::output::human;

const KNOWN: &str = "{prefix} {bar:30} {done} of {all} {rate} {remaining}{msg}";
/// How long a rate is measured before the remaining time is estimated from it.
const MEASURED_FOR: Duration = Duration::from_secs(5);
const UNKNOWN: &str = "{prefix} {spinner} {done} {rate} {msg}";

/// One bar for each tier that transfers bytes.
pub(super) struct Bars {
    all: MultiProgress,
    drawn: Vec<Option<Drawn>>,
}

struct Drawn {
    bar: ProgressBar,
    transfer: u64,
    spared_bytes: u64,
    total_bytes: u64,
}

impl Bars {
    pub(super) fn new(all: &MultiProgress) -> Self {
        Self {
            all: all.clone(),
            drawn: Vec::new(),
        }
    }

    /// Updates the bars from the counters.
    pub(super) fn draw(&mut self, tiers: &[TierCounters]) {
        self.drawn.resize_with(tiers.len(), || None);
        for (counters, drawn) in tiers.iter().zip(&mut self.drawn) {
            let total_bytes = counters.total_bytes.load(Ordering::Relaxed);
            let done_bytes = counters.done_bytes();
            if drawn.is_none() && total_bytes == 0 && done_bytes == 0 {
                continue;
            }
            let drawn = drawn.get_or_insert_with(|| {
                let bar = self.all.add(ProgressBar::new(0));
                bar.set_prefix(counters.tier.to_string());
                bar.set_style(style(UNKNOWN));
                Drawn {
                    bar,
                    transfer: 0,
                    spared_bytes: 0,
                    total_bytes: 0,
                }
            });
            if drawn.transfer != counters.transfer() {
                drawn.transfer = counters.transfer();
                drawn.bar.reset_elapsed();
                drawn.bar.reset_eta();
            }
            if drawn.total_bytes != total_bytes {
                if drawn.total_bytes == 0 {
                    drawn.bar.set_style(style(KNOWN));
                }
                drawn.total_bytes = total_bytes;
                drawn.bar.set_length(total_bytes);
            }
            drawn.bar.set_position(done_bytes);
            let spared_bytes = counters.spared_bytes();
            if drawn.spared_bytes != spared_bytes {
                // Bytes that were not transferred must not influence the estimated rate.
                drawn.spared_bytes = spared_bytes;
                drawn.bar.reset_eta();
            }
            drawn.bar.set_message(files(counters));
        }
    }

    /// Removes all bars.
    pub(super) fn clear(&mut self) {
        for drawn in self.drawn.drain(..).flatten() {
            drawn.bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants; fall back to a plain bar if one is invalid.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("done", number(|state| human::bytes(state.pos())))
        .with_key(
            "all",
            number(|state| human::bytes(state.len().unwrap_or_default())),
        )
        .with_key("rate", number(|state| human::per_second(whole(state.per_sec()))))
        .with_key(
            "remaining",
            number(|state| remaining(state.elapsed(), state.per_sec(), state.eta())),
        )
        .progress_chars("=> ")
}

/// Returns a key of a template that is formatted as numbers are in every other output.
fn number(
    format: fn(&ProgressState) -> String,
) -> impl Fn(&ProgressState, &mut dyn Write) + Clone + Send + Sync {
    move |state, out| {
        let _ = out.write_str(&format(state));
    }
}

/// Returns the text of the estimated time that remains; none before a rate was measured for a while.
fn remaining(elapsed: Duration, bytes_per_second: f64, estimate: Duration) -> String {
    if elapsed < MEASURED_FOR || bytes_per_second < 1.0 {
        return String::new();
    }
    format!(
        "{} left ",
        human::duration(Duration::from_secs(estimate.as_secs()))
    )
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; the conversion saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn files(counters: &TierCounters) -> String {
    let done = counters.done_files.load(Ordering::Relaxed);
    match counters.total_files.load(Ordering::Relaxed) {
        0 => String::new(),
        total => format!("{done} of {}", human::count(total, "file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_estimated_before_a_rate_is_known() {
        let minute = Duration::from_mins(1);
        assert_eq!(remaining(Duration::from_secs(4), 1e6, minute), "");
        assert_eq!(remaining(minute, 0.0, Duration::from_secs(u64::MAX)), "");
        assert_eq!(remaining(Duration::from_secs(6), 1e6, minute), "1m left ");
    }

    #[test]
    fn the_templates_are_valid() {
        for template in [KNOWN, UNKNOWN] {
            ProgressStyle::with_template(template).unwrap();
        }
        let bar = ProgressBar::hidden().with_style(style(KNOWN));
        bar.set_length(3 << 20);
        bar.set_position(1 << 20);
    }
}
