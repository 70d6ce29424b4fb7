//! Runs the agent beside the trainer. A failure of the agent does not affect the trainer.

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
    pub(super) invocation: Option<Vec<u8>>,
    /// The last warning, so that it is not repeated.
    pub(super) said: String,
}

impl Serving {
    /// Serves until `stop` is requested, then drains; returns the agent's report. Restarts a failed agent after a
    /// pause, at the latest for the drain, unless a retry cannot succeed.
    pub(super) async fn serve(&mut self, stop: &Stop) -> Option<AgentReport> {
        loop {
            let is_last = stop.is_requested();
            let error = match AssertUnwindSafe(self.live(stop)).catch_unwind().await {
                Ok(Ok(report)) => return Some(report),
                Ok(Err(error)) => error,
                Err(_) => Error::new(ErrorKind::Failed, "the agent panicked"),
            };
            if error.kind() == ErrorKind::Held {
                let text = "another process holds the vault and must save the checkpoints";
                self.warn_once(&format!("{text}: {error}"), None);
            } else {
                let text = format!("the trainer's checkpoints are not saved: {error}");
                self.warn_once(&text, error.hint_text());
            }
            if is_last {
                return None;
            }
            let is_hopeless = error.kind() == ErrorKind::Usage;
            tokio::select! {
                () = stop.wait() => {}
                () = tokio::time::sleep(PAUSE), if !is_hopeless => {}
            }
            if is_hopeless {
                return None;
            }
        }
    }

    /// Warns, unless it was the last warning.
    fn warn_once(&mut self, text: &str, hint: Option<&str>) {
        let hint = hint.map(|hint| format!(" ({hint})"));
        let text = format!("{text}{}", hint.unwrap_or_default());
        if self.said != text {
            self.output.warn(&text);
            self.said = text;
        }
    }

    async fn live(&mut self, stop: &Stop) -> Result<AgentReport> {
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
