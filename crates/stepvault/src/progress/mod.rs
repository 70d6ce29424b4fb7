//! Progress on stderr: bars on a terminal, lines in a log, nothing with `--quiet`.
//!
//! The engine's threads only update counters; a separate thread draws them.

mod bars;
mod counters;
mod lines;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bars::Bars;
use counters::{Counts, TierCounters};
use lines::Lines;
use parking_lot::{Mutex, MutexGuard};
use stepvault_core::{ErrorKind, Event, Observer, Operation, OperationKind, RemoteSettings, StepId, Tier};

use crate::output::record::About;
use crate::output::{self, Output, Priority};

const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// One bar for each tier.
    Bars,
    /// A line at the start, every ten seconds and at the end.
    Lines,
    /// A line at the end, and ever fewer before: a log holds the lines of weeks.
    SparseLines,
    /// Nothing.
    Silent,
}

impl Style {
    /// Returns the style for an output.
    pub(crate) fn of(output: &Output) -> Self {
        if output.quiet {
            Self::Silent
        } else if output::draws_on_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    /// Returns the style for a service, which prints lines on a terminal too.
    pub(crate) fn of_service(output: &Output) -> Self {
        if output.quiet { Self::Silent } else { Self::SparseLines }
    }
}

/// A running progress display; ends when finished or dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    watcher: Arc<Watcher>,
    drawing: Mutex<Option<Drawing>>,
}

/// The observer: updates counters, and prints a line for rare events.
#[derive(Debug)]
struct Watcher {
    tiers: Vec<TierCounters>,
    repeats: Mutex<Repeats>,
    /// The transfers under way, and whether the step is durable already.
    transfers: Mutex<BTreeMap<(Tier, StepId), bool>>,
    style: Style,
    output: Output,
}

/// The thread that draws until its sender is dropped.
#[derive(Debug)]
struct Drawing {
    ending: Sender<()>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Starts to show the progress of the local tier and of these remotes.
    pub(crate) fn start(remotes: &[RemoteSettings], style: Style, output: &Output) -> Self {
        let remotes = remotes.iter().map(|remote| Tier::Remote(remote.name.clone()));
        let tiers = std::iter::once(Tier::Local).chain(remotes);
        let watcher = Arc::new(Watcher {
            tiers: tiers.map(TierCounters::new).collect(),
            repeats: Mutex::default(),
            transfers: Mutex::default(),
            style,
            output: output.clone(),
        });
        let drawn = Arc::clone(&watcher);
        let (ending, ended) = channel();
        let drawing = match style {
            Style::Silent => None,
            Style::Bars | Style::Lines | Style::SparseLines => std::thread::Builder::new()
                .name("progress".to_owned())
                .spawn(move || drawn.draw_until(&ended))
                .inspect_err(|error| tracing::debug!(%error, "cannot start the progress thread"))
                .map(|thread| Drawing { ending, thread })
                .ok(),
        };
        Self { watcher, drawing: Mutex::new(drawing) }
    }

