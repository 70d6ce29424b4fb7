//! The metrics by name, with type and help, and their labels.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stepvault_core::forecast::{Taken, next_step};
use stepvault_core::{RemoteName, Result, RunName, StepId, Timestamp};
use stepvault_local::{SealedStep, Vault, clock, space};

use super::labels::{Labels, of_both};
use crate::agent_status::NewestDurable;
use crate::backlog::is_durable;
use crate::remotes::ServedRun;

pub(super) type Seconds = Gauge<f64, AtomicU64>;

/// By run, by remote, or by tier.
pub(super) type ByOne<Metric> = Family<Labels<1>, Metric>;
/// By run and remote.
pub(super) type ByRunAndRemote<Metric> = Family<Labels<2>, Metric>;
/// By run, remote and kind of error.
pub(super) type ByError<Metric> = Family<Labels<3>, Metric>;

pub(super) fn of_run(run: &RunName) -> Labels<1> {
    [("run", run.to_string())]
}

pub(super) fn of_remote(remote: &RemoteName) -> Labels<1> {
    [("remote", remote.to_string())]
}

pub(super) fn of_tier(tier: &impl ToString) -> Labels<1> {
    [("tier", tier.to_string())]
}

pub(super) fn of_error(run: &RunName, remote: &RemoteName, kind: &str) -> Labels<3> {
    let [run, remote] = of_both(run, remote);
    [run, remote, ("kind", kind.to_owned())]
}

pub(super) fn of_run_and_tier(run: &RunName, tier: &impl ToString) -> Labels<2> {
    [("run", run.to_string()), ("tier", tier.to_string())]
}

pub(super) fn seconds(time: Timestamp) -> f64 {
    float(time.seconds) + f64::from(time.nanoseconds) / 1e9
}

pub(super) fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn float(seconds: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "whole seconds are exact for millions of years")]
    let float = seconds as f64;
    float
}

pub(super) fn set<const N: usize>(gauges: &Family<Labels<N>, Gauge>, labels: &Labels<N>, value: u64) {
    gauges.get_or_create(labels).set(whole(value));
}

/// Sets a counter to what was counted elsewhere.
pub(super) fn store<const N: usize>(counters: &Family<Labels<N>, Counter>, labels: &Labels<N>, value: u64) {
    let counter = counters.get_or_create(labels);
    counter.inner().store(value, Ordering::Relaxed);
}

/// Declares a group of metrics: a field for each, which has the metric's name. `register` registers them in order.
macro_rules! metrics {
    ($(#[$doc:meta])* $group:ident { $($name:ident: $kind:ty = $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub(super) struct $group {
            $(pub(super) $name: $kind,)*
        }

        impl $group {
            pub(super) fn register(registry: &mut Registry) -> Self {
                let group = Self::default();
                $(registry.register(stringify!($name), $help, group.$name.clone());)*
                group
            }
        }
    };
}

metrics! {
    /// Metrics of the vault's content, and of the steps in it that wait.
    VaultMetrics {
        vault_bytes: Gauge = "Bytes of the sealed steps of all served runs",
        vault_steps: ByOne<Gauge> = "Sealed steps",
        newest_step: ByOne<Gauge> = "Number of the newest sealed step; absent if there is none",
        durable_step_age_seconds: ByRunAndRemote<Seconds> =
            "Seconds since the newest step that is known to be durable on the remote was written; absent until the first one",
        newest_step_timestamp_seconds: ByOne<Seconds> =
            "Time at which the newest step in the vault was written, in seconds since 1970; absent until the first one",
        next_step_bytes: ByOne<Gauge> =
            "Bytes that the next step is expected to take, from the last three; 0 without steps",
        disk_free_bytes: Gauge = "Free bytes on the vault's file system",
        disk_total_bytes: Gauge = "Size of the vault's file system in bytes",
        durable_step: ByRunAndRemote<Gauge> =
            "Number of the newest step that is known to be durable on the remote; absent until the first one",
        steps_waiting: ByRunAndRemote<Gauge> = "Sealed steps that are not durable on the remote",
        waiting_bytes: ByRunAndRemote<Gauge> = "Bytes of the sealed steps that are not durable on the remote",
        oldest_waiting_age_seconds: ByRunAndRemote<Seconds> =
            "Seconds since the oldest step that is not durable on the remote was written; 0 if there is none",
    }
}

metrics! {
    /// Metrics that count the events of an agent.
    AgentEvents {
        sealed_steps: Counter = "Steps sealed into the vault since the agent started",
        uploaded_bytes: ByOne<Counter> =
            "Checkpoint bytes sent to the remote, and read back from it to verify a step again",
        copied_bytes: ByOne<Counter> =
            "Checkpoint bytes that the remote copied from an earlier step and that were not sent",
        dropped_spans: Counter = "Spans of traces that were not delivered to the collector",
        durable_steps: ByOne<Counter> = "Steps that became durable on the remote since the agent started",
        removed_steps: ByOne<Counter> =
            "Steps that retention removed from the tier, which is 'local' or a remote's name",
    }
}

