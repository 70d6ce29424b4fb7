//! What happened, line by line with its virtual time: equal for two runs of one seed.

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
    /// Begins at the virtual time zero.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            lines: Mutex::default(),
        }
    }

    /// The virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn note(&self, who: impl Display, what: impl Display) {
        let line = format!("{:>12.3} {who}: {what}", self.elapsed().as_secs_f64());
        self.lines.lock().unwrap().push(line);
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// What all lines together come to.
    pub fn digest(&self) -> String {
        let text = self.lines.lock().unwrap().join("\n");
        Sha256Digest::of(text.as_bytes()).to_string()
    }
}
