//! The trace of a run: one line per event with its virtual time. Two runs of one seed have equal traces.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use stepvault_core::digest::Sha256Digest;
use tokio::time::Instant;

/// The lines of one run.
#[derive(Debug)]
pub struct Trace {
    began: Instant,
    lines: Mutex<Vec<String>>,
}

impl Trace {
    /// Returns a trace that starts at virtual time zero.
    pub fn new() -> Self {
        Self { began: Instant::now(), lines: Mutex::default() }
    }

    /// Returns the virtual time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn note(&self, actor: impl Display, what: impl Display) {
        let line = format!("{:>12.3} {actor}: {what}", self.elapsed().as_secs_f64());
        self.lines.lock().unwrap().push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Returns the digest of all lines.
    pub fn digest(&self) -> String {
        let text = self.lines.lock().unwrap().join("\n");
        Sha256Digest::of(text.as_bytes()).to_string()
    }
}
