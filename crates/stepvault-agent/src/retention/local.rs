//! Eviction of local copies that are safe elsewhere.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::Result;
use stepvault_core::ids::RunName;
use stepvault_core::observe::Event;
use stepvault_core::retention::{
    KeepRules, LocalLimits, RefusalKind, RetentionPlan, Verdict, evict_for_space,
};
use stepvault_core::room::Room;
use stepvault_engine::blocking::blocking;
use stepvault_engine::prune::{LocalPrune, evict_planned, plan_local};
use stepvault_engine::run_remote::RunRemote;
use stepvault_local::space;

use super::admission::{Need, needs, shortfall, wanted_bytes};
use crate::occupied::Place;
use crate::report::RunStep;
use crate::shared::Shared;

/// One run on the local tier.
#[derive(Debug)]
pub(crate) struct LocalRun {
    pub(crate) run: RunName,
    /// Where its trainer writes.
    pub(crate) watched: Option<PathBuf>,
    pub(crate) rules: KeepRules,
    /// Its remotes, such that asking them takes no longer than it may.
    pub(crate) remotes: Vec<RunRemote>,
}

/// Retention on the local tier, over all runs.
#[derive(Debug)]
pub(crate) struct LocalRetention {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runs: Vec<LocalRun>,
    pub(crate) limits: LocalLimits,
    pub(crate) interval: Duration,
}

impl LocalRetention {
    /// Applies retention whenever a step has become durable or space is missing, and regularly, until told to stop.
    pub(crate) async fn work(self) {
        loop {
            tokio::select! {
                () = self.shared.stopping.wait() => return,
                () = self.shared.evict.notified() => {}
                () = tokio::time::sleep(self.interval) => {}
            }
            self.apply().await;
        }
    }

    /// Applies retention once. What goes wrong is warned of, and tried again the next time.
    pub(crate) async fn apply(&self) {
        if let Err(error) = self.try_apply().await {
            self.shared
                .warn("eviction", &format!("no local copy was evicted: {error}"));
        }
    }

    async fn try_apply(&self) -> Result<()> {
        let missing_bytes = self.shared.missing_bytes.swap(0, Ordering::Relaxed);
        let needs = self.needs().await;
        let limits = self.limits_for(missing_bytes, &needs).await?;
        let nothing_to_do =
            limits == LocalLimits::default() && self.runs.iter().all(|run| run.rules.is_unset());
        if nothing_to_do {
            self.tell_what_is_short(needs).await;
            return Ok(());
        }
        let mut prunes = Vec::new();
        let mut plans = Vec::new();
        for run in &self.runs {
            let prune = self.prune_of(run);
            match plan_local(&prune).await {
                Ok(plan) => {
                    plans.push(plan);
                    prunes.push(prune);
                }
                Err(error) => self.complain(&run.run, &error.to_string()),
            }
        }
        let free_bytes = self.room().await?.free_bytes;
        evict_for_space(&mut plans, &limits, Some(free_bytes));
        for (prune, mut plan) in prunes.into_iter().zip(plans) {
            let texts: Vec<&str> = plan
                .warnings
                .iter()
                .chain(refusal_worth_telling(&plan))
                .map(String::as_str)
                .collect();
            if !texts.is_empty() {
                self.complain(&prune.run, &texts.join("; "));
            }
            let _places = self.occupy(&prune.run, &mut plan);
            match evict_planned(&prune, plan).await {
                Ok(report) => report
                    .removed
                    .iter()
                    .for_each(|id| self.shared.board.evicted(&prune.run, *id)),
                Err(error) => self.complain(&prune.run, &error.to_string()),
            }
        }
        self.tell_what_is_short(needs).await;
        Ok(())
    }

    /// What the next steps take, and where.
    async fn needs(&self) -> Vec<Need> {
        let mut all = Vec::new();
        for run in &self.runs {
            let Some(watched) = run.watched.clone() else {
                continue;
            };
            let (vault, name) = (self.shared.vault.clone(), run.run.clone());
            match blocking(move || needs(&vault, &name, &watched)).await {
                Ok(needs) => all.extend(needs),
                Err(error) => tracing::info!(%error, run = %run.run, "nothing can be said of the next step"),
            }
        }
        all
    }

    /// Warns of the steps for which there is no room, when all that may be evicted is.
    async fn tell_what_is_short(&self, needs: Vec<Need>) {
        for need in needs {
            let about = format!("next step {} {}", need.run, need.place.display());
            let short = blocking(move || shortfall(&need)).await;
            match short {
                // How much is free changes all the time; that it is not enough is the news.
                Ok(Some(text)) if self.shared.board.is_news(&about, "short") => {
                    self.shared.observer.on_event(&Event::Warning { message: &text });
                }
                Ok(Some(_)) => {}
                Ok(None) => self.shared.board.is_well(&about),
                Err(error) => tracing::info!(%error, "nothing can be said of the next step"),
            }
        }
    }

    /// The configured limits, and at least room for the next steps; while the disk is too full to seal, they make room
    /// for the step that found it so.
    async fn limits_for(&self, missing_bytes: u64, needs: &[Need]) -> Result<LocalLimits> {
        let room = self.room().await?;
        let mut wanted_bytes = wanted_bytes(needs, room);
        if missing_bytes > 0 {
            // The mark counts what is free now as well, which was not enough.
            wanted_bytes = wanted_bytes.max(room.free_bytes.saturating_add(missing_bytes));
        }
        if wanted_bytes <= room.free_bytes {
            return Ok(self.limits);
        }
        let wanted_bytes = wanted_bytes.max(self.limits.free_space_low_bytes.unwrap_or(0));
        let high = self
            .limits
            .free_space_high_bytes
            .map(|high| high.max(wanted_bytes));
        Ok(LocalLimits {
            free_space_low_bytes: Some(wanted_bytes),
            free_space_high_bytes: high,
            ..self.limits
        })
    }

    async fn room(&self) -> Result<Room> {
        let root: PathBuf = self.shared.vault.root().to_owned();
        blocking(move || space::free(&root)).await
    }

    fn prune_of(&self, run: &LocalRun) -> LocalPrune {
        LocalPrune {
            vault: self.shared.vault.clone(),
            run: run.run.clone(),
            remotes: run.remotes.clone(),
            rules: run.rules.clone(),
            // Over all runs at once, below.
            limits: LocalLimits::default(),
            maximum_deletions: None,
            observer: Arc::clone(&self.shared.observer),
        }
    }

    /// Keeps lanes away from what goes, and spares what a lane is at.
    fn occupy(&self, run: &RunName, plan: &mut RetentionPlan) -> Vec<Place> {
        let mut places = Vec::new();
        for decision in plan
            .decisions
            .iter_mut()
            .filter(|decision| decision.verdict == Verdict::Drop)
        {
            if let Some(place) = self.shared.occupied.for_eviction(RunStep {
                run: run.clone(),
                id: decision.id,
            }) {
                places.push(place);
            } else {
                decision.verdict = Verdict::Keep;
                decision.reasons = vec!["being uploaded".to_owned()];
            }
        }
        places
    }

    fn complain(&self, run: &RunName, text: &str) {
        self.shared
            .warn(&format!("eviction {run}"), &format!("{run}, local tier: {text}"));
    }
}

/// An empty tier is no news.
fn refusal_worth_telling(plan: &RetentionPlan) -> Option<&String> {
    let refusal = plan
        .refusal
        .as_ref()
        .filter(|refusal| refusal.kind != RefusalKind::ListingEmpty)?;
    Some(&refusal.reason)
}
