//! Progress lines for a log.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use stepvault_core::{Error, Event, Operation, OperationKind, Tier};

use super::counters::{Counts, TierCounters};
use crate::output::human;

/// The interval of a transfer's first sparse line; the next ones come after twice as many each.
const FIRST_SPARSE_INTERVAL: u32 = 4;

/// How long a rate is measured before the remaining time is estimated from it.
const MEASURED_FOR: Duration = Duration::from_secs(5);

/// Keeps the counters of the last lines, to compute rates.
#[derive(Debug)]
pub(super) struct Lines {
    began: Instant,
    is_sparse: bool,
    last: Vec<Last>,
}

/// What the last line of a tier was about.
#[derive(Debug, Clone)]
struct Last {
    at: Instant,
    sent_bytes: u64,
    transfer: u64,
    /// Intervals since the transfer began.
    intervals: u32,
}

impl Lines {
    pub(super) fn new(is_sparse: bool) -> Self {
        Self { began: Instant::now(), is_sparse, last: Vec::new() }
    }

    /// Returns a line for each tier with a transfer under way. Called once in each interval; with sparse lines, a
    /// transfer has one after 4, 8, 16, … intervals.
    pub(super) fn due(&mut self, tiers: &[TierCounters]) -> Vec<String> {
        let now = Instant::now();
        let none = Last { at: self.began, sent_bytes: 0, transfer: 0, intervals: 0 };
        self.last.resize(tiers.len(), none);
        let mut lines = Vec::new();
        for (counters, last) in tiers.iter().zip(&mut self.last) {
            let counts = *counters.counts.lock();
            let sent_bytes = counts.sent_bytes();
            if let Some(began) = counts.began.filter(|_| counts.transfer != last.transfer) {
                // The counters began anew, and maybe not long ago.
                *last = Last { at: began, sent_bytes: 0, transfer: counts.transfer, intervals: 0 };
            }
            last.intervals = last.intervals.saturating_add(1);
            let is_due = last.intervals >= FIRST_SPARSE_INTERVAL && last.intervals.is_power_of_two();
            if counts.is_active() && self.is_sparse && !is_due {
                continue;
            }
            if counts.is_active() {
                let sent_bytes = sent_bytes.saturating_sub(last.sent_bytes);
                lines.push(line(&counters.tier, &counts, sent_bytes, now - last.at));
            }
            (last.at, last.sent_bytes) = (now, sent_bytes);
        }
        lines
    }
}

fn line(tier: &Tier, counts: &Counts, sent_bytes: u64, elapsed: Duration) -> String {
    let (done, total) = (counts.done_bytes(), counts.total_bytes);
    let mut text = format!("{tier}: {} of {}", human::bytes(done), human::bytes(total));
    if let Some(rate) = human::rate(sent_bytes, elapsed) {
        let _ = write!(text, ", {rate}");
        let left = u128::from(total.saturating_sub(done)).saturating_mul(elapsed.as_millis());
        let left = left.checked_div(u128::from(sent_bytes));
        if let Some(left) = left.filter(|_| elapsed >= MEASURED_FOR) {
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
            let _ = write!(text, ", {} left", human::duration(left));
        }
    }
    if counts.total_files > 0 {
        let files = human::count(counts.total_files, "file");
        let _ = write!(text, ", {} of {files}", counts.done_files);
    }
    text
}

/// Describes an event in one line; `None` for those that are too frequent, and those of an operation.
pub(super) fn of_event(event: &Event<'_>) -> Option<String> {
    Some(match event {
        Event::Durable { tier, id, .. } => format!("{tier}: {id} is durable"),
        Event::Retrying { tier, error, wait_seconds } => {
            format!("{tier}: {error}; retrying in {}", human::seconds(*wait_seconds))
        }
        Event::Skipped { tier, id, reason } => format!("{tier}: {id} skipped: {reason}"),
        Event::Info { message } => (*message).to_owned(),
        _ => return None,
    })
}

pub(super) fn of_start(operation: &Operation<'_>) -> String {
    let (tier, id, location) = (operation.tier, operation.id, operation.location);
    let size = || {
        let bytes = human::bytes(operation.bytes.unwrap_or_default());
        format!("{}, {bytes}", human::count(operation.files, "file"))
    };
    match operation.kind {
        OperationKind::Seal => format!("{tier}: sealing {id}: {}, from {location}", size()),
        OperationKind::Upload => format!("{tier}: {id} started: {}, to {location}", size()),
        OperationKind::Restore => format!("restoring {id} from {tier}: {}, to {location}", size()),
        OperationKind::Removal => format!("{tier}: removing {}, from {location}", sized(operation)),
    }
}

