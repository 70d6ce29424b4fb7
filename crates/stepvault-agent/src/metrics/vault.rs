//! Metrics of the vault's content, and of the steps in it that wait.

use std::hash::Hash;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::sealed::SealedStep;
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::{OnRun, OnRunRemote, Seconds, register, set, whole};
use crate::backlog::is_durable;
use crate::remotes::ServedRun;
use stepvault_local::clock::SystemClock;

#[derive(Debug)]
pub(super) struct VaultGauges {
    bytes: Gauge,
    steps: Family<OnRun, Gauge>,
    newest_step: Family<OnRun, Gauge>,
    disk_free_bytes: Gauge,
    disk_total_bytes: Gauge,
    durable_step: Family<OnRunRemote, Gauge>,
    steps_waiting: Family<OnRunRemote, Gauge>,
    waiting_bytes: Family<OnRunRemote, Gauge>,
    oldest_waiting: Family<OnRunRemote, Seconds>,
}

impl VaultGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            bytes: register(
                registry,
                "vault_bytes",
                "Bytes of the sealed steps of all served runs",
            ),
            steps: register(registry, "vault_steps", "Sealed steps"),
            newest_step: register(
                registry,
                "newest_step",
                "Number of the newest sealed step; absent if there is none",
            ),
            disk_free_bytes: register(
                registry,
                "disk_free_bytes",
                "Free bytes on the vault's file system",
            ),
            disk_total_bytes: register(
                registry,
                "disk_total_bytes",
                "Size of the vault's file system in bytes",
            ),
            durable_step: register(
                registry,
                "durable_step",
                "Number of the newest step in the vault that is durable on the remote; absent if there is none",
            ),
            steps_waiting: register(
                registry,
                "steps_waiting",
                "Sealed steps that are not durable on the remote",
            ),
            waiting_bytes: register(
                registry,
                "waiting_bytes",
                "Bytes of the sealed steps that are not durable on the remote",
            ),
            oldest_waiting: register(
                registry,
                "oldest_waiting_age_seconds",
                "Seconds since the oldest step that is not durable on the remote was written; 0 if there is none",
            ),
        }
    }

    /// Reads the vault. Blocks.
    pub(super) fn read(&self, vault: &Vault, runs: &[ServedRun]) -> Result<()> {
        let now = SystemClock.now();
        let disk = space::free(vault.root())?;
        self.disk_free_bytes.set(whole(disk.free_bytes));
        self.disk_total_bytes.set(whole(disk.total_bytes));
        let mut all_bytes = 0_u64;
        for served in runs {
            let steps = vault.steps(&served.run)?.steps;
            all_bytes = all_bytes.saturating_add(bytes_of(&steps));
            let labels = OnRun::new(&served.run);
            set(&self.steps, &labels, steps.len() as u64);
            set_newest(&self.newest_step, &labels, steps.last());
            for remote in &served.remotes {
                let labels = OnRunRemote::new(&served.run, remote.name());
                let (durable, waiting): (Vec<_>, Vec<_>) =
                    steps.iter().partition(|step| is_durable(step, remote));
                set_newest(&self.durable_step, &labels, durable.last().copied());
                set(&self.steps_waiting, &labels, waiting.len() as u64);
                set(&self.waiting_bytes, &labels, bytes_of(waiting.iter().copied()));
                let oldest = waiting.iter().map(|step| step.record().written_at).min();
                self.oldest_waiting
                    .get_or_create(&labels)
                    .set(oldest.map_or(0.0, |written_at| age_seconds(now, written_at)));
            }
        }
        self.bytes.set(whole(all_bytes));
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
    #[expect(
        clippy::cast_precision_loss,
        reason = "whole seconds are exact for millions of years"
    )]
    let age = now.seconds_since(written_at) as f64;
    age
}
