//! Copies to the selective remotes what they wait for. Uploads come first: nothing is copied while one makes progress.

use std::sync::Arc;
use std::time::Duration;

use stepvault_core::{Error, ErrorKind, Event, Observer, Result, RunName};
use stepvault_engine::RunRemote;
use stepvault_engine::copy::{
    CopyChoice, CopyContext, CopyOutcome, CopyPlan, CopyReport, copy_steps, plan_copy,
};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::upload::CommonStore;
use stepvault_remote::open::OpenOptions;

use crate::remotes::on_remote;
use crate::shared::Shared;

/// Interval at which a copy looks whether an upload makes progress.
const UPLOADS_POLL: Duration = Duration::from_secs(1);

/// A run on a selective remote, and on the remote that feeds it.
#[derive(Debug)]
struct FedRun {
    from: RunRemote,
    to: RunRemote,
}

/// The task that feeds the selective remotes, on the first node of a job: the others would send the same.
#[derive(Debug)]
pub(crate) struct TierTask {
    shared: Arc<Shared>,
    budget: MemoryBudget,
    runs: Vec<FedRun>,
}

impl TierTask {
    pub(crate) fn new(shared: &Arc<Shared>, budget: MemoryBudget) -> Self {
        let (options, vault) = (&shared.options, &shared.vault.vault);
        let place = &options.writer.place;
        let is_first = place.nodes().iter().next() == Some(place.node());
        let mut runs = Vec::new();
        for run in options.runs.iter().filter(|_| is_first) {
            for to in options.selective_of(run) {
                let mut sources = options.remotes_of(run);
                if let Some(from) = sources.find(|from| to.settings.is_fed_by(&from.settings.name)) {
                    let [from, to] = [from, to].map(|remote| on_remote(&run.name, remote, vault));
                    runs.push(FedRun { from, to });
                }
            }
        }
        Self { shared: Arc::clone(shared), budget, runs }
    }

    /// Copies every interval, until told to stop.
    pub(crate) async fn work(self) {
        let interval = self.shared.options.agent.retention_interval;
        while !self.runs.is_empty() {
            tokio::select! {
                () = self.shared.drain.stop.wait() => return,
                () = tokio::time::sleep(interval) => {}
            }
            self.apply().await;
        }
    }

    /// Copies what is due of each run, once, until told to stop: what was copied of a step is kept. Faults are warned of,
    /// and retried the next time.
    pub(crate) async fn apply(&self) {
        tokio::select! {
            biased;
            () = self.shared.drain.stop.wait() => {}
            () = self.copy_all() => {}
        }
    }

    async fn copy_all(&self) {
        for run in &self.runs {
            loop {
                self.uploads_progress(false).await;
                tokio::select! {
                    biased;
                    copied = self.copy(run) => {
                        self.report(run, copied);
                        break;
                    }
                    () = self.uploads_progress(true) => {}
                }
            }
        }
    }

    /// Waits until some upload makes progress, or none does.
    async fn uploads_progress(&self, wanted: bool) {
        let status = &self.shared.reporter.status;
        let progresses =
            || self.shared.options.runs.iter().any(|run| !status.progressing(&run.name).is_empty());
        while progresses() != wanted {
            tokio::time::sleep(UPLOADS_POLL).await;
        }
    }

    async fn copy(&self, FedRun { from, to }: &FedRun) -> Result<CopyReport> {
        let Some(selection) = to.settings.selection.clone() else {
            return Ok(CopyReport::default());
        };
        let observer: Arc<dyn Observer> = Arc::new(MessagesOnly(Arc::clone(&self.shared.reporter.observer)));
        let options = OpenOptions::default();
        let context = CopyContext {
            common: CommonStore::open(&from.settings, &to.settings, Arc::clone(&observer), options).await?,
            from: from.clone(),
            to: to.clone(),
            budget: self.budget.clone(),
            observer,
            choice: CopyChoice::Selected(selection),
        };
        let vault = &self.shared.vault.vault;
        context.begin(vault).await?;
        let plan = plan_copy(&context).await?;
        if plan.copies_something() {
            return copy_steps(&context, vault, plan).await;
        }
        Ok(CopyPlan::as_report(plan))
    }

    fn report(&self, FedRun { from, to }: &FedRun, copied: Result<CopyReport>) {
        let (reporter, run): (_, &RunName) = (&self.shared.reporter, from.keys.run());
        let about = format!("copies {run} {}", to.name());
        let warn = |error: &Error| {
            let text = format!("{run}, remote {}: cannot copy from {}: {error}", to.name(), from.name());
            reporter.warn_once(&about, &text);
        };
        match copied {
            Ok(report) => {
                for step in report.steps.iter().filter(|step| matches!(step.result, Ok(CopyOutcome::Copied)))
                {
                    let (id, from, to) = (step.step.id, from.name(), to.name());
                    reporter.info(&format!("{run}: copied {id} from {from} to {to}"));
                }
                match report.steps.iter().find_map(|step| step.result.as_ref().err()) {
                    Some(error) => warn(error),
                    None => reporter.resolved(&about),
                }
            }
            // Nothing was uploaded yet, or another process copies.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Held) => {
                tracing::debug!(%run, %error, "nothing is copied to a selective remote now");
            }
            Err(error) => warn(&error),
        }
    }
}

/// Passes messages on. An operation that uploads interrupt would never be reported as ended.
#[derive(Debug)]
struct MessagesOnly(Arc<dyn Observer>);

impl Observer for MessagesOnly {
    fn on_event(&self, event: &Event<'_>) {
        if matches!(event, Event::Info { .. } | Event::Warning { .. }) {
            self.0.on_event(event);
        }
    }
}