    /// Returns the observer for the engine.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.watcher) as Arc<dyn Observer>
    }

    /// Stops the display and removes the bars, before the result is printed.
    pub(crate) fn finish(&self) {
        let drawing = self.drawing.lock().take();
        if let Some(Drawing { ending, thread }) = drawing {
            drop(ending);
            // A panic of the drawing thread has already been printed and must not end the command.
            let _ = thread.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Watcher {
    fn counts(&self, tier: &Tier) -> Option<MutexGuard<'_, Counts>> {
        let mut tiers = self.tiers.iter();
        tiers.find(|counters| counters.tier == *tier).map(|counters| counters.counts.lock())
    }

    fn count(&self, tier: &Tier, change: impl FnOnce(&mut Counts)) {
        if let Some(mut counts) = self.counts(tier) {
            change(&mut counts);
        }
    }

    fn draw_until(&self, ended: &Receiver<()>) {
        let mut bars = Bars::new(&self.output.bars);
        let mut lines = Lines::new(self.style == Style::SparseLines);
        let interval = if self.style == Style::Bars { BAR_INTERVAL } else { LINE_INTERVAL };
        while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if self.style == Style::Bars {
                bars.draw(&self.tiers);
            } else {
                for line in lines.due(&self.tiers) {
                    self.output.line(&line);
                }
            }
        }
        bars.clear();
    }

    /// Prints a line in a log; on a terminal the bars show it.
    fn print(&self, priority: Priority, about: About, text: impl FnOnce() -> String) {
        if matches!(self.style, Style::Lines | Style::SparseLines) {
            self.output.line_about(priority, &text(), about);
        }
    }

    /// Records that a step is durable, if its transfer is under way; returns whether it is.
    fn is_transferring(&self, tier: &Tier, id: StepId) -> bool {
        let mut transfers = self.transfers.lock();
        let transfer = transfers.get_mut(&(tier.clone(), id));
        transfer.map(|is_durable| *is_durable = true).is_some()
    }

    /// Ends a transfer that is counted; returns whether its step became durable.
    fn end_transfer(&self, operation: &Operation<'_>) -> bool {
        if !operation.kind.is_transfer() {
            return false;
        }
        self.count(operation.tier, Counts::end);
        let ended = self.transfers.lock().remove(&(operation.tier.clone(), operation.id));
        ended.unwrap_or(false)
    }

    fn print_start(&self, operation: &Operation<'_>) {
        if !self.repeats.lock().tells_of_start(operation.tier, operation.id, Instant::now()) {
            return;
        }
        let text = lines::of_start(operation);
        if self.style == Style::SparseLines {
            tracing::info!("{text}");
        } else {
            self.print(Priority::Info, About::operation(operation), || text);
        }
    }
}

impl Observer for Watcher {
    fn on_event(&self, event: &Event<'_>) {
        self.output.observe(event);
        if self.style == Style::Silent {
            if let Event::Warning { message } = event {
                self.output.warn(message);
            }
            return;
        }
        match event {
            Event::BytesMoved { tier, bytes } => self.count(tier, |counts| counts.moved_bytes += bytes),
            Event::BytesInFlight { tier, change_bytes } => {
                self.count(tier, |counts| counts.in_flight_bytes += change_bytes);
            }
            Event::BytesGivenUp { tier, bytes } => {
                self.count(tier, |counts| counts.in_flight_bytes -= bytes.cast_signed());
            }
            Event::BytesCopied { tier, bytes } => self.count(tier, |counts| counts.copied_bytes += bytes),
            Event::BytesReused { tier, bytes } => self.count(tier, |counts| counts.reused_bytes += bytes),
            Event::FileDone { tier, .. } => self.count(tier, |counts| counts.done_files += 1),
            Event::ReadingStarted { tier, bytes } => self.count(tier, |counts| counts.begin(0, *bytes)),
            Event::ReadingFinished { tier } => self.count(tier, Counts::end),
            Event::Started(operation) => {
                let Operation { tier, id, .. } = *operation;
                if operation.kind.is_transfer() {
                    let was_interrupted = self.transfers.lock().insert((tier.clone(), id), false).is_some();
                    let (files, bytes) = (operation.files, operation.bytes.unwrap_or_default());
                    self.count(tier, |counts| {
                        if was_interrupted {
                            counts.take_back(files, bytes);
                        }
                        counts.begin(files, bytes);
                    });
                }
                self.print_start(operation);
            }
            Event::Finished { operation, copied_bytes, seconds } => {
                if operation.kind != OperationKind::Removal {
                    self.repeats.lock().succeeded(operation.tier, operation.id);
                }
                let is_durable = self.end_transfer(operation);
                self.print(Priority::Info, About::operation(operation), || {
                    lines::of_end(operation, *copied_bytes, *seconds, is_durable)
                });
            }
            Event::Failed { operation, seconds, error } => {
                self.end_transfer(operation);
                let Operation { tier, id, .. } = *operation;
                if self.repeats.lock().tells_of_failure(tier, id, error.kind(), Instant::now()) {
                    self.print(Priority::Warning, About::operation(operation), || {
                        lines::of_failure(operation, *seconds, error)
                    });
                }
            }
            // One line tells of both.
            Event::Durable { tier, id, .. } if self.is_transferring(tier, *id) => {}
            Event::Retrying { tier, .. } => {
                // While a remote is down, every request is retried; one line per interval is enough.
                if self.counts(tier).is_none_or(|mut counts| counts.may_tell_of_retry())
                    && let Some(line) = lines::of_event(event)
                {
                    self.output.line(&line);
                }
            }
            Event::Warning { message } => self.output.warn(message),
            other => {
                if let Some(line) = lines::of_event(other) {
                    let about = match other {
                        Event::Durable { run, tier, id, .. } => About::step_of(run, tier, *id),
                        Event::Skipped { tier, id, .. } => About::step(tier, *id),
                        _ => About::default(),
                    };
                    self.print(Priority::Info, about, || line);
                }
            }
        }
    }
}

