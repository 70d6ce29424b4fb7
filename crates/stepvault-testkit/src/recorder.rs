//! An observer that remembers.

use std::sync::Mutex;

use stepvault_core::observe::{Event, Observer, Operation, OperationKind};

/// Remembers events as lines, and counts bytes.
#[derive(Debug, Default)]
pub struct Recorder {
    lines: Mutex<Vec<String>>,
    /// The texts of all warnings.
    pub warnings: Mutex<Vec<String>>,
    /// Bytes that were sent or fetched.
    pub moved: Mutex<u64>,
    /// Bytes that were copied inside a store.
    pub copied: Mutex<u64>,
    retries: Mutex<Vec<String>>,
}

impl Recorder {
    /// Returns the lines that contain `part`.
    pub fn lines_with(&self, part: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.contains(part)).cloned().collect()
    }

    /// Returns the errors after which requests were retried.
    pub fn retries(&self) -> Vec<String> {
        self.retries.lock().unwrap().clone()
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        let line = match event {
            Event::Info { message } => format!("info: {message}"),
            Event::Warning { message } => {
                self.warnings.lock().unwrap().push((*message).to_owned());
                format!("warning: {message}")
            }
            Event::Durable { tier, id, .. } => format!("durable on {tier}: {id}"),
            Event::Skipped { tier, id, reason } => format!("skipped on {tier}: {id}: {reason}"),
            Event::Finished { operation, .. } => {
                let Operation { tier, id, .. } = operation;
                match operation.kind {
                    OperationKind::Seal => format!("sealed: {id}"),
                    OperationKind::Removal => format!("removed from {tier}: {id}"),
                    OperationKind::Upload | OperationKind::Restore => return,
                }
            }
            Event::BytesReused { tier, bytes } => format!("reused on {tier}: {bytes}"),
            Event::BytesMoved { bytes, .. } => return *self.moved.lock().unwrap() += bytes,
            Event::BytesCopied { bytes, .. } => return *self.copied.lock().unwrap() += bytes,
            Event::Retrying { tier, error, .. } => {
                return self.retries.lock().unwrap().push(format!("{tier}: {error}"));
            }
            _ => return,
        };
        self.lines.lock().unwrap().push(line);
    }
}
