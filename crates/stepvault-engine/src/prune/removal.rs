//! Reports the start and the end of a step's removal to the observer.

use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::ids::StepId;
use stepvault_core::observe::{Event, Observer, Tier};
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
        let Self {
            observer,
            tier,
            id,
            location: place,
            bytes,
        } = self;
        let (id, bytes, begun) = (*id, *bytes, Instant::now());
        observer.on_event(&Event::RemovalStarted {
            tier,
            id,
            place,
            bytes,
        });
        let outcome = work.await;
        let seconds = begun.elapsed().as_secs_f64();
        match &outcome {
            Ok(None) => observer.on_event(&Event::Removed {
                tier,
                id,
                place,
                bytes,
                seconds,
            }),
            Ok(Some(reason)) => observer.on_event(&Event::Skipped { tier, id, reason }),
            Err(error) => observer.on_event(&Event::RemovalFailed {
                tier,
                id,
                place,
                seconds,
                error,
            }),
        }
        outcome
    }
}
