//! Progress on stderr: bars on a terminal, lines in a log, nothing with `--quiet`.
//!
//! The engine's threads only update counters; a separate thread draws them.

mod bars;
mod counters;
mod lines;
mod repeats;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stepvault_core::Error;
use stepvault_core::ids::StepId;
use stepvault_core::observe::{Event, Observer, Operation, OperationKind, Tier};
use stepvault_core::remote_settings::RemoteSettings;

use crate::output::{self, Output, Priority};
use bars::Bars;
use counters::TierCounters;
use lines::Lines;
use repeats::Repeats;

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
        if output.is_quiet() {
            Self::Silent
        } else if output::draws_on_terminal() {
            Self::Bars
        } else {
            Self::Lines
        }
    }

    /// Returns the style for a service, which prints lines on a terminal too.
    pub(crate) fn of_service(output: &Output) -> Self {
        if output.is_quiet() {
            Self::Silent
        } else {
            Self::SparseLines
        }
    }
}

/// A running progress display; ends when finished or dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    watcher: Arc<Watcher>,
    drawing: Mutex<Option<JoinHandle<()>>>,
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
    ended: Mutex<bool>,
    ending: Condvar,
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
            ended: Mutex::new(false),
            ending: Condvar::new(),
        });
        let drawn = Arc::clone(&watcher);
        let drawing = match style {
            Style::Silent => None,
            Style::Bars | Style::Lines | Style::SparseLines => std::thread::Builder::new()
                .name("progress".to_owned())
                .spawn(move || drawn.draw_until_ended())
                .inspect_err(|error| tracing::debug!(%error, "cannot start the progress thread"))
                .ok(),
        };
        Self {
            watcher,
            drawing: Mutex::new(drawing),
        }
    }

    /// Returns the observer for the engine.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.watcher) as Arc<dyn Observer>
    }

    /// Stops the display and removes the bars, before the result is printed.
    pub(crate) fn finish(&self) {
        *self.watcher.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.watcher.ending.notify_all();
        let drawing = self.drawing.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = drawing {
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
    fn counters(&self, tier: &Tier) -> Option<&TierCounters> {
        self.tiers.iter().find(|counters| counters.tier == *tier)
    }

    fn add(&self, tier: &Tier, counter: fn(&TierCounters) -> &AtomicU64, amount: u64) {
        if let Some(counters) = self.counters(tier) {
            counter(counters).fetch_add(amount, Ordering::Relaxed);
        }
    }

    fn draw_until_ended(&self) {
        let mut bars = Bars::new(self.output.bars());
        let mut lines = Lines::new(self.style == Style::SparseLines);
        let interval = if self.style == Style::Bars {
            BAR_INTERVAL
        } else {
            LINE_INTERVAL
        };
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let (guard, waited) = self
                .ending
                .wait_timeout(ended, interval)
                .unwrap_or_else(PoisonError::into_inner);
            ended = guard;
            if *ended || !waited.timed_out() {
                continue;
            }
            match self.style {
                Style::Bars => bars.draw(&self.tiers),
                Style::Lines | Style::SparseLines | Style::Silent => lines
                    .due(&self.tiers)
                    .iter()
                    .for_each(|line| self.output.line(line)),
            }
        }
        drop(ended);
        bars.clear();
    }

    /// Prints a line in a log; on a terminal the bars show it.
    fn print(&self, priority: Priority, text: impl FnOnce() -> String) {
        if matches!(self.style, Style::Lines | Style::SparseLines) {
            self.output.line_at(priority, &text());
        }
    }

    fn transfers(&self) -> MutexGuard<'_, BTreeMap<(Tier, StepId), bool>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a step is durable, if its transfer is under way; returns whether it is.
    fn is_transferring(&self, tier: &Tier, id: StepId) -> bool {
        let mut transfers = self.transfers();
        let transfer = transfers.get_mut(&(tier.clone(), id));
        transfer.map(|is_durable| *is_durable = true).is_some()
    }

    fn repeats(&self) -> MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a transfer that is counted; returns whether its step became durable.
    fn end_transfer(&self, operation: &Operation<'_>) -> bool {
        if operation.kind != OperationKind::Transfer {
            return false;
        }
        if let Some(counters) = self.counters(operation.tier) {
            counters.end();
        }
        let ended = self.transfers().remove(&(operation.tier.clone(), operation.id));
        ended.unwrap_or(false)
    }

    fn print_start(&self, tier: &Tier, id: StepId, event: &Event<'_>) {
        if !self.repeats().tells_of_start(tier, id, Instant::now()) {
            return;
        }
        let text = lines::of_event(event).unwrap_or_default();
        if self.style == Style::SparseLines {
            tracing::info!("{text}");
        } else {
            self.print(Priority::Info, || text);
        }
    }

    fn print_failure(&self, tier: &Tier, id: StepId, error: &Error, event: &Event<'_>) {
        if self
            .repeats()
            .tells_of_failure(tier, id, error.kind(), Instant::now())
        {
            self.print(Priority::Warning, || lines::of_event(event).unwrap_or_default());
        }
    }
}

