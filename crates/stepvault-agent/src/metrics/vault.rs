//! Metrics of the vault's content, and of the steps in it that wait.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::Result;
use stepvault_core::clock::Clock as _;
use stepvault_core::timestamp::Timestamp;
use stepvault_local::space;
use stepvault_local::vault::Vault;

use super::{OnRun, OnRunRemote, Seconds, whole};
use crate::clock::SystemClock;
use crate::control::ServedRun;
use crate::lane::is_durable;

#[derive(Debug, Default)]
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
        let gauges = Self::default();
        registry.register(
            "vault_bytes",
            "Bytes of the sealed steps of all served runs",
            gauges.bytes.clone(),
        );
        registry.register("vault_steps", "Sealed steps", gauges.steps.clone());
        registry.register(
            "newest_step",
            "Number of the newest sealed step; absent if there is none",
            gauges.newest_step.clone(),
        );
        registry.register(
            "disk_free_bytes",
            "Free bytes on the vault's file system",
            gauges.disk_free_bytes.clone(),
        );
        registry.register(
            "disk_total_bytes",
            "Size of the vault's file system in bytes",
            gauges.disk_total_bytes.clone(),
        );
        registry.register(
            "durable_step",
            "Number of the newest step in the vault that is durable on the remote; absent if there is none",
            gauges.durable_step.clone(),
        );
        registry.register(
            "steps_waiting",
            "Sealed steps that are not durable on the remote",
            gauges.steps_waiting.clone(),
        );
        registry.register(
            "waiting_bytes",
            "Bytes of the sealed steps that are not durable on the remote",
            gauges.waiting_bytes.clone(),
        );
        registry.register(
            "oldest_waiting_age_seconds",
            "Seconds since the oldest step that is not durable on the remote was written; 0 if there is none",
            gauges.oldest_waiting.clone(),
        );
        gauges
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
            all_bytes = steps.iter().fold(all_bytes, |sum, step| {
                sum.saturating_add(step.record().data_bytes())
            });
            let labels = OnRun {
                run: served.run.to_string(),
            };
            self.steps.get_or_create(&labels).set(whole(steps.len() as u64));
            match steps.last() {
                Some(newest) => {
                    let number = newest.id().step.number();
                    self.newest_step.get_or_create(&labels).set(whole(number));
                }
                None => {
                    self.newest_step.remove(&labels);
                }
            }
            for remote in &served.remotes {
                let labels = OnRunRemote::new(&served.run, remote.name());
                let (durable, waiting): (Vec<_>, Vec<_>) =
                    steps.iter().partition(|step| is_durable(step, remote));
                match durable.last() {
                    Some(newest) => {
                        let number = newest.id().step.number();
                        self.durable_step.get_or_create(&labels).set(whole(number));
                    }
                    None => {
                        self.durable_step.remove(&labels);
                    }
                }
                let bytes = waiting
                    .iter()
                    .fold(0_u64, |sum, step| sum.saturating_add(step.record().data_bytes()));
                let oldest = waiting.iter().map(|step| step.record().written_at).min();
                self.steps_waiting
                    .get_or_create(&labels)
                    .set(whole(waiting.len() as u64));
                self.waiting_bytes.get_or_create(&labels).set(whole(bytes));
                self.oldest_waiting
                    .get_or_create(&labels)
                    .set(oldest.map_or(0.0, |written_at| age_seconds(now, written_at)));
            }
        }
        self.bytes.set(whole(all_bytes));
        Ok(())
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