metrics! {
    /// Metrics of the agent's status.
    StatusMetrics {
        given_up_steps: ByOne<Counter> =
            "Steps that the vault gave up before they were durable, for lack of disk space",
        upload_failures: ByRunAndRemote<Counter> =
            "Failed uploads; each is retried while the step is in the vault",
        last_durable_timestamp_seconds: ByRunAndRemote<Seconds> =
            "Time at which a step last became durable on the remote, in seconds since 1970; absent until the first one \
             since the agent started",
        remote_failing: ByRunAndRemote<Gauge> =
            "1 while uploads to the remote fail for a cause that affects the whole remote",
        unsealed_steps: ByOne<Gauge> =
            "Finished steps that are not sealed yet, for lack of space or because their files cannot be read",
        other_writers: ByOne<Gauge> =
            "Other training jobs seen writing the run within the last hour; a run belongs to one job",
        steps_failed: ByRunAndRemote<Gauge> =
            "Steps whose upload to the remote fails for a cause that needs an operator; they are retried regardless",
        remote_needs_operator: ByRunAndRemote<Gauge> =
            "1 while uploads to the remote fail for a cause that needs an operator, such as wrong credentials or a \
             missing bucket",
        upload_errors: ByError<Gauge> =
            "Errors that currently keep steps from the remote, by kind: one for the whole remote, and one for each step",
        retention_blocked: Family<Labels<2>, Gauge> =
            "1 while a guard or a refused deletion keeps retention from removing anything from the tier",
        restart_loop: Gauge =
            "1 if the agent was started repeatedly in a short time and each time ended without being asked to",
        agent_healthy: Gauge = "1 when the health check reports no problem",
    }
}

impl VaultMetrics {
    /// Reads the vault. Blocks.
    ///
    /// `newest_durable` returns what became durable since the agent started: its copy may have left the vault.
    pub(super) fn read(
        &self,
        vault: &Vault,
        runs: &[ServedRun],
        newest_durable: impl Fn(&RunName, &RemoteName) -> Option<NewestDurable>,
    ) -> Result<()> {
        let now = clock::now();
        let disk = space::free(vault.root())?;
        self.disk_free_bytes.set(whole(disk.free_bytes));
        self.disk_total_bytes.set(whole(disk.total_bytes));
        let mut all_bytes = 0_u64;
        for served in runs {
            let steps = vault.steps(served.name())?.steps;
            all_bytes = all_bytes.saturating_add(bytes_of(&steps));
            let labels = of_run(served.name());
            set(&self.vault_steps, &labels, steps.len() as u64);
            set_newest(&self.newest_step, &labels, steps.last().map(SealedStep::id));
            if let Some(newest) = steps.iter().map(|step| step.record().written_at).max() {
                self.newest_step_timestamp_seconds.get_or_create(&labels).set(seconds(newest));
            }
            let taken: Vec<Taken> = steps.iter().map(|step| step.record().taken()).collect();
            let next_bytes = next_step(&taken).map_or(0, |forecast| forecast.taken.bytes);
            set(&self.next_step_bytes, &labels, next_bytes);
            for remote in &served.remotes {
                let labels = of_both(served.name(), remote.name());
                let (durable, waiting): (Vec<_>, Vec<_>) =
                    steps.iter().partition(|step| is_durable(step, remote));
                let age_of = |written_at| float(whole(now.seconds_since(written_at)));
                let since_start = newest_durable(served.name(), remote.name());
                let newest = durable.last().map(|step| step.id());
                set_newest(&self.durable_step, &labels, newest.max(since_start.map(|newest| newest.id)));
                let newest = durable.iter().map(|step| step.record().written_at).max();
                if let Some(newest) = newest.max(since_start.map(|newest| newest.written_at)) {
                    self.durable_step_age_seconds.get_or_create(&labels).set(age_of(newest));
                }
                set(&self.steps_waiting, &labels, waiting.len() as u64);
                set(&self.waiting_bytes, &labels, bytes_of(waiting.iter().copied()));
                let oldest = waiting.iter().map(|step| step.record().written_at).min();
                self.oldest_waiting_age_seconds.get_or_create(&labels).set(oldest.map_or(0.0, age_of));
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
fn set_newest<const N: usize>(gauges: &Family<Labels<N>, Gauge>, labels: &Labels<N>, step: Option<StepId>) {
    match step {
        Some(newest) => set(gauges, labels, newest.step.number()),
        None => {
            gauges.remove(labels);
        }
    }
}
