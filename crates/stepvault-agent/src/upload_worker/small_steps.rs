//! Uploads several small steps at once: what such a step costs is the time that its requests take one after the other.

use stepvault_core::ids::StepId;
use stepvault_local::sealed::SealedStep;

use super::{UploadFailure, UploadWorker};

/// Maximum number of small steps that are uploaded at once, after the one that was chosen.
const MOST_STEPS: usize = 15;
/// Maximum number of bytes of all of them: they are not interrupted for a newer step.
const MOST_BYTES: u64 = 8 << 20;

/// Returns the next of the `waiting` steps that can follow the chosen one at once. There are none after a large step.
pub(super) fn small_steps<'a>(
    chosen: &SealedStep,
    waiting: impl Iterator<Item = &'a StepId>,
    sealed: &[SealedStep],
) -> Vec<SealedStep> {
    let mut room = MOST_BYTES.checked_sub(chosen.record().own_bytes());
    let steps = waiting.filter_map(|id| sealed.iter().find(|step| step.id() == *id));
    let fitting = steps.take_while(|step| {
        room = room.and_then(|room| room.checked_sub(step.record().own_bytes()));
        room.is_some()
    });
    fitting.take(MOST_STEPS).cloned().collect()
}

impl UploadWorker {
    /// Uploads the chosen step, and then the small ones at once if it was uploaded: the remote then answers, and holds
    /// the archive that it must.
    pub(super) async fn upload_with_small(
        &mut self,
        index: usize,
        chosen: &SealedStep,
        small: &[SealedStep],
    ) {
        let is_uploaded = self.upload_unless_preempted(index, chosen).await;
        if !is_uploaded || small.is_empty() || self.shared.drain.is_urgent() {
            return;
        }
        let run = &self.runs[index];
        let is_waiting = run.pause.until().is_some() || run.tries.contains_key(&chosen.id());
        let connection = &run.connection;
        let Some(session) = connection.session.clone().filter(|_| !is_waiting && !connection.was_out) else {
            return;
        };
        let uploads = small.iter().filter_map(|step| {
            let here = run.on_remote(step.id());
            let in_use = self.shared.vault.in_use.for_upload(&here.step())?;
            self.shared.reporter.status.upload_began(&here);
            let (session, all_in_use, stop) = (&session, &self.shared.vault.in_use, &self.shared.drain.stop);
            let is_draining = self.is_draining;
            Some(async move {
                let in_vault = here.step();
                let uploaded = tokio::select! {
                    uploaded = session.upload(step) => Some(uploaded),
                    () = all_in_use.is_given_up(&in_vault) => None,
                    () = stop.wait(), if !is_draining => None,
                };
                drop(in_use);
                (here, uploaded)
            })
        });
        let uploaded = {
            let _busy = self.shared.throughput.busy(run.remote.name());
            futures::future::join_all(uploads).await
        };
        for (here, uploaded) in uploaded {
            match uploaded {
                // The whole remote failed: that is one failure, however many steps had to do with it.
                Some(Err(_)) if self.runs[index].pause.until().is_some() => {
                    self.shared.reporter.status.upload_stopped(&here);
                }
                Some(uploaded) => {
                    self.ended(index, &here, uploaded.map_err(UploadFailure::from)).await;
                }
                None => self.shared.reporter.status.upload_stopped(&here),
            }
        }
    }
}
