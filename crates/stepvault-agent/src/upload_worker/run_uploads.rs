//! The uploads of one run to one remote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::Result;
use stepvault_core::config::RunSettings;
use stepvault_core::ids::StepId;
use stepvault_core::observe::Event;
use stepvault_engine::exclusive::{ExclusiveRun, Purpose};
use stepvault_engine::tier::run_remote::RunRemote;
use stepvault_engine::upload::UploadSession;
use stepvault_local::sealed::SealedStep;
use tokio::time::Instant;

use super::deferral::retention_would_drop;
use super::missing_parts::MissingParts;
use crate::attempts::OpenRun;
use crate::backlog::Backlog;
use crate::drain::Telling;
use crate::pause::Pause;
use crate::report::StepOnRemote;
use crate::shared::Shared;

/// The uploads of one run to one remote.
#[derive(Debug)]
pub(crate) struct RunUploads {
    pub(super) remote: RunRemote,
    /// Determines the run's attempts.
    pub(super) attempts: Arc<OpenRun>,
    pub(super) settings: RunSettings,
    pub(super) connection: Connection,
    pub(super) pause: Pause,
    /// Whether the remote was unreachable and this service, which is about to end, does not wait for it.
    pub(super) given_up: bool,
    pub(super) tries: BTreeMap<StepId, Tries>,
    pub(super) missing_parts: MissingParts,
    /// Steps that retention would remove anyway, when time is short.
    pub(super) deferred: BTreeSet<StepId>,
    /// What other nodes are told of these uploads.
    pub(super) telling: Telling,
    /// When to compare next what the vault takes for durable with what the remote lists.
    pub(super) compares_at: Instant,
}

/// What is open between a run and a remote.
#[derive(Debug, Default)]
pub(super) struct Connection {
    /// Opened for the first step.
    pub(super) session: Option<UploadSession>,
    /// The exclusive right, once taken.
    pub(super) held: Option<ExclusiveRun>,
    /// Whether the remote was unreachable since it was last verified.
    pub(super) was_out: bool,
    /// How often no remote of the run had answered when this one last did.
    pub(super) outages: u64,
}

#[derive(Debug, Default)]
pub(super) struct Tries {
    pub(super) pause: Pause,
    /// Whether it is not retried before this service ends. A lasting service gives nothing up.
    pub(super) given_up: bool,
}

impl RunUploads {
    pub(crate) fn new(remote: RunRemote, settings: RunSettings, attempts: Arc<OpenRun>) -> Self {
        Self {
            remote,
            attempts,
            settings,
            connection: Connection::default(),
            pause: Pause::default(),
            given_up: false,
            tries: BTreeMap::new(),
            missing_parts: MissingParts::default(),
            deferred: BTreeSet::new(),
            telling: Telling::default(),
            compares_at: Instant::now(),
        }
    }

    /// Takes the exclusive right to write the run, if configured.
    ///
    /// # Errors
    /// [`ErrorKind::Held`](stepvault_core::ErrorKind::Held) while another job has it.
    pub(super) async fn hold(&mut self, shared: &Shared) -> Result<()> {
        let held = &mut self.connection.held;
        if self.settings.exclusive && !held.as_ref().is_some_and(ExclusiveRun::is_current) {
            *held = None;
            let (vault, writer) = (&shared.vault.vault, &shared.options.writer);
            *held = Some(ExclusiveRun::take(&self.remote, vault, writer, Purpose::Upload).await?);
        }
        Ok(())
    }

    pub(super) fn on_remote(&self, id: StepId) -> StepOnRemote {
        StepOnRemote::new(self.remote.keys.run(), id, self.remote.name())
    }

    /// Forgets the failures of the remote, and those of a step.
    pub(super) fn succeeded(&mut self, id: StepId) {
        self.pause.clear();
        self.tries.remove(&id);
    }

    /// Returns the waiting steps that are not given up, and those of them that are deferred.
    pub(super) fn waiting(
        &mut self,
        shared: &Shared,
        backlog: &Backlog,
    ) -> (BTreeSet<StepId>, BTreeSet<StepId>) {
        let sealed: BTreeSet<StepId> = backlog.sealed.iter().map(SealedStep::id).collect();
        self.tries.retain(|id, _| sealed.contains(id));
        self.missing_parts.forget_all_but(&sealed);
        let (run, remote, reporter) = (self.remote.keys.run(), self.remote.name(), &shared.reporter);
        reporter.status.forget_all_but(run, remote, &sealed);
        reporter.status.backlog(run, remote, &backlog.not_durable);
        let mut waiting = backlog.missing.clone();
        waiting.retain(|id| !self.tries.get(id).is_some_and(|tries| tries.given_up));
        let mut deferred = BTreeSet::new();
        if waiting.len() <= shared.options.upload.maximum_backlog_steps as usize {
            return (waiting, deferred);
        }
        let dropped = retention_would_drop(
            &self.remote.tier,
            &self.settings.keep_remote,
            &backlog.sealed,
            &waiting,
            &backlog.pins,
        );
        for (id, why) in dropped {
            let reason = format!(
                "{} steps wait for {remote}: this one is deferred because retention would remove it there ({why})",
                waiting.len(),
            );
            if reporter.status.defer(&self.on_remote(id), &reason) {
                reporter.observer.on_event(&Event::Skipped { tier: &self.remote.tier, id, reason: &reason });
            }
            deferred.insert(id);
        }
        (waiting, deferred)
    }
}
