//! Runs the agent beside the trainer. A failure of the agent does not affect the trainer.

use std::cell::{Cell, RefCell};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use stepvault_agent::{AgentOptions, AgentReport, Stop};
use stepvault_core::config::Config;
use stepvault_core::nodes::Writer;
use stepvault_core::{Error, ErrorKind, Result};

use crate::commands::agent::open_remotes;
use crate::context::attempt;
use crate::output::Output;
use crate::progress::Progress;

/// Pause before a failed agent is started again.
const PAUSE: Duration = Duration::from_secs(30);

/// The agent of one trainer.
pub(super) struct Serving {
    pub(super) config: Config,
    pub(super) writer: Writer,
    pub(super) progress: Progress,
    pub(super) output: Output,
    /// How the agent is started, for the vault.
    invocation: Option<Vec<u8>>,
    /// The last warning, so that it is not repeated.
    said: RefCell<String>,
    /// Whether a retry cannot succeed.
    is_hopeless: Cell<bool>,
}

impl Serving {
    pub(super) fn new(
        config: Config,
        writer: Writer,
        progress: Progress,
        output: Output,
        invocation: Option<Vec<u8>>,
    ) -> Self {
        Self {
            config,
            writer,
            progress,
            output,
            invocation,
            said: RefCell::default(),
            is_hopeless: Cell::new(false),
        }
    }

    /// Serves until `stop` is requested, then drains; returns the agent's report. Restarts a failed agent after a
    /// pause, at the latest for the drain.
    pub(super) async fn serve(&self, stop: &Stop) -> Option<AgentReport> {
        loop {
            let is_last = stop.is_requested();
            let report = self.try_once(stop).await;
            if report.is_some() || is_last {
                return report;
            }
            let pause = if self.is_hopeless.get() { Duration::MAX } else { PAUSE };
            tokio::select! {
                () = stop.wait() => {}
                () = tokio::time::sleep(pause) => {}
            }
            if self.is_hopeless.get() {
                return None;
            }
        }
    }

    /// Runs the agent once; prints a warning and returns `None` if it fails.
    async fn try_once(&self, stop: &Stop) -> Option<AgentReport> {
        let error = match AssertUnwindSafe(self.live(stop)).catch_unwind().await {
            Ok(Ok(report)) => return Some(report),
            Ok(Err(error)) => error,
            Err(_) => Error::new(ErrorKind::Failed, "the agent panicked"),
        };
        self.is_hopeless.set(error.kind() == ErrorKind::Usage);
        let is_held = error.kind() == ErrorKind::Held;
        let text = if is_held {
            format!("another process holds the vault and must save the checkpoints: {error}")
        } else {
            format!("the trainer's checkpoints are not saved: {error}")
        };
        self.warn_once(&text, error.hint_text().filter(|_| !is_held));
        None
    }

    /// Warns, unless it was the last warning.
    fn warn_once(&self, text: &str, hint: Option<&str>) {
        let hint = hint.map(|hint| format!(" ({hint})"));
        let text = format!("{text}{}", hint.unwrap_or_default());
        if self.said.replace(text.clone()) != text {
            self.output.warn(&text);
        }
    }

    async fn live(&self, stop: &Stop) -> Result<AgentReport> {
        let observer = self.progress.observer();
        let remotes = open_remotes(&self.config, &observer).await?;
        let mut options =
            AgentOptions::from_config(&self.config, self.writer.clone(), attempt(None)?, remotes, false)?;
        // `run` records the starts of the trainer, and the agent belongs to them.
        options.lifecycle.restart_loop = None;
        options.lifecycle.invocation.clone_from(&self.invocation);
        if let Err(error) = options.refuse_read_only_mounts().await {
            // A step is sealed all the same, and uploaded to the other remotes.
            self.warn_once(&error.to_string(), error.hint_text());
        }
        stepvault_agent::run(options, observer, stop.clone()).await
    }
}
