//! Records a start of the trainer and its end.

use std::time::Duration;

use stepvault_agent::new_start;
use stepvault_core::starts::{Process, Start, StartedProgram};
use stepvault_core::{Error, ErrorKind, NodeName, Result, RunName};
use stepvault_engine::node_records::write_starts;
use stepvault_engine::{RunRemote, blocking};
use stepvault_local::starts::TrainerLock;
use stepvault_local::{Vault, process};

use crate::context::Tiers;
use crate::output::Output;

/// Timeout for copying the history to the remotes.
const COPY_DEADLINE: Duration = Duration::from_secs(10);
/// How long a trainer that a killed `stepvault run` left may take to exit.
const ORPHAN_GRACE: Duration = Duration::from_secs(10);

/// The record of one start.
#[derive(Clone)]
pub(super) struct StartNote {
    vault: Option<Vault>,
    run: RunName,
    node: NodeName,
    remotes: Vec<RunRemote>,
    start: Start,
    output: Output,
}

impl StartNote {
    /// Records the start, and takes the lock that the trainer's life needs. A vault that cannot be written to causes a
    /// warning, but does not prevent the start.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] if the trainer of another start runs, under its `stepvault run` or without: two trainers would
    /// overwrite each other's files. One without, of the same launch, is ended instead: its launcher has replaced it.
    pub(super) async fn begin(tiers: &Tiers) -> Result<(Self, Option<TrainerLock>)> {
        let place = &tiers.writer.place;
        let launch = tiers.writer.launch.as_ref().map(ToString::to_string);
        let mut note = Self {
            vault: tiers.vault.clone(),
            run: tiers.run_name().clone(),
            node: place.node().clone(),
            remotes: tiers.upload_remotes(),
            start: new_start(StartedProgram::Trainer, place.node().clone(), launch),
            output: tiers.output.clone(),
        };
        let Some(vault) = note.vault.clone() else {
            return Ok((note, None));
        };
        let (run, start) = (note.run.clone(), note.start.clone());
        let begun = blocking(move || {
            let mut ended = Vec::new();
            // An unreadable history counts as empty.
            for earlier in vault.starts(&run).unwrap_or_default() {
                let Some(trainer) = orphan(&earlier) else { continue };
                let is_of_this_launch = earlier.launch.is_some() && earlier.launch == start.launch;
                if !is_of_this_launch || !process::end(trainer, ORPHAN_GRACE) {
                    return Ok(Err(still_runs(trainer.id)));
                }
                ended.push(trainer.id);
            }
            match vault.lock_trainer(&run) {
                Err(error) if error.kind() == ErrorKind::Held => Ok(Err(error)),
                lock => {
                    let lock = lock?;
                    Ok(Ok((lock, vault.note_start(&run, &start), ended)))
                }
            }
        });
        let (lock, fault, ended) = match begun.await {
            Ok(Ok((lock, noted, ended))) => (Some(lock), noted.err(), ended),
            Ok(Err(refusal)) => return Err(refusal),
            Err(error) => (None, Some(error), Vec::new()),
        };
        for trainer in ended {
            tiers.output.warn(&format!(
                "ended process {trainer}: it is the trainer of an earlier start of this launch, whose 'stepvault run' was \
                 killed"
            ));
        }
        if let Some(error) = fault {
            note.vault = None;
            tiers.output.warn(&format!("cannot record this start: {error}"));
        }
        Ok((note, lock))
    }

    /// Changes the record.
    pub(super) async fn change(&mut self, change: impl Fn(&mut Start) + Send + 'static) {
        change(&mut self.start);
        let Some(vault) = self.vault.clone() else {
            return;
        };
        let (run, id) = (self.run.clone(), self.start.id.clone());
        if let Err(error) = blocking(move || vault.change_start(&run, &id, change)).await {
            self.output.warn(&format!("cannot record this start: {error}"));
        }
    }

    /// Imports this node's history from the remotes, for a vault on a new disk.
    pub(super) async fn adopt(&self, known: &[Start]) {
        let Some(vault) = self.vault.clone() else {
            return;
        };
        let own: Vec<Start> = known.iter().filter(|start| start.node == self.node).cloned().collect();
        let run = self.run.clone();
        if let Err(error) = blocking(move || vault.adopt_starts(&run, own)).await {
            tracing::debug!(%error, "cannot import the history from the remotes");
        }
    }

    /// Copies the history to the remotes, for nodes whose disks are lost with them. Gives up at a timeout.
    pub(super) async fn copy(self) {
        let Some(vault) = self.vault.clone() else {
            return;
        };
        let run = self.run.clone();
        let copied = async {
            let starts = blocking(move || vault.starts(&run)).await.unwrap_or_default();
            write_starts(&self.remotes, &self.node, &starts).await
        };
        let faults = tokio::time::timeout(COPY_DEADLINE, copied).await;
        for fault in faults.unwrap_or_else(|_| vec!["timed out".to_owned()]) {
            tracing::debug!(fault, "cannot copy the history of starts to every remote");
        }
    }
}

fn still_runs(trainer: u32) -> Error {
    Error::new(ErrorKind::Held, "the trainer of an earlier start still runs")
        .on(format!("process {trainer}"))
        .because("the 'stepvault run' that started it was killed, and the trainer was not")
        .hint(format!(
            "end it and its child processes: kill -TERM -- -{trainer}; a second trainer would write into the same directory"
        ))
}

/// Returns a trainer that still runs although the `stepvault run` that started it does not.
fn orphan(start: &Start) -> Option<&Process> {
    let trainer = start.trainer.as_ref().filter(|_| start.end.is_none())?;
    let is_kept = start.process.as_ref().is_none_or(process::is_running);
    (!is_kept && process::is_running(trainer)).then_some(trainer)
}