/// Describes the end of an operation; after that of a transfer, the step is durable if `is_durable`.
pub(super) fn of_end(operation: &Operation<'_>, copied_bytes: u64, seconds: f64, is_durable: bool) -> String {
    let (tier, id, location) = (operation.tier, operation.id, operation.location);
    let taken = || taken(operation.bytes.unwrap_or_default(), seconds);
    match operation.kind {
        OperationKind::Seal => {
            let files = human::count(operation.files, "file");
            format!("{tier}: sealed {id}: {files}, {}, from {location}", taken())
        }
        OperationKind::Upload => {
            let done = if is_durable { "is durable" } else { "done" };
            let copied = human::copied(copied_bytes);
            format!("{tier}: {id} {done}: {}{copied}, to {location}", taken())
        }
        OperationKind::Restore => format!("restored {id} from {tier}: {}, to {location}", taken()),
        OperationKind::Removal => {
            let (step, seconds) = (sized(operation), human::seconds(seconds));
            format!("{tier}: removed {step} in {seconds}, from {location}")
        }
    }
}

pub(super) fn of_failure(operation: &Operation<'_>, seconds: f64, error: &Error) -> String {
    let (tier, id, location) = (operation.tier, operation.id, operation.location);
    let seconds = human::seconds(seconds);
    match operation.kind {
        // The error names the path.
        OperationKind::Seal => format!("{tier}: {id} failed after {seconds}: {error}"),
        OperationKind::Upload => {
            let bytes = human::bytes(operation.bytes.unwrap_or_default());
            format!("{tier}: {id} failed after {seconds}: {bytes} to {location}: {error}")
        }
        OperationKind::Restore => format!("cannot restore {id} from {tier} after {seconds}: {error}"),
        OperationKind::Removal => {
            format!("{tier}: cannot remove {id} from {location}: {error} (after {seconds})")
        }
    }
}

/// Formats a step with its size: `step 100 (attempt 1): 2.0 GiB`.
fn sized(operation: &Operation<'_>) -> String {
    let id = operation.id;
    operation
        .bytes
        .map_or_else(|| format!("the remainder of {id}"), |bytes| format!("{id}: {}", human::bytes(bytes)))
}

/// Formats a size with duration and rate: `2.0 GiB in 4.0s, 512.0 MiB/s`.
fn taken(bytes: u64, seconds: f64) -> String {
    let mut text = format!("{} in {}", human::bytes(bytes), human::seconds(seconds));
    let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    if let Some(rate) = human::rate(bytes, length) {
        let _ = write!(text, ", {rate}");
    }
    text
}

