//! Reads the metrics of the vault's content.

use std::hash::Hash;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::sealed::SealedStep;
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::tables::{VaultMetrics, of_both, of_run, set, whole};
use crate::backlog::is_durable;
use crate::remotes::ServedRun;
use stepvault_local::clock::SystemClock;

impl VaultMetrics {
    /// Reads the vault. Blocks.
    pub(super) fn read(&self, vault: &Vault, runs: &[ServedRun]) -> Result<()> {
        let now = SystemClock.now();
        let disk = space::free(vault.root())?;
        self.disk_free_bytes.set(whole(disk.free_bytes));
        self.disk_total_bytes.set(whole(disk.total_bytes));
        let mut all_bytes = 0_u64;
        for served in runs {
            let steps = vault.steps(served.name())?.steps;
            all_bytes = all_bytes.saturating_add(bytes_of(&steps));
            let labels = of_run(served.name());
            set(&self.vault_steps, &labels, steps.len() as u64);
            set_newest(&self.newest_step, &labels, steps.last());
            for remote in &served.remotes {
                let labels = of_both(served.name(), remote.name());
                let (durable, waiting): (Vec<_>, Vec<_>) =
                    steps.iter().partition(|step| is_durable(step, remote));
                set_newest(&self.durable_step, &labels, durable.last().copied());
                set(&self.steps_waiting, &labels, waiting.len() as u64);
                set(&self.waiting_bytes, &labels, bytes_of(waiting.iter().copied()));
                let oldest = waiting.iter().map(|step| step.record().written_at).min();
                self.oldest_waiting_age_seconds
                    .get_or_create(&labels)
                    .set(oldest.map_or(0.0, |written_at| age_seconds(now, written_at)));
            }
        }
        self.vault_bytes.set(whole(all_bytes));
        Ok(())
    }
}

fn bytes_of<'a>(steps: impl IntoIterator<Item = &'a SealedStep>) -> u64 {
    let bytes = steps.into_iter().map(|step| step.record().data_bytes());
    bytes.fold(0, u64::saturating_add)
}

/// Sets the gauge to the step's number, or removes it.
fn set_newest<Labels>(gauges: &Family<Labels, Gauge>, labels: &Labels, step: Option<&SealedStep>)
where
    Labels: Clone + Eq + Hash,
{
    match step {
        Some(newest) => set(gauges, labels, newest.id().step.number()),
        None => {
            gauges.remove(labels);
        }
    }
}

fn age_seconds(now: Timestamp, written_at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "whole seconds are exact for millions of years")]
    let age = now.seconds_since(written_at) as f64;
    age
}