const TOLD_AGAIN_AFTER: Duration = Duration::from_mins(5);
/// When this many failures are remembered, all are forgotten and reported anew.
const REMEMBERED: usize = 256;

/// The operations that failed recently, and when that was reported.
#[derive(Debug, Default)]
struct Repeats {
    failing: BTreeMap<(Tier, StepId), (ErrorKind, Instant)>,
}

impl Repeats {
    /// Returns whether to report the start of an operation: not if its failure was reported recently.
    fn tells_of_start(&self, tier: &Tier, id: StepId, now: Instant) -> bool {
        let known = self.failing.get(&(tier.clone(), id));
        known.is_none_or(|(_, told)| now.saturating_duration_since(*told) >= TOLD_AGAIN_AFTER)
    }

    /// Records a failure; returns whether to report it.
    fn tells_of_failure(&mut self, tier: &Tier, id: StepId, kind: ErrorKind, now: Instant) -> bool {
        let known = self.failing.get(&(tier.clone(), id));
        let is_news = known.is_none_or(|(before, told)| {
            *before != kind || now.saturating_duration_since(*told) >= TOLD_AGAIN_AFTER
        });
        if is_news {
            if self.failing.len() >= REMEMBERED {
                self.failing.clear();
            }
            self.failing.insert((tier.clone(), id), (kind, now));
        }
        is_news
    }

    /// Records a success.
    fn succeeded(&mut self, tier: &Tier, id: StepId) {
        self.failing.remove(&(tier.clone(), id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_its_tiers_move_and_nothing_else() {
        let output = Output::new(false, true);
        let progress = Progress::start(&[], Style::Lines, &output);
        let observer = progress.observer();
        let other = Tier::Remote("other".parse().unwrap());
        for tier in [&Tier::Local, &other] {
            observer.on_event(&Event::BytesMoved { tier, bytes: 5 });
            observer.on_event(&Event::BytesReused { tier, bytes: 2 });
            observer.on_event(&Event::BytesCopied { tier, bytes: 1 });
            // A part that was half sent when its connection broke.
            observer.on_event(&Event::BytesInFlight { tier, change_bytes: 4 });
            observer.on_event(&Event::BytesGivenUp { tier, bytes: 4 });
        }
        assert_eq!(progress.watcher.tiers[0].counts.lock().done_bytes(), 8);
        progress.finish();
        progress.finish();
    }

    #[test]
    fn the_same_failure_is_told_once_and_after_a_while_again() {
        let (tier, id) = (Tier::Local, StepId::from_label("000000000100.a1").unwrap());
        let other = StepId::from_label("000000000200.a1").unwrap();
        let mut repeats = Repeats::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(repeats.tells_of_start(&tier, id, at(0)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::NoSpace, at(0)));
        assert!(!repeats.tells_of_start(&tier, id, at(5)));
        assert!(!repeats.tells_of_failure(&tier, id, ErrorKind::NoSpace, at(5)));
        assert!(repeats.tells_of_start(&tier, other, at(5)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::Denied, at(6)), "another reason");
        assert!(repeats.tells_of_start(&tier, id, at(400)));
        assert!(repeats.tells_of_failure(&tier, id, ErrorKind::Denied, at(400)));
        repeats.succeeded(&tier, id);
        assert!(repeats.tells_of_start(&tier, id, at(401)));
    }
}
