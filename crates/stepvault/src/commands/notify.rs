//! Notifications of what commands find, beside those of the agent.

use stepvault_agent::notifications::{LAST_MOMENTS, Notifier, Occurrence};
use stepvault_core::RunName;
use stepvault_core::config::NotifyEvent;
use stepvault_engine::restore::RestorePlan;
use tokio::time::Instant;

use crate::context::Tiers;

/// Starts notifying the configured targets.
pub(super) fn notifier(tiers: &Tiers) -> Notifier {
    let targets = &tiers.settings.config.notify;
    let node = tiers.writer.place.node().clone();
    Notifier::start(targets, node, tiers.vault.clone(), tiers.observer())
}

/// Notifies the targets, and waits a few seconds at most.
pub(super) async fn notify(tiers: &Tiers, occurrence: Option<Occurrence>) {
    if let Some(occurrence) = occurrence {
        let notifier = notifier(tiers);
        notifier.notify(occurrence);
        notifier.finish(Instant::now() + LAST_MOMENTS).await;
    }
}

/// Returns what to notify of if a restore took an older step because newer ones are damaged.
pub(super) fn restored_older(run: &RunName, plan: &RestorePlan) -> Option<Occurrence> {
    let damaged = || plan.skipped.iter().filter(|step| step.damaged && !step.unread);
    let newest = damaged().next()?;
    let more = match damaged().count() {
        1 => String::new(),
        count => format!("; {count} damaged steps were skipped"),
    };
    let message = format!("restored {} instead of {newest}{more}", plan.id);
    let cause = format!("{} instead of {}", plan.id, newest.id);
    Some(Occurrence::new(NotifyEvent::RestoredOlder, run, message).step(plan.id).cause(cause))
}
