//! Progress of a restore that collects a step out of sight.

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::{Event, Observer, Operation};

/// Names the place where a step will be, instead of the one where its restore collects it.
#[derive(Debug)]
pub(super) struct PlaceObserver {
    pub(super) inner: Arc<dyn Observer>,
    /// The follower's directory.
    pub(super) directory: PathBuf,
}

impl PlaceObserver {
    fn location(&self, operation: &Operation<'_>) -> String {
        let label = operation.id.label();
        let below = operation.location.split_once(&label).map_or("", |(_, below)| below);
        format!("{}/{label}{below}", self.directory.display())
    }
}

impl Observer for PlaceObserver {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Started(operation) => {
                let location = &self.location(operation);
                self.inner.on_event(&Event::Started(Operation { location, ..*operation }));
            }
            Event::Finished { operation, copied_bytes, seconds } => {
                let location = &self.location(operation);
                let operation = Operation { location, ..*operation };
                let (copied_bytes, seconds) = (*copied_bytes, *seconds);
                self.inner.on_event(&Event::Finished { operation, copied_bytes, seconds });
            }
            other => self.inner.on_event(other),
        }
    }
}
