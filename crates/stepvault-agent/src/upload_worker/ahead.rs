//! Sends a step while it is copied into the vault, if nothing else waits.

use std::future::Future;

use stepvault_core::Result;
use stepvault_engine::upload::{CopiedStep, UploadAhead};

use super::UploadWorker;

/// A step that the worker has seen being copied into the vault.
#[derive(Debug)]
pub(crate) struct Ahead {
    step: CopiedStep,
    /// `None` if the remote could not be opened: the upload of the sealed step finds out why, and reports it.
    upload: Option<UploadAhead>,
}

impl UploadWorker {
    /// Sends what is being copied into the vault, or waits for such a step, until `woken`. Parts on their way then are
    /// finished; dropped, it gives them up.
    pub(super) async fn send_ahead_until(&mut self, woken: impl Future<Output = ()>) {
        let (throughput, remote) = (self.shared.throughput.clone(), self.remote.clone());
        let is_open = self.open_ahead().await;
        let upload = self.ahead.as_mut().and_then(|ahead| ahead.upload.as_mut()).filter(|_| is_open);
        match upload {
            Some(upload) => upload.send(woken, || throughput.busy(&remote)).await,
            None => {
                tokio::select! {
                    () = woken => {}
                    // Its sender lives as long as the service.
                    _ = self.copy.changed() => {}
                }
            }
        }
    }

    /// Begins with the step that is being copied, unless that has begun. Returns whether it can be sent: not before a
    /// remote that has failed was tried again with a sealed step, and not when time is short, which a plan then divides.
    async fn open_ahead(&mut self) -> bool {
        let Some(step) = self.copy.borrow_and_update().clone() else { return false };
        let index = self.runs.iter().position(|run| run.remote.keys.run() == step.run());
        let Some(index) = index.filter(|_| !step.has_ended() && !self.shared.drain.is_urgent()) else {
            return false;
        };
        let run = &self.runs[index];
        if run.given_up || run.pause.until().is_some() || run.connection.was_out {
            return false;
        }
        if !self.ahead.as_ref().is_some_and(|ahead| ahead.step.is_same(&step)) {
            self.hand_over_if(|_| true).await;
            // Noted first: opening may be cancelled.
            self.ahead = Some(Ahead { step: step.clone(), upload: None });
            let upload = self.begin_ahead(index, step.clone()).await;
            let upload = upload.inspect_err(|error| {
                tracing::debug!(remote = %self.remote, id = %step.id(), %error, "not sent before it is sealed");
            });
            self.ahead = Some(Ahead { step, upload: upload.ok() });
        }
        let upload = self.ahead.as_ref().and_then(|ahead| ahead.upload.as_ref());
        upload.is_some_and(|upload| !upload.has_failed())
    }

    async fn begin_ahead(&mut self, index: usize, step: CopiedStep) -> Result<UploadAhead> {
        let session = self.open_session(index, step.digest()).await?;
        Ok(session.send_ahead(step).await)
    }

    /// Leaves what was sent ahead to the upload of the sealed step, or aborts it, if `is_due`.
    pub(super) async fn hand_over_if(&mut self, is_due: impl FnOnce(&CopiedStep) -> bool) {
        let due = self.ahead.take_if(|ahead| is_due(&ahead.step));
        let Some(upload) = due.and_then(|ahead| ahead.upload) else { return };
        let id = upload.step().id();
        if let Err(error) = upload.hand_over().await {
            tracing::debug!(remote = %self.remote, %id, %error, "what was sent before it was sealed is sent again");
        }
    }
}