impl Observer for Watcher {
    fn on_event(&self, event: &Event<'_>) {
        if self.style == Style::Silent {
            if let Event::Warning { message } = event {
                self.output.warn(message);
            }
            return;
        }
        match event {
            Event::BytesMoved { tier, bytes } => self.add(tier, |counters| &counters.moved_bytes, *bytes),
            Event::BytesInFlight { tier, change_bytes } => {
                if let Some(counters) = self.counters(tier) {
                    counters
                        .in_flight_bytes
                        .fetch_add(*change_bytes, Ordering::Relaxed);
                }
            }
            Event::BytesCopied { tier, bytes } => self.add(tier, |counters| &counters.copied_bytes, *bytes),
            Event::BytesReused { tier, bytes } => self.add(tier, |counters| &counters.reused_bytes, *bytes),
            Event::FileDone { tier, .. } => self.add(tier, |counters| &counters.done_files, 1),
            Event::ReadingStarted { tier, bytes } => {
                if let Some(counters) = self.counters(tier) {
                    counters.begin(0, *bytes);
                }
            }
            Event::ReadingFinished { tier } => {
                if let Some(counters) = self.counters(tier) {
                    counters.end();
                }
            }
            Event::Started(operation) => {
                let Operation { tier, id, .. } = *operation;
                if operation.kind == OperationKind::Transfer {
                    let was_interrupted = self.transfers().insert((tier.clone(), id), false).is_some();
                    if let Some(counters) = self.counters(tier) {
                        let (files, bytes) = (operation.files, operation.bytes.unwrap_or_default());
                        if was_interrupted {
                            counters.take_back(files, bytes);
                        }
                        counters.begin(files, bytes);
                    }
                }
                self.print_start(tier, id, event);
            }
            Event::Finished { operation, .. } => {
                let Operation { tier, id, .. } = *operation;
                if operation.kind != OperationKind::Removal {
                    self.repeats().succeeded(tier, id);
                }
                let is_durable = self.end_transfer(operation);
                self.print(Priority::Info, || {
                    lines::of_end(event, is_durable).unwrap_or_default()
                });
            }
            Event::Failed { operation, error, .. } => {
                self.end_transfer(operation);
                self.print_failure(operation.tier, operation.id, error, event);
            }
            // One line tells of both.
            Event::Durable { tier, id } if self.is_transferring(tier, *id) => {}
            Event::Retrying { tier, .. } => {
                // While a remote is down, every request is retried; one line per interval is enough.
                if self.counters(tier).is_none_or(TierCounters::may_tell_of_retry)
                    && let Some(line) = lines::of_event(event)
                {
                    self.output.line(&line);
                }
            }
            Event::Warning { message } => self.output.warn(message),
            other => {
                if let Some(line) = lines::of_event(other) {
                    self.print(Priority::Info, || line);
                }
            }
        }
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
        }
        assert_eq!(progress.watcher.tiers[0].done_bytes(), 8);
        progress.finish();
        progress.finish();
    }
}
