//! Reports the start and the end of a step's removal to the observer.

use std::sync::Arc;

use stepvault_core::ids::StepId;
use stepvault_core::observe::{Event, Observer, Tier};
use stepvault_core::{Error, Result};
use tokio::time::Instant;

/// The step being removed.
#[derive(Debug)]
pub(super) struct Removal<'a> {
    pub(super) observer: &'a Arc<dyn Observer>,
    pub(super) tier: &'a Tier,
    pub(super) id: StepId,
    /// The tier it is removed from.
    pub(super) location: String,
    /// Bytes of its files, if known.
    pub(super) bytes: Option<u64>,
}

impl Removal<'_> {
    /// Runs `work`, which returns a reason if the step is kept.
    pub(super) async fn by(
        &self,
        work: impl Future<Output = Result<Option<String>>>,
    ) -> Result<Option<String>> {
        let begun = self.start();
        let outcome = work.await;
        self.finish(begun, outcome.as_ref().map(Option::as_deref));
        outcome
    }

    /// Reports that the removal starts, and returns when.
    pub(super) fn start(&self) -> Instant {
        let (tier, id, place, bytes) = (self.tier, self.id, self.location.as_str(), self.bytes);
        self.observer.on_event(&Event::RemovalStarted {
            tier,
            id,
            place,
            bytes,
        });
        Instant::now()
    }

    /// Reports how a removal that started at `begun` ended; `outcome` holds a reason if the step is kept.
    pub(super) fn finish(&self, begun: Instant, outcome: std::result::Result<Option<&str>, &Error>) {
        let (tier, id, place, bytes) = (self.tier, self.id, self.location.as_str(), self.bytes);
        let seconds = begun.elapsed().as_secs_f64();
        match outcome {
            Ok(None) => self.observer.on_event(&Event::Removed {
                tier,
                id,
                place,
                bytes,
                seconds,
            }),
            Ok(Some(reason)) => self.observer.on_event(&Event::Skipped { tier, id, reason }),
            Err(error) => self.observer.on_event(&Event::RemovalFailed {
                tier,
                id,
                place,
                seconds,
                error,
            }),
        }
    }
}
