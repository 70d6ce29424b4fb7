//! Reports an operation on a step to the observer, from its start to its end.

use stepvault_core::{Error, Event, Observer, Operation};
use tokio::time::Instant;

/// An operation that was reported as started. At most one of its methods reports how it ended: none does where a restore
/// goes on with another version or an older step.
#[derive(Debug)]
pub(crate) struct ObservedOperation<'a> {
    observer: &'a dyn Observer,
    pub(crate) operation: Operation<'a>,
    begun: Instant,
}

impl<'a> ObservedOperation<'a> {
    pub(crate) fn start(observer: &'a dyn Observer, operation: Operation<'a>) -> Self {
        observer.on_event(&Event::Started(operation));
        let begun = Instant::now();
        Self { observer, operation, begun }
    }

    /// Reports success; the store has copied `copied_bytes` from an earlier step.
    pub(crate) fn finished(self, copied_bytes: u64) {
        self.observer.on_event(&Event::Finished {
            operation: self.operation,
            copied_bytes,
            seconds: self.begun.elapsed().as_secs_f64(),
        });
    }

    pub(crate) fn failed(self, error: &Error) {
        self.observer.on_event(&Event::Failed {
            operation: self.operation,
            seconds: self.begun.elapsed().as_secs_f64(),
            error,
        });
    }

    /// Reports that the step is kept.
    pub(crate) fn skipped(self, reason: &str) {
        let Operation { tier, id, .. } = self.operation;
        self.observer.on_event(&Event::Skipped { tier, id, reason });
    }
}
