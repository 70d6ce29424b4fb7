//! Progress bars on a terminal.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressState, ProgressStyle};

use super::counters::{Counts, TierCounters};
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
}

impl Bars {
    pub(super) fn new(all: &MultiProgress) -> Self {
        Self { all: all.clone(), drawn: Vec::new() }
    }

    /// Updates the bars from the counters.
    pub(super) fn draw(&mut self, tiers: &[TierCounters]) {
        self.drawn.resize_with(tiers.len(), || None);
        for (counters, drawn) in tiers.iter().zip(&mut self.drawn) {
            let counts = *counters.counts.lock();
            if drawn.is_none() && counts.total_bytes == 0 && counts.done_bytes() == 0 {
                continue;
            }
            let new = || {
                let bar = self.all.add(ProgressBar::no_length().with_style(style(UNKNOWN)));
                bar.set_prefix(counters.tier.to_string());
                Drawn { bar, transfer: 0, spared_bytes: 0 }
            };
            drawn.get_or_insert_with(new).update(&counts);
        }
    }

    /// Removes all bars.
    pub(super) fn clear(&mut self) {
        for drawn in self.drawn.drain(..).flatten() {
            drawn.bar.finish_and_clear();
        }
    }
}

impl Drawn {
    fn update(&mut self, counts: &Counts) {
        if self.transfer != counts.transfer {
            self.transfer = counts.transfer;
            self.bar.reset_elapsed();
            self.bar.reset_eta();
        }
        let length = self.bar.length();
        if length.unwrap_or_default() != counts.total_bytes {
            if length.is_none() {
                self.bar.set_style(style(KNOWN));
            }
            self.bar.set_length(counts.total_bytes);
        }
        self.bar.set_position(counts.done_bytes());
        if self.spared_bytes != counts.spared_bytes() {
            // Bytes that were not transferred must not influence the estimated rate.
            self.spared_bytes = counts.spared_bytes();
            self.bar.reset_eta();
        }
        self.bar.set_message(if is_read_back(counts) { ", verifying".to_owned() } else { files(counts) });
    }
}

/// Whether every byte was sent, and the transfer goes on: what was sent is verified, and read back where that is needed.
fn is_read_back(counts: &Counts) -> bool {
    counts.is_active() && counts.total_bytes > 0 && counts.done_bytes() >= counts.total_bytes
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants; fall back to a plain bar if one is invalid.
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("done", number(|state| human::bytes(state.pos())))
        .with_key("all", number(|state| human::bytes(state.len().unwrap_or_default())))
        .with_key("rate", number(|state| human::per_second(whole(state.per_sec()))))
        .with_key("remaining", number(|state| remaining(state.elapsed(), state.per_sec(), state.eta())))
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
    format!("{} left ", human::duration(Duration::from_secs(estimate.as_secs())))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; the conversion saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

fn files(counts: &Counts) -> String {
    match counts.total_files {
        0 => String::new(),
        total => format!("{} of {}", counts.done_files, human::count(total, "file")),
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