#[cfg(test)]
mod tests {
    use stepvault_core::ErrorKind;
    use stepvault_core::ids::StepId;

    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let mut counters = Counts::default();
        counters.begin(3, 30 << 20);
        counters.moved_bytes = 20 << 20;
        counters.done_files = 2;
        assert_eq!(
            line(&Tier::Local, &counters, 20 << 20, Duration::from_secs(10)),
            "local: 20.0 MiB of 30.0 MiB, 2.0 MiB/s, 5s left, 2 of 3 files"
        );
        assert_eq!(
            line(&Tier::Local, &counters, 0, Duration::ZERO),
            "local: 20.0 MiB of 30.0 MiB, 2 of 3 files"
        );
        assert_eq!(
            line(&Tier::Local, &counters, 2 << 20, Duration::from_secs(1)),
            "local: 20.0 MiB of 30.0 MiB, 2.0 MiB/s, 2 of 3 files",
            "nothing is estimated from a moment"
        );
    }

    #[test]
    fn a_rate_is_that_of_the_transfer_and_not_of_the_time_before_it() {
        let counters = [TierCounters::new(Tier::Local)];
        let mut lines = Lines::new(false);
        lines.began -= Duration::from_hours(1);
        counters[0].counts.lock().begin(0, 8 << 20);
        counters[0].counts.lock().moved_bytes = 4 << 20;
        std::thread::sleep(Duration::from_millis(20));
        let line = lines.due(&counters).remove(0);
        assert!(line.starts_with("local: 4.0 MiB of 8.0 MiB, ") && line.contains("MiB/s"), "{line}");
        assert!(!line.contains("left"), "{line}");
    }

    #[test]
    fn idle_tiers_are_silent() {
        let counters = [TierCounters::new(Tier::Local)];
        let mut lines = Lines::new(false);
        assert!(lines.due(&counters).is_empty());
        counters[0].counts.lock().begin(1, 1);
        assert_eq!(lines.due(&counters).len(), 1);
        counters[0].counts.lock().end();
        assert!(lines.due(&counters).is_empty());
    }

    #[test]
    fn sparse_lines_of_one_transfer_come_ever_more_rarely() {
        let counters = [TierCounters::new(Tier::Local)];
        let mut lines = Lines::new(true);
        for transfer in 0..2 {
            counters[0].counts.lock().begin(1, 1);
            let told: Vec<u32> = (1..=40).filter(|_| !lines.due(&counters).is_empty()).collect();
            assert_eq!(told, [4, 8, 16, 32], "{transfer}");
            counters[0].counts.lock().end();
        }
    }

    fn removal_lines(tier: &Tier, id: StepId) -> Vec<String> {
        let operation = Operation {
            kind: OperationKind::Removal,
            run: &"demo".parse().unwrap(),
            tier,
            id,
            location: "s3://b/demo/000000000100.a1/step_100",
            files: 0,
            bytes: Some(2048),
        };
        let error = &Error::new(ErrorKind::Denied, "cannot delete").because("refused");
        vec![
            of_start(&operation),
            of_end(&Operation { bytes: None, ..operation }, 0, 0.5, false),
            of_failure(&operation, 1.0, error),
        ]
    }

    #[test]
    fn events_read_as_sentences() {
        let id = StepId::from_label("000000000100.a1").unwrap();
        let tier = Tier::Remote("main".parse().unwrap());
        let transfer = Operation {
            kind: OperationKind::Upload,
            run: &"demo".parse().unwrap(),
            tier: &tier,
            id,
            location: "s3://b/demo/000000000100.a1/step_100",
            files: 1,
            bytes: Some(2048),
        };
        assert_eq!(
            of_start(&transfer),
            "main: step 100 (attempt 1) started: 1 file, 2.0 KiB, to s3://b/demo/000000000100.a1/step_100"
        );
        assert_eq!(
            of_end(&transfer, 0, 2.0, false),
            "main: step 100 (attempt 1) done: 2.0 KiB in 2s, 1.0 KiB/s, to s3://b/demo/000000000100.a1/step_100"
        );
        assert!(
            of_end(&transfer, 0, 2.0, true)
                .starts_with("main: step 100 (attempt 1) is durable: 2.0 KiB in 2s")
        );
        assert_eq!(
            of_end(&transfer, 1536, 2.0, false),
            "main: step 100 (attempt 1) done: 2.0 KiB in 2s, 1.0 KiB/s, 1.5 KiB of it copied in the store, to \
             s3://b/demo/000000000100.a1/step_100"
        );
        let operation = Operation {
            kind: OperationKind::Seal,
            run: &"demo".parse().unwrap(),
            tier: &Tier::Local,
            id,
            location: "/out/step_100",
            files: 3,
            bytes: Some(0),
        };
        assert_eq!(
            of_end(&operation, 0, 0.0, false),
            "local: sealed step 100 (attempt 1): 3 files, 0 B in 0s, from /out/step_100"
        );
        let error =
            Error::new(ErrorKind::NoSpace, "cannot seal").on("/out/step_100").because("no space is left");
        assert_eq!(
            of_failure(&operation, 0.012, &error),
            "local: step 100 (attempt 1) failed after 12ms: cannot seal: /out/step_100: no space is left"
        );
        assert_eq!(
            removal_lines(&tier, id),
            [
                "main: removing step 100 (attempt 1): 2.0 KiB, from s3://b/demo/000000000100.a1/step_100",
                "main: removed the remainder of step 100 (attempt 1) in 500ms, from s3://b/demo/000000000100.a1/step_100",
                "main: cannot remove step 100 (attempt 1) from s3://b/demo/000000000100.a1/step_100: cannot delete: refused \
                (after 1s)",
            ]
        );
        let error = Error::new(ErrorKind::Unreachable, "cannot list").because("timed out");
        let retrying = Event::Retrying { tier: &tier, error: &error, wait_seconds: 0.5 };
        assert_eq!(of_event(&retrying).unwrap(), "main: cannot list: timed out; retrying in 500ms");
        assert_eq!(of_event(&Event::BytesMoved { tier: &tier, bytes: 1 }), None);
    }
}
